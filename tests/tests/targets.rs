//! The targets by themselves, untraced and without root: their truths are consistent, and the numbers
//! that can be known beforehand are these. A test that compares with a wrong truth proves nothing.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{compare::sum_rule, environment, paths::marked, target};
use serde_json::Value;

/// Runs a target as `drainprof run` would start it.
fn run(name: &str, args: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(environment::target(name)?);
    let output = command.args(args).env("DRAINPROF_GO", "1").output()?;
    ensure!(output.status.success(), "{name} {args:?}: {output:?}");
    let lines: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    target::truths(&lines)
}

fn count(truth: &Value, path: &str) -> u64 {
    let pointer = format!("/allocators/0/{}", path.replace('.', "/"));
    truth.pointer(&pointer).and_then(Value::as_u64).unwrap_or(u64::MAX)
}

/// Every workload that a test uses: a target and its options.
const WORKLOADS: &[(&str, &[&str])] = &[
    ("psweep", &["closes=2000", "p=3000", "late=3", "ring=16", "failed=1000", "nulls=1000"]),
    ("psweep_plain", &[]),
    ("psweep_static", &[]),
    ("psweep_fixed", &[]),
    ("psweep_stripped", &[]),
    ("psweep_split", &[]),
    ("routing", &[]),
    ("hung_labels", &[]),
    ("brief", &["opens=20", "ms=10"]),
    ("crowd", &["threads=50", "mappings=10"]),
    ("many", &["what=callers", "n=8"]),
    ("epoch_ring", &["epochs=3000"]),
    ("epoch_ring", &["boundary=1"]),
    ("epoch_demo", &[]),
    ("misuse", &["mode=double_close"]),
    ("misuse", &["mode=reopen"]),
    ("misuse", &["mode=alloc_after_close"]),
    ("misuse", &["mode=replaced"]),
    ("misuse", &["mode=replaced_across"]),
    ("misuse", &["mode=unknown_free"]),
    ("resize", &[]),
    ("shapes", &[]),
    ("granule_calls", &[]),
    ("granule_calls", &["boundary=1"]),
    ("usdt_granules", &[]),
    ("redzone", &[]),
    ("nops", &[]),
    ("temporal_labels", &[]),
    ("temporal_cached", &[]),
    ("heaps", &["pin=1"]),
    ("heaps", &["mode=kinds"]),
    ("temporal", &["destroy=1"]),
    ("temporal_stripped", &[]),
    ("nested", &["inflight=1"]),
    ("instances", &["destroy=1"]),
    ("hooked", &[]),
    ("hooked_stripped", &["watch=1"]),
    ("halves", &["ms=50"]),
    ("refused", &[]),
    ("family", &["mode=fork"]),
    ("family", &["mode=vfork"]),
    ("family", &["mode=exec"]),
    ("family", &["mode=exec_inside"]),
    ("family", &["mode=exec_thread"]),
    ("abandon", &["mode=longjmp"]),
    ("abandon", &["mode=thread_exit"]),
    ("abandon", &["mode=thread_unwind"]),
    ("abandon", &["mode=process_exit"]),
    ("bulk", &[]),
    ("slab", &[]),
    ("slabs", &[]),
    ("slabs", &["granule=slab"]),
    ("slabs", &["damage=long"]),
    ("slabs", &["damage=cyclic"]),
    ("threads", &["events=100000"]),
    ("chaos", &["mode=drain", "children=2"]),
    ("chaos", &["mode=bulk", "fifo=1"]),
    ("chaos", &["mode=lazy", "places=4"]),
    ("chaos", &["mode=counted", "cycle=9", "jump=1"]),
    ("stacks_chaos", &["threads=8", "events=5000"]),
    ("stacks_chaos", &["threads=8", "total=40000", "own=4", "stay=0", "plain=1"]),
    ("many", &["what=granules"]),
    ("many", &["what=objects"]),
    ("many", &["what=instances", "n=20"]),
    ("many", &["what=threads", "n=16"]),
    ("many", &["what=places", "n=64"]),
    ("many", &["what=depth", "n=40"]),
    ("midrun", &[]),
    ("midrun", &["boundary=1"]),
    ("ifunc", &[]),
    ("clones", &[]),
    ("patterns", &["mode=cache", "seconds=1"]),
    ("patterns", &["mode=mixed", "seconds=1"]),
    ("patterns", &["mode=shutdown", "seconds=1"]),
    ("patterns", &["mode=unclosed", "seconds=1"]),
    ("paths", &["deep=200", "alt=1", "large=1"]),
    ("paths_fixed", &["warm=20"]),
    ("paths_static", &["fork=1"]),
    ("paths", &["kind=bulk"]),
    ("paths", &["kind=slab"]),
    ("paths_cpp", &[]),
    ("rust_paths", &[]),
    ("thousand", &["closes=1000"]),
    ("delays", &["pins=3"]),
    ("arenas_cpp", &["rounds=500"]),
    ("pmr", &["rounds=300"]),
    ("rust_bumpalo", &[]),
    ("rust_bumpalo_v0", &[]),
    ("rust_bumpalo_lto", &[]),
    ("rust_arena", &[]),
    ("rust_slab", &[]),
    ("rust_epochs", &[]),
];

/// The truths that a workload prints are consistent.
fn adds_up(name: &str, args: &[&str]) -> Result<()> {
    let truths = run(name, args)?;
    assert!(!truths.is_empty(), "{name} {args:?} printed no truth");
    for truth in &truths {
        for allocator in truth["allocators"].as_array().context("a list")? {
            let mut full = allocator.clone();
            for key in ["reopened", "destroyed"] {
                if full["granules"][key].is_null() {
                    full["granules"][key] = 0.into();
                }
            }
            assert_eq!(sum_rule(&full), None, "{name} {args:?}");
            let granules = &allocator["granules"];
            if allocator["kind"] == "drain" && !granules["pinned"].is_null() {
                let of = |key: &str| granules[key].as_u64().unwrap_or(u64::MAX / 8);
                let verdicts = of("drainable") + of("pinned") + of("unknown");
                assert_eq!(verdicts, of("closed"), "{name} {args:?}");
            }
            let retention = &allocator["retention"];
            if !retention["granules"].is_null() && !granules["pinned"].is_null() {
                let left = retention["granules"].as_u64().unwrap_or(0)
                    + retention["late_drained"].as_u64().unwrap_or(0);
                assert_eq!(Some(left), granules["pinned"].as_u64(), "{name} {args:?}");
            }
        }
    }
    Ok(())
}

/// In every workload granules and objects add up, and printing comes to an end.
#[test]
fn truths_add_up() -> Result<()> {
    for (name, args) in WORKLOADS {
        adds_up(name, args)?;
    }
    Ok(())
}

/// The same of programs with USDT probes, whose work does not depend on whether somebody listens.
#[test]
fn truths_beside_usdt_probes_add_up() -> Result<()> {
    for name in ["usdt", "usdt_plain", "usdt_static", "usdt_forms", "usdt_heap", "usdt_otel"] {
        adds_up(name, &[])?;
    }
    Ok(())
}

/// Arenas of the crate bumpalo are the same however the program was compiled, and numbers that can be counted by hand: one
/// for each request, one for every third, and one for the session.
#[test]
fn bumpalo_is_known() -> Result<()> {
    let truths: Vec<_> = ["rust_bumpalo", "rust_bumpalo_v0", "rust_bumpalo_lto"]
        .into_iter()
        .map(|name| Ok(run(name, &[])?.swap_remove(0)))
        .collect::<Result<_>>()?;
    for truth in &truths {
        assert_eq!(truth["allocators"], truths[0]["allocators"]);
        assert_eq!(count(truth, "granules.opened"), 1000 + 334 + 1);
        assert_eq!(count(truth, "granules.resets"), 500);
    }
    Ok(())
}

/// The truths of call paths are those of the allocators, apart by path; and every path differs from the others.
#[test]
fn paths_add_up() -> Result<()> {
    for (name, args) in [
        ("paths", &["deep=200", "alt=1", "large=1"][..]),
        ("paths", &["rounds=1"]),
        ("paths_cpp", &[]),
        ("rust_paths", &[]),
        ("thousand", &[]),
    ] {
        let truth = run(name, args)?.remove(0);
        let paths = truth["paths"].as_array().context("a list of paths")?;
        let sum =
            |key: &str| -> u64 { paths.iter().filter_map(|path| path["site"][key].as_u64()).sum() };
        assert_eq!(sum("allocated"), count(&truth, "objects.allocated"), "{name} {args:?}");
        assert_eq!(sum("live"), count(&truth, "objects.live"), "{name} {args:?}");
        let mut chains: Vec<&str> =
            paths.iter().filter_map(|path| path["chain"].as_str()).collect();
        chains.sort_unstable();
        chains.dedup();
        assert_eq!(chains.len(), paths.len(), "{name} {args:?}");
        for mark in chains.iter().flat_map(|chain| chain.split(" < ")) {
            let mark = mark.trim_end_matches('…').split_once('@').map(|(_, mark)| mark);
            mark.map(marked).transpose()?;
        }
        for path in paths {
            let of = |key: &str| path["site"][key].as_u64().unwrap_or(0);
            assert!(of("objects") > 0, "{name} {args:?}: every path pins: {path}");
            assert!(of("objects") >= of("granules_pinned"), "{path}");
            assert!(of("granules_pinned") >= of("granules_retained"), "{path}");
        }
    }
    Ok(())
}

/// A thousand sites pin a hundred thousand granules, each another number of them: their ranks are distinct.
#[test]
fn ranks_are_distinct() -> Result<()> {
    let truth = run("thousand", &[])?.remove(0);
    assert_eq!(count(&truth, "granules.pinned"), 100_000);
    let paths = truth["paths"].as_array().context("a list of paths")?;
    let mut pinned: Vec<u64> =
        paths.iter().filter_map(|path| path["site"]["granules_pinned"].as_u64()).collect();
    pinned.sort_unstable();
    let expected: Vec<u64> = (1..1000).chain([100_000]).collect();
    assert_eq!(pinned, expected);
    Ok(())
}

/// The sweep pins with the probability that it is asked for: none, all, and close to it in between.
#[test]
fn the_sweep_keeps_its_rate() -> Result<()> {
    for (p, low, high) in [(0, 0, 0), (2500, 24_000, 26_000), (10_000, 100_000, 100_000)] {
        let truth = run("psweep", &["closes=100000", &format!("p={p}")])?.remove(0);
        let pinned = count(&truth, "granules.pinned");
        assert!((low..=high).contains(&pinned), "p={p}: {pinned}");
        assert_eq!(count(&truth, "retention.granules"), pinned, "nothing is freed late");
        assert_eq!(count(&truth, "retention.bytes"), 4096 * pinned);
    }
    Ok(())
}

/// A workload depends on its seed and on nothing else.
#[test]
fn workloads_are_deterministic() -> Result<()> {
    let of = |seed: &str| -> Result<Value> {
        let mut truth = run("psweep_fixed", &["p=2500", seed])?.remove(0);
        truth["pid"] = 0.into();
        Ok(truth)
    };
    assert_eq!(of("seed=1")?, of("seed=1")?);
    assert_ne!(of("seed=1")?, of("seed=2")?);
    Ok(())
}

/// Cases whose numbers follow from their code: each is done a hundred times.
#[test]
fn known_numbers() -> Result<()> {
    let twice = run("misuse", &["mode=double_close"])?.remove(0);
    assert_eq!(twice["losses"]["unmatched_closes"], 100);
    assert_eq!(
        (count(&twice, "granules.pinned"), count(&twice, "retention.late_drained")),
        (50, 25)
    );
    let reopened = run("misuse", &["mode=reopen"])?.remove(0);
    assert_eq!(
        (count(&reopened, "granules.opened"), count(&reopened, "granules.reopened")),
        (200, 100)
    );
    let slab = run("slab", &["slabs=64"])?.remove(0);
    assert_eq!((count(&slab, "granules.open_now"), count(&slab, "objects.live")), (48, 272));
    let ring = run("rust_epochs", &[])?.remove(0);
    assert_eq!(
        (count(&ring, "granules.opened"), count(&ring, "granules.opened_before")),
        (3000, 1)
    );
    assert_eq!(count(&ring, "granules.pinned"), 273);
    Ok(())
}

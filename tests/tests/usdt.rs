//! USDT probes: arguments wherever they are, several places of one probe, semaphores, and what is refused.

use std::{collections::BTreeMap, path::Path, thread, time::Instant};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    elf::{build_id, changed_text_bytes, semaphores},
    environment::{self, requires_root},
    http,
    target::Target,
    tracer::{self, Traced, Tracer, trace, trace_from_start},
};
use nix::sys::signal::Signal;
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// How many of the report's probes are at `symbol`.
fn places(traced: &Traced, symbol: &str) -> Result<usize> {
    let probes = traced.outcome.report().pointer("/targets/0/probes").and_then(Value::as_array);
    let probes = probes.context("a list of probes")?.iter();
    Ok(probes.filter(|probe| probe["symbol"] == symbol).count())
}

/// Where a process is when its semaphores have these values; they may take a moment after a kill.
fn semaphores_become(pid: u32, path: &Path, wanted: &[u16]) -> Result<()> {
    let until = Instant::now() + environment::deadline();
    loop {
        let found = semaphores(pid, path)?;
        let values: Vec<u16> = found.iter().map(|(_, value)| *value).collect();
        if values == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{found:?} never become {wanted:?}");
        thread::yield_now();
    }
}

/// Counts are the truth to the last event, in a program that is position independent, fixed, static, stripped, or
/// without semaphores; every place of a probe is probed.
#[test]
fn counts_are_exact() -> Result<()> {
    if requires_root() {
        for name in ["usdt", "usdt_fixed", "usdt_static", "usdt_stripped", "usdt_plain"] {
            let traced = trace(name, &[], "usdt", &OBJECTS)?;
            traced.exact();
            ensure!(places(&traced, "usdt:pool:alloc")? >= 3, "{}", traced.outcome.report());
            ensure!(places(&traced, "usdt:pool:close")? >= 2, "{}", traced.outcome.report());
        }
        trace_from_start("usdt", &[], "usdt", &OBJECTS)?.exact();
    }
    Ok(())
}

/// How this kernel treats each kind of instruction, by `drainprof calibrate`.
fn treatments() -> Result<BTreeMap<String, String>> {
    let outcome = tracer::run_to_end(&["calibrate", "-o", "json"])?;
    let document: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kinds = document["kinds"].as_array().context("kinds")?.iter();
    Ok(kinds.map(|row| (text(&row["kind"]), text(&row["treatment"]))).collect())
}

/// The rows of `attach --dry-run` for a target with its profile.
fn dry_run(name: &str) -> Result<Vec<Value>> {
    let target = Target::start(name, &[])?;
    let (pid, profile) = (target.pid().to_string(), environment::profile(name));
    let args = ["attach", "-p", &pid, "--profile", &profile, "--dry-run", "-o", "json"];
    let plan: Value = serde_json::from_str(&tracer::run_to_end(&args)?.stdout.join("\n"))?;
    let rows = plan.pointer("/processes/0/plans/0/probes").and_then(Value::as_array);
    Ok(rows.context("a list of probes")?.clone())
}

/// A nop behind the probe's own is used where the kernel makes it a call: one of ten bytes everywhere, one of five never in
/// a function that may keep something below its stack pointer. The target checks every word of it.
#[test]
fn red_zone_is_left_alone() -> Result<()> {
    if requires_root() {
        trace("redzone", &[], "redzone", &["--level", "boundary"])?.exact();
        let treatments = treatments()?;
        let (mut five, mut ten) = (0, 0);
        for row in dry_run("redzone")? {
            let kind = row["instruction_kind"].as_str().context("a kind")?;
            match kind {
                "nop5" => five += 1,
                "nop10" => ten += 1,
                _ => ensure!(kind == "nop" && row["offset"] == 0, "{row:#}"),
            }
            ensure!(kind == "nop" || treatments[kind] == "call" && row["offset"] == 1, "{row:#}");
            ensure!(kind != "nop5" || row["role"] == "close", "in a leaf function: {row:#}");
        }
        let calls = |kind: &str| treatments[kind] == "call";
        assert_eq!((five, ten), (i32::from(calls("nop5")), 2 * i32::from(calls("nop10"))));
    }
    Ok(())
}

/// Functions that begin with nops of one, five and ten bytes are counted exactly; their red zones are kept, and children
/// that the process forks meanwhile end well. Nothing sits on what is unusable.
#[test]
fn nops_at_entry() -> Result<()> {
    if requires_root() {
        trace("nops", &[], "nops", &["--level", "boundary"])?.exact();
        trace_from_start("nops", &[], "nops", &["--level", "boundary"])?.exact();
        let treatments = treatments()?;
        let rows = dry_run("nops")?;
        assert_eq!(rows.len(), 7, "{rows:#?}");
        for row in rows {
            let kind = row["instruction_kind"].as_str().context("a kind")?;
            let unusable = |nop: &str| kind == nop && treatments[nop] == "unusable";
            ensure!(!unusable("nop5") && !unusable("nop10"), "{row:#}");
            let ten = treatments["nop10"] == "call" && row["symbol"] == "nops_open_words";
            ensure!(!ten || kind == "nop10", "{row:#}");
        }
    }
    Ok(())
}

/// With call paths, too: the walk begins within a function, at the place of the probe.
#[test]
fn call_paths_begin_at_the_place() -> Result<()> {
    if requires_root() {
        let traced = trace("usdt", &[], "usdt", &["--level", "stacks", "--top", "100"])?;
        traced.exact();
        let sites = traced.outcome.report().pointer("/targets/0/allocators/0/sites");
        let sites = sites.and_then(Value::as_array).context("a list of sites")?;
        let outer = |site: &Value| -> Vec<String> {
            let frames = site["frames"].as_array().cloned().unwrap_or_default();
            let names = frames.iter().filter_map(|frame| frame["function"].as_str());
            names.map(str::to_owned).collect()
        };
        let all: Vec<_> = sites.iter().map(outer).collect();
        for name in ["small", "any", "pair"] {
            let begins = |path: &&Vec<String>| path.first().is_some_and(|first| first == name);
            let path = all.iter().find(begins).with_context(|| format!("{name}: {all:?}"))?;
            ensure!(path.iter().any(|function| function == "main"), "{path:?}");
        }
    }
    Ok(())
}

/// Registers of all widths, every form of address, constants and variables: what each yields is an object's id, so
/// that one that is read wrongly is an unmatched free.
#[test]
fn arguments_of_every_form() -> Result<()> {
    if requires_root() {
        for name in ["usdt_forms", "usdt_forms_fixed"] {
            trace(name, &[], "usdt_forms", &OBJECTS)?.exact();
        }
    }
    Ok(())
}

/// A semaphore is 0 before, counts the places of its probe while they are probed, and is 0 after; those of probes that
/// the profile does not name stay 0.
#[test]
fn semaphores_go_up_and_down() -> Result<()> {
    if requires_root() {
        for (name, more) in
            [("usdt", &[][..]), ("usdt_fixed", &[]), ("usdt_static", &["--follow-forks"])]
        {
            let path = environment::target(name)?;
            let mut target = Target::start(name, &["stops=1", "spare=1"])?;
            let pid = target.pid();
            let names: Vec<_> = semaphores(pid, &path)?.into_iter().map(|(name, _)| name).collect();
            assert_eq!(
                names,
                ["alloc", "close", "free", "open", "spare"]
                    .map(|name| format!("pool_{name}_semaphore"))
            );
            semaphores_become(pid, &path, &[0; 5])?;
            let tracer = Tracer::attach(&[pid], "usdt", &[&OBJECTS[..], more].concat())?;
            let raised: Vec<u16> =
                semaphores(pid, &path)?.into_iter().map(|(_, value)| value).collect();
            ensure!(raised[..4].iter().all(|value| *value > 0) && raised[4] == 0, "{raised:?}");
            target.go()?;
            target.reaches("end")?;
            tracer.interrupt()?;
            let outcome = tracer.finish()?;
            semaphores_become(pid, &path, &[0; 5])?;
            target.go()?;
            let truths = target.finish()?.truths;
            Traced { truths, outcome }.exact();
        }
    }
    Ok(())
}

/// A drainprof that is killed leaves no semaphore raised and no probe behind; the next one raises them again.
#[test]
fn killed() -> Result<()> {
    if requires_root() {
        let path = environment::target("usdt")?;
        let mut target = Target::start("usdt", &["stops=1"])?;
        let pid = target.pid();
        let mut raised = Vec::new();
        for _ in 0..2 {
            let mut tracer = Tracer::attach(&[pid], "usdt", &OBJECTS)?;
            let values = semaphores(pid, &path)?.into_iter().map(|(_, value)| value);
            raised.push(values.collect::<Vec<u16>>());
            ensure!(changed_text_bytes(pid, &path)? > 0, "no probe in place");
            tracer.process().signal(Signal::SIGKILL)?;
            tracer.process().wait()?;
            semaphores_become(pid, &path, &[0; 5])?;
            // The kernel lowers a probe's semaphore first, and then puts its instruction back.
            http::until("the last instruction is put back", || {
                Ok(changed_text_bytes(pid, &path)? == 0)
            })?;
        }
        ensure!(raised[0] == raised[1] && raised[0][0] > 0, "{raised:?}");
        let tracer = Tracer::attach(&[pid], "usdt", &OBJECTS)?;
        target.go()?;
        target.reaches("end")?;
        target.go()?;
        let truths = target.finish()?.truths;
        Traced { truths, outcome: tracer.finish()? }.exact();
    }
    Ok(())
}

/// Probes with the names and arguments of glibc's heaps, in the program and in a shared object that it opens.
#[test]
fn heaps_as_glibc_has_them() -> Result<()> {
    if requires_root() {
        trace("usdt_heap", &[], "usdt_heap", &OBJECTS)?.exact();
        let library = environment::target("usdt_heap_library")?;
        let library = format!("library={}", library.display());
        trace("usdt_heap_shared", &[&library], "usdt_heap", &OBJECTS)?.exact();
    }
    Ok(())
}

/// The contract between programs and OpenTelemetry's profiler: sampled objects, nothing of which happens while nobody
/// listens, with the weights that they stand for. The census of the samples is exact: regions that they hold, and those
/// that weigh more than a region and are apart.
#[test]
fn sampled_allocations() -> Result<()> {
    if requires_root() {
        for from_start in [false, true] {
            let start = if from_start { trace_from_start } else { trace };
            let traced = start("usdt_otel", &[], "otel-memory", &OBJECTS)?;
            traced.exact();
            let truth = &traced.truths[0];
            let count = |path: &str| truth.pointer(path).and_then(Value::as_u64);
            assert!(count("/allocators/0/objects/allocated") > Some(1000), "{truth}");
            assert!(count("/allocators/0/granules/closed") > Some(2), "{truth}");
            assert!(count("/apart/objects") > Some(0), "{truth}");
            let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
            assert_eq!(allocator["census"]["apart"], truth["apart"], "{allocator}");
            assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"slab".into(), &Value::Null));
        }
    }
    Ok(())
}

/// Two at once, on the same process: each has its own counts, and a semaphore falls only with the last of them.
#[test]
fn two_at_once() -> Result<()> {
    if requires_root() {
        let path = environment::target("usdt")?;
        let mut target = Target::start("usdt", &["stops=1"])?;
        let pid = target.pid();
        let first = Tracer::attach(&[pid], "usdt", &OBJECTS)?;
        let second = Tracer::attach(&[pid], "usdt", &OBJECTS)?;
        target.go()?;
        target.reaches("end")?;
        first.interrupt()?;
        let first = first.finish()?;
        let values = semaphores(pid, &path)?.into_iter().map(|(_, value)| value);
        ensure!(values.clone().take(4).all(|value| value > 0), "{:?}", values.collect::<Vec<_>>());
        second.interrupt()?;
        let second = second.finish()?;
        semaphores_become(pid, &path, &[0; 5])?;
        target.go()?;
        let truths = target.finish()?.truths;
        Traced { truths: truths.clone(), outcome: first }.exact();
        Traced { truths, outcome: second }.exact();
    }
    Ok(())
}

/// What cannot be followed is refused with the place and the reason: too few arguments, a symbol that was stripped; a
/// probe that is not there is named.
#[test]
fn refusals_say_why() -> Result<()> {
    if requires_root() {
        for (name, change, wanted) in [
            ("usdt", ("granule = \"arg0\"", "granule = \"arg1\""), "there is no arg1"),
            ("usdt", ("usdt:pool:free", "usdt:pool:gone"), "no such USDT probe"),
        ] {
            let profile = environment::profile("usdt");
            let text = std::fs::read_to_string(&profile)?.replace(change.0, change.1);
            let directory = tempfile::tempdir()?;
            let changed = directory.path().join("changed.toml");
            std::fs::write(&changed, text)?;
            let changed = changed.display().to_string();
            let target = Target::start(name, &[])?;
            let pid = target.pid().to_string();
            let args = ["attach", "-p", &pid, "--profile", &changed, "--dry-run"];
            let outcome = tracer::run_to_end(&[&args[..], &OBJECTS].concat())?;
            ensure!(outcome.code != Some(0), "{:?}", outcome.stdout);
            ensure!(outcome.talk().contains(wanted), "{wanted}: {}", outcome.talk());
        }
        let target = Target::start("usdt_forms_stripped", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("usdt_forms");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--dry-run"];
        let outcome = tracer::run_to_end(&[&args[..], &OBJECTS].concat())?;
        ensure!(outcome.code != Some(0), "{:?}", outcome.stdout);
        let wanted = "`forms_word`, a symbol that";
        ensure!(outcome.talk().contains(wanted), "{}", outcome.talk());
    }
    Ok(())
}

/// The kernel wants all who probe a place to agree on its semaphore: who comes second is told so, and leaves no probe
/// behind; alone he is welcome.
#[test]
fn a_place_that_is_probed_without_its_semaphore() -> Result<()> {
    if requires_root() {
        let path = environment::target("usdt")?;
        let target = Target::start("usdt", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("usdt");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--dry-run"];
        let plan = tracer::run_to_end(&args)?.stdout;
        let line = plan.iter().find(|line| line.contains("usdt:pool:open"));
        let offset = line.and_then(|line| line.split_once("usdt+")?.1.split_whitespace().next());
        let text = format!(
            "schema = 1\nname = \"blunt\"\nkind = \"bulk\"\n[match]\nbuild_id = [\"{}\"]\n[[probe]]\n\
             role = \"open\"\nat = \"offset:{}\"\ngranule = \"arg0\"\n",
            build_id(&path)?,
            offset.with_context(|| format!("no place among {plan:?}"))?,
        );
        let directory = tempfile::tempdir()?;
        let blunt = directory.path().join("blunt.toml");
        std::fs::write(&blunt, text)?;
        let first = Tracer::attach(&[target.pid()], &blunt.display().to_string(), &[])?;
        let second = tracer::run_to_end(&[&args[..5], &OBJECTS].concat())?;
        assert_eq!(second.code, Some(1), "{}", second.talk());
        for wanted in ["attaching to usdt:pool:open in", "without its semaphore"] {
            ensure!(second.talk().contains(wanted), "{wanted}: {}", second.talk());
        }
        semaphores_become(target.pid(), &path, &[0; 5])?;
        first.interrupt()?;
        first.finish()?;
        assert_eq!(changed_text_bytes(target.pid(), &path)?, 0);
        let last = Tracer::attach(&[target.pid()], "usdt", &OBJECTS)?;
        last.interrupt()?;
        last.finish()?;
    }
    Ok(())
}

/// Granules are opened at the place of the probe: its function and line.
#[test]
fn places_of_opening() -> Result<()> {
    if requires_root() {
        let traced = trace("usdt_heap", &[], "usdt_heap", &OBJECTS)?;
        let places = traced.outcome.report().pointer("/targets/0/allocators/0/lifetimes/places");
        let places = places.and_then(Value::as_array).context("a list of places")?;
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/usdt_heap.c");
        let source = std::fs::read_to_string(path)?;
        let line = source.lines().position(|line| line.contains("memory_heap_new, heap"));
        let line = line.context("the probe's line")? as u64 + 1;
        assert_eq!(places.len(), 1, "{places:?}");
        assert_eq!(places[0]["function"], "usdt_new_heap", "{places:?}");
        assert_eq!(places[0]["line"], line, "{places:?}");
    }
    Ok(())
}

/// `--dry-run` lists every place with its instruction, its price and where its arguments are.
#[test]
fn dry_run_lists_places() -> Result<()> {
    if requires_root() {
        let target = Target::start("usdt_heap", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("usdt_heap");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--dry-run"];
        let outcome = tracer::run_to_end(&[&args[..], &OBJECTS].concat())?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let text = outcome.stdout.join("\n");
        for wanted in ["usdt:libc:memory_heap_new", "`nop`: nop", "arg0=8@%r", "arg1=8@$"] {
            ensure!(text.contains(wanted), "{wanted}: {text}");
        }
    }
    Ok(())
}

/// The probes of drainprof's header need no profile of the program's own: exact at all levels, attached and from the
/// start, in programs of all layouts. At level `boundary` the program's own counts are read; where it has none, there is
/// no verdict, and the report says what to do.
#[test]
fn the_header_needs_no_profile() -> Result<()> {
    if requires_root() {
        let built_in = "drainprof-usdt";
        for name in ["usdt_granules", "usdt_granules_fixed", "usdt_granules_stripped"] {
            trace(name, &[], built_in, &OBJECTS)?.exact();
        }
        trace_from_start("usdt_granules", &[], built_in, &OBJECTS)?.exact();
        trace("usdt_granules", &["boundary=1"], built_in, &["--level", "boundary"])?.exact();
        let args = ["boundary=1", "count=0"];
        let traced = trace("usdt_granules", &args, built_in, &["--level", "boundary"])?;
        assert_eq!(traced.outcome.code, Some(5), "{}", traced.outcome.talk());
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        let because = allocator["not_measurable"].as_str().context("a reason")?;
        ensure!(because.ends_with("attach with --level objects"), "{because}");
        assert_eq!(allocator["dsr"], Value::Null);
    }
    Ok(())
}

//! The traps of probing, one target each: what an allocator may do that makes a naive tracer miscount.
//! Every test compares the target's own truth with the report to the last event.

use std::{fs, path::Path};

use anyhow::Result;
use drainprof_tests::{
    compare::{Count, Expect},
    elf,
    environment::{self, requires_root},
    tracer::{Traced, trace, trace_from_start},
};
use serde_json::Value;

fn exact(name: &str, args: &[&str], profile: &str) -> Result<()> {
    if requires_root() {
        trace(name, args, profile, &["--level", "objects"])?.exact();
    }
    Ok(())
}

/// One test per line: what it shows, the target, its arguments, the profile.
macro_rules! exact {
    ($($(#[doc = $doc:literal])+ $name:ident: $target:literal $args:tt $profile:literal;)*) => {
        $($(#[doc = $doc])+
        #[test]
        fn $name() -> Result<()> {
            exact($target, &$args, $profile)
        })*
    };
}

exact! {
    /// Ids from memory and out-parameters, frees by handle, rejected calls, epoch 0 never opened, ids
    /// reused while their earlier life is still pinned.
    ring_of_epochs: "epoch_ring" ["epochs=3000", "late=20"] "epoch_ring";
    /// Every pin of a ring is freed right after the next open of nothing but its neighbours.
    ring_with_late_drains: "epoch_ring" ["epochs=3000", "late=1", "p=5000"] "epoch_ring";
    /// A ring whose pins are never freed retains one granule per pinned close.
    ring_without_drains: "epoch_ring" ["epochs=500", "late=0"] "epoch_ring";
    /// A second close of a granule is an unmatched close, and its pins drain once.
    double_close: "misuse" ["mode=double_close"] "misuse";
    /// An open of an open granule starts a new life; the old life's objects do not pin the new one.
    reopen_without_close: "misuse" ["mode=reopen"] "misuse";
    /// An alloc after the close counts as a notice and can delay the late drain.
    alloc_after_close: "misuse" ["mode=alloc_after_close"] "misuse";
    /// An object id that is handed out again without a free replaces the object before.
    replaced_object: "misuse" ["mode=replaced"] "misuse";
    /// A replaced object no longer pins the granule that it was in.
    replaced_across_granules: "misuse" ["mode=replaced_across"] "misuse";
    /// A free of an object that nobody allocated is an unmatched free, not an underflow.
    unknown_free: "misuse" ["mode=unknown_free"] "misuse";
    /// A realloc in place changes the object's size and nothing else.
    realloc_in_place: "resize" ["mode=in_place"] "resize";
    /// A realloc that moves keeps the granule pinned all the while.
    realloc_moved: "resize" ["mode=moved"] "resize";
    /// A realloc that fails leaves the old object alive.
    realloc_failed: "resize" ["mode=failed"] "resize";
    /// A realloc of NULL is an alloc.
    realloc_of_null: "resize" ["mode=of_null"] "resize";
    /// A realloc to 0 is a free.
    realloc_to_zero: "resize" ["mode=to_zero"] "resize";
    /// All outcomes of a realloc, one after the other.
    realloc_mixed: "resize" ["times=2000"] "resize";
    /// Wrappers and tail calls among probed functions count an object once.
    wrappers_count_once: "nested" ["times=1000"] "nested";
    /// The same with return probes behind `endbr64`.
    wrappers_behind_endbr64: "nested_plain" ["times=1000"] "nested";
    /// What an open allocates before it returns the granule's id belongs to that granule.
    alloc_inside_open: "nested" ["times=1000", "inflight=1"] "nested";
    /// The same without any wrapper, so that a fault of either trap can be told apart.
    alloc_inside_open_plain: "nested" ["times=1000", "inflight=1", "wrappers=0"] "nested";
    /// Instances with equal granule ids and equal object ids are kept apart.
    instances_kept_apart: "instances" ["instances=7"] "instances";
    /// Granules that are open when their instance is destroyed end with it.
    destroyed_instances: "instances" ["instances=6", "destroy=1"] "instances";
    /// Failed allocs and frees of NULL are nothing.
    failures_are_nothing: "psweep" ["failed=3000", "nulls=3000", "objects=3"] "arena";
    /// A bulk close frees its members; resets of empty pools are filtered by the profile.
    bulk_pools: "bulk" ["connections=200"] "bulk";
    /// Position-dependent programs: addresses are converted through the program headers.
    fixed_addresses: "psweep_fixed" ["closes=500"] "arena";
    /// A static program has its symbols in no library.
    static_program: "psweep_static" ["closes=500"] "arena";
    /// Functions that begin with endbr64 and have no frame pointer.
    plain_prologues: "psweep_plain" ["closes=2000", "failed=1000"] "arena";
    /// A stripped program whose debug file stands beside it.
    split_debug_file: "psweep_split" ["closes=500"] "arena";
    /// A Rust arena, found by patterns over demangled names.
    rust_arena: "rust_arena" [] "rust_arena";
    /// A Rust slab allocator.
    rust_slab: "rust_slab" [] "rust_slab";
    /// A Rust ring of epochs with out-parameters.
    rust_epochs: "rust_epochs" [] "rust_epochs";
}

/// The live count in the allocator's memory decides closes at level `boundary`, without any object probe.
#[test]
fn boundary_reads_memory() -> Result<()> {
    if requires_root() {
        for profile in ["epoch_ring", "epoch_ring_popcount"] {
            let args = ["epochs=3000", "boundary=1", "p=4000"];
            let traced = trace("epoch_ring", &args, profile, &["--level", "boundary"])?;
            traced.exact();
            let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
            assert_eq!(allocator["level"], "boundary");
            assert_eq!(allocator["objects"], Value::Null, "objects are not seen at this level");
        }
    }
    Ok(())
}

/// The census of a slab allocator: a third of the open slabs is empty, a third held by one cell, a third full.
#[test]
fn slab_census() -> Result<()> {
    if requires_root() {
        let traced = trace("slab", &["slabs=64"], "slab", &["--level", "objects"])?;
        traced.exact();
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["dsr"], Value::Null, "every close of a slab is drainable: no DSR");
        let census = &allocator["census"];
        assert_eq!(census["granules_open"], 48, "{census}");
        assert_eq!(census["drainable_now"], 16, "{census}");
        assert_eq!(census["live_objects"], 16 + 16 * 16, "{census}");
        assert_eq!(census["bytes_open"], 48 * 4096, "{census}");
        let classes: Vec<(u64, u64)> = census["occupancy"]
            .as_array()
            .map(|classes| {
                let number = |class: &Value, key: &str| class[key].as_u64().unwrap_or(u64::MAX);
                classes
                    .iter()
                    .map(|class| (number(class, "live_to"), number(class, "granules")))
                    .collect()
            })
            .unwrap_or_default();
        assert_eq!(classes, [(0, 16), (1, 16), (31, 16)], "{census}");
    }
    Ok(())
}

/// Bulk pools that are never closed stand in the list of open granules with label and age; DSR stays null.
#[test]
fn bulk_pools_left_open() -> Result<()> {
    if requires_root() {
        let traced =
            trace("bulk", &["connections=60", "overdue=5"], "bulk", &["--level", "objects"])?;
        traced.exact();
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["dsr"], Value::Null);
        let open = allocator["open_granules"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(open.len(), 5, "{open:?}");
        for granule in open {
            assert_eq!(granule["label"], "connection");
            assert!(granule["age_seconds"].as_f64().is_some_and(|age| age > 0.0), "{granule}");
        }
    }
    Ok(())
}

/// Calls left by longjmp or by the end of their thread are counted as abandoned, and nothing else suffers.
#[test]
fn abandoned_calls() -> Result<()> {
    if requires_root() {
        // Of the second the probes are behind `endbr64`.
        for target in ["abandon", "abandon_plain"] {
            for mode in ["mode=longjmp", "mode=thread_exit", "mode=thread_unwind"] {
                trace(target, &[mode], "arena", &["--level", "objects"])?.exact();
            }
        }
    }
    Ok(())
}

/// A process that ends in the middle of an alloc: what it did before stays exact.
#[test]
fn process_ends_inside_alloc() -> Result<()> {
    if requires_root() {
        let traced = trace("abandon", &["mode=process_exit"], "arena", &["--level", "objects"])?;
        Expect::default().loss("calls_cut_by_exit", Count::Exactly(1)).check(&traced);
    }
    Ok(())
}

fn finding_codes(traced: &Traced) -> Vec<String> {
    let targets = traced.outcome.report()["targets"].as_array().cloned().unwrap_or_default();
    let codes = |target: &Value| target["findings"].as_array().cloned().unwrap_or_default();
    targets
        .iter()
        .flat_map(codes)
        .filter_map(|finding| finding["code"].as_str().map(str::to_owned))
        .collect()
}

/// An IFUNC is followed to the function that it stands for in this process, and that is told.
#[test]
fn ifunc_is_not_silent() -> Result<()> {
    if requires_root() {
        for target in ["ifunc", "ifunc_static"] {
            let traced = trace(target, &[], "ifunc", &["--level", "objects"])?;
            traced.exact();
            let codes = finding_codes(&traced);
            assert!(codes.iter().any(|code| code == "ifunc"), "{codes:?}");
        }
    }
    Ok(())
}

/// Addresses of variables and offsets of fields come from the binary: in a program at any address, attached
/// to and from its start, at both levels.
#[test]
fn names_of_variables_and_fields() -> Result<()> {
    if requires_root() {
        let args = ["closes=2000", "p=1000", "failed=500"];
        trace("psweep", &args, "arena_names", &["--level", "objects"])?.exact();
        let traced = trace("psweep", &args, "arena_names", &["--level", "boundary"])?;
        Expect::default().leave_out("objects").leave_out("retention").check(&traced);
        trace_from_start("psweep", &args, "arena_names", &["--level", "objects"])?.exact();
    }
    Ok(())
}

/// Where only clones of a function are called, granules stay exact and a finding says why nothing fired.
#[test]
fn clones_are_named() -> Result<()> {
    if requires_root() {
        let traced = trace("clones", &[], "clones", &["--level", "objects"])?;
        traced.exact();
        let codes = finding_codes(&traced);
        assert!(
            codes.iter().any(|code| code.contains("clone") || code == "never_fired"),
            "no finding about the clones: {codes:?}"
        );
    }
    Ok(())
}

/// A stripped program is probed by offsets, which the profile binds to its build id.
#[test]
fn stripped_program_by_offset() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let profile = directory.path().join("offsets.toml");
        write_offset_profile(&profile, &elf::build_id(&environment::target("psweep_stripped")?)?)?;
        let profile = profile.display().to_string();
        let more = ["--level", "objects"];
        trace("psweep_stripped", &["closes=500"], &profile, &more)?.exact();
    }
    Ok(())
}

/// Offsets that belong to another build id are refused: they would point into the middle of something.
#[test]
fn offsets_of_another_build_are_refused() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let profile = directory.path().join("offsets.toml");
        write_offset_profile(&profile, "00112233445566778899aabbccddeeff00112233")?;
        let target = drainprof_tests::target::Target::start("psweep_stripped", &[])?;
        let profile = profile.display().to_string();
        let pid = target.pid().to_string();
        let refused =
            drainprof_tests::tracer::run_to_end(&["attach", "-p", &pid, "--profile", &profile])?;
        assert_eq!(refused.code, Some(4), "{}", refused.talk());
    }
    Ok(())
}

/// The arena profile with offsets in the place of symbols.
fn write_offset_profile(path: &Path, build_id: &str) -> Result<()> {
    let with_symbols = environment::target("psweep")?;
    let mut text = fs::read_to_string(environment::profile("arena"))?;
    for symbol in ["arena_open", "arena_close", "arena_alloc", "arena_free"] {
        let offset = elf::file_offset(&with_symbols, symbol)?;
        text = text.replace(&format!("at = \"{symbol}\""), &format!("at = \"offset:{offset:#x}\""));
    }
    let matching =
        text.lines().find(|line| line.starts_with("symbols = ")).unwrap_or_default().to_owned();
    fs::write(path, text.replace(&matching, &format!("build_id = [\"{build_id}\"]")))?;
    Ok(())
}

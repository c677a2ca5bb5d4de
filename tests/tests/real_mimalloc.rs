//! Debian's mimalloc as it is, in a program of our own that makes heaps and knows what it did.

use std::process::Command;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::{Count, Expect, only_allocator},
    environment::{self, requires_root},
    runtimes::{granules, hits, silent_probes},
    target::Target,
    tracer::{Traced, Tracer, trace},
};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2.0";

fn ready() -> bool {
    requires_root() && environment::has_programs(&[LIBRARY])
}

/// Each end of a heap is one hit: destroyed heaps are closed, deleted ones have handed over what was in them.
fn check(traced: &Traced, heaps: u64, deleted: u64) -> Result<()> {
    let allocator = only_allocator(&traced.outcome)?;
    assert_eq!(allocator["kind"], "bulk");
    assert_eq!(hits(&traced.outcome, "mi_heap_destroy")?, [heaps - deleted, 0]);
    assert_eq!(hits(&traced.outcome, "mi_heap_delete")?, [deleted, 0]);
    assert_eq!(allocator["granules"]["migrated"], deleted);
    assert_eq!(granules(&allocator), [heaps, 0, heaps - deleted, 0], "{allocator}");
    let migrated = &allocator["objects"]["migrated"];
    assert_eq!(migrated, &traced.truths[0]["left_behind"], "{allocator}");
    assert!(migrated.as_u64() > Some(deleted / 2), "{allocator}");
    Ok(())
}

/// 50 heaps, of which 40 are destroyed and 10 deleted, half of them empty: every object of every function
/// that allocates in a heap is counted once, with its bytes, and none of the threads' own heaps is; what else
/// is freed is unmatched, but not what deleted heaps leave behind, of which some is never freed.
#[test]
fn heaps_are_exact() -> Result<()> {
    if ready() {
        let traced = trace("mi_heaps", &["lost=3"], "mimalloc", &[])?;
        traced.exact();
        assert_eq!(traced.outcome.report()["targets"][0]["allocators"][0]["objects"]["live"], 3);
        check(&traced, 50, 10)?;
        assert_eq!(silent_probes(&traced.outcome)?, Vec::<String>::new());
    }
    Ok(())
}

/// The same where mimalloc is the program's malloc as well; the C library frees blocks of its own then.
#[test]
fn heaps_are_exact_where_it_is_malloc() -> Result<()> {
    if ready() {
        let mut command = Command::new(environment::target("mi_heaps")?);
        command.env("LD_PRELOAD", LIBRARY);
        let mut target = Target::start_command("mi_heaps", command)?;
        let looking = Tracer::attach(&[target.pid()], "mimalloc", &[])?;
        target.go()?;
        let truths = target.finish()?.truths;
        let traced = Traced { truths, outcome: looking.finish()? };
        let known = traced.truths[0]["losses"]["unmatched_frees"].as_u64();
        assert!(traced.outcome.report()["losses"]["unmatched_frees"].as_u64() >= known);
        Expect::default().loss("unmatched_frees", Count::Any).check(&traced);
        check(&traced, 50, 10)?;
    }
    Ok(())
}

/// Heaps that are never ended are those that are open, and their objects those that are live.
#[test]
fn kept_heaps_are_open() -> Result<()> {
    if ready() {
        let traced = trace("mi_heaps", &["heaps=10", "destroyed=10", "kept=7"], "mimalloc", &[])?;
        traced.exact();
        let allocator = only_allocator(&traced.outcome)?;
        assert_eq!(granules(&allocator), [17, 0, 10, 7], "{allocator}");
        let live = allocator["objects"]["live"].as_u64().context("a count of objects")?;
        assert_eq!(live, 7 * 21);
    }
    Ok(())
}

//! Threads and processes at once. With eight threads on shared granules no one can say what a close
//! found; but every event is counted once, and what came must have gone.

use anyhow::Result;
use drainprof_tests::{
    compare::Expect,
    environment::{requires_root, sweep_closes},
    target::Target,
    tracer::{Traced, Tracer, trace},
};

/// A million events of eight threads: sums are exact, every pin that was counted has drained.
#[test]
fn a_million_events_of_eight_threads() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "--max-granules", "131072", "--max-objects", "131072"];
        let events = format!("events={}", 8 * sweep_closes(125_000)?);
        let traced = trace("threads", &[&events], "arena", &more)?;
        let any = drainprof_tests::compare::Count::Any;
        // Stragglers are a fact of this workload: an alloc may come just after its granule's close.
        Expect::default().loss("allocs_after_close", any).check(&traced);
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        let granules = &allocator["granules"];
        let count = |key: &str| granules[key].as_u64().unwrap_or(u64::MAX / 4);
        assert_eq!(count("drainable") + count("pinned") + count("unknown"), count("closed"));
        assert_eq!(granules["unknown"], 0, "every open was seen: {granules}");
        assert_eq!(allocator["retention"]["granules"], 0, "everything was freed in the end");
        assert_eq!(allocator["retention"]["bytes"], 0);
        assert_eq!(allocator["retention"]["late_drained"], granules["pinned"]);
    }
    Ok(())
}

/// The same in a window of a duty cycle, whose probes are put in place in another way.
#[test]
fn eight_threads_in_a_window() -> Result<()> {
    if requires_root() {
        let events = format!("events={}", 8 * sweep_closes(12_500)?);
        let more = ["--level", "objects", "--duty", "1h/2h"];
        let traced = trace("threads", &[&events], "arena", &more)?;
        let any = drainprof_tests::compare::Count::Any;
        Expect::default().loss("allocs_after_close", any).check(&traced);
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!(granules["unknown"], 0, "every open was seen: {granules}");
    }
    Ok(())
}

/// Two processes of one program, traced by one drainprof: neither's events are counted for the other.
#[test]
fn two_processes_at_once() -> Result<()> {
    if requires_root() {
        let mut first = Target::start("psweep", &["closes=3000", "p=1000", "late=3"])?;
        let mut second = Target::start("psweep", &["closes=4000", "p=6000", "seed=9"])?;
        let tracer =
            Tracer::attach(&[first.pid(), second.pid()], "arena", &["--level", "objects"])?;
        first.go()?;
        second.go()?;
        let mut truths = first.finish()?.truths;
        truths.extend(second.finish()?.truths);
        Traced { truths, outcome: tracer.finish()? }.exact();
    }
    Ok(())
}

/// A process of the same program that is not traced adds nothing.
#[test]
fn a_bystander_is_not_counted() -> Result<()> {
    if requires_root() {
        let mut subject = Target::start("psweep", &["closes=1000"])?;
        let mut bystander = Target::start("psweep", &["closes=20000"])?;
        let tracer = Tracer::attach(&[subject.pid()], "arena", &["--level", "objects"])?;
        bystander.go()?;
        subject.go()?;
        let truths = subject.finish()?.truths;
        bystander.finish()?;
        Traced { truths, outcome: tracer.finish()? }.exact();
    }
    Ok(())
}

//! Threads that get in one another's way wherever they can, and know all the same what happened.
//!
//! The target (`targets/chaos.c`) is synchronised as a correct program is, so each count is known to the
//! last event, although its hits meet one another, and preempt one another, in every order. Each run has a
//! seed of its own, which a failing test prints; `DRAINPROF_CHAOS_SEED` sets it.

use anyhow::Result;
use drainprof_tests::{
    compare::{Count, Expect},
    environment::{chaos_seed, requires_root, sweep_closes},
    tracer::{Traced, trace, trace_from_start},
};

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// The workload's size as `events=…`: each thread's, per round. Smaller where machines are emulated.
fn events(usual: u64) -> Result<String> {
    Ok(format!("events={}", sweep_closes(usual)?))
}

fn chaos(args: &[&str], profile: &str, more: &[&str]) -> Result<Traced> {
    let (seed, events) = (chaos_seed()?, events(20_000)?);
    let usual = [seed.as_str(), events.as_str()];
    let args: Vec<&str> = args.iter().copied().chain(usual).collect();
    trace("chaos", &args, profile, &[&OBJECTS, more].concat())
}

/// Exact, also where the sweep says that it met an id between two system calls: it puts back what it took out.
fn swept() -> Expect {
    Expect::default().loss("index_raced", Count::Any)
}

/// Kind `drain`: objects change hands, ids of objects and granules are reused at once, frees are refused,
/// objects are resized in place and moved, granules are reset and opened again while objects are late.
#[test]
fn shared_granules() -> Result<()> {
    if requires_root() {
        chaos(&["mode=drain"], "chaos", &[])?.exact();
    }
    Ok(())
}

/// One thread, so that every event has its place: a reset of kind `drain` is a close and an open at once, and what
/// was live is late in the next life.
#[test]
fn resets_are_boundaries() -> Result<()> {
    if requires_root() {
        let traced = chaos(&["mode=drain", "threads=1", "places=4"], "chaos", &[])?;
        traced.exact();
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        let count = |key: &str| granules[key].as_u64().unwrap_or_default();
        assert!(count("resets") > 0 && count("pinned") > 0, "{granules}");
        assert!(count("closed") > count("resets"), "closes besides: {granules}");
    }
    Ok(())
}

/// The same at level `boundary`, where resets are boundaries too.
#[test]
fn shared_granules_at_boundary() -> Result<()> {
    if requires_root() {
        let (seed, events) = (chaos_seed()?, events(20_000)?);
        let args = ["mode=drain", "boundary=1", &seed, &events];
        let traced = trace("chaos", &args, "chaos", &["--level", "boundary"])?;
        Expect::default().leave_out("objects").leave_out("retention").check(&traced);
    }
    Ok(())
}

/// Four threads and two granules only: nearly every hit meets another one in the same granule.
#[test]
fn few_granules() -> Result<()> {
    if requires_root() {
        chaos(&["mode=drain", "places=2", "hold=2"], "chaos", &[])?.exact();
    }
    Ok(())
}

/// Kind `bulk`: closes and resets free members, whose ids other threads are given at once.
#[test]
fn bulk_granules() -> Result<()> {
    if requires_root() {
        chaos(&["mode=bulk"], "chaos_bulk", &[])?.exact();
    }
    Ok(())
}

/// Without opens: several threads at once allocate the first object in a granule that was closed, also while
/// objects of its earlier life are live.
#[test]
fn first_objects_open() -> Result<()> {
    if requires_root() {
        let (seed, events) = (chaos_seed()?, events(20_000)?);
        let args = ["mode=lazy", "places=4", &seed, &events];
        trace_from_start("chaos", &args, "chaos_lazy", &OBJECTS)?.exact();
    }
    Ok(())
}

/// Objects without ids: sums are exact, whichever life a free is counted with.
#[test]
fn counted_objects() -> Result<()> {
    if requires_root() {
        chaos(&["mode=counted", "places=4"], "chaos_counted", &[])?.exact();
    }
    Ok(())
}

/// Room for few objects, so that buckets overflow into the map behind them, and for few threads, so that
/// threads share slots.
#[test]
fn overflowing_buckets() -> Result<()> {
    if requires_root() {
        let more = ["--max-objects", "512", "--max-threads", "16"];
        let args = ["mode=drain", "threads=8", "rounds=2", "hold=40"];
        chaos(&args, "chaos", &more)?.exact();
    }
    Ok(())
}

/// Members that a bulk close has freed stay in the table until their ids come back; where they crowd it out, user
/// space takes them out while others come.
#[test]
fn stale_members_are_swept() -> Result<()> {
    if requires_root() {
        let args = ["mode=bulk", "fifo=1", "keep=1", "rounds=8", "hold=20"];
        let traced = chaos(&args, "chaos_bulk", &["--max-objects", "5085"])?;
        swept().check(&traced);
    }
    Ok(())
}

/// More ids than the index holds and few slots: ids and slots are retired while others come back.
#[test]
fn ids_are_retired() -> Result<()> {
    if requires_root() {
        let more = ["--max-granules", "512"];
        let args = ["mode=drain", "places=64", "cycle=2000", "jump=1", "events=250000", "rounds=1"];
        swept().check(&chaos(&args, "chaos", &more)?);
    }
    Ok(())
}

/// Threads that live for a few calls only.
#[test]
fn short_lived_threads() -> Result<()> {
    if requires_root() {
        chaos(&["mode=drain", "rounds=200", "events=100"], "chaos", &[])?.exact();
    }
    Ok(())
}

/// Three processes, each with four threads, of which two are children of the first.
#[test]
fn forked_chaos() -> Result<()> {
    if requires_root() {
        let more = ["--follow-forks"];
        chaos(&["mode=drain", "children=2", "events=8000"], "chaos", &more)?.exact();
    }
    Ok(())
}

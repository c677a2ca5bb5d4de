//! Threads that get in one another's way, with the truth of each call path: what was allocated on it, and in which
//! granules it was live at their close, to the last event. Seeds are as in `chaos.rs`.

use std::{env, time::SystemTime};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{requires_root, sweep_closes},
    paths::Sites,
    tracer::trace,
};

fn seed() -> Result<String> {
    let seed = match env::var("DRAINPROF_CHAOS_SEED") {
        Ok(text) => text.parse().context("DRAINPROF_CHAOS_SEED is no number")?,
        Err(_) => {
            u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos())
        }
    };
    println!("DRAINPROF_CHAOS_SEED={seed}");
    Ok(format!("seed={seed}"))
}

fn chaos(more: &[&str]) -> Result<()> {
    let (seed, events) = (seed()?, format!("events={}", sweep_closes(20_000)?));
    let usual = [seed.as_str(), events.as_str()];
    let args: Vec<&str> = usual.into_iter().chain(more.iter().copied()).collect();
    let levels = ["--level", "stacks", "--top", "2000"];
    Sites::default().check(&trace("stacks_chaos", &args, "stacks_chaos", &levels)?);
    Ok(())
}

/// Granules with pins of many paths, and more than are noted beside them: each counts once per path, whoever frees
/// which of them when, and what is retained at the end is known by path.
#[test]
fn pins_of_many_paths() -> Result<()> {
    if requires_root() { chaos(&["places=2", "hold=64", "rare=16"]) } else { Ok(()) }
}

/// Few granules with few pins each, which drain and are opened again while frees of their last life are on their way.
#[test]
fn lives_that_follow_each_other() -> Result<()> {
    if requires_root() { chaos(&["places=2", "hold=3", "threads=8"]) } else { Ok(()) }
}

/// Granules whose ids come back later, and many threads that live for a few calls only.
#[test]
fn short_lived_threads() -> Result<()> {
    if requires_root() { chaos(&["cycle=5", "rounds=100", "events=200"]) } else { Ok(()) }
}

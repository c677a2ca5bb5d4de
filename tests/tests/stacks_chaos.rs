//! Threads that get in one another's way, with the truth of each call path: what was allocated on it, and in which
//! granules it was live at their close, to the last event. Seeds are as in `chaos.rs`.

use std::{env, time::SystemTime};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root, sweep_closes},
    paths::Sites,
    target::Target,
    tracer::{self, Traced, Tracer},
};
use serde_json::Value;

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

/// Lets the target meet all its call paths once before anything pins, and drainprof learn them. (Until a path is
/// known it has several numbers, and a granule with pins of more than one of them counts for each.)
fn chaos(more: &[&str]) -> Result<()> {
    let (seed, events) = (seed()?, format!("events={}", sweep_closes(20_000)?));
    let usual = ["stops=1", seed.as_str(), events.as_str()];
    let args: Vec<&str> = more.iter().copied().chain(usual).collect();
    let mut target = Target::start("stacks_chaos", &args)?;
    let mut command = tracer::command()?;
    command.args(["attach", "-p", &target.pid().to_string(), "--level", "stacks"]);
    command.args(["--top", "2000", "-i", "500ms", "-o", "ndjson"]);
    command.args(["--profile", &environment::profile("stacks_chaos")]);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    target.reaches("warm")?;
    // The stacks that are there are unwound before a record is written: the second one was begun after the stop.
    for _ in 0..2 {
        tracer.process().expect_out("{")?;
    }
    target.go()?;
    let truths = target.finish()?.truths;
    let mut outcome = tracer.finish()?;
    let last = outcome.stdout.last().context("drainprof writes records")?;
    outcome.report = Some(serde_json::from_str::<Value>(last)?["report"].take());
    Sites::default().check(&Traced { truths, outcome });
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

//! Threads that get in one another's way, with the truth of each call path: what was allocated on it, and in which
//! granules it was live at their close, to the last event. Seeds are as in `chaos.rs`.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, chaos_seed, requires_root, sweep_closes},
    paths::{Sites, steps},
    target::Target,
    tracer::{self, Outcome, Traced, Tracer},
};
use serde_json::Value;

/// Attaches, with a record of what was found so far twice a second on stdout.
fn attach(pid: u32, more: &[&str]) -> Result<Tracer> {
    let mut command = tracer::command()?;
    command.args(["attach", "-p", &pid.to_string(), "--level", "stacks", "--top", "2000"]);
    command.args(["-i", "500ms", "-o", "ndjson"]).args(more);
    command.args(["--profile", &environment::profile("stacks_chaos")]);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    Ok(tracer)
}

/// The report is in the last record.
fn report(mut outcome: Outcome) -> Result<Outcome> {
    let last = outcome.stdout.last().context("drainprof writes records")?;
    outcome.report = Some(serde_json::from_str::<Value>(last)?["report"].take());
    Ok(outcome)
}

/// Lets the target meet all its call paths once before anything pins, and drainprof learn them. (Until a path is
/// known it has several numbers, and a granule with pins of more than one of them counts for each.)
fn chaos(more: &[&str]) -> Result<()> {
    let (seed, events) = (chaos_seed()?, format!("events={}", sweep_closes(20_000)?));
    let usual = ["stops=1", seed.as_str(), events.as_str()];
    let args: Vec<&str> = more.iter().copied().chain(usual).collect();
    let mut target = Target::start("stacks_chaos", &args)?;
    let mut tracer = attach(target.pid(), &[])?;
    target.go()?;
    target.reaches("warm")?;
    // The stacks that are there are unwound before a record is written: the second one was begun after the stop.
    for _ in 0..2 {
        tracer.process().expect_out("{")?;
    }
    target.go()?;
    let truths = target.finish()?.truths;
    Sites::default().check(&Traced { truths, outcome: report(tracer.finish()?)? });
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

/// A child shares its parent's rules of unwinding until it loads code that its parent does not have: what it allocates
/// through that is told to its start, as what both allocate through the rest.
#[test]
fn children_with_code_of_their_own() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let plugin = format!("plugin={}", environment::target("places_plugin")?.display());
    let mut target = Target::start("forked_plugin", &["stops=1", &plugin])?;
    let mut tracer = attach(target.pid(), &["--follow-forks"])?;
    target.go()?;
    target.reaches("served")?;
    // What could not be unwound at once is looked at again before the second record.
    for _ in 0..3 {
        tracer.process().expect_out("{")?;
    }
    target.go()?;
    target.finish()?;
    let report = report(tracer.finish()?)?.report().clone();
    let mut sites: Vec<(u64, String, Vec<String>)> = Vec::new();
    for target in report["targets"].as_array().into_iter().flatten() {
        for site in target["allocators"][0]["sites"].as_array().into_iter().flatten() {
            let ours = ["make", "child", "parent", "main"];
            let names = steps(site).into_iter().map(|step| step.function);
            sites.push((
                site["allocated"].as_u64().unwrap_or_default(),
                site["path_end"].as_str().unwrap_or_default().to_owned(),
                names.filter(|name| ours.contains(&name.as_str())).collect(),
            ));
        }
    }
    sites.sort();
    let path = |names: [&str; 3]| names.map(str::to_owned).to_vec();
    let start = || "start".to_owned();
    assert_eq!(
        sites,
        [
            (1, start(), path(["make", "parent", "main"])),
            (200, start(), path(["make", "child", "main"])),
        ]
    );
    Ok(())
}

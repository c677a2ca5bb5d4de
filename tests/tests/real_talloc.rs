//! Debian's ldb tools as they are: every chunk of talloc, which lives in a library.
//!
//! A library that is preloaded into the same commands asks talloc itself what goes with a chunk that is freed.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::only_allocator,
    environment::{has_programs, requires_root},
    talloc::Directory,
    tracer::{Outcome, Tracer},
};
use serde_json::Value;

const ALL: [&str; 4] = ["--level", "boundary", "--top", "1000"];

fn ready() -> bool {
    requires_root() && has_programs(&["ldbadd", "ldbsearch"])
}

/// The one allocator of the one process.
fn chunks(outcome: &Outcome) -> Result<Value> {
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    only_allocator(outcome)
}

fn count(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("a count {key} in {value}"))
}

/// Add entries, look some up: in each process every chunk is seen that the library in the very process counts, made,
/// freed by a call, gone with a parent, and left open.
#[test]
fn chunks_are_exact() -> Result<()> {
    if ready() {
        let directory = Directory::new()?;
        let mut seen = Vec::new();
        for step in directory.steps()? {
            let command = directory.counting(&step)?;
            let outcome = Tracer::run_command(&command, "talloc", &ALL)?.finish()?;
            let allocator = chunks(&outcome)?;
            assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
            let granules = allocator["granules"].clone();
            assert_eq!((&granules["opened_before"], &granules["reopened"]), (&0.into(), &0.into()));
            // A timer whose destructor refuses survives its parent for a moment, and is freed by a call of its own. If it
            // was looked at in that moment, it has ended with its parent, and the call found it closed.
            let twice = count(&outcome.report()["losses"], "unmatched_closes")?;
            seen.push((granules, twice));
        }
        for ((granules, twice), truth) in seen.iter().zip(directory.counted()?) {
            for key in ["opened", "resets", "open_now"] {
                assert_eq!(granules[key], truth[key], "{key}");
            }
            assert_eq!(count(granules, "closed")? + twice, count(&truth, "closed")?);
            let ended = count(granules, "ended_with_parent")?;
            assert_eq!(ended - twice, count(&truth, "ended_with_parent")?);
            ensure!(
                count(&truth, "ended_with_parent")? > 300,
                "most chunks go with others: {truth}"
            );
            ensure!(count(&truth, "moved")? > 0, "chunks are resized, and move: {truth}");
        }
    }
    Ok(())
}

/// The same commands with nothing preloaded: as many chunks go as come but for those that are left open, which have the
/// names that talloc gave them, and nothing was lost.
#[test]
fn ldb_as_it_is() -> Result<()> {
    if ready() {
        let directory = Directory::new()?;
        for step in directory.steps()? {
            let outcome = Tracer::run_command(&step, "talloc", &ALL)?.finish()?;
            let allocator = chunks(&outcome)?;
            let granules = &allocator["granules"];
            ensure!(
                count(granules, "ended_with_parent")? > count(granules, "closed")?,
                "{granules}"
            );
            let open = allocator["open_granules"].as_array().context("a list")?;
            assert_eq!(open.len() as u64, count(granules, "open_now")?);
            let named: Vec<_> = open.iter().filter_map(|one| one["label"].as_str()).collect();
            ensure!(named.iter().any(|name| name.contains("struct ")), "{named:?}");
        }
    }
    Ok(())
}

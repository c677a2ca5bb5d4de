//! Debian's Subversion as it is: pools of the Apache Portable Runtime, which lives in a library.
//!
//! A library that is preloaded into the same commands counts the same things from inside.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::sum_rule,
    environment::{has_programs, requires_root},
    subversion::{Workspace, version},
    tracer::{Outcome, Tracer},
};
use serde_json::{Value, json};

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// What pools of the known version do: opened, closed, cleared, left open.
const KNOWN: (&str, [u64; 4]) = ("1.14.2", [273, 273, 212, 0]);

fn ready() -> bool {
    requires_root() && has_programs(&["svn", "svnadmin"])
}

/// The one allocator of the one process.
fn pools(outcome: &Outcome) -> Result<Value> {
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    let targets = report["targets"].as_array().context("a list of targets")?;
    ensure!(targets.len() == 1, "one process, not {targets:?}");
    let allocators = targets[0]["allocators"].as_array().context("a list of allocators")?;
    ensure!(allocators.len() == 1, "one allocator, not {allocators:?}");
    let allocator = allocators[0].clone();
    assert_eq!(sum_rule(&allocator), None);
    Ok(allocator)
}

/// The counts that the preloaded library has as well, under its names.
fn counts(allocator: &Value) -> Value {
    let (granules, objects) = (&allocator["granules"], &allocator["objects"]);
    json!({
        "opened": granules["opened"], "closed": granules["closed"], "resets": granules["resets"],
        "open_now": granules["open_now"],
        "allocated": objects["allocated"], "allocated_bytes": objects["allocated_bytes"],
    })
}

/// Create, import, log, verify: in each of the four processes every pool, clear, allocation and byte is
/// seen, as counted from inside; a bulk close of a pool in use is no pin, and there is no DSR.
#[test]
fn subversion_is_exact() -> Result<()> {
    if ready() {
        let truths = Workspace::new()?.counted()?;
        let workspace = Workspace::new()?;
        let mut sums = [0; 4];
        let steps = workspace.steps()?;
        assert_eq!(steps.len(), truths.len());
        for (step, truth) in steps.iter().zip(&truths) {
            let outcome = Tracer::run_command(step, "apr", &OBJECTS)?.finish()?;
            let allocator = pools(&outcome)?;
            assert_eq!(&counts(&allocator), truth, "{step:?}");
            let granules = &allocator["granules"];
            assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
            assert_eq!((&granules["pinned"], &granules["drainable"]), (&0.into(), &0.into()));
            assert_eq!((&granules["opened_before"], &granules["reopened"]), (&0.into(), &0.into()));
            for (sum, key) in sums.iter_mut().zip(["opened", "closed", "resets", "open_now"]) {
                *sum += granules[key].as_u64().with_context(|| format!("no {key}"))?;
            }
        }
        if version()? == KNOWN.0 {
            assert_eq!(sums, KNOWN.1, "{truths:?}");
        }
    }
    Ok(())
}

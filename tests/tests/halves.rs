//! Frees that nobody expected: of objects older than the attach, and of objects whose alloc function the
//! profile misses.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::requires_root,
    tracer::{Outcome, trace},
};
use serde_json::Value;

/// How many unmatched frees there were, their share of all frees, and whether the profile is accused.
fn unmatched(outcome: &Outcome) -> Result<(u64, f64, bool)> {
    let report = outcome.report();
    let unmatched = report.pointer("/losses/unmatched_frees").and_then(Value::as_u64);
    let unmatched = unmatched.context("a loss counter")?;
    let freed = report.pointer("/targets/0/allocators/0/objects/freed").and_then(Value::as_u64);
    let all = unmatched + freed.context("a count of frees")?;
    let told = report.to_string().contains("unmatched_frees_high");
    Ok((unmatched, unmatched as f64 / all as f64, told))
}

/// A healthy program is attached to while it has many objects: their frees are counted, and accuse nobody.
#[test]
fn objects_older_than_the_attach() -> Result<()> {
    if requires_root() {
        let traced = trace("halves", &[], "halves", &["--level", "objects"])?;
        traced.exact();
        let (count, share, told) = unmatched(&traced.outcome)?;
        ensure!(count > 1000 && share > 0.01, "{count} frees, {share}: the target proves nothing");
        ensure!(!told, "{}", traced.outcome.report()["targets"][0]["findings"]);
    }
    Ok(())
}

/// The same program with a profile that names one of its two alloc functions: it is told.
#[test]
fn a_missed_alloc_function() -> Result<()> {
    if requires_root() {
        let traced = trace("halves", &[], "halves_half", &["--level", "objects"])?;
        let (_, share, told) = unmatched(&traced.outcome)?;
        ensure!(share > 0.4, "half of the frees are unmatched: {share}");
        ensure!(told, "{}", traced.outcome.report()["targets"][0]["findings"]);
    }
    Ok(())
}

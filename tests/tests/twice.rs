//! One function, followed to its return for two profiles at once: each counts as if it were alone.

use std::fs;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::{Count, Expect},
    environment::{profile, requires_root},
    tracer::{Outcome, Traced, trace},
};
use serde_json::Value;

/// What was seen of a target through a profile, and what through the same profile under another name.
fn both(name: &str, args: &[&str], of: &str) -> Result<[Traced; 2]> {
    let text = fs::read_to_string(profile(of))?;
    let own = text.lines().find(|line| line.starts_with("name")).context("a profile has a name")?;
    let directory = tempfile::TempDir::new()?;
    let twin = directory.path().join("twin.toml");
    fs::write(&twin, text.replacen(own, "name = \"twin\"", 1))?;
    let twin = twin.to_str().context("a plain path")?;
    let traced = trace(name, args, of, &["--level", "objects", "--profile", twin])?;
    Ok([false, true].map(|of_twin| Traced {
        truths: traced.truths.clone(),
        outcome: Outcome {
            code: traced.outcome.code,
            report: Some(only(traced.outcome.report(), of_twin)),
            stdout: traced.outcome.stdout.clone(),
            stderr: traced.outcome.stderr.clone(),
        },
    }))
}

/// A report with the allocators of one of the profiles.
fn only(report: &Value, of_twin: bool) -> Value {
    let mut report = report.clone();
    for target in report["targets"].as_array_mut().into_iter().flatten() {
        if let Some(allocators) = target["allocators"].as_array_mut() {
            allocators.retain(|allocator| (allocator["profile"] == "twin") == of_twin);
        }
    }
    report
}

/// Out-parameters, results that reject, wrappers and tail calls, opens in flight: all judged at the return, all exact
/// for both.
#[test]
fn both_are_exact() -> Result<()> {
    if requires_root() {
        for (name, args, profile) in [
            ("epoch_ring", &["epochs=2000", "late=20"][..], "epoch_ring"),
            ("nested", &["times=500", "inflight=1"], "nested"),
            ("resize", &["times=500"], "resize"),
        ] {
            for traced in both(name, args, profile)? {
                traced.exact();
            }
        }
    }
    Ok(())
}

/// Calls that are left by longjmp are told apart from calls that are followed twice: each is abandoned once for each.
#[test]
fn abandoned_for_both() -> Result<()> {
    if requires_root() {
        let [first, twin] = both("abandon", &["mode=longjmp"], "arena")?;
        let alone = first.truths[0]["losses"]["call_abandoned"].as_u64().context("a truth")?;
        for traced in [first, twin] {
            Expect::default().loss("call_abandoned", Count::Exactly(2 * alone)).check(&traced);
        }
    }
    Ok(())
}

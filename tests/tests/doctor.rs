//! `drainprof doctor`: what it tells about the eBPF programs.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    tracer::{Outcome, Tracer, command},
};
use serde_json::Value;

/// The verifier refuses a program for which it has to go through more instructions.
const VERIFIER_LIMIT: u64 = 1_000_000;

fn doctor(args: &[&str]) -> Result<Outcome> {
    let mut command = command()?;
    command.arg("doctor").args(args);
    let outcome = Tracer::spawn(command)?.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    Ok(outcome)
}

/// The kernel tells of every program how much there was to verify; the programs that do nothing are the
/// least, all are below the limit, and `--programs` prints the very same figures.
#[test]
fn programs_are_told() -> Result<()> {
    if requires_root() {
        let document: Value = serde_json::from_str(&doctor(&["-o", "json"])?.stdout.join("\n"))?;
        let programs = document["programs"].as_array().context("a list of programs")?;
        let mut told = Vec::new();
        for program in programs {
            let name = program["name"].as_str().context("a name")?;
            let verified = program["verified_instructions"].as_u64().context("a figure")?;
            assert!(verified < VERIFIER_LIMIT, "{name}: {verified}");
            told.push((name, verified));
        }
        let least = told.iter().min_by_key(|(_, verified)| *verified).context("a program")?;
        assert!(least.0.starts_with("empty_"), "{told:?}");
        assert!(told.iter().any(|(name, _)| *name == "close_entry"), "{told:?}");

        let text = doctor(&["--programs"])?.stdout;
        let rows: Vec<Vec<&str>> =
            text.iter().map(|line| line.split_whitespace().collect()).collect();
        for (name, verified) in told {
            let verified = verified.to_string();
            let row = rows.iter().find(|row| row.first() == Some(&name)).context("a line")?;
            assert_eq!(row.get(1), Some(&verified.as_str()), "{row:?}");
        }
    }
    Ok(())
}

//! `drainprof calibrate`: prices that make sense, measured once and remembered.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::{Outcome, Tracer, command},
};
use serde_json::Value;
use tempfile::TempDir;

/// Runs `drainprof calibrate` with a cache directory of the test's own.
fn calibrate(cache: &Path, more: &[&str]) -> Result<Outcome> {
    let mut command = command()?;
    command.args(["calibrate", "-o", "json"]).args(more).env("DRAINPROF_CACHE_DIR", cache);
    Tracer::spawn(command)?.finish()
}

/// The document on stdout, of a run that went well.
fn document(outcome: &Outcome) -> Result<Value> {
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    Ok(serde_json::from_str(&outcome.stdout.join("\n"))?)
}

fn price(document: &Value, kind: &str) -> Result<f64> {
    let kinds = document["kinds"].as_array().context("kinds")?;
    let row = kinds.iter().find(|row| row["kind"] == kind).context("the kind has a row")?;
    row["entry_ns"].as_f64().context("a price")
}

/// Every kind has a price of at least a trap's, `push` is cheaper than what is single-stepped, what is
/// called `emulated` is cheaper than what is called `single_stepped`, and nothing is dearer than `other`.
#[test]
fn prices_make_sense() -> Result<()> {
    if requires_root() {
        let cache = TempDir::new()?;
        let document = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!(document["schema"], "drainprof.calibration/1");
        assert_eq!(document["cached"], false);
        let release = document["host"]["kernel_release"].as_str().context("a kernel")?;
        assert_eq!(release, environment::kernel_release());
        let kinds = document["kinds"].as_array().context("kinds")?;
        assert_eq!(kinds.len(), 12);
        let other = price(&document, "other")?;
        let (mut emulated, mut stepped) = (0.0_f64, f64::MAX);
        for row in kinds {
            let price = row["entry_ns"].as_f64().context("a price")?;
            assert!(price > 30.0 && price <= other, "{row}");
            match row["treatment"].as_str() {
                Some("emulated") => emulated = emulated.max(price),
                Some("single_stepped") => stepped = stepped.min(price),
                Some("call") => assert_eq!(row["kind"], "nop5"),
                _ => anyhow::bail!("no treatment: {row}"),
            }
        }
        assert!(emulated < stepped, "emulated up to {emulated}, single-stepped from {stepped}");
        assert!(price(&document, "push")? < other, "{document}");
        assert!(document["return_ns"].as_f64().context("a price")? > 30.0, "{document}");
    }
    Ok(())
}

/// The second run gives the first one's table without measuring; `--fresh` measures and replaces it;
/// `--no-cache` measures and leaves it alone; a file that is no good is measured over.
#[test]
fn measured_once() -> Result<()> {
    if requires_root() {
        let cache = TempDir::new()?;
        let file = cache.path().join("costs.json");
        let first = document(&calibrate(cache.path(), &[])?)?;
        let remembered = fs::read(&file)?;
        let second = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!((&first["cached"], &second["cached"]), (&false.into(), &true.into()));
        assert_eq!(first["kinds"], second["kinds"]);
        assert_eq!(first["return_ns"], second["return_ns"]);

        let aside = document(&calibrate(cache.path(), &["--no-cache"])?)?;
        assert_eq!(aside["cached"], false);
        assert_eq!(fs::read(&file)?, remembered);

        let fresh = document(&calibrate(cache.path(), &["--fresh"])?)?;
        assert_eq!(fresh["cached"], false);
        let replaced = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!(replaced["kinds"], fresh["kinds"]);

        fs::write(&file, b"{\"schema\":")?;
        let repaired = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!(repaired["cached"], false);
        assert_eq!(document(&calibrate(cache.path(), &[])?)?["kinds"], repaired["kinds"]);
    }
    Ok(())
}

/// Without privilege: exit 77, and the capability that is missing is named.
#[test]
fn without_privilege() -> Result<()> {
    use std::os::unix::process::CommandExt as _;

    if requires_root() {
        let cache = TempDir::new()?;
        let drainprof = cache.path().join("drainprof");
        fs::copy(environment::drainprof()?, &drainprof)?;
        // A directory that the user may enter; the binary's own may not be.
        fs::set_permissions(cache.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let mut command = std::process::Command::new(drainprof);
        command.arg("calibrate").current_dir("/").uid(65534).gid(65534);
        let outcome = Tracer::spawn(command)?.finish()?;
        assert_eq!(outcome.code, Some(77), "{}", outcome.talk());
        assert!(outcome.talk().to_lowercase().contains("cap_"), "{}", outcome.talk());
        assert!(outcome.stdout.is_empty());
    }
    Ok(())
}

/// An attach measures where nothing is remembered, remembers it, and states the probes' cost: hits times
/// prices, which lie between the cheapest and the dearest.
#[test]
fn attach_states_the_cost() -> Result<()> {
    if requires_root() {
        let cache = TempDir::new()?;
        let mut target = Target::start("psweep", &["closes=1000", "p=2500"])?;
        let mut command = command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "-o", "json"]);
        command.args(["--profile", &environment::profile("arena"), "--level", "objects"]);
        command.env("DRAINPROF_CACHE_DIR", cache.path());
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        target.finish()?;
        let outcome = tracer.finish()?;
        let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let observed = &report["targets"][0];
        let count = |probe: &Value, key: &str| probe[key].as_f64().unwrap_or(0.0);
        let (mut entries, mut returns) = (0.0, 0.0);
        for probe in observed["probes"].as_array().context("probes")? {
            entries += count(probe, "entries");
            returns += count(probe, "returns");
        }
        let cost = &observed["cost"];
        assert_eq!(cost["measured"], true);
        assert_eq!(cost["hits"].as_f64(), Some(entries + returns));
        assert!(entries > 2_000.0, "{observed}");

        let prices = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!(prices["cached"], true, "the attach remembered its measurement");
        let cheapest =
            price(&prices, "nop5")?.min(price(&prices, "branch")?).min(price(&prices, "nop")?);
        let added = returns * prices["return_ns"].as_f64().context("a price")?;
        let seconds = cost["cpu_seconds"].as_f64().context("seconds")?;
        // Prices are shown in tenths of a nanosecond.
        let least = (entries * cheapest.min(price(&prices, "push")?) + added) / 1e9 * 0.99;
        let most = (entries * price(&prices, "other")? + added) / 1e9 * 1.01;
        assert!((least..=most).contains(&seconds), "{least} to {most}: {cost}");
    }
    Ok(())
}

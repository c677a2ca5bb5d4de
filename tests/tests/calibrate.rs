//! `drainprof calibrate`: prices that make sense, measured once and remembered.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
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

/// The kinds that kernels replace by calls, or refuse.
const CALLS: [&str; 2] = ["nop5", "nop10"];

/// How often is measured until the prices are in order.
const MEASUREMENTS: usize = 8;

/// Every kind has a price of at least a trap's, `push` is cheaper than what is single-stepped, what is
/// called `emulated` is cheaper than what is called `single_stepped`, and nothing is more expensive than `other`. Only the
/// nops of five and ten bytes may be calls, or unusable.
///
/// Whatever else the machine does only adds to a price, and an emulated machine does much: of several
/// measurements the lowest price of each kind counts.
#[test]
fn prices_make_sense() -> Result<()> {
    if requires_root() {
        let cache = TempDir::new()?;
        let first = document(&calibrate(cache.path(), &[])?)?;
        assert_eq!(first["schema"], "drainprof.calibration/2");
        assert_eq!(first["cached"], false);
        let release = first["host"]["kernel_release"].as_str().context("a kernel")?;
        assert_eq!(release, environment::kernel_release());
        let mut lowest = Prices::of(&first)?;
        for _ in 1..MEASUREMENTS {
            if lowest.in_order().is_ok() {
                break;
            }
            let again = document(&calibrate(cache.path(), &["--no-cache"])?)?;
            lowest.lower(&Prices::of(&again)?);
        }
        lowest.in_order()?;
    }
    Ok(())
}

/// Prices of one or more measurements: by kind, with its treatment; of a return.
struct Prices {
    kinds: BTreeMap<String, (f64, String)>,
    return_ns: f64,
}

impl Prices {
    /// Those of a document, each of which can be a price.
    fn of(document: &Value) -> Result<Self> {
        let other = price(document, "other")?;
        let mut kinds = BTreeMap::new();
        for row in document["kinds"].as_array().context("kinds")? {
            let text = |key: &str| row[key].as_str().map(str::to_owned).context("a text");
            let (kind, treatment) = (text("kind")?, text("treatment")?);
            if treatment == "unusable" {
                ensure!(row["entry_ns"].is_null() && CALLS.contains(&kind.as_str()), "{row}");
                continue;
            }
            let price = row["entry_ns"].as_f64().context("a price")?;
            ensure!(price > 30.0 && price <= other, "{row} of at most {other}");
            kinds.insert(kind, (price, treatment));
        }
        ensure!(document["kinds"].as_array().is_some_and(|kinds| kinds.len() == 14), "{document}");
        Ok(Self { kinds, return_ns: document["return_ns"].as_f64().context("a price")? })
    }

    fn lower(&mut self, others: &Self) {
        for (kind, (price, treatment)) in &mut self.kinds {
            // Whether a kind is usable does not change, but a call may be missed once.
            let Some((other, told)) = others.kinds.get(kind) else { continue };
            *price = price.min(*other);
            // It is told from the prices: a later measurement may have seen better.
            treatment.clone_from(told);
        }
        self.return_ns = self.return_ns.min(others.return_ns);
    }

    fn in_order(&self) -> Result<()> {
        let (mut emulated, mut stepped) = (0.0_f64, f64::MAX);
        for (kind, (price, treatment)) in &self.kinds {
            match treatment.as_str() {
                "emulated" => emulated = emulated.max(*price),
                "single_stepped" => stepped = stepped.min(*price),
                "call" => ensure!(CALLS.contains(&kind.as_str()), "{kind} is a call"),
                _ => bail!("{kind} has the treatment {treatment}"),
            }
        }
        ensure!(
            emulated < stepped,
            "emulated up to {emulated}, single-stepped from {stepped}: {:?}",
            self.kinds
        );
        ensure!(self.kinds["push"].0 < self.kinds["other"].0, "{:?}", self.kinds);
        ensure!(self.return_ns > 30.0, "a return costs {}", self.return_ns);
        Ok(())
    }
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
/// costs, which lie between the cheapest and the most expensive.
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
        let kinds = prices["kinds"].as_array().context("kinds")?.iter();
        let cheapest = kinds.filter_map(|row| row["entry_ns"].as_f64()).fold(f64::MAX, f64::min);
        let added = returns * prices["return_ns"].as_f64().context("a price")?;
        let seconds = cost["cpu_seconds"].as_f64().context("seconds")?;
        // Prices are shown in tenths of a nanosecond.
        let least = (entries * cheapest + added) / 1e9 * 0.99;
        let most = (entries * price(&prices, "other")? + added) / 1e9 * 1.01;
        assert!((least..=most).contains(&seconds), "{least} to {most}: {cost}");
    }
    Ok(())
}

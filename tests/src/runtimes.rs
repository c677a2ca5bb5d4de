//! What the tests of language runtimes and allocator libraries share: what an allocator's report says
//! in numbers, and the hits of its probes.

use std::{fs, thread, time::Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{environment::deadline, tracer::Outcome};

/// Returns once a process waits for a line on its stdin, and so has done all that it does before.
pub fn waits_for_a_line(pid: u32) -> Result<()> {
    let until = Instant::now() + deadline();
    let state = format!("/proc/{pid}/syscall");
    loop {
        let text = fs::read_to_string(&state).with_context(|| format!("read {state}"))?;
        // The number of the call that it sleeps in, and its first argument: `read`, of stdin.
        if text.starts_with(&format!("{} 0x0 ", nix::libc::SYS_read)) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{pid} is still busy: {text}");
        thread::yield_now();
    }
}

/// Opened, open before, closed and open now.
#[must_use]
pub fn granules(allocator: &Value) -> [u64; 4] {
    ["opened", "opened_before", "closed", "open_now"]
        .map(|key| allocator["granules"][key].as_u64().unwrap_or(u64::MAX))
}

/// The bytes of all granules that were closed, at their ends.
pub fn closed_bytes(allocator: &Value) -> Result<u64> {
    let mean = allocator["lifetimes"]["bytes_per_granule"].as_f64().context("bytes per granule")?;
    let closed = allocator["granules"]["closed"].as_f64().context("a count of closes")?;
    // A mean of whole numbers: what the division has taken off is far less than a byte.
    Ok(format!("{:.0}", mean * closed).parse()?)
}

/// Probes that were never hit, by their symbols.
pub fn silent_probes(outcome: &Outcome) -> Result<Vec<String>> {
    let targets = outcome.report()["targets"].as_array().context("a list of targets")?;
    let probes = targets.iter().filter_map(|target| target["probes"].as_array()).flatten();
    Ok(probes
        .filter(|probe| probe["entries"] == 0)
        .map(|probe| probe["symbol"].to_string())
        .collect())
}

/// How often the probe at `symbol` was hit, and how many of the hits its `when` rejected.
pub fn hits(outcome: &Outcome, symbol: &str) -> Result<[u64; 2]> {
    let targets = outcome.report()["targets"].as_array().context("a list of targets")?;
    let probe = targets
        .iter()
        .filter_map(|target| target["probes"].as_array())
        .flatten()
        .find(|probe| probe["symbol"] == symbol)
        .with_context(|| format!("no probe at {symbol}"))?;
    Ok(["entries", "rejected"].map(|key| probe[key].as_u64().unwrap_or(u64::MAX)))
}

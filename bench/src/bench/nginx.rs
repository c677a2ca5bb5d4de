//! nginx under `ab`, with and without level `boundary`.

use anyhow::{Context as _, Result};
use drainprof::profile::Level;
use drainprof_tests::{environment::which, nginx::Nginx};

use super::Known;
use crate::{
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    probing::Probing,
    rounds::{Effort, note_losses},
};

pub(super) const BENCHMARK: Known = Known {
    name: "nginx",
    title: "nginx under ab",
    about: "Debian's nginx, one process, a small file over eight kept connections on loopback; the built-in profile. At \
            level `boundary` each request costs the open and the close of its pool. ab has a CPU of its own where there \
            are two.",
    run,
};

const WITHOUT: &str = "without";
const AGAIN: &str = "without, at the round's end";
const BOUNDARY: &str = "drainprof, level boundary";
const OBJECTS: &str = "drainprof, level objects";

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    for program in ["nginx", "ab"] {
        which(program).with_context(|| format!("not available: {program} is not installed"))?;
    }
    let nginx = Nginx::start(false)?;
    let binary = which("nginx").context("nginx is installed")?;
    let variants = [
        (WITHOUT, Probing::Bare),
        (BOUNDARY, Probing::Drainprof("nginx", Level::Boundary, &[])),
        (OBJECTS, Probing::Drainprof("nginx", Level::Objects, &[])),
        (AGAIN, Probing::Bare),
    ];
    let mut rows: Vec<Row> = variants
        .iter()
        .map(|(name, probing)| Row::new(name, matches!(probing, Probing::Bare), Vec::new()))
        .collect();
    let requests = effort.requests.to_string();
    let load = || rate(&nginx.ab(&["-k", "-c", "8", "-n", &requests])?);
    load()?;
    for round in 0..effort.rounds {
        eprintln!("    round {} of {}", round + 1, effort.rounds);
        for ((name, probing), row) in variants.iter().zip(&mut rows) {
            let attached = probing.attach(nginx.worker, &binary)?;
            let measured = load();
            let report = attached.detach(nginx.worker, &binary)?;
            row.push(vec![measured?]);
            note_losses(name, report.as_ref(), &mut benchmark.notes);
        }
    }
    nginx.quit()?;
    let table = Table {
        title: String::new(),
        unit: "requests per second".to_owned(),
        compare: Compare::Ratio,
        rows,
    };
    benchmark.goals.push(Goal::new(
        "requests per second with level boundary, of those without",
        "×",
        Bound::AtLeast(0.98),
        table.compared(BOUNDARY),
    ));
    benchmark.tables.push(table);
    Ok(())
}

fn rate(text: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Requests per second:"));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("ab told no rate:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::rate;

    /// ab's rate is read; without one there is an error, not a zero.
    #[test]
    fn ab_is_read() {
        let text = "Failed requests:        0\nRequests per second:    41234.56 [#/sec] (mean)\n";
        assert!((rate(text).unwrap() - 41234.56).abs() < 1e-6);
        assert!(rate("ab: connection refused\n").is_err());
    }
}

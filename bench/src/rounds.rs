//! In which order variants are measured: every round has all of them in turn, bare at both ends.
//!
//! A machine grows warm, or busy, within minutes; within a round it changes little. So variants are
//! compared within their round.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    model::{Benchmark, Row},
    probing::Probing,
    worker::{Counts, Sample, Worker},
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Batches per variant and round.
    pub(crate) batches: usize,
    /// Length of a batch.
    pub(crate) batch_ms: u64,
    /// Requests to nginx per variant and round. A fifth of them, 0.2 s, differed by more between rounds than levels cost.
    pub(crate) requests: u32,
    /// Seconds of pgbench per variant and round.
    pub(crate) pgbench_seconds: u32,
    /// Seconds that `drainprof why` observes, per round.
    pub(crate) why_seconds: u32,
    /// Granules and objects of the benchmark of scale.
    pub(crate) scale: (u64, u64),
    /// Rounds of the daemon's own use, and the seconds of each.
    pub(crate) idle: (usize, u64),
    /// How long the daemon is kept busy: what it keeps for an hour is full while it warms up.
    pub(crate) soak: Duration,
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        batches: 5,
        batch_ms: 100,
        requests: 100_000,
        pgbench_seconds: 3,
        why_seconds: 30,
        scale: (1_000_000, 10_000_000),
        idle: (3, 60),
        soak: Duration::from_secs(7200),
    };

    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        batches: 1,
        batch_ms: 10,
        requests: 1_000,
        pgbench_seconds: 1,
        why_seconds: 3,
        scale: (1_000, 10_000),
        idle: (1, 2),
        soak: Duration::from_secs(35),
    };

    /// The option for the length of a target's batches.
    pub(crate) fn ms(self) -> String {
        format!("ms={}", self.batch_ms)
    }
}

/// A variant of a benchmark.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) probing: Probing,
}

impl Variant {
    pub(crate) const fn new(name: &'static str, probing: Probing) -> Self {
        Self { name, probing }
    }
}

pub(crate) const BARE: &str = "bare";
pub(crate) const BARE_AGAIN: &str = "bare at the end";
pub(crate) const FLOOR: &str = "floor";
pub(crate) const FLOOR_BOUNDARY: &str = "floor of boundary";
pub(crate) const FLOOR_CLOSE: &str = "floor of close";
pub(crate) const FLOOR_OBJECTS: &str = "floor of objects";
pub(crate) const BPFTRACE: &str = "bpftrace";
pub(crate) const BPFTRACE_EMPTY: &str = "bpftrace, empty probes";

/// What came out of some rounds.
pub(crate) struct Outcome {
    /// The rows of one table per figure that is measured.
    pub(crate) tables: Vec<Vec<Row>>,
    /// What drainprof's reports said beside the counts.
    pub(crate) notes: Vec<String>,
}

/// Measures once what is attached at the moment: for each figure its samples, and what was done meanwhile,
/// where the target knows.
pub(crate) type Measure<'a> = dyn FnMut() -> Result<(Vec<Vec<f64>>, Counts)> + 'a;

impl Outcome {
    /// Begins the rows: bare, the variants, bare.
    pub(crate) fn begin(variants: &[Variant], figures: usize) -> Self {
        let named = |name, baseline| Row::new(name, baseline, Vec::new());
        let mut rows = vec![named(BARE, true)];
        rows.extend(variants.iter().map(|variant| match variant.probing.missing() {
            Some(why) => Row::unavailable(variant.name, &why),
            None => named(variant.name, false),
        }));
        rows.push(named(BARE_AGAIN, true));
        Self { tables: vec![rows; figures], notes: Vec::new() }
    }

    /// One round: bare, every variant on process `pid`, bare again.
    pub(crate) fn round(
        &mut self,
        (pid, probed): (u32, &Path),
        variants: &[Variant],
        measure: &mut Measure<'_>,
    ) -> Result<()> {
        self.push(0, measure()?.0);
        for (variant, row) in variants.iter().zip(1..) {
            if self.tables[0][row].unavailable.is_some() {
                continue;
            }
            match measured(pid, probed, &variant.probing, measure) {
                Ok((figures, wrong)) => {
                    self.push(row, figures);
                    self.notes
                        .extend(wrong.iter().map(|wrong| format!("{}: {wrong}", variant.name)));
                }
                // What is not there any more (the kernel refuses, the peer fails) is reported, not left out.
                Err(error) => {
                    for table in &mut self.tables {
                        table[row].unavailable = Some(format!("{error:#}"));
                    }
                }
            }
        }
        self.push(variants.len() + 1, measure()?.0);
        Ok(())
    }

    fn push(&mut self, row: usize, figures: Vec<Vec<f64>>) {
        for (table, samples) in self.tables.iter_mut().zip(figures) {
            table[row].push(samples);
        }
    }
}

/// Says which round begins.
pub(crate) fn announce(round: usize, rounds: usize) {
    eprintln!("    round {} of {rounds}", round + 1);
}

/// Measures all variants on workers, one after the other, round by round: one figure, so the rows of one table per worker.
pub(crate) fn interleave(
    mut workers: Vec<(Worker, PathBuf)>,
    variants: &[Variant],
    effort: Effort,
    value: fn(&Sample) -> f64,
    benchmark: &mut Benchmark,
) -> Result<Vec<Vec<Row>>> {
    let mut outcomes: Vec<Outcome> = workers.iter().map(|_| Outcome::begin(variants, 1)).collect();
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        for ((worker, probed), outcome) in workers.iter_mut().zip(&mut outcomes) {
            let pid = worker.pid();
            outcome.round((pid, probed), variants, &mut || {
                // What it did before does not count.
                worker.done();
                let samples = worker.batches(effort.batches, value)?;
                Ok((vec![samples], worker.done()))
            })?;
        }
    }
    for (worker, _) in workers {
        worker.finish()?;
    }
    let mut rows = Vec::new();
    for outcome in outcomes {
        rows.extend(outcome.tables);
        benchmark.notes.extend(outcome.notes);
    }
    Ok(rows)
}

fn measured(
    pid: u32,
    probed: &Path,
    probing: &Probing,
    measure: &mut Measure<'_>,
) -> Result<(Vec<Vec<f64>>, Vec<String>)> {
    let attached = probing.attach(pid, probed)?;
    let measured = measure();
    let seen = attached.detach(pid, probed).context("after measuring")?;
    let (figures, done) = measured?;
    Ok((figures, seen.wrong(done)))
}

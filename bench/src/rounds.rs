//! In which order variants are measured: every round has all of them in turn, bare at both ends.
//!
//! A machine grows warm, or busy, within minutes; within a round it changes little. So variants are
//! compared within their round.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    model::Row,
    probing::Probing,
    worker::{Sample, Worker},
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Batches per variant and round.
    pub(crate) batches: usize,
    /// Length of a batch.
    pub(crate) batch_ms: u64,
    /// Requests to nginx per variant and round.
    pub(crate) requests: u32,
    /// Seconds of pgbench per variant and round.
    pub(crate) pgbench_seconds: u32,
    /// Granules and objects of the benchmark of scale.
    pub(crate) scale: (u64, u64),
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        rounds: 5,
        batches: 5,
        batch_ms: 100,
        requests: 20_000,
        pgbench_seconds: 3,
        scale: (1_000_000, 10_000_000),
    };

    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        batches: 1,
        batch_ms: 10,
        requests: 200,
        pgbench_seconds: 1,
        scale: (1_000, 10_000),
    };

    /// The option that tells a target the length of its batches.
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
pub(crate) const BARE_AGAIN: &str = "bare, at the round's end";
pub(crate) const FLOOR: &str = "floor: empty eBPF programs at drainprof's sites";
pub(crate) const BPFTRACE: &str = "bpftrace, equivalent script";
pub(crate) const BPFTRACE_EMPTY: &str = "bpftrace, empty probes";

/// What came out of some rounds.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) rows: Vec<Row>,
    /// What drainprof's reports said beside the counts.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// Begins the rows: bare, the variants, bare.
    fn begin(variants: &[Variant]) -> Self {
        let named = |name, baseline| Row::new(name, baseline, Vec::new());
        let mut rows = vec![named(BARE, true)];
        rows.extend(variants.iter().map(|variant| match variant.probing.missing() {
            Some(why) => Row::unavailable(variant.name, &why),
            None => named(variant.name, false),
        }));
        rows.push(named(BARE_AGAIN, true));
        Self { rows, notes: Vec::new() }
    }
}

/// Measures all variants on one worker, round by round.
pub(crate) fn interleave(
    worker: &mut Worker,
    probed: &Path,
    variants: &[Variant],
    effort: Effort,
    value: fn(&Sample) -> f64,
) -> Result<Outcome> {
    let mut outcome = Outcome::begin(variants);
    for round in 0..effort.rounds {
        eprintln!("    round {} of {}", round + 1, effort.rounds);
        one_round(worker, probed, variants, effort, value, &mut outcome)?;
    }
    Ok(outcome)
}

/// One round on each of several workers in turn, round by round.
pub(crate) fn interleave_workers(
    workers: &mut [Worker],
    variants: &[Variant],
    effort: Effort,
    value: fn(&Sample) -> f64,
) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = workers.iter().map(|_| Outcome::begin(variants)).collect();
    for round in 0..effort.rounds {
        eprintln!("    round {} of {}", round + 1, effort.rounds);
        for (worker, outcome) in workers.iter_mut().zip(&mut outcomes) {
            let probed = worker.program.clone();
            one_round(worker, &probed, variants, effort, value, outcome)?;
        }
    }
    Ok(outcomes)
}

fn one_round(
    worker: &mut Worker,
    probed: &Path,
    variants: &[Variant],
    effort: Effort,
    value: fn(&Sample) -> f64,
    outcome: &mut Outcome,
) -> Result<()> {
    let last = outcome.rows.len() - 1;
    let bare = batches(worker, effort, value)?;
    outcome.rows[0].push(bare);
    for (variant, row) in variants.iter().zip(&mut outcome.rows[1..last]) {
        if row.unavailable.is_some() {
            continue;
        }
        match measured(worker, probed, &variant.probing, effort, value) {
            Ok((samples, report)) => {
                row.push(samples);
                note_losses(variant.name, report.as_ref(), &mut outcome.notes);
            }
            // What is not there any more (the kernel refuses, the peer fails) is told, not left out.
            Err(error) => row.unavailable = Some(format!("{error:#}")),
        }
    }
    let bare = batches(worker, effort, value)?;
    outcome.rows[last].push(bare);
    Ok(())
}

fn measured(
    worker: &mut Worker,
    probed: &Path,
    probing: &Probing,
    effort: Effort,
    value: fn(&Sample) -> f64,
) -> Result<(Vec<f64>, Option<Value>)> {
    let attached = probing.attach(worker.pid(), probed)?;
    let samples = batches(worker, effort, value);
    let report = attached.detach(worker.pid(), probed).context("after the batches")?;
    Ok((samples?, report))
}

/// One batch to get warm, then those that count.
fn batches(worker: &mut Worker, effort: Effort, value: fn(&Sample) -> f64) -> Result<Vec<f64>> {
    worker.batch()?;
    (0..effort.batches).map(|_| worker.batch().map(|sample| value(&sample))).collect()
}

/// A figure that was bought with losses must say so.
pub(crate) fn note_losses(variant: &str, report: Option<&Value>, notes: &mut Vec<String>) {
    let Some(report) = report.filter(|report| report["complete"] != true) else { return };
    let losses: Vec<String> = report["losses"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, count)| count.as_u64().unwrap_or(0) > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let note = format!("{variant}: the report was not complete: {}", losses.join(", "));
    if !notes.contains(&note) {
        notes.push(note);
    }
}

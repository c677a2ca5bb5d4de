//! Generated programs for the tests: what they hold back over time is known by construction.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use drainprof_common::{hist::Hist, loss::Loss, maps::Totals};

use super::{Case, Growth};
use crate::{
    Options, Report, Retention,
    facts::{AllocatorFacts, Began, CallPath, Ended, Flow, Flows, Moment, SiteFacts, Snapshot},
    samples,
    series::{HeldPoint, HeldSeries, SiteSeries},
};

/// A repeatable source of numbers.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// From 0 to 1, never 0.
    pub(super) fn share(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Exponential with mean 1.
    pub(super) fn waiting(&mut self) -> f64 {
        -self.share().ln()
    }

    /// Nearly normal with variance 1: the sum of twelve shares.
    pub(super) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// When a pin that was made goes again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stay {
    /// Never.
    ForEver,
    /// After exactly so many seconds.
    Fixed(f64),
    /// After an exponential time of this mean.
    About(f64),
    /// When so many others have come after it: a cache that evicts the oldest.
    Evicted(usize),
    /// All at once, every so many seconds.
    Cleared(f64),
    /// In the last hundredth of the run.
    UntilTheEnd,
}

/// Pins that come at random times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// So many per second.
    pub(super) rate: f64,
    /// How long they stay.
    pub(super) stay: Stay,
}

/// A run of a program.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Its length, and the time between two cycles, seconds.
    pub(super) length: f64,
    pub(super) step: f64,
    /// For how long it had run before it was observed, seconds.
    pub(super) before: f64,
    /// Whether it has ended.
    pub(super) ended: bool,
    /// What it does.
    pub(super) streams: Vec<Stream>,
}

/// What does not matter here.
static LIKE: LazyLock<AllocatorFacts> =
    LazyLock::new(|| samples::drain_snapshot().targets[0].allocators[0].clone());

/// Begin of all runs, nanoseconds: far from 0, as clocks are.
pub(super) const BEGIN_NS: u64 = 5_000_000_000_000;
/// Bytes of every granule.
pub(super) const BYTES: u64 = 65_536;

fn ns(seconds: f64) -> u64 {
    Duration::from_secs_f64(seconds.max(0.0)).as_nanos() as u64
}

impl Run {
    /// What drainprof would know of it.
    pub(super) fn facts(&self, seed: u64) -> AllocatorFacts {
        self.observed(seed).0
    }

    /// The same, and what had come and gone by half of the time.
    fn observed(&self, seed: u64) -> (AllocatorFacts, Flow) {
        let mut random = Random::new(seed);
        let mut changes: Vec<(f64, i64)> = Vec::new();
        let mut delays = Hist::new();
        let (mut came, mut went) = (0u64, 0u64);
        let (mut older, mut first) = (0, Flow::default());
        let is_first = |at: f64| u64::from(at <= self.length / 2.0);
        for stream in &self.streams {
            let mut times = Vec::new();
            let mut at = random.waiting() / stream.rate - self.before;
            while at < self.length {
                times.push(at);
                at += random.waiting() / stream.rate;
            }
            for (index, &time) in times.iter().enumerate() {
                let end = match stream.stay {
                    Stay::ForEver => f64::INFINITY,
                    Stay::Fixed(after) => time + after,
                    Stay::About(mean) => time + mean * random.waiting(),
                    Stay::Evicted(others) => {
                        times.get(index + others).copied().unwrap_or(f64::INFINITY)
                    }
                    Stay::Cleared(every) => (time / every).floor().mul_add(every, every),
                    Stay::UntilTheEnd => {
                        (self.length * random.share().mul_add(0.01, 0.99)).max(time)
                    }
                };
                if time < 0.0 {
                    // Its allocation was not seen.
                    let freed = (0.0..=self.length).contains(&end);
                    older += u64::from(freed);
                    first.unmatched += u64::from(freed) * is_first(end);
                    continue;
                }
                came += 1;
                first.allocated += is_first(time);
                changes.push((time, 1));
                if end <= self.length {
                    went += 1;
                    first.gone += is_first(end);
                    changes.push((end, -1));
                    delays.record(ns(end - time));
                }
            }
        }
        changes.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut values = Vec::new();
        let (mut held, mut next) = (0i64, 0);
        let mut time = 0.0;
        while time <= self.length {
            while next < changes.len() && changes[next].0 <= time {
                held += changes[next].1;
                next += 1;
            }
            values.push((time, held as f64));
            time += self.step;
        }
        held += changes[next..].iter().map(|change| change.1).sum::<i64>();
        values.push((self.length, held as f64));
        let mut facts = facts(&values, came, went);
        facts.totals.unmatched_frees = older;
        first.freed = first.gone;
        (AllocatorFacts { pin_delays: delays, ..facts }, first)
    }

    /// The same as what one call path does, which is number `path`.
    pub(super) fn site(&self, seed: u64, path: u64) -> SiteFacts {
        let facts = self.facts(seed);
        SiteFacts {
            path: Arc::new(CallPath { addresses: vec![path], ..CallPath::default() }),
            granules_retained: facts.retained_granules,
            retained_bytes: facts.retained_bytes,
            delays: facts.pin_delays,
            over_time: Some(SiteSeries { held: facts.over_time, ..SiteSeries::default() }),
            ..samples::site(facts.totals.pinned)
        }
    }

    /// The verdict on it.
    pub(super) fn verdict(&self, seed: u64) -> Growth {
        verdict(&self.facts(seed), self.ended)
    }

    /// The whole judgement on it.
    pub(super) fn judged(&self, seed: u64) -> Retention {
        let (facts, first) = self.observed(seed);
        let mut snapshot = snapshot(facts, self.length, self.ended);
        let target = &mut snapshot.targets[0];
        target.began = if self.before > 0.0 { Began::Attached } else { Began::FromStart };
        let half = Totals {
            allocated: first.allocated,
            freed: first.freed,
            unmatched_frees: first.unmatched,
            ..Totals::default()
        };
        let mut flows = Flows::default();
        flows.add(target.target, &target.allocators[0].profile.name, &half);
        flows.unmatched = half.unmatched_frees;
        snapshot.losses[Loss::UnmatchedFree as usize] = target.allocators[0].totals.unmatched_frees;
        snapshot.halfway =
            Some(Moment { after: Duration::from_secs_f64(self.length / 2.0), flows });
        report(&snapshot).targets[0].allocators[0].retention.clone()
    }
}

/// Facts of kind `drain` that hold these granules over time.
#[allow(clippy::cast_sign_loss, reason = "cut off at 0")]
pub(super) fn facts(values: &[(f64, f64)], came: u64, went: u64) -> AllocatorFacts {
    let mut curve = HeldSeries::default();
    for &(time, held) in values {
        let granules = held.max(0.0).round() as u64;
        let at_ns = BEGIN_NS + ns(time);
        curve.add(HeldPoint { at_ns, granules, bytes: BYTES * granules, appeared: 0 });
    }
    let retained = curve.newest().map_or(0, |newest| newest.granules);
    AllocatorFacts {
        profile: Arc::clone(&LIKE.profile),
        totals: Totals {
            opened: came,
            pinned: came,
            late_drained: went,
            allocated: came,
            freed: went,
            pinned_objects: came,
            pinned_bytes: BYTES * came,
            ..Totals::default()
        },
        retained_granules: retained,
        retained_bytes: BYTES * retained,
        granules: Vec::new(),
        over_time: curve,
        ..LIKE.clone()
    }
}

/// The verdict on these facts.
pub(super) fn verdict(facts: &AllocatorFacts, ended: bool) -> Growth {
    Case::of(facts, ended).judge().0
}

/// The retention of a report on these facts.
pub(super) fn judged(facts: AllocatorFacts, length: f64, ended: bool) -> Retention {
    report(&snapshot(facts, length, ended)).targets[0].allocators[0].retention.clone()
}

/// A snapshot at the end of a run.
pub(super) fn snapshot(facts: AllocatorFacts, length: f64, ended: bool) -> Snapshot {
    let mut snapshot = samples::snapshot(vec![facts]);
    snapshot.now_ns = BEGIN_NS + ns(length);
    snapshot.window = Duration::from_secs_f64(length);
    snapshot.targets[0].ended = ended.then_some(Ended::exit(None));
    snapshot
}

/// The report on a snapshot.
pub(super) fn report(snapshot: &Snapshot) -> Report {
    Report::build(snapshot, &Options::default())
}

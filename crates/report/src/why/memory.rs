//! Whether memory grows, and what it is used for.

use std::{cmp::Reverse, collections::BTreeMap};

use drainprof_census::{Census, PartKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Ended, Memory, Target, memory::MemoryVerdict};

/// Whether the resident memory of all observed processes together grows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Growing {
    /// The most telling verdict: growing if one process grows, steady only if all are.
    pub verdict: MemoryVerdict,
    /// Resident memory at the last reading, bytes; processes that share memory count it each.
    pub rss_bytes: u64,
    /// Its growth per second, bytes; null where too little was seen of a process.
    pub bytes_per_second: Option<f64>,
    /// Its 95 % confidence interval.
    pub interval: Option<[f64; 2]>,
    /// Processes that grow.
    pub processes: u64,
    /// When the first limit of a control group is reached, seconds; null without a limit or growth.
    pub seconds_to_limit: Option<f64>,
}

impl Growing {
    pub(super) fn of(targets: &[Target]) -> Self {
        // Where all have ended, what they had is all there is; what one executed before is not its memory.
        let alive = targets.iter().any(|target| target.ended.is_none());
        let counts = |target: &&Target| match target.ended {
            None => true,
            Some(Ended::Exec) => false,
            Some(Ended::Exit { .. }) => !alive,
        };
        let of_all = targets.iter().filter(counts);
        let all: Vec<&Memory> =
            of_all.clone().filter_map(|target| target.memory.as_ref()).collect();
        let with = |verdict| all.iter().filter(|memory| memory.verdict == verdict).count();
        let verdicts = [
            MemoryVerdict::Growing,
            MemoryVerdict::TooLittle,
            MemoryVerdict::Settling,
            MemoryVerdict::Shrinking,
            MemoryVerdict::Steady,
        ];
        let verdict = verdicts.into_iter().find(|verdict| with(*verdict) > 0).unwrap_or_default();
        let slopes: Option<Vec<(f64, [f64; 2])>> = all
            .iter()
            .map(|memory| Some((memory.slope_bytes_per_second?, memory.slope_interval?)))
            .collect();
        let slopes = slopes.filter(|slopes| !slopes.is_empty());
        let sum: Option<f64> = slopes.as_ref().map(|all| all.iter().map(|(slope, _)| slope).sum());
        // The processes' ups and downs are taken for independent.
        let interval = slopes.zip(sum).map(|(slopes, sum)| {
            let half = |[low, high]: [f64; 2]| (high - low) / 2.0;
            let variance: f64 = slopes.iter().map(|(_, ends)| half(*ends).powi(2)).sum();
            [sum - variance.sqrt(), sum + variance.sqrt()]
        });
        Self {
            verdict,
            rss_bytes: of_all
                .filter_map(|target| {
                    target.memory.as_ref().map(|memory| memory.last.rss_bytes).or(target.rss_bytes)
                })
                .fold(0, u64::saturating_add),
            bytes_per_second: sum,
            interval,
            processes: with(MemoryVerdict::Growing) as u64,
            seconds_to_limit: all
                .iter()
                .filter_map(|memory| memory.seconds_to_limit)
                .min_by(f64::total_cmp),
        }
    }
}

impl Growing {
    /// Whether memory surely rose, too little for a verdict, but so that it would be much within a day.
    pub(super) fn may_grow(&self) -> bool {
        let sure = self.interval.map_or(0.0, |[low, _]| low);
        self.verdict != MemoryVerdict::Growing && sure * super::DAY >= super::much(self.rss_bytes)
    }
}

/// Resident memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// What it is: `heap held`, `heap free`, `heap unknown` (with the allocator), `anonymous`, `stacks`, `files`, `shared`.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
}

const ANONYMOUS: &str = "anonymous, no known heap";

pub(super) fn parts(censuses: &[Census]) -> Vec<Part> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for part in censuses.iter().flat_map(|census| &census.parts) {
        let allocator = part.allocator.as_deref().unwrap_or("heap");
        let what = match part.kind {
            PartKind::HeapHeld => format!("{allocator} held"),
            PartKind::HeapFree => format!("{allocator} free"),
            PartKind::HeapUnknown => format!("{allocator} unknown"),
            PartKind::Anonymous => ANONYMOUS.to_owned(),
            PartKind::Stack => "stacks".to_owned(),
            PartKind::File => "files".to_owned(),
            PartKind::Shared => "shared".to_owned(),
        };
        *sums.entry(what).or_default() += part.bytes;
    }
    let mut parts: Vec<Part> = sums.into_iter().map(|(what, bytes)| Part { what, bytes }).collect();
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts
}

/// The share of resident memory that is anonymous and of no known heap.
pub(super) fn unexplained(parts: &[Part]) -> f64 {
    let all: u64 = parts.iter().map(|part| part.bytes).sum();
    let unknown = |part: &&Part| part.what == ANONYMOUS || part.what.ends_with(" unknown");
    let bytes: u64 = parts.iter().filter(unknown).map(|part| part.bytes).sum();
    if all == 0 { 1.0 } else { bytes as f64 / all as f64 }
}

//! Whether memory grows, and what it is used for.

use std::{cmp::Reverse, collections::BTreeMap};

use drainprof_census::{Census, KnownBy, PartKind, Unknown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    memory::{Memory, MemoryVerdict},
    model::{Ended, Target},
};

/// Memory that was not read, or did not validate, as a share of resident memory: above, what holds it is not known.
pub(super) const UNEXPLAINED: f64 = 0.25;
/// What may be unknown although it is most of a process's own memory: data of programs and libraries.
const UNREAD_BYTES: u64 = 1 << 20;
/// What lies idle below this is not worth a change.
const IDLE_BYTES: u64 = 16 << 20;
/// The same as a share of resident memory.
const IDLE_SHARE: f64 = 0.2;
/// Of memory, one part of so many is little.
pub(crate) const LITTLE: u64 = 50;

/// Seconds in which a slow rise would become much.
const DAY: f64 = 86_400.0;

/// What is worth a change, in a process of so many resident bytes.
pub(super) fn much(rss_bytes: u64) -> f64 {
    (IDLE_SHARE * rss_bytes as f64).max(IDLE_BYTES as f64)
}

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
        self.verdict != MemoryVerdict::Growing && sure * DAY >= much(self.rss_bytes)
    }
}

/// Resident memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// What it is: `heap held`, `heap free`, `heap unknown` (with the allocator), `anonymous`, `stacks`, `files`, `shared`.
    pub what: String,
    /// The allocator whose heap it is of; null for other memory.
    #[serde(default)]
    pub allocator: Option<String>,
    /// How that is known.
    #[serde(default = "nothing")]
    pub known_by: KnownBy,
    /// Bytes.
    pub bytes: u64,
}

/// What a document without that field says of it.
const fn nothing() -> KnownBy {
    KnownBy::Nothing
}

const ANONYMOUS: &str = "anonymous, no known heap";

pub(super) fn parts(censuses: &[Census]) -> Vec<Part> {
    let mut sums: BTreeMap<(String, Option<String>, KnownBy), u64> = BTreeMap::new();
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
        let key = (what, part.allocator.clone(), part.kind.known_by());
        let sum = sums.entry(key).or_default();
        *sum = sum.saturating_add(part.bytes);
    }
    let part = |((what, allocator, known_by), bytes)| Part { what, allocator, known_by, bytes };
    let mut parts: Vec<Part> = sums.into_iter().map(part).collect();
    parts.sort_by_key(|part| Reverse(part.bytes));
    parts
}

/// How much of resident memory is known, and what of the rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Bytes that were read and validated, or that the kernel accounts for.
    pub(super) validated: u64,
    /// Of these, bytes that are the processes' own: neither files nor shared memory.
    private: u64,
    /// All other resident bytes.
    pub(super) unknown: u64,
    /// Whether there is a heap of which nothing was read.
    is_unread: bool,
}

/// Whether anything of an allocator's heap was read.
pub(super) fn has_read(parts: &[Part], allocator: &str) -> bool {
    let is_read = |part: &Part| part.known_by == KnownBy::Structures && part.bytes > 0;
    parts.iter().any(|part| part.allocator.as_deref() == Some(allocator) && is_read(part))
}

impl Known {
    /// Of processes that had so many resident bytes. Those that were not read are unknown as a whole.
    pub(super) fn of(parts: &[Part], rss_bytes: u64) -> Self {
        let sum = |is: &dyn Fn(&Part) -> bool| {
            let parts = parts.iter().filter(|part| is(part));
            parts.fold(0u64, |sum, part| sum.saturating_add(part.bytes))
        };
        let validated = sum(&|part| part.known_by != KnownBy::Nothing);
        let listed = sum(&|part| part.known_by == KnownBy::Nothing);
        let unread = rss_bytes.saturating_sub(validated.saturating_add(listed));
        Self {
            validated,
            private: validated.saturating_sub(sum(&|part| part.known_by == KnownBy::Kernel)),
            unknown: listed.saturating_add(unread),
            is_unread: parts
                .iter()
                .filter(|part| part.known_by == KnownBy::Nothing && part.bytes > 0)
                .filter_map(|part| part.allocator.as_deref())
                .any(|allocator| !has_read(parts, allocator)),
        }
    }

    /// The share of resident memory that is not known; of none, all.
    pub(super) fn unknown_share(self) -> f64 {
        share(self.unknown, self.validated)
    }

    /// The share that is not known of memory that is neither file nor shared.
    pub(super) fn unknown_private_share(self) -> f64 {
        share(self.unknown, self.private)
    }

    /// Whether enough is known to say that nothing is wrong: of all that is resident, and of what is the processes' own,
    /// unless what is not known of that is little, less than what is known, and no heap that was not read at all.
    pub(super) fn is_enough(self) -> bool {
        let is_own_known = self.unknown_private_share() <= UNEXPLAINED;
        let is_little =
            self.unknown < IDLE_BYTES && self.unknown < self.private || self.unknown < UNREAD_BYTES;
        self.unknown_share() <= UNEXPLAINED && (is_own_known || is_little && !self.is_unread)
    }
}

fn share(part: u64, rest: u64) -> f64 {
    let all = part as f64 + rest as f64;
    if all == 0.0 { 1.0 } else { part as f64 / all }
}

/// The censuses that ended before all was read, in sentences.
pub(super) fn ran_out(censuses: &[Census]) -> impl Iterator<Item = String> {
    censuses.iter().filter_map(|census| {
        let what = census.ran_out.as_ref()?;
        Some(format!(
            "not all heaps of {} were read: the census has used up the {what}",
            census.pid
        ))
    })
}

/// What is not known, of all processes, with the reasons, the most bytes first.
pub(super) fn unknown(censuses: &[Census], known: Known) -> Vec<Unknown> {
    let mut sums: Vec<Unknown> = Vec::new();
    for one in censuses.iter().flat_map(|census| &census.unknown) {
        match sums.iter_mut().find(|sum| sum.allocator == one.allocator) {
            None => sums.push(one.clone()),
            Some(sum) => {
                sum.bytes = sum.bytes.saturating_add(one.bytes);
                let new = one.reasons.iter().filter(|reason| !sum.reasons.contains(reason));
                let new: Vec<String> = new.cloned().collect();
                sum.reasons.extend(new);
            }
        }
    }
    let listed = sums.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes));
    let unread = known.unknown.saturating_sub(listed);
    // Between two readings memory changes a little.
    if censuses.is_empty() || unread > known.validated / LITTLE {
        let reason = "the heaps of a process were not read, or it has more memory since".to_owned();
        match sums.iter_mut().find(|sum| sum.allocator.is_none()) {
            _ if unread == 0 => {}
            None => sums.push(Unknown { allocator: None, bytes: unread, reasons: vec![reason] }),
            Some(sum) => {
                sum.bytes = sum.bytes.saturating_add(unread);
                sum.reasons.push(reason);
            }
        }
    }
    sums.sort_by_key(|sum| Reverse(sum.bytes));
    sums
}

/// Huge pages of all processes, and what is resident in holes of them; `None` where a census does not know.
pub(super) fn huge(censuses: &[Census]) -> (u64, Option<u64>) {
    let add = |sum: u64, census: &Census| sum.saturating_add(census.huge_bytes);
    let idle = censuses.iter().map(|census| census.huge_idle_bytes);
    let idle = idle.reduce(|sum, one| Some(sum?.saturating_add(one?))).flatten();
    (censuses.iter().fold(0, add), idle)
}

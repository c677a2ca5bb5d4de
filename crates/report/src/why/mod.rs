//! Why the memory of processes is as large as it is: `drainprof.why/1`, in a few sentences.
//!
//! Made of what was measured without much cost: censuses from outside, a report of growth, and a report of probes. Each
//! sentence says what is known; what is not known is a sentence too. [`Answer::Healthy`] is said only where at least three
//! quarters of resident memory were read and validated, or are files or shared memory by the kernel's own account.

mod holders;
mod memory;
mod next;

use std::cmp::Reverse;

use drainprof_census::{Census, Unknown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::memory::Known;
pub use self::{
    holders::{Holder, HolderKind},
    memory::{Growing, Part},
    next::Next,
};
use crate::{Kind, Report, Target, memory::MemoryVerdict};

/// The schema's name and version.
pub const SCHEMA: &str = "drainprof.why/1";

/// Memory that was not read, or did not validate, as a share of resident memory: above, what holds it is not known.
const UNEXPLAINED: f64 = 0.25;
/// What may be unknown although it is most of a process's own memory: data of programs and libraries.
const UNREAD_BYTES: u64 = 1 << 20;
/// What lies idle below this is not worth a change.
const IDLE_BYTES: u64 = 16 << 20;
/// The same as a share of resident memory.
const IDLE_SHARE: f64 = 0.2;
/// Of memory, one part of so many is little.
pub(crate) const LITTLE: u64 = 50;

/// Seconds for which what is pinned at closes is taken to stay.
const PINNED: f64 = 2.0;
/// Seconds in which a slow rise that goes on would become much.
const DAY: f64 = 86_400.0;

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Growth of memory, by call stack; with the memory of each process over time.
    pub growth: &'a Report,
    /// What probes counted, at one level after the other; empty where no profile matches.
    pub probes: &'a [Report],
    /// The heaps at the end, of the processes that could be read.
    pub censuses: &'a [Census],
    /// The profile that was drafted, if there was need for one.
    pub draft: Option<&'a Drafted>,
    /// Why none was drafted although none matched.
    pub undrafted: Option<&'a str>,
    /// What could not be measured, in sentences.
    pub unseen: &'a [String],
}

/// A profile that was drafted from the program's functions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Drafted {
    /// The file.
    pub path: String,
    /// The profile's name.
    pub profile: String,
    /// Its kind, as far as it was found out.
    #[serde(with = "crate::kind_name")]
    #[schemars(schema_with = "crate::schema::kind")]
    pub kind: Kind,
    /// The granule's own live count, an expression; it was proven, so that the profile has level `boundary`. Null: none was.
    #[serde(default)]
    pub live: Option<String>,
    /// What speaks against it, so that its counts are left out; null: it was proven on the process.
    pub against: Option<String>,
}

/// The answer; what weighs most comes first.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Memory grows, and goes on growing.
    Growing,
    /// Few live objects hold much memory, or closed granules stay.
    Pinned,
    /// Much of the memory is free, and could be given back.
    Idle,
    /// Memory does not grow, and what at least 75 % of it is used for is known.
    Healthy,
    /// Too little is known; `unknown` and `unseen` say why.
    Unknown,
}

/// Why memory is as large as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// The name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The processes that were observed.
    pub pids: Vec<u32>,
    /// The name of the first.
    pub comm: String,
    /// How long they were observed.
    pub seconds: f64,
    /// What it comes to.
    pub answer: Answer,
    /// Whether memory grows.
    pub growing: Growing,
    /// Resident memory of all processes by what it is used for, most first; memory that processes share counts in each.
    pub parts: Vec<Part>,
    /// Bytes of resident memory that were read and validated, or that the kernel accounts for: parts whose `known_by` is not
    /// `nothing`. Of files and shared memory no more is known than that they are such.
    #[serde(default)]
    pub validated_bytes: u64,
    /// All other bytes of resident memory; `healthy` needs that they are at most a third of `validated_bytes`. Processes whose
    /// heaps were not read are in it.
    #[serde(default)]
    pub unknown_bytes: u64,
    /// What these are, with the reasons, most first. What came while the heaps were read may be missing.
    #[serde(default)]
    pub unknown: Vec<Unknown>,
    /// Resident bytes of anonymous memory in transparent huge pages.
    #[serde(default)]
    pub huge_bytes: u64,
    /// Of these, bytes of 4 KiB pages of heaps without a live byte, in huge pages that hold one: at least so many are
    /// resident only because a huge page fills the holes. Null where that is not known.
    #[serde(default)]
    pub huge_idle_bytes: Option<u64>,
    /// What holds it, most bytes first.
    pub holders: Vec<Holder>,
    /// Who made what grows or holds most: call stacks, types, size classes, contexts. Sentences.
    pub who: Vec<String>,
    /// The profile that was drafted, as none matched; null: none was.
    pub draft: Option<Drafted>,
    /// What was not seen, and so limits the answer. Sentences.
    pub unseen: Vec<String>,
    /// What the probes took of one CPU.
    pub cost_ratio: f64,
    /// What to do.
    pub next: Vec<Next>,
}

impl Why {
    /// Answers from one report alone: no heap was read but those that are in it as sums.
    #[must_use]
    pub fn of_report(report: &Report) -> Self {
        let mut why = Self::of(&Measured {
            growth: report,
            probes: std::slice::from_ref(report),
            censuses: &[],
            draft: None,
            undrafted: None,
            unseen: &[],
        });
        next::known(&mut why.next, report);
        // That no heap was read is no news of a report.
        why.unknown.clear();
        why
    }

    /// Answers from what was measured. Nothing here depends on a clock or on the machine.
    #[must_use]
    pub fn of(measured: &Measured<'_>) -> Self {
        let targets = &measured.growth.targets;
        let mut growing = Growing::of(targets);
        // The kernel's RSS does not contain them, the parts do.
        let hugetlb = measured.censuses.iter().map(|census| census.hugetlb_bytes);
        growing.rss_bytes = hugetlb.fold(growing.rss_bytes, u64::saturating_add);
        let parts = memory::parts(measured.censuses);
        let holders = holders::of(measured);
        let mut unseen = measured.unseen.to_vec();
        unseen.extend(holders::unseen(measured));
        let known = Known::of(&parts, growing.rss_bytes);
        unseen.extend(memory::ran_out(measured.censuses));
        if !known.is_enough() {
            let (share, of) = if known.unknown_share() > UNEXPLAINED {
                (known.unknown_share(), "resident memory")
            } else {
                (known.unknown_private_share(), "resident memory that is neither file nor shared")
            };
            let share = crate::units::percent(share);
            unseen.insert(
                0,
                if parts.is_empty() {
                    "what the rest of memory is used for is not known".to_owned()
                } else {
                    format!("{share} of {of} was not read, or did not validate")
                },
            );
            if let Some(Drafted { against: Some(against), .. }) = measured.draft {
                unseen.push(format!("a profile was drafted, but does not fit: {against}"));
            }
            unseen.extend(measured.undrafted.map(|why| {
                format!("no profile matches, and none can be drafted from the program's functions: {why}")
            }));
        }
        if growing.may_grow() {
            let rate = crate::units::byte_rate(growing.bytes_per_second.unwrap_or_default());
            unseen
                .push(format!("memory rose by {rate}: observe longer to tell growth from a start"));
        }
        let who = holders::who(measured, growing.verdict);
        let answer = answer(&growing, &holders, known, measured);
        let (huge_bytes, huge_idle_bytes) = memory::huge(measured.censuses);
        let (pids, comm) = processes(targets);
        let mut why = Self {
            schema: SCHEMA.to_owned(),
            comm,
            pids,
            seconds: measured.growth.window.seconds,
            answer,
            growing,
            parts,
            validated_bytes: known.validated,
            unknown_bytes: known.unknown,
            unknown: memory::unknown(measured.censuses, known),
            huge_bytes,
            huge_idle_bytes,
            holders,
            who,
            draft: measured.draft.cloned(),
            unseen,
            cost_ratio: cost_ratio(measured),
            next: Vec::new(),
        };
        why.next = next::of(&why, measured.undrafted.is_some());
        if targets.iter().all(|target| target.ended.is_some()) {
            // There is nobody left whom a command could observe.
            why.next.iter_mut().for_each(|step| step.command = None);
        }
        why
    }

    /// Whether enough of memory is known to say that nothing is wrong.
    fn is_known(&self) -> bool {
        Known::of(&self.parts, self.growing.rss_bytes).is_enough()
    }

    /// Whether most of what is not known is in a heap that was read in part, or what it could give back is not known.
    fn is_partly_read(&self) -> bool {
        let is_read = |one: &Unknown| {
            one.allocator.as_ref().is_some_and(|name| memory::has_read(&self.parts, name))
        };
        self.holders.iter().any(|holder| !holder.certain)
            || !self.is_known() && self.unknown.first().is_some_and(is_read)
    }

    /// The heap in which most of what is not known is, if too much is, and nothing of that heap was read.
    fn unread_heap(&self) -> Option<&str> {
        let heap = self.unknown.first()?.allocator.as_deref()?;
        (!self.is_known() && !memory::has_read(&self.parts, heap)).then_some(heap)
    }
}

/// The processes, those that run with most resident memory first, and the name of the first.
fn processes(targets: &[Target]) -> (Vec<u32>, String) {
    let mut ordered: Vec<&Target> = targets.iter().collect();
    ordered.sort_by_key(|target| {
        let rss = target.memory.as_ref().map(|memory| memory.last.rss_bytes);
        (target.ended.is_some(), Reverse(rss))
    });
    let mut pids: Vec<u32> = Vec::new();
    for target in &ordered {
        if !pids.contains(&target.pid) {
            pids.push(target.pid);
        }
    }
    (pids, ordered.first().map(|target| target.comm.clone()).unwrap_or_default())
}

fn cost_ratio(measured: &Measured<'_>) -> f64 {
    let targets = measured.probes.iter().flat_map(|report| &report.targets);
    let cost: f64 = targets.map(|target| target.cost.cpu_seconds).sum();
    let seconds = measured.growth.window.seconds;
    // The sum of nothing is -0.
    if seconds > 0.0 && cost > 0.0 { cost / seconds } else { 0.0 }
}

/// What is worth a change, in a process of so many resident bytes.
fn much(rss_bytes: u64) -> f64 {
    (IDLE_SHARE * rss_bytes as f64).max(IDLE_BYTES as f64)
}

fn answer(growing: &Growing, holders: &[Holder], known: Known, of: &Measured<'_>) -> Answer {
    let much = much(growing.rss_bytes);
    let matters = |bytes: u64| bytes as f64 >= much;
    let most = |kind: HolderKind, certain: bool| {
        let of_kind =
            holders.iter().filter(|holder| holder.kind == kind && holder.certain == certain);
        of_kind.map(|holder| holder.excess_bytes).max().unwrap_or_default()
    };
    // Of what is pinned and drains soon after, each second's counts again.
    let pins =
        |holder: &Holder| holder.pinned_bytes_per_second.is_some_and(|rate| rate * PINNED >= much);
    if growing.verdict == MemoryVerdict::Growing {
        Answer::Growing
    } else if holders.iter().any(|holder| holder.grows || pins(holder))
        || matters(most(HolderKind::Granules, true))
    {
        Answer::Pinned
    } else if matters(most(HolderKind::Free, true)) {
        Answer::Idle
    } else if matters(most(HolderKind::Sparse, true)) {
        Answer::Pinned
    } else if growing.verdict == MemoryVerdict::TooLittle
        || growing.may_grow()
        || of.censuses.is_empty()
        || matters(most(HolderKind::Sparse, false))
        || !known.is_enough()
        || of.censuses.iter().any(|census| census.ran_out.is_some())
        || growing.rss_bytes == 0
    {
        Answer::Unknown
    } else {
        Answer::Healthy
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod verdict_tests;

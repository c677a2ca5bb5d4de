//! Why the memory of processes is as large as it is: `drainprof.why/1`, in a few sentences.
//!
//! Made of what was measured without much cost: censuses from outside, a report of growth, and a report of probes. Each
//! sentence says what is known; what is not known is a sentence too. [`Answer::Healthy`] is said only where at least three
//! quarters of resident memory were read and validated, or are files or shared memory by the kernel's own account.

mod holders;
mod measured;
mod memory;
mod model;
mod next;

use std::cmp::Reverse;

pub(crate) use self::memory::LITTLE;
use self::memory::{Known, UNEXPLAINED, much};
pub use self::{
    holders::{Holder, HolderKind},
    measured::{Drafted, Measured},
    memory::{Growing, Part},
    model::{Answer, Next, SCHEMA, Why},
};
use crate::{
    memory::MemoryVerdict,
    model::{Report, Target},
};

/// Seconds for which what is pinned at closes is taken to stay.
const PINNED: f64 = 2.0;

impl Why {
    /// Answers from one report alone: no heap was read but those that are in it as sums.
    #[must_use]
    pub fn of_report(report: &Report) -> Self {
        let measured = Measured {
            growth: report,
            probes: std::slice::from_ref(report),
            censuses: &[],
            draft: None,
            undrafted: None,
            unseen: &[],
        };
        let mut why = Self::without_steps(&measured);
        why.next = next::of(&why, &measured, Some(report));
        // That no heap was read is no news of a report.
        why.unknown.clear();
        why
    }

    /// Answers from what was measured. Nothing here depends on a clock or on the machine.
    #[must_use]
    pub fn of(measured: &Measured<'_>) -> Self {
        let mut why = Self::without_steps(measured);
        why.next = next::of(&why, measured, None);
        why
    }

    fn without_steps(measured: &Measured<'_>) -> Self {
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
        Self {
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
        }
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

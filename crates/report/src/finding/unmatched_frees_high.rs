//! `unmatched_frees_high`: frees and allocations do not match each other.
//!
//! After an attach, objects that are older than it are freed for a while, in the healthiest program; those
//! are no reason to accuse the profile. What distinguishes them from a missed alloc function:
//!
//! - A program that runs on allocates a new object for an old one that it frees. Where an alloc function is
//!   missed, more goes than is seen to come, for as long as one looks.
//! - A program that shrinks, or frees all at its end, does so at some time; a missed function is missed all
//!   the time.
//!
//! So both halves of what was observed are examined, and both must have unmatched frees and a surplus of
//! frees, of about the same size. A process that was observed from its start has no objects that are older,
//! and needs no such care.

use drainprof_common::loss::Loss;

use super::{Case, Found, Rule, finding};
use crate::{
    Severity,
    facts::{Began, Flow, Flows},
    units,
};

pub(super) const RULE: Rule = Rule { code: "unmatched_frees_high", check };

/// The share of all frees from which on it is reported.
const MIN_SHARE: f64 = 0.01;
/// Fewer unmatched frees in half of the time prove nothing.
const FEW: u64 = 20;
/// By how much the surplus per second may differ between the halves.
const ALIKE: f64 = 4.0;

fn check(case: &Case<'_>) -> Vec<Found> {
    let snapshot = case.snapshot;
    if snapshot.sample > 1 {
        // Most objects belong to granules that are not in the sample.
        return Vec::new();
    }
    let now = snapshot.flows();
    let halves = Halves::of(case);
    let mut found = Vec::new();
    let mut all_from_start = true;
    for (index, target) in snapshot.targets.iter().enumerate() {
        let from_start = knows_all(case, target.began);
        all_from_start &= from_start;
        for (number, profile, flow) in now.iter().filter(|(number, ..)| *number == target.target) {
            let then = |flows: &Flows| flows.get(number, profile);
            if !is_high(flow, from_start, halves.as_ref(), &then) {
                continue;
            }
            let finding = crate::Finding {
                profile: Some(profile.to_owned()),
                ..finding(RULE.code, Severity::Warning, reported(flow, from_start))
            };
            found.push(Found { target: Some(index), finding });
        }
    }
    // A free of an unknown object cannot always be given to an allocator.
    let flow = nowhere(&now);
    if is_high(flow, all_from_start, halves.as_ref(), &nowhere) {
        let message = format!(
            "{} frees ({} of all) are of objects that belong to no allocator seen: {}",
            flow.unmatched,
            units::percent(share(flow)),
            reason(all_from_start)
        );
        found.push(Found { target: None, finding: finding(RULE.code, Severity::Warning, message) });
    }
    found
}

/// Whether nothing in the process can be older than the look.
fn knows_all(case: &Case<'_>, began: Began) -> bool {
    match began {
        Began::FromStart => true,
        // A program that was found late has objects from before.
        Began::Exec { .. } => case.snapshot.losses[Loss::AttachedLate as usize] == 0,
        // A child has its parent's objects.
        Began::Attached | Began::Forked { .. } => false,
    }
}

/// The unmatched frees that belong to no allocator, beside all that is seen of the others.
fn nowhere(flows: &Flows) -> Flow {
    let sum = flows.sum();
    Flow {
        allocated: sum.allocated,
        gone: sum.gone + sum.unmatched,
        freed: sum.freed + sum.unmatched,
        unmatched: flows.unmatched.saturating_sub(sum.unmatched),
    }
}

/// What is known of the time up to the middle, and how long the two halves are, in seconds.
struct Halves<'a> {
    first: &'a Flows,
    first_s: f64,
    second_s: f64,
}

impl<'a> Halves<'a> {
    fn of(case: &'a Case<'_>) -> Option<Self> {
        let halfway = case.snapshot.halfway.as_ref()?;
        let second = case.snapshot.observed().checked_sub(halfway.after)?;
        let (first_s, second_s) = (halfway.after.as_secs_f64(), second.as_secs_f64());
        (first_s > 0.0 && second_s > 0.0).then_some(Self {
            first: &halfway.flows,
            first_s,
            second_s,
        })
    }
}

fn is_high(
    now: Flow,
    from_start: bool,
    halves: Option<&Halves<'_>>,
    then: &dyn Fn(&Flows) -> Flow,
) -> bool {
    if from_start {
        return share(now) > MIN_SHARE;
    }
    let Some(halves) = halves else { return false };
    let first = then(halves.first);
    let second = now.since(first);
    let goes_on = |half: Flow| {
        let surplus = half.surplus() as f64 / (half.freed + half.unmatched) as f64;
        half.unmatched >= FEW && share(half) > MIN_SHARE && surplus > MIN_SHARE
    };
    let first_rate = first.surplus() as f64 / halves.first_s;
    let second_rate = second.surplus() as f64 / halves.second_s;
    goes_on(first)
        && goes_on(second)
        && first_rate <= second_rate * ALIKE
        && second_rate <= first_rate * ALIKE
}

/// The share of the unmatched in all frees; 0 where there are none.
fn share(flow: Flow) -> f64 {
    let all = flow.freed + flow.unmatched;
    if all == 0 { 0.0 } else { flow.unmatched as f64 / all as f64 }
}

fn reported(flow: Flow, from_start: bool) -> String {
    format!(
        "{} of {} frees ({}) are of objects whose allocation was not seen: {}; {} allocations were seen",
        flow.unmatched,
        flow.freed + flow.unmatched,
        units::percent(share(flow)),
        reason(from_start),
        flow.allocated,
    )
}

const fn reason(from_start: bool) -> &'static str {
    if from_start {
        "the profile misses an alloc function, or the target frees twice"
    } else {
        "in both halves of the time more was freed than allocated, so the profile misses an alloc function \
         (or the target has been shrinking all the time)"
    }
}

#[cfg(test)]
mod tests;

//! What is older than the observation: after an attach, objects from before are freed, and those that take their places
//! look like growth.

use super::rules::{MIN_GRANULES, Subject};
use crate::{
    facts::{AllocatorFacts, Began, Flow, Flows, Snapshot, TargetFacts},
    kind::Kind,
};

/// Growth of which less than this share is left beside what went of older objects is none.
const NET: f64 = 0.5;

/// Objects of an allocator in the later half of the observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Older {
    /// Those that came and are still there.
    kept: f64,
    /// Frees of those whose allocation was not seen.
    freed: f64,
    /// How long that was.
    seconds: f64,
}

impl Older {
    /// `None` where nothing can be older: the process was observed from its start.
    pub(super) fn of(facts: &AllocatorFacts, snapshot: &Snapshot) -> Option<Self> {
        let is_of = |target: &&TargetFacts| {
            target.allocators.iter().any(|allocator| std::ptr::eq(allocator, facts))
        };
        let target = snapshot.targets.iter().find(is_of)?;
        if target.began == Began::FromStart {
            return None;
        }
        let now = snapshot.flows();
        let whole = || (flow(&now, target, facts), snapshot.observed());
        let later = snapshot.halfway.as_ref().and_then(|halfway| {
            let first = flow(&halfway.flows, target, facts);
            let seconds = snapshot.observed().checked_sub(halfway.after)?;
            Some((flow(&now, target, facts).since(first), seconds))
        });
        let (flow, time) = later.unwrap_or_else(whole);
        Some(Self {
            kept: flow.allocated.saturating_sub(flow.gone) as f64,
            freed: flow.unmatched as f64,
            seconds: time.as_secs_f64(),
        })
    }

    /// Whether growth by `slope` per second may be no more than the place of what went.
    pub(super) fn explains(&self, of: Subject, slope: f64) -> bool {
        // Granules of other kinds appear as older ones when they are closed.
        if of.kind != Kind::Drain && !of.objects || self.freed < MIN_GRANULES {
            return false;
        }
        let own = slope * self.seconds / f64::from(of.one_in.max(1));
        let growth = if of.objects { own } else { self.kept };
        self.kept - self.freed < NET * growth
    }
}

/// What came and went of an allocator's profile; frees that belong to no allocator may be its.
fn flow(flows: &Flows, target: &TargetFacts, facts: &AllocatorFacts) -> Flow {
    let own = flows.get(target.target, &facts.profile.name);
    let nowhere = flows.unmatched.saturating_sub(flows.sum().unmatched);
    Flow { unmatched: own.unmatched + nowhere, ..own }
}

//! Windows of a duty cycle: what was seen in those that have ended, and its sum with the one that runs.
//!
//! Each window counts for itself, from nothing. What it leaves behind (granules that are open, or closed
//! and pinned) is not followed further, and is no part of what is open or retained now. Called by `watch`.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use drainprof_common::{
    loss::{LOSS_COUNT, Loss, LossCounts},
    maps::Totals,
};
use drainprof_profile::Level;

use super::{
    flows::Flows,
    sites::SiteFacts,
    snapshot::{AllocatorFacts, ProbeFacts, Snapshot, TargetFacts, flows},
};

/// Places of opening that are distinguished, per allocator: those beyond count as unknown places.
const PLACES: usize = 4_096;

/// Sites that are kept, per allocator. What is allocated at others is the loss `site_table_full`.
const SITES: usize = 65_536;

/// The windows that have ended.
#[derive(Clone, Debug)]
pub struct Windows {
    /// How many.
    count: u64,
    /// Their lengths, added up.
    observed: Duration,
    targets: Vec<TargetFacts>,
    losses: LossCounts,
    /// How many allocator instances are kept.
    limit: usize,
}

impl Windows {
    /// No window yet; at most `limit` allocator instances are kept apart. What does not fit is counted as
    /// the loss `instance_map_full`.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            count: 0,
            observed: Duration::ZERO,
            targets: Vec::new(),
            losses: [0; LOSS_COUNT],
            limit,
        }
    }

    /// How many have ended.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Their lengths, added up.
    #[must_use]
    pub const fn observed(&self) -> Duration {
        self.observed
    }

    /// What was allocated and freed in them.
    #[must_use]
    pub fn flows(&self) -> Flows {
        flows(&self.targets, &self.losses)
    }

    /// A window has ended after `length`; the snapshot holds what was seen in it alone.
    pub fn add(&mut self, mut snapshot: Snapshot, length: Duration) {
        self.count += 1;
        self.observed += length;
        for allocator in snapshot.targets.iter_mut().flat_map(|target| &mut target.allocators) {
            leave(allocator);
        }
        join_targets(&mut self.targets, snapshot.targets);
        join_losses(&mut self.losses, &snapshot.losses);
        let mut room = self.limit;
        let mut lost = 0;
        for target in &mut self.targets {
            lost += target.allocators.len().saturating_sub(room) as u64;
            target.allocators.truncate(room);
            room -= target.allocators.len();
        }
        self.losses[Loss::InstanceMapFull as usize] += lost;
        for allocator in self.targets.iter_mut().flat_map(|target| &mut target.allocators) {
            self.losses[Loss::SiteTableFull as usize] += cut_sites(&mut allocator.sites, SITES);
        }
    }

    /// All windows: those that have ended, and the one that `now` is of.
    #[must_use]
    pub fn join(&self, now: Snapshot) -> Snapshot {
        let mut joined = Snapshot { targets: self.targets.clone(), ..now };
        join_targets(&mut joined.targets, now.targets);
        join_losses(&mut joined.losses, &self.losses);
        joined
    }
}

/// The window has ended: what it leaves is neither open nor retained any more.
fn leave(facts: &mut AllocatorFacts) {
    let totals = &facts.totals;
    facts.left_objects += totals.allocated.saturating_sub(totals.gone());
    facts.left_object_bytes += totals.allocated_bytes.saturating_sub(totals.freed_bytes);
    facts.left_open += std::mem::take(&mut facts.open_now);
    facts.left_retained += std::mem::take(&mut facts.retained_granules);
    facts.left_retained_bytes += std::mem::take(&mut facts.retained_bytes);
    facts.granules.clear();
    for site in &mut facts.sites {
        site.leave();
    }
}

fn join_losses(into: &mut LossCounts, more: &LossCounts) {
    for (sum, more) in into.iter_mut().zip(more) {
        *sum += more;
    }
}

/// A process keeps its number through all windows.
fn join_targets(into: &mut Vec<TargetFacts>, later: Vec<TargetFacts>) {
    for facts in later {
        match into.iter_mut().find(|known| known.target == facts.target) {
            Some(known) => join_target(known, facts),
            None => into.push(facts),
        }
    }
}

/// Counts add up; of what is no count the later is reported.
fn join_target(into: &mut TargetFacts, later: TargetFacts) {
    let TargetFacts { allocators, probes, findings, .. } = later;
    *into = TargetFacts {
        allocators: std::mem::take(&mut into.allocators),
        probes: std::mem::take(&mut into.probes),
        findings: std::mem::take(&mut into.findings),
        began: into.began,
        ..later
    };
    for finding in findings {
        if !into.findings.contains(&finding) {
            into.findings.push(finding);
        }
    }
    join_probes(&mut into.probes, probes);
    for facts in allocators {
        // An instance that was destroyed has ended; another may stand at its address now.
        match into.allocators.iter_mut().find(|known| !known.destroyed && same(known, &facts)) {
            Some(known) => join_allocator(known, facts),
            None => into.allocators.push(facts),
        }
    }
    // A profile of which nothing was seen is reported without an instance, until one is seen.
    let seen: Vec<(String, Level)> = into
        .allocators
        .iter()
        .filter(|facts| !is_silent(facts))
        .map(|facts| (facts.profile.name.clone(), facts.level))
        .collect();
    into.allocators.retain(|facts| {
        !is_silent(facts) || !seen.contains(&(facts.profile.name.clone(), facts.level))
    });
}

fn is_silent(facts: &AllocatorFacts) -> bool {
    facts.instance == 0 && facts.totals == Totals::default()
}

fn same(one: &AllocatorFacts, other: &AllocatorFacts) -> bool {
    one.profile.name == other.profile.name
        && one.level == other.level
        && one.instance == other.instance
}

fn join_allocator(into: &mut AllocatorFacts, later: AllocatorFacts) {
    into.destroyed |= later.destroyed;
    into.pages_known &= later.pages_known;
    into.not_measurable = into.not_measurable.take().or(later.not_measurable);
    into.totals.add(&later.totals);
    into.open_now += later.open_now;
    into.open_peak = into.open_peak.max(later.open_peak);
    into.destroyed_open += later.destroyed_open;
    into.left_open += later.left_open;
    into.left_objects += later.left_objects;
    into.left_object_bytes += later.left_object_bytes;
    into.retained_granules += later.retained_granules;
    into.retained_bytes += later.retained_bytes;
    into.left_retained += later.left_retained;
    into.left_retained_bytes += later.left_retained_bytes;
    into.pin_delays.merge(&later.pin_delays);
    for (place, hist) in later.lifetimes {
        let known = into.lifetimes.len() < PLACES || into.lifetimes.contains_key(&place);
        into.lifetimes.entry(if known { place } else { 0 }).or_default().merge(&hist);
    }
    into.granules.extend(later.granules);
    join_sites(&mut into.sites, later.sites);
    // Two windows make no time series: what was between them was not observed.
    if !later.over_time.is_empty() {
        into.over_time = later.over_time;
        into.live_over_time = later.live_over_time;
    }
}

/// A site keeps its path through all windows.
fn join_sites(into: &mut Vec<SiteFacts>, later: Vec<SiteFacts>) {
    let key = |facts: &SiteFacts| (Arc::clone(&facts.path), facts.opened_at);
    let mut places: HashMap<_, usize> =
        into.iter().enumerate().map(|(place, facts)| (key(facts), place)).collect();
    for facts in later {
        match places.entry(key(&facts)) {
            Entry::Occupied(place) => {
                if let Some(known) = into.get_mut(*place.get()) {
                    known.join(&facts);
                }
            }
            Entry::Vacant(place) => {
                place.insert(into.len());
                into.push(facts);
            }
        }
    }
}

/// Keeps at most `limit` sites: what the others have allocated is counted by none any more.
fn cut_sites(sites: &mut Vec<SiteFacts>, limit: usize) -> u64 {
    let over = sites.drain(limit.min(sites.len())..);
    over.fold(0, |lost, facts| lost.saturating_add(facts.allocated))
}

/// Probes that are put in place again count on; two of the same function stay two.
fn join_probes(into: &mut Vec<ProbeFacts>, later: Vec<ProbeFacts>) {
    let key = |facts: &ProbeFacts| {
        (
            facts.profile.clone(),
            facts.role,
            facts.symbol.clone(),
            facts.object.clone(),
            facts.at_return,
        )
    };
    let mut joined = vec![false; into.len()];
    for facts in later {
        let place = (0..joined.len()).find(|&at| !joined[at] && key(&into[at]) == key(&facts));
        let Some(place) = place else {
            into.push(facts);
            continue;
        };
        joined[place] = true;
        let known = &mut into[place];
        known.entries += facts.entries;
        known.returns += facts.returns;
        known.rejected += facts.rejected;
        known.faults += facts.faults;
    }
}

#[cfg(test)]
mod tests;

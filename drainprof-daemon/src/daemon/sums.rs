//! Counts by label set and profile, of processes that have gone together with those that run: they never fall.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    node::{Counts, Labels},
    report::{Allocator, Kind, Target},
};

/// The executable's name that stands for all label sets beyond the bound.
pub(super) const OTHER: &str = "other";

/// What processes with the same labels have counted with one profile.
type Key = (Labels, String);

/// The counts of processes, or parts of their time, that are over.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    over: BTreeMap<Key, Counts>,
    label_sets: BTreeSet<Labels>,
    limit: usize,
}

impl Sums {
    /// None yet. At most `limit` label sets are told apart; what comes beyond counts under [`OTHER`].
    #[must_use]
    pub(super) const fn new(limit: usize) -> Self {
        Self { over: BTreeMap::new(), label_sets: BTreeSet::new(), limit }
    }

    /// Adds what was counted for a target that is no longer looked at.
    pub(super) fn add(&mut self, labels: &Labels, target: &Target) {
        let labels = self.known(labels);
        add(&mut self.over, &labels, target, false);
    }

    /// All counts: what is over, and what those targets have counted that are looked at now.
    #[must_use]
    pub(super) fn with<'a>(
        &mut self,
        now: impl Iterator<Item = (&'a Labels, &'a Target)>,
    ) -> Vec<Counts> {
        let mut all = self.over.clone();
        for (labels, target) in now {
            let labels = self.known(labels);
            add(&mut all, &labels, target, true);
        }
        all.into_values().collect()
    }

    /// The labels to count under. A set that was once beyond the bound stays there, since no set is ever
    /// forgotten: so no count moves from one set to another.
    fn known(&mut self, labels: &Labels) -> Labels {
        if self.label_sets.contains(labels) {
            return labels.clone();
        }
        if self.label_sets.len() >= self.limit {
            return Labels { exe: OTHER.to_owned(), ..Labels::default() };
        }
        self.label_sets.insert(labels.clone());
        labels.clone()
    }
}

fn add(sums: &mut BTreeMap<Key, Counts>, labels: &Labels, target: &Target, runs: bool) {
    let mut profiles: Vec<(&str, Kind)> = Vec::new();
    for allocator in &target.allocators {
        let sum = entry(sums, labels, &allocator.profile, allocator.kind);
        add_allocator(sum, allocator, runs);
        if !profiles.iter().any(|(known, _)| *known == allocator.profile) {
            profiles.push((&allocator.profile, allocator.kind));
        }
    }
    for probe in &target.probes {
        let kind = profiles.iter().find(|(known, _)| *known == probe.profile);
        let kind = kind.map_or(Kind::Drain, |(_, kind)| *kind);
        let sum = entry(sums, labels, &probe.profile, kind);
        sum.hits += probe.entries + probe.returns;
        sum.cost_seconds += probe.cost_seconds;
    }
    if runs {
        for (profile, kind) in profiles {
            entry(sums, labels, profile, kind).processes += 1;
        }
    }
}

fn entry<'a>(
    sums: &'a mut BTreeMap<Key, Counts>,
    labels: &Labels,
    profile: &str,
    kind: Kind,
) -> &'a mut Counts {
    sums.entry((labels.clone(), profile.to_owned())).or_insert_with(|| Counts {
        labels: labels.clone(),
        profile: profile.to_owned(),
        kind: kind.name().to_owned(),
        ..Counts::default()
    })
}

/// Counters go on for ever; gauges are of those alone that are looked at now.
fn add_allocator(sum: &mut Counts, allocator: &Allocator, runs: bool) {
    let granules = &allocator.granules;
    sum.opened += granules.opened;
    sum.drainable += granules.drainable;
    sum.pinned += granules.pinned;
    sum.unknown += granules.closed.saturating_sub(granules.drainable + granules.pinned);
    if let Some(objects) = &allocator.objects {
        sum.allocated += objects.allocated;
        sum.freed += objects.freed;
    }
    if runs {
        sum.open_now += granules.open_now;
        let plus = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
        sum.retained_granules = plus(sum.retained_granules, allocator.retention.granules);
        sum.retained_bytes = plus(sum.retained_bytes, allocator.retention.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Options, Report, samples};

    fn report() -> Report {
        Report::build(&samples::drain_snapshot(), &Options::default())
    }

    fn labels(exe: &str) -> Labels {
        Labels { exe: exe.into(), ..Labels::default() }
    }

    /// What has gone and what runs is added up; gauges are of what runs alone; nothing is counted twice.
    #[test]
    fn counters_and_gauges() {
        let report = report();
        let target = &report.targets[0];
        let (closed, open): (u64, u64) =
            target.allocators.iter().fold((0, 0), |(closed, open), one| {
                (closed + one.granules.closed, open + one.granules.open_now)
            });
        assert!(closed > 0);
        let ends = |counts: &[Counts]| -> u64 {
            counts.iter().map(|one| one.drainable + one.pinned + one.unknown).sum()
        };
        let open_now = |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.open_now).sum() };
        let mut sums = Sums::new(100);
        let svc = labels("svc");
        let now = sums.with([(&svc, target)].into_iter());
        assert_eq!((ends(&now), open_now(&now)), (closed, open));
        assert!(now.iter().all(|one| one.processes == 1));
        sums.add(&svc, target);
        let gone = sums.with(std::iter::empty());
        assert_eq!((ends(&gone), open_now(&gone)), (closed, 0));
        assert!(gone.iter().all(|one| one.processes == 0 && one.retained_granules.is_none()));
        let both = sums.with([(&svc, target)].into_iter());
        assert_eq!((ends(&both), open_now(&both)), (2 * closed, open));
        assert_eq!(both.len(), now.len());
        let hits: u64 = target.probes.iter().map(|probe| probe.entries + probe.returns).sum();
        assert_eq!(both.iter().map(|one| one.hits).sum::<u64>(), 2 * hits);
    }

    /// Beyond the bound there is one more set, and none moves: counters of no set ever fall.
    #[test]
    fn label_sets_are_bounded() {
        let report = report();
        let target = &report.targets[0];
        let mut sums = Sums::new(2);
        let mut before: BTreeMap<Key, u64> = BTreeMap::new();
        for round in 0..3 {
            for exe in ["a", "b", "c", "d"] {
                if round == 1 {
                    sums.add(&labels(exe), target);
                }
                let own = labels(exe);
                for counts in sums.with([(&own, target)].into_iter().take(usize::from(round != 1)))
                {
                    let known =
                        before.entry((counts.labels.clone(), counts.profile.clone())).or_default();
                    // Of a set that does not run now, only what is over is told.
                    if counts.processes > 0 {
                        assert!(counts.opened >= *known, "{:?}", counts.labels);
                        *known = counts.opened;
                    }
                    assert!(["a", "b", OTHER].contains(&counts.labels.exe.as_str()));
                }
            }
        }
        assert_eq!(sums.with(std::iter::empty()).len() % 3, 0);
    }
}

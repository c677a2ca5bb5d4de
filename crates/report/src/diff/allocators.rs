//! Allocators of a comparison: what the instances of one profile in processes of one name come to, and how two
//! such sums differ.

use drainprof_profile::Level;

use super::{
    matching::Pair,
    model::{AllocatorDiff, Change, Presence, Side},
    sites::{self, Sites},
};
use crate::{Allocator, Growth, Kind, Report, Sampling, Target, dsr};

/// All instances of one profile in the processes of one name.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) profile: String,
    pub(super) kind: Kind,
    /// One of so many granules was examined; the largest of its instances.
    pub(super) one_in: u64,
    sums: Sums,
    pub(super) sites: Option<Sites>,
    sites_listed: Option<u64>,
    sites_total: Option<u64>,
    level: Agreed<Level>,
    verdict: Agreed<Growth>,
    targets: Vec<u32>,
    instances: u64,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    opened: u64,
    closed: u64,
    drainable: u64,
    pinned: u64,
    open_now: u64,
    retained: Option<u64>,
    retained_bytes: Option<u64>,
    live: Option<u64>,
    live_bytes: Option<u64>,
    slope_granules: Option<f64>,
    slope_bytes: Option<f64>,
}

/// A value that all instances share, or none.
#[derive(Clone, Copy, Debug)]
enum Agreed<T> {
    Open,
    On(T),
    Not,
}

impl<T: PartialEq + Copy> Agreed<T> {
    fn add(&mut self, value: Option<T>) {
        *self = match (*self, value) {
            (Self::Open, Some(value)) => Self::On(value),
            (Self::On(old), Some(value)) if old == value => Self::On(old),
            _ => Self::Not,
        };
    }

    const fn value(self) -> Option<T> {
        match self {
            Self::On(value) => Some(value),
            Self::Open | Self::Not => None,
        }
    }
}

/// Adds what is known; a sum of which nothing is known is not known. A stored report may hold any number.
pub(super) fn add(sum: &mut Option<u64>, value: Option<u64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default().saturating_add(value));
    }
}

fn add_f64(sum: &mut Option<f64>, value: Option<f64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default() + value);
    }
}

/// The allocators of a report, in its order.
pub(super) fn groups(report: &Report) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut index = std::collections::HashMap::new();
    for target in &report.targets {
        for allocator in &target.allocators {
            let key = (&target.exe, &target.comm, &allocator.profile, allocator.kind.name());
            let at = *index.entry(key).or_insert_with(|| {
                groups.push(Group::new(target, allocator));
                groups.len() - 1
            });
            if let Some(group) = groups.get_mut(at) {
                group.add(target, allocator);
            }
        }
    }
    groups
}

impl Group {
    fn new(target: &Target, allocator: &Allocator) -> Self {
        Self {
            comm: target.comm.clone(),
            exe: target.exe.clone(),
            profile: allocator.profile.clone(),
            kind: allocator.kind,
            one_in: 1,
            sums: Sums::default(),
            sites: None,
            sites_listed: None,
            sites_total: None,
            level: Agreed::Open,
            verdict: Agreed::Open,
            targets: Vec::new(),
            instances: 0,
        }
    }

    fn add(&mut self, target: &Target, allocator: &Allocator) {
        let one_in = allocator.sampling.map_or(1, |sampling| u64::from(sampling.one_in).max(1));
        let all = |count: u64| count.saturating_mul(one_in);
        let some = |count: Option<u64>| count.map(all);
        self.one_in = self.one_in.max(one_in);
        if self.targets.last() != Some(&target.target) {
            self.targets.push(target.target);
        }
        self.instances += 1;
        self.level.add(Some(allocator.level));
        self.verdict.add(allocator.retention.verdict);
        let (sums, granules) = (&mut self.sums, allocator.granules);
        for (sum, count) in [
            (&mut sums.opened, granules.opened),
            (&mut sums.closed, granules.closed),
            (&mut sums.drainable, granules.drainable),
            (&mut sums.pinned, granules.pinned),
            (&mut sums.open_now, granules.open_now),
        ] {
            *sum = sum.saturating_add(all(count));
        }
        let retention = &allocator.retention;
        add(&mut sums.retained, some(retention.granules));
        add(&mut sums.retained_bytes, some(retention.bytes));
        // Of pages, larger objects are all in the sample: what is live is not just multiplied.
        let (live, live_bytes) = match allocator.sampling {
            Some(Sampling { estimated, .. }) => {
                (estimated.objects_live, estimated.objects_live_bytes)
            }
            None => (
                allocator.objects.map(|objects| objects.live),
                allocator.objects.and_then(|objects| objects.live_bytes),
            ),
        };
        add(&mut sums.live, live);
        add(&mut sums.live_bytes, live_bytes);
        let times = one_in as f64;
        add_f64(
            &mut sums.slope_granules,
            retention.slope_granules_per_second.map(|slope| slope * times),
        );
        add_f64(&mut sums.slope_bytes, retention.slope_bytes_per_second.map(|slope| slope * times));
        if let Some(listed) = &allocator.sites {
            let count = listed.len() as u64;
            add(&mut self.sites_listed, Some(count));
            add(&mut self.sites_total, Some(allocator.sites_total.unwrap_or(count).max(count)));
            let sites = self.sites.get_or_insert_default();
            for site in listed {
                sites.add(site, &target.exe, one_in);
            }
        }
    }

    /// Whether each of its sites is listed.
    pub(super) fn lists_all(&self) -> bool {
        self.sites_listed >= self.sites_total
    }
}

/// A rate; none where nothing was observed, or a stored report holds what is no time.
pub(super) fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds).filter(|rate| rate.is_finite())
}

/// How the two differ.
pub(super) fn compare(pair: &Pair, windows: [&Side; 2]) -> AllocatorDiff {
    let [before, after] = [pair.before.as_ref(), pair.after.as_ref()];
    let seconds = windows.map(|side| side.observed_seconds);
    let change = |of: &dyn Fn(&Group) -> Option<u64>| Change {
        before: before.and_then(of),
        after: after.and_then(of),
    };
    let number = |of: &dyn Fn(&Group) -> Option<f64>| Change {
        before: before.and_then(of).filter(|value| value.is_finite()),
        after: after.and_then(of).filter(|value| value.is_finite()),
    };
    let rate = |of: &dyn Fn(&Group) -> Option<u64>| Change {
        before: before.and_then(of).and_then(|count| per_second(count, seconds[0])),
        after: after.and_then(of).and_then(|count| per_second(count, seconds[1])),
    };
    let level = |group: &Group| group.level.value();
    let verdict = |group: &Group| group.verdict.value();
    let sites = match (before, after) {
        (Some(before), Some(after)) => sites::compare([before, after], seconds),
        _ => None,
    };
    let presence = match (before, after) {
        (Some(_), None) => Presence::OnlyBefore,
        (None, _) => Presence::OnlyAfter,
        _ => Presence::Both,
    };
    let shown = after.or(before);
    let text = |of: &dyn Fn(&Group) -> &String| shown.map(of).cloned().unwrap_or_default();
    AllocatorDiff {
        comm: text(&|group| &group.comm),
        exe: text(&|group| &group.exe),
        profile: text(&|group| &group.profile),
        kind: shown.map_or(Kind::Drain, |group| group.kind),
        presence,
        level: Change { before: before.and_then(level), after: after.and_then(level) },
        sampled: [before, after].into_iter().flatten().any(|group| group.one_in > 1),
        processes: change(&|group| Some(group.targets.len() as u64)),
        instances: change(&|group| Some(group.instances)),
        dsr: number(&|group| dsr(group.kind, group.sums.drainable, group.sums.pinned)),
        opens_per_second: rate(&|group| Some(group.sums.opened)),
        closes_per_second: rate(&|group| Some(group.sums.closed)),
        pinned_per_second: rate(&|group| (group.kind == Kind::Drain).then_some(group.sums.pinned)),
        open_granules: change(&|group| Some(group.sums.open_now)),
        retained_granules: change(&|group| group.sums.retained),
        retained_bytes: change(&|group| group.sums.retained_bytes),
        live_objects: change(&|group| group.sums.live),
        live_bytes: change(&|group| group.sums.live_bytes),
        slope_granules_per_second: number(&|group| group.sums.slope_granules),
        slope_bytes_per_second: number(&|group| group.sums.slope_bytes),
        verdict: Change { before: before.and_then(verdict), after: after.and_then(verdict) },
        sites_listed: change(&|group| group.sites_listed),
        sites_total: change(&|group| group.sites_total),
        sites,
    }
}

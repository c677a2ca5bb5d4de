//! What the instances of one profile in processes of one name come to.

use drainprof_profile::Level;

use super::{
    sites::{Listed, Sites},
    sums::add,
};
use crate::{
    counts::{Counts, Held},
    kind::Kind,
    model::{
        Report, Target,
        allocator::{Allocator, Sampling},
        series::Growth,
    },
};

/// All instances of one profile in the processes of one name.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) profile: String,
    pub(super) kind: Kind,
    /// One of so many granules was examined; the largest of its instances.
    pub(super) one_in: u64,
    pub(super) sums: Sums,
    pub(super) sites: Option<Sites>,
    pub(super) sites_listed: Option<u64>,
    pub(super) sites_total: Option<u64>,
    pub(super) level: Agreed<Level>,
    pub(super) verdict: Agreed<Growth>,
    pub(super) targets: Vec<u32>,
    pub(super) instances: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) counts: Counts,
    pub(super) held: Held,
    pub(super) live: Option<u64>,
    pub(super) live_bytes: Option<u64>,
    pub(super) slope_granules: Option<f64>,
    pub(super) slope_bytes: Option<f64>,
}

/// A value that all instances share, or none.
#[derive(Clone, Copy, Debug)]
pub(super) enum Agreed<T> {
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

    pub(super) const fn value(self) -> Option<T> {
        match self {
            Self::On(value) => Some(value),
            Self::Open | Self::Not => None,
        }
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
        self.one_in = self.one_in.max(one_in);
        if self.targets.last() != Some(&target.target) {
            self.targets.push(target.target);
        }
        self.instances += 1;
        self.level.add(Some(allocator.level));
        self.verdict.add(allocator.retention.verdict);
        let (sums, retention) = (&mut self.sums, &allocator.retention);
        sums.counts.add(Counts::from(allocator.granules).times(one_in));
        sums.held.add(Held::from(allocator).times(one_in));
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

    /// Its sites, as a report lists them; `None` where it has none.
    pub(super) fn listed(&self) -> Option<Listed<'_>> {
        Some(Listed {
            sites: self.sites.as_ref()?,
            one_in: self.one_in,
            is_whole: self.sites_listed >= self.sites_total,
        })
    }
}

//! Counters by label set and profile, over processes that have ended and processes that run.
//!
//! The number of label sets is bounded here and nowhere else. Each set holds only the labels that metrics show, so one
//! set is one group of series. A new set that finds no room evicts the set that was active least recently, of those in
//! which nothing runs. Counts of an evicted set move to [`Labels::other`], so that `other` and the sum over all sets never fall.
//! A set that returns starts at zero with a new [`LabelSet::since_unix_ms`]: a counter reset, and never a small step
//! back. A target keeps the set that it was given first, so that no count moves while the target runs.

mod sums;

use std::collections::{BTreeMap, HashMap, HashSet};

use drainprof_common::loss::LOSS_COUNT;
use drainprof_process::memory::MemoryReading;
use drainprof_report::{Report, Target, health};

use self::sums::{ByProfile, add, entry, fold};
use super::view::{Seen, TargetId, View};
use crate::{Counts, LabelSet, Labels, WorstSite, config::Label};

/// Identifies a process: process id and start time.
pub(super) type ProcessId = (u32, u64);

/// The counts of one label set.
#[derive(Clone, Debug, Default)]
struct Set {
    since_unix_ms: u64,
    /// When it was active last, by [`Counters::uses`].
    used: u64,
    /// The tick at which one of its processes ran last.
    running: u64,
    /// Observed targets that count here.
    targets: usize,
    /// Of targets that have ended.
    ended: ByProfile,
    worst: BTreeMap<String, WorstSite>,
    minor_faults: u64,
    major_faults: u64,
}

/// All counters of the node.
#[derive(Debug)]
pub(super) struct Counters {
    wanted: Vec<Label>,
    limit: usize,
    tick: u64,
    uses: u64,
    unix_ms: u64,
    sets: BTreeMap<Labels, Set>,
    other: Set,
    /// The set of each observed target.
    assigned: HashMap<TargetId, Labels>,
    /// Minor and major faults of each process, as of the last tick.
    faults: HashMap<ProcessId, [u64; 2]>,
    /// Losses of kernel sides that are gone, by name.
    lost: BTreeMap<String, u64>,
    /// Losses of each kernel side, as of the last view.
    losing: BTreeMap<u64, BTreeMap<String, u64>>,
}

/// All losses by name, each zero.
#[must_use]
pub(super) fn no_losses() -> BTreeMap<String, u64> {
    let all = health::by_name(&[0; LOSS_COUNT]).into_iter();
    all.map(|(name, count)| (name, count.unwrap_or_default())).collect()
}

impl Counters {
    /// No counts yet. At most `limit` sets of the labels in `wanted` are counted apart; the rest counts as [`Labels::other`].
    #[must_use]
    pub(super) fn new(wanted: Vec<Label>, limit: usize, unix_ms: u64) -> Self {
        Self {
            wanted,
            limit,
            tick: 0,
            uses: 0,
            unix_ms,
            sets: BTreeMap::new(),
            other: Set { since_unix_ms: unix_ms, ..Set::default() },
            assigned: HashMap::new(),
            faults: HashMap::new(),
            lost: no_losses(),
            losing: BTreeMap::new(),
        }
    }

    /// Begins a tick with the processes that run now, and counts their page faults since the tick before.
    pub(super) fn begin<'a>(
        &mut self,
        unix_ms: u64,
        processes: impl Iterator<Item = (ProcessId, &'a Labels, Option<MemoryReading>)>,
    ) {
        self.tick += 1;
        self.unix_ms = unix_ms;
        let running: Vec<_> =
            processes.map(|(id, labels, memory)| (id, labels.only(&self.wanted), memory)).collect();
        // Sets that are known first: a new one may evict none of them.
        for (_, labels, _) in &running {
            if let Some(set) = self.sets.get_mut(labels) {
                set.running = self.tick;
            }
        }
        let mut faults = HashMap::with_capacity(running.len());
        for (id, labels, memory) in running {
            let key = self.place(labels);
            let tick = self.tick;
            let before = self.faults.get(&id).copied();
            let set = self.set(&key);
            set.running = tick;
            let now = memory.map(|memory| [memory.minor_faults, memory.major_faults]).or(before);
            let Some(now) = now else { continue };
            let before = before.unwrap_or(now);
            set.minor_faults += now[0].saturating_sub(before[0]);
            set.major_faults += now[1].saturating_sub(before[1]);
            faults.insert(id, now);
        }
        self.faults = faults;
    }

    /// Adds what a target has counted that is observed no more.
    pub(super) fn add(&mut self, id: TargetId, labels: &Labels, seen: Seen<'_>) {
        let key = self.assign(id, labels);
        self.assigned.remove(&id);
        let set = self.set(&key);
        set.targets -= 1;
        add(&mut set.ended, &key, seen, false);
    }

    /// Adds what the ended targets of a view have counted, and its losses. Returns the ended targets.
    pub(super) fn count_ended(
        &mut self,
        view: &View,
        labels: impl Fn(&Target) -> Labels,
    ) -> HashSet<TargetId> {
        for (kernel, report) in view.reports() {
            let losses = self.losing.entry(kernel).or_default();
            for (name, count) in &report.losses {
                losses.insert(name.clone(), count.unwrap_or_default());
            }
        }
        let mut ended = HashSet::new();
        for (id, seen) in view.targets().filter(|(_, (_, target))| target.ended.is_some()) {
            self.add(id, &labels(seen.1), seen);
            ended.insert(id);
        }
        ended
    }

    /// Kernel sides are gone: keeps what they have lost.
    pub(super) fn kernels_gone(&mut self, gone: &[u64]) {
        for losses in gone.iter().filter_map(|kernel| self.losing.remove(kernel)) {
            for (name, count) in losses {
                *self.lost.entry(name).or_default() += count;
            }
        }
    }

    /// The losses of all kernel sides, those that are gone included.
    #[must_use]
    pub(super) fn losses(&self) -> BTreeMap<String, u64> {
        let mut all = self.lost.clone();
        for (name, count) in self.losing.values().flatten() {
            *all.entry(name.clone()).or_default() += count;
        }
        all
    }

    /// All counts: of targets that have ended, and of those that are observed `now`.
    #[must_use]
    pub(super) fn counts<'a>(
        &mut self,
        now: impl Iterator<Item = (TargetId, &'a Labels, Seen<'a>)>,
    ) -> Vec<Counts> {
        let mut running: BTreeMap<Labels, Vec<Seen<'_>>> = BTreeMap::new();
        for (id, labels, seen) in now {
            running.entry(self.assign(id, labels)).or_default().push(seen);
        }
        let other = (Labels::other(), &self.other);
        let sets = self.sets.iter().map(|(labels, set)| (labels.clone(), set)).chain([other]);
        let mut all = Vec::new();
        for (labels, set) in sets {
            let mut counts = set.ended.clone();
            for seen in running.remove(&labels).unwrap_or_default() {
                add(&mut counts, &labels, seen, true);
            }
            all.extend(counts.into_iter().map(|(profile, counts)| Counts {
                worst_site: set.worst.get(&profile).cloned(),
                ..counts
            }));
        }
        all
    }

    /// The label sets that are counted apart, and [`Labels::other`].
    #[must_use]
    pub(super) fn label_sets(&self) -> Vec<LabelSet> {
        let other = (Labels::other(), &self.other);
        let sets = self.sets.iter().map(|(labels, set)| (labels.clone(), set)).chain([other]);
        sets.map(|(labels, set)| LabelSet {
            labels,
            since_unix_ms: set.since_unix_ms,
            minor_faults: set.minor_faults,
            major_faults: set.major_faults,
        })
        .collect()
    }

    /// Records the site that pins most, from the report of a window that has ended.
    pub(super) fn blame(
        &mut self,
        labels: &Labels,
        (window, unix_ms): (u64, u64),
        report: &Report,
    ) {
        let labels = labels.only(&self.wanted);
        let set = self.sets.get_mut(&labels).unwrap_or(&mut self.other);
        for allocator in report.targets.iter().flat_map(|target| &target.allocators) {
            // A newer window replaces an older one, whatever it shows.
            if set.worst.get(&allocator.profile).is_some_and(|known| known.window != window) {
                set.worst.remove(&allocator.profile);
            }
            let pinning = allocator.sites.iter().flatten().filter(|site| site.granules_pinned > 0);
            for site in pinning {
                let known = set.worst.get(&allocator.profile);
                let known = known.map_or(0, |known| known.granules_pinned);
                if let Some(id) = site.id.clone().filter(|_| site.granules_pinned > known) {
                    let granules_pinned = site.granules_pinned;
                    let worst = WorstSite { site: id, window, granules_pinned, unix_ms };
                    set.worst.insert(allocator.profile.clone(), worst);
                }
            }
        }
    }

    /// The set that a target counts in, for as long as it is observed.
    fn assign(&mut self, id: TargetId, labels: &Labels) -> Labels {
        if let Some(key) = self.assigned.get(&id) {
            return key.clone();
        }
        let key = self.place(labels.only(&self.wanted));
        self.set(&key).targets += 1;
        self.assigned.insert(id, key.clone());
        key
    }

    /// The set of these labels, or [`Labels::other`] where it finds no room.
    fn place(&mut self, labels: Labels) -> Labels {
        let room =
            self.sets.contains_key(&labels) || (labels != Labels::other() && self.make_room());
        let key = if room { labels } else { Labels::other() };
        if room {
            let since_unix_ms = self.unix_ms;
            self.sets.entry(key.clone()).or_insert_with(|| Set { since_unix_ms, ..Set::default() });
        }
        self.uses += 1;
        self.set(&key).used = self.uses;
        key
    }

    /// Makes room for one more set, by evicting one if need be.
    fn make_room(&mut self) -> bool {
        if self.sets.len() < self.limit {
            return true;
        }
        let idle = self.sets.iter().filter(|(_, set)| set.targets == 0 && set.running < self.tick);
        let oldest = idle.min_by_key(|(_, set)| set.used).map(|(labels, _)| labels.clone());
        let Some(evicted) = oldest.and_then(|labels| self.sets.remove(&labels)) else {
            return false;
        };
        self.other.minor_faults += evicted.minor_faults;
        self.other.major_faults += evicted.major_faults;
        for counts in evicted.ended.values() {
            fold(
                entry(&mut self.other.ended, &Labels::other(), &counts.profile, &counts.kind),
                counts,
            );
        }
        true
    }

    fn set(&mut self, key: &Labels) -> &mut Set {
        self.sets.get_mut(key).unwrap_or(&mut self.other)
    }
}

#[cfg(test)]
mod tests;

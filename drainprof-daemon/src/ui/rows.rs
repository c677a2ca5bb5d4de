//! Rows of the table: processes × allocators, and what two states in a row say of rates.

use std::collections::BTreeMap;

use drainprof_node::{Alert, AlertState, NodeState, NodeTarget};
use drainprof_profile::Level;
use drainprof_report::{Allocator, Counts, Kind};

/// What a row is about, in all states that it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    /// Profile and instance; `None` for a process without an allocator.
    pub(super) allocator: Option<(String, Option<String>)>,
}

impl RowKey {
    fn of(target: &NodeTarget, allocator: Option<&Allocator>) -> Self {
        Self {
            pid: target.pid,
            start_time: target.start_time,
            allocator: allocator.map(|a| (a.profile.clone(), a.instance.clone())),
        }
    }
}

/// What happened between two states, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    pub(super) opens: f64,
    pub(super) closes: f64,
    pub(super) pinned: f64,
    /// Bytes of the granules of pinned closes; `None` where the profile knows none.
    pub(super) pinned_bytes: Option<f64>,
    /// The DSR of these closes alone; `None` where none was decided.
    pub(super) dsr: Option<f64>,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) target: &'a NodeTarget,
    pub(super) allocator: Option<&'a Allocator>,
    pub(super) rates: Option<Rates>,
}

impl<'a> Row<'a> {
    pub(super) fn key(&self) -> RowKey {
        RowKey::of(self.target, self.allocator)
    }

    /// What rows are distinguished by, in an order of its own.
    pub(super) fn rank(&self) -> impl Ord + use<'a> {
        (self.target.pid, self.target.start_time, self.profile())
    }

    pub(super) fn profile(&self) -> Option<(&'a str, Option<&'a str>)> {
        self.allocator.map(|a| (a.profile.as_str(), a.instance.as_deref()))
    }

    pub(super) fn dsr(&self) -> Option<f64> {
        self.allocator.filter(|a| a.kind == Kind::Drain).and_then(|a| a.dsr)
    }

    pub(super) fn retained(&self) -> Option<u64> {
        self.allocator.filter(|a| a.kind == Kind::Drain).and_then(|a| a.retention.bytes)
    }

    pub(super) fn forecast(&self) -> Option<f64> {
        self.allocator.and_then(|a| a.retention.forecast_bytes_per_day)
    }

    pub(super) fn rss(&self) -> Option<u64> {
        self.target.memory.map(|memory| memory.rss_bytes)
    }

    /// How deep it is examined now.
    pub(super) const fn level(&self) -> Option<Level> {
        self.target.level
    }

    /// The worst of the process's alerts.
    pub(super) fn alert(&self) -> Option<AlertState> {
        let is = |state| self.target.alerts.iter().any(|alert: &Alert| alert.state == state);
        if is(AlertState::Firing) {
            Some(AlertState::Firing)
        } else {
            is(AlertState::Pending).then_some(AlertState::Pending)
        }
    }

    /// Whether the text is in its process, executable, labels or profile. Capitals do not matter.
    fn has(&self, text: &str) -> bool {
        let target = self.target;
        let labels = &target.labels;
        let named = [
            Some(target.comm.as_str()),
            Some(target.exe.as_str()),
            Some(labels.exe.as_str()),
            labels.cgroup.as_deref(),
            labels.container.as_deref(),
            labels.unit.as_deref(),
            labels.pod.as_deref(),
            labels.namespace.as_deref(),
            self.allocator.map(|a| a.profile.as_str()),
        ];
        named.into_iter().flatten().any(|name| name.to_lowercase().contains(text))
            || target.pid.to_string() == text
    }
}

/// All rows of a state that have the text, in the state's order.
pub(super) fn rows<'a>(
    state: &'a NodeState,
    rates: &BTreeMap<RowKey, Rates>,
    filter: &str,
) -> Vec<Row<'a>> {
    let filter = filter.to_lowercase();
    let mut rows = Vec::new();
    for target in &state.targets {
        let mut push = |allocator: Option<&'a Allocator>| {
            let row = Row { target, allocator, rates: None };
            if filter.is_empty() || row.has(&filter) {
                rows.push(Row { rates: rates.get(&row.key()).copied(), ..row });
            }
        };
        if target.allocators.is_empty() {
            push(None);
        }
        target.allocators.iter().map(Some).for_each(&mut push);
    }
    rows
}

/// What happened between two states; nothing where no time has passed, and of what was not there before.
pub(super) fn rates(before: &NodeState, now: &NodeState) -> BTreeMap<RowKey, Rates> {
    let seconds = now.unix_ms.saturating_sub(before.unix_ms) as f64 / 1000.0;
    let mut rates = BTreeMap::new();
    if seconds <= 0.0 {
        return rates;
    }
    let mut earlier = BTreeMap::new();
    for (target, allocator) in allocators(before) {
        let counts = (Counts::from(allocator.granules), allocator.pins.bytes);
        earlier.insert(RowKey::of(target, Some(allocator)), counts);
    }
    for (target, allocator) in allocators(now) {
        let key = RowKey::of(target, Some(allocator));
        let Some((then, then_bytes)) = earlier.get(&key) else { continue };
        // Counts never fall; where they do, it was attached again, and what came in between is not known.
        let Some(new) = Counts::from(allocator.granules).since(*then) else { continue };
        let per_second = |count: u64| count as f64 / seconds;
        let bytes = allocator.pins.bytes.zip(*then_bytes);
        let pinned_bytes = bytes.and_then(|(now, then)| now.checked_sub(then));
        rates.insert(
            key,
            Rates {
                opens: per_second(new.opened),
                closes: per_second(new.closed()),
                pinned: per_second(new.pinned),
                pinned_bytes: pinned_bytes.map(per_second),
                dsr: new.dsr(allocator.kind),
            },
        );
    }
    rates
}

fn allocators(state: &NodeState) -> impl Iterator<Item = (&NodeTarget, &Allocator)> {
    state.targets.iter().flat_map(|target| target.allocators.iter().map(move |a| (target, a)))
}

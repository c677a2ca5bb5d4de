//! Metrics of processes, of the machine, and of the tool itself.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_profile::Level;

use super::{
    family::{Families, pairs, shown, with},
    heaps::HeapSums,
    table,
};
use crate::{AlertState, Labels, NodeState, NodeTarget, Outcome, WindowRecord, config::Label};

/// How windows can have ended.
const ENDED: [Outcome; 5] = [
    Outcome::Finished,
    Outcome::TargetEnded,
    Outcome::OverCost,
    Outcome::Interrupted,
    Outcome::Failed,
];

/// What holds now of the processes of one label set.
#[derive(Default)]
struct Sums {
    resident: u64,
    anonymous: u64,
    space: u64,
    swap: u64,
    overhead: Option<f64>,
    level: Option<f64>,
    to_limit: Option<f64>,
    memory: bool,
    growth: Option<f64>,
    /// PSS and USS; `None` if a process has had no turn.
    shares: Option<[u64; 2]>,
    /// Some and all tasks.
    pressure: Option<[f64; 2]>,
    processes: u64,
    heaps: HeapSums,
}

/// The larger one of what is known.
fn most(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

impl Sums {
    fn add(&mut self, target: &NodeTarget) {
        if let Some(memory) = target.memory {
            self.memory = true;
            self.resident = self.resident.saturating_add(memory.rss_bytes);
            self.anonymous = self.anonymous.saturating_add(memory.anon_bytes);
            self.space = self.space.saturating_add(memory.vsz_bytes);
            self.swap = self.swap.saturating_add(memory.swap_bytes);
        }
        let own = target.shares.map(|shares| [shares.memory.pss_bytes, shares.memory.uss_bytes]);
        self.shares = match (self.processes, self.shares, own) {
            (0, _, own) => own,
            (_, Some(sum), Some(own)) => Some([0, 1].map(|at| sum[at].saturating_add(own[at]))),
            _ => None,
        };
        self.processes += 1;
        self.heaps.add(target);
        self.growth = most(self.growth, target.rss_slope_bytes_per_second);
        if let Some(pressure) = target.cgroup_pressure {
            let [some, full] = self.pressure.unwrap_or_default();
            self.pressure = Some([some.max(pressure.some.avg10), full.max(pressure.full.avg10)]);
        }
        self.overhead = most(self.overhead, target.cost.cpu_ratio);
        if let Some(seconds) = target.seconds_to_limit {
            self.to_limit = Some(self.to_limit.map_or(seconds, |least| least.min(seconds)));
        }
        // What has no profile has no level.
        if !target.matched {
            return;
        }
        let level = match target.level {
            None => 0.0,
            Some(Level::Close) => 0.5,
            Some(Level::Boundary) => 1.0,
            Some(Level::Objects) => 2.0,
            Some(Level::Stacks) => 3.0,
        };
        self.level = Some(self.level.map_or(level, |least: f64| least.min(level)));
    }
}

/// Writes what is known of processes, by the label sets with these labels.
pub(super) fn processes(state: &NodeState, wanted: &[Label], families: &mut Families) {
    let mut rows: BTreeMap<Labels, Sums> = BTreeMap::new();
    let mut others = BTreeSet::new();
    let sets: BTreeSet<&Labels> = state.label_sets.iter().map(|set| &set.labels).collect();
    for target in &state.targets {
        let mut labels = target.labels.only(wanted);
        if !sets.contains(&labels) {
            others.insert(std::mem::replace(&mut labels, Labels::other()));
        }
        rows.entry(labels).or_default().add(target);
    }
    let own = state.label_sets.iter().filter(|set| set.labels != Labels::other());
    for (name, count) in [("own", own.count()), ("other", others.len())] {
        families.count(&table::LABEL_SETS, vec![("shown", name.to_owned())], count as u64);
    }
    for set in &state.label_sets {
        let labels = pairs(&set.labels, &[]);
        for (kind, count) in [("minor", set.minor_faults), ("major", set.major_faults)] {
            families.count(&table::FAULTS_SEEN, with(&labels, "type", kind), count);
        }
        families.measure(&table::SET_CREATED, labels, set.since_unix_ms as f64 / 1e3);
    }
    for (row, sums) in rows {
        let labels = pairs(&row, &[]);
        if sums.memory {
            families.count(&table::RESIDENT, labels.clone(), sums.resident);
            families.count(&table::ANONYMOUS, labels.clone(), sums.anonymous);
            families.count(&table::VIRTUAL, labels.clone(), sums.space);
            families.count(&table::SWAP, labels.clone(), sums.swap);
        }
        if let Some([pss, uss]) = sums.shares {
            families.count(&table::PROPORTIONAL, labels.clone(), pss);
            families.count(&table::UNIQUE, labels.clone(), uss);
        }
        sums.heaps.write(&labels, families);
        if let Some(growth) = sums.growth {
            families.measure(&table::GROWTH, labels.clone(), growth);
        }
        for (scope, at) in [("some", 0), ("full", 1)] {
            if let Some(shares) = sums.pressure {
                families.measure(&table::GROUP_PRESSURE, with(&labels, "scope", scope), shares[at]);
            }
        }
        if let Some(ratio) = sums.overhead {
            families.measure(&table::OVERHEAD, labels.clone(), ratio);
        }
        if let Some(level) = sums.level {
            families.measure(&table::LEVEL, labels.clone(), level);
        }
        if let Some(seconds) = sums.to_limit {
            families.measure(&table::TO_LIMIT, labels, seconds);
        }
    }
}

/// What metrics remember of earlier states.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Windows that have ended and are counted.
    counted: BTreeSet<u64>,
    /// How many windows have ended, by outcome.
    outcomes: BTreeMap<&'static str, u64>,
    clocks: Clocks,
}

impl Past {
    /// Takes in a state.
    pub(super) fn observe(&mut self, state: &NodeState) {
        self.count_windows(state);
        self.clocks.observe(state);
    }

    /// Counts the windows that have ended since the state before, each once.
    fn count_windows(&mut self, state: &NodeState) {
        let ended = own_windows(state).filter(|window| window.outcome != Outcome::Running);
        for window in ended {
            if self.counted.insert(window.id) {
                *self.outcomes.entry(outcome(window.outcome)).or_insert(0) += 1;
            }
        }
        // Ids rise, so one that has gone from the list does not come back.
        self.counted.retain(|id| state.windows.iter().any(|window| window.id == *id));
    }

    /// Writes what is known of the machine and of the tool itself.
    pub(super) fn node(&self, state: &NodeState, families: &mut Families) {
        families.count(&table::BUILD, vec![("version", shown(&state.tool.version))], 1);
        alerts(state, families);
        self.windows(state, families);
        self.pressure(state, families);
        for (name, lost) in &state.losses {
            families.count(&table::LOST, vec![("stage", shown(name))], *lost);
        }
        for level in [None].into_iter().chain(Level::ALL.map(Some)) {
            let at = |target: &&NodeTarget| target.matched && target.level == level;
            let count = state.targets.iter().filter(at).count();
            let name = level.map_or("none", Level::name);
            families.count(&table::TARGETS, vec![("level", name.to_owned())], count as u64);
        }
        let unmatched = state.targets.iter().filter(|target| !target.matched).count();
        families.count(&table::TARGETS, vec![("level", "memory".to_owned())], unmatched as u64);
        for (of, count) in [
            (&table::COMPLETE, state.complete.into()),
            (&table::LATE, state.processes_late),
            (&table::GIVEN_UP, state.processes_given_up),
            (&table::PUT_OFF, state.probes_put_off),
            (&table::READY, state.ready.into()),
            (&table::KILLED, state.killed.into()),
            (&table::DEGRADED, state.degraded.len() as u64),
            (&table::SELF_RESIDENT, state.self_use.rss_bytes),
            (&table::SELF_MAPS, state.self_use.map_bytes),
        ] {
            families.count(of, Vec::new(), count);
        }
        families.measure(&table::UPTIME, Vec::new(), state.uptime_seconds);
        families.measure(&table::STATE_TIME, Vec::new(), state.unix_ms as f64 / 1e3);
        families.measure(&table::SELF_CPU, Vec::new(), seconds(self.clocks.cpu));
    }

    fn windows(&self, state: &NodeState, families: &mut Families) {
        for name in ENDED.map(outcome) {
            let count = self.outcomes.get(name).copied().unwrap_or(0);
            families.count(&table::WINDOWS, vec![("outcome", name.to_owned())], count);
        }
        let running = own_windows(state).filter(|window| window.outcome == Outcome::Running);
        families.count(&table::WINDOWS_RUNNING, Vec::new(), running.count() as u64);
        let pushed = state.pushed.iter().flat_map(|own| {
            let lost = [("refused", own.refused), ("unreachable", own.unreachable)];
            [("sent", own.sent), ("dropped", own.dropped)].into_iter().chain(lost)
        });
        for (outcome, count) in pushed {
            families.count(&table::PUSHED, vec![("outcome", outcome.to_owned())], count);
        }
    }

    fn pressure(&self, state: &NodeState, families: &mut Families) {
        let Some(pressure) = state.pressure else { return };
        let [some, full] = self.clocks.waited;
        for (scope, waiting, waited) in
            [("some", pressure.some, some), ("full", pressure.full, full)]
        {
            let shares = [("10s", waiting.avg10), ("60s", waiting.avg60), ("300s", waiting.avg300)];
            for (over, share) in shares {
                let labels = vec![("scope", scope.to_owned()), ("over", over.to_owned())];
                families.measure(&table::PRESSURE, labels, share);
            }
            let labels = vec![("scope", scope.to_owned())];
            families.measure(&table::PRESSURE_WAITED, labels, seconds(waited));
        }
    }
}

/// The windows of this daemon: those of earlier ones may be in the history.
fn own_windows(state: &NodeState) -> impl Iterator<Item = &WindowRecord> {
    let began = state.unix_ms as f64 - state.uptime_seconds * 1e3;
    state.windows.iter().filter(move |window| window.began_unix_ms as f64 >= began)
}

/// The largest values so far of clocks, in nanoseconds: one that is read in parts may go back a little.
#[derive(Debug, Default)]
struct Clocks {
    cpu: u64,
    /// Of some and of all tasks.
    waited: [u64; 2],
}

impl Clocks {
    fn observe(&mut self, state: &NodeState) {
        raise(&mut self.cpu, state.self_use.cpu_seconds);
        if let Some(pressure) = state.pressure {
            raise(&mut self.waited[0], pressure.some.total_seconds);
            raise(&mut self.waited[1], pressure.full.total_seconds);
        }
    }
}

fn raise(largest: &mut u64, seconds: f64) {
    #[allow(clippy::cast_sign_loss, reason = "`as` saturates at 0")]
    let nanos = (seconds * 1e9) as u64;
    *largest = nanos.max(*largest);
}

const fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn alerts(state: &NodeState, families: &mut Families) {
    let mut counts: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for alert in state.targets.iter().flat_map(|target| &target.alerts) {
        let phase = match alert.state {
            AlertState::Pending => "pending",
            AlertState::Firing => "firing",
        };
        *counts.entry((shown(&alert.rule), phase)).or_insert(0) += 1;
    }
    for ((rule, phase), count) in counts {
        let labels = vec![("rule", rule), ("state", phase.to_owned())];
        families.count(&table::ALERTS, labels, count);
    }
}

/// An outcome's name, as in JSON.
const fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "running",
        Outcome::Finished => "finished",
        Outcome::TargetEnded => "target_ended",
        Outcome::OverCost => "over_cost",
        Outcome::Interrupted => "interrupted",
        Outcome::Failed => "failed",
    }
}

//! Metrics of processes, of the machine, and of the tool itself.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_profile::Level;

use super::{Families, Metrics, heaps::HeapSums, other, pairs, shown, table, with};
use crate::{AlertState, Labels, NodeState, NodeTarget, Outcome};

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

impl Metrics {
    pub(super) fn processes(&self, state: &NodeState, families: &mut Families) {
        let mut rows: BTreeMap<Labels, Sums> = BTreeMap::new();
        let mut others = BTreeSet::new();
        let sets: BTreeSet<&Labels> = state.label_sets.iter().map(|set| &set.labels).collect();
        for target in &state.targets {
            let mut labels = target.labels.only(&self.labels);
            if !sets.contains(&labels) {
                others.insert(std::mem::replace(&mut labels, other()));
            }
            rows.entry(labels).or_default().add(target);
        }
        let own = state.label_sets.iter().filter(|set| set.labels != other());
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
                    families.measure(
                        &table::GROUP_PRESSURE,
                        with(&labels, "scope", scope),
                        shares[at],
                    );
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

    pub(super) fn node(&mut self, state: &NodeState, families: &mut Families) {
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
        families.count(&table::COMPLETE, Vec::new(), state.complete.into());
        families.count(&table::LATE, Vec::new(), state.processes_late);
        families.count(&table::GIVEN_UP, Vec::new(), state.processes_given_up);
        families.count(&table::PUT_OFF, Vec::new(), state.probes_put_off);
        families.count(&table::READY, Vec::new(), state.ready.into());
        families.count(&table::KILLED, Vec::new(), state.killed.into());
        families.count(&table::DEGRADED, Vec::new(), state.degraded.len() as u64);
        families.measure(&table::UPTIME, Vec::new(), state.uptime_seconds);
        families.measure(&table::STATE_TIME, Vec::new(), state.unix_ms as f64 / 1e3);
        let cpu = self.rising("self cpu", state.self_use.cpu_seconds);
        families.measure(&table::SELF_CPU, Vec::new(), cpu);
        families.count(&table::SELF_RESIDENT, Vec::new(), state.self_use.rss_bytes);
        families.count(&table::SELF_MAPS, Vec::new(), state.self_use.map_bytes);
    }

    fn windows(&mut self, state: &NodeState, families: &mut Families) {
        // Windows of earlier daemons may be in the history.
        let began = state.unix_ms as f64 - state.uptime_seconds * 1e3;
        let own = state.windows.iter().filter(|window| window.began_unix_ms as f64 >= began);
        let mut running = 0;
        for window in own {
            match window.outcome {
                Outcome::Running => running += 1,
                ended => {
                    if self.windows.insert(window.id) {
                        *self.outcomes.entry(outcome(ended)).or_insert(0) += 1;
                    }
                }
            }
        }
        // Ids rise, so one that has gone from the list does not come back.
        self.windows.retain(|id| state.windows.iter().any(|window| window.id == *id));
        let all = [
            Outcome::Finished,
            Outcome::TargetEnded,
            Outcome::OverCost,
            Outcome::Interrupted,
            Outcome::Failed,
        ];
        for name in all.map(outcome) {
            let count = self.outcomes.get(name).copied().unwrap_or(0);
            families.count(&table::WINDOWS, vec![("outcome", name.to_owned())], count);
        }
        families.count(&table::WINDOWS_RUNNING, Vec::new(), running);
        let pushed = state.pushed.iter().flat_map(|own| {
            let lost = [("refused", own.refused), ("unreachable", own.unreachable)];
            [("sent", own.sent), ("dropped", own.dropped)].into_iter().chain(lost)
        });
        for (outcome, count) in pushed {
            families.count(&table::PUSHED, vec![("outcome", outcome.to_owned())], count);
        }
    }

    fn pressure(&mut self, state: &NodeState, families: &mut Families) {
        let Some(pressure) = state.pressure else { return };
        for (scope, waiting) in [("some", pressure.some), ("full", pressure.full)] {
            let shares = [("10s", waiting.avg10), ("60s", waiting.avg60), ("300s", waiting.avg300)];
            for (over, share) in shares {
                let labels = vec![("scope", scope.to_owned()), ("over", over.to_owned())];
                families.measure(&table::PRESSURE, labels, share);
            }
            let waited = self.rising(scope, waiting.total_seconds);
            families.measure(&table::PRESSURE_WAITED, vec![("scope", scope.to_owned())], waited);
        }
    }

    /// The largest value so far, to the nanosecond: a clock that is read in parts may go back a little.
    fn rising(&mut self, name: &str, seconds: f64) -> f64 {
        #[allow(clippy::cast_sign_loss, reason = "`as` saturates at 0")]
        let nanos = (seconds * 1e9) as u64;
        let most = self.single.entry(name.to_owned()).or_insert(0);
        *most = nanos.max(*most);
        *most as f64 / 1e9
    }
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
        Outcome::OverCost => "too_dear",
        Outcome::Interrupted => "interrupted",
        Outcome::Failed => "failed",
    }
}

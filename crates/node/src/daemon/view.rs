//! One look at everything: levels are changed that are to change, counters and memory are read, rules and governors
//! judge, and the state is published.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drainprof_observe::{self_use, settle};
use drainprof_process::memory::Pressure;
use drainprof_profile::{self as profile, Level};
use drainprof_report::{
    self as report, Report, SelfUse, Target, Tool,
    facts::{Snapshot, TargetFacts},
    health::Health,
};

use super::{
    counters::{Seen, TargetId},
    service::{SHOWN_WINDOWS, Service},
    tracked::Tracked,
};
use crate::{Labels, NodeState, SCHEMA, govern::Reading, store::Moment};

/// While targets run, so many events may happen between the first and the last counter that is read.
const SLACK: u64 = u64::MAX / 4;

/// How deep a process is to be looked at from now on, and why.
type Turn = (Option<Level>, String);

impl Service {
    /// Looks at everything once.
    pub(super) async fn look(&mut self) {
        let mut turns = self.govern();
        for pid in std::mem::take(&mut self.again) {
            let level = self.tracked.get(&pid).and_then(|tracked| tracked.level);
            turns.entry(pid).or_insert((level, "it has mapped more than before".to_owned()));
        }
        for pid in turns.keys() {
            self.pool.release(*pid);
        }
        if self.pool.has_ended() {
            let totals =
                || self.pool.kernels().iter().flat_map(|one| one.observer.ended_totals()).collect();
            settle(totals);
        }
        let seconds = self.seconds();
        let pressure = self.read_memory(seconds);
        let snapshots = self.pool.snapshots();
        let options =
            report::Options { slack: SLACK, kernel: self.kernel.clone(), ..Default::default() };
        let reports: Vec<(u64, Report)> = snapshots
            .iter()
            .map(|(id, snapshot)| (*id, Report::build(snapshot, &options)))
            .collect();
        let ended = self.count_ended(&snapshots, &reports);
        for (pid, (level, reason)) in turns {
            if let Some(level) = level {
                // Before the old one is forgotten: probes that are in place stay where the level is the same.
                self.attach_again(pid, level, reason);
                continue;
            }
            let unix_ms = self.unix_ms();
            if let Some(tracked) = self.tracked.get_mut(&pid) {
                tracked.turn(None, reason, unix_ms);
            }
        }
        self.forget(&ended);
        self.judge(seconds, &snapshots, &reports, pressure);
        if !self.ending {
            self.open_windows();
        }
        self.tell(pressure, &snapshots, &reports);
        self.last = reports.into_iter().map(|(_, report)| report).collect();
    }

    fn read_memory(&mut self, seconds: f64) -> Option<Pressure> {
        self.reader.begin();
        for tracked in self.tracked.values_mut() {
            let reading = self.reader.read(tracked.process.pid, false);
            tracked.remember(seconds, reading);
        }
        let unix_ms = self.unix_ms();
        let processes = self.tracked.values().map(Tracked::counted);
        self.counters.begin(unix_ms, processes);
        match self.reader.pressure() {
            Ok(pressure) => pressure,
            Err(error) => {
                self.say_once("pressure", || format!("pressure on memory is not known: {error}"));
                None
            }
        }
    }

    /// Adds the counts of what has ended to the sums; returns which targets that were, by their kernel sides.
    fn count_ended(
        &mut self,
        snapshots: &[(u64, Snapshot)],
        reports: &[(u64, Report)],
    ) -> BTreeMap<u64, Vec<u32>> {
        let mut ended: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for ((id, report), (_, snapshot)) in reports.iter().zip(snapshots) {
            let losing = self.losing.entry(*id).or_default();
            for (name, count) in &report.losses {
                losing.insert(name.clone(), count.unwrap_or_default());
            }
            let seen = snapshot.targets.iter().zip(&report.targets);
            for (facts, target) in seen.filter(|(_, target)| target.ended.is_some()) {
                let labels = labels_of(&self.tracked, &self.left, target);
                self.counters.add((*id, target.target), &labels, (facts, target));
                ended.entry(*id).or_default().push(target.target);
            }
        }
        self.left.clear();
        ended
    }

    /// Forgets what was counted.
    fn forget(&mut self, ended: &BTreeMap<u64, Vec<u32>>) {
        let is_over =
            |id: u64, target: u32| ended.get(&id).is_some_and(|targets| targets.contains(&target));
        for gone in self.pool.tidy(is_over) {
            for (name, count) in self.losing.remove(&gone).unwrap_or_default() {
                *self.lost.entry(name).or_default() += count;
            }
        }
    }

    /// Has every process judged by its rules.
    fn judge(
        &mut self,
        seconds: f64,
        snapshots: &[(u64, Snapshot)],
        reports: &[(u64, Report)],
        pressure: Option<Pressure>,
    ) {
        let unix_ms = self.unix_ms();
        let seen: BTreeMap<u32, _> = pairs(snapshots, reports)
            .map(|(_, seen)| seen)
            .filter(|(_, target)| target.ended.is_none())
            .map(|(facts, target)| (target.pid, (facts, target)))
            .collect();
        for (pid, tracked) in &mut self.tracked {
            let seen = seen.get(pid).copied();
            if let Some((facts, target)) = seen {
                tracked.spend(seconds, &target.cost);
                tracked.possible = possible(facts);
            }
            let signals = tracked.signals(seconds, seen, pressure);
            tracked.engine.look(&self.config.triggers, &signals);
            tracked.alerts = tracked.engine.alerts(unix_ms);
        }
    }

    /// Who is to be looked at another level, by what its probes took lately.
    fn govern(&mut self) -> BTreeMap<u32, Turn> {
        let seconds = self.seconds();
        let mut turns = BTreeMap::new();
        if self.killed || self.ending {
            return turns;
        }
        let wanted = Some(self.config.daemon.level);
        for (pid, tracked) in &mut self.tracked {
            // A process that has never had a probe is not the governor's.
            if tracked.trouble.is_some() || tracked.possible.is_empty() {
                continue;
            }
            let spent = tracked.spent();
            if tracked.level.is_some() && spent.is_none() {
                continue;
            }
            let spent = spent.unwrap_or_default();
            let reading = Reading {
                at: seconds,
                level: tracked.level,
                wanted,
                possible: &tracked.possible,
                hits_per_second: spent.hits_per_second,
                cost_ratio: spent.cpu_ratio,
            };
            if let Some(step) = tracked.governor.look(&self.config.governor, &reading) {
                tracing::info!(pid, why = step.why, "the governor changes the level");
                turns.insert(*pid, (step.to, step.why));
            }
        }
        turns
    }

    /// Publishes what is known now.
    pub(super) fn tell(
        &mut self,
        pressure: Option<Pressure>,
        snapshots: &[(u64, Snapshot)],
        reports: &[(u64, Report)],
    ) {
        let now: BTreeMap<u32, (TargetId, Seen<'_>)> = pairs(snapshots, reports)
            .filter(|(_, (_, target))| target.ended.is_none())
            .map(|seen| (seen.1.1.pid, seen))
            .collect();
        let labels: Vec<(TargetId, Labels, Seen<'_>)> = now
            .values()
            .map(|(id, seen)| (*id, labels_of(&self.tracked, &self.left, seen.1), *seen))
            .collect();
        let counts = self.counters.counts(labels.iter().map(|(id, own, seen)| (*id, own, *seen)));
        let losses = self.losses();
        let listed = losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect();
        let map_bytes = reports.iter().map(|(_, report)| report.self_use.map_bytes).sum();
        let own = own_use(map_bytes);
        let state = NodeState {
            schema: SCHEMA.to_owned(),
            tool: Tool {
                name: "drainprof".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            unix_ms: self.unix_ms(),
            uptime_seconds: self.seconds(),
            ready: self.ready,
            killed: self.killed,
            degraded: self.degraded(),
            complete: Health::from_names(&listed).complete(),
            losses,
            self_use: SelfUse {
                cpu_ratio: Some(own.cpu_seconds / self.seconds().max(1e-9)),
                ..own
            },
            pressure,
            targets: self
                .tracked
                .iter()
                .map(|(pid, tracked)| tracked.state(now.get(pid).map(|(_, (_, target))| *target)))
                .collect(),
            label_sets: self.counters.label_sets(),
            counts,
            windows: self.shown_windows(),
        };
        if let Some(keeper) = &mut self.keeper {
            keeper.moment(Moment::of(&state));
        }
        self.publish.send_replace(Arc::new(state));
    }

    /// What cannot be done now.
    fn degraded(&self) -> Vec<String> {
        let history = match &self.keeper {
            Some(keeper) => keeper.trouble(),
            None => self.no_history.clone(),
        };
        let history = history.map(|why| format!("the history is not written: {why}"));
        history.into_iter().chain(self.refused.clone()).collect()
    }

    /// The losses of all kernel sides, those that have gone included.
    fn losses(&self) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> =
            self.publish.borrow().losses.keys().map(|name| (name.clone(), 0)).collect();
        for losses in self.losing.values().chain([&self.lost]) {
            for (name, count) in losses {
                *all.entry(name.clone()).or_default() += count;
            }
        }
        all
    }

    /// Windows that run, and those that ended last, oldest first.
    pub(super) fn shown_windows(&self) -> Vec<crate::WindowRecord> {
        let ended = self.shown.iter().rev().take(SHOWN_WINDOWS).rev();
        ended.chain(self.running.values().map(|running| &running.record)).cloned().collect()
    }
}

/// All targets, with what their reports say.
fn pairs<'a>(
    snapshots: &'a [(u64, Snapshot)],
    reports: &'a [(u64, Report)],
) -> impl Iterator<Item = (TargetId, Seen<'a>)> {
    snapshots.iter().zip(reports).flat_map(|((id, snapshot), (_, report))| {
        let seen = snapshot.targets.iter().zip(&report.targets);
        seen.map(|(facts, target)| ((*id, target.target), (facts, target)))
    })
}

/// Where a target belongs: its process may have gone, or may execute another program by now.
fn labels_of(
    tracked: &BTreeMap<u32, Tracked>,
    left: &BTreeMap<u32, Labels>,
    target: &Target,
) -> Labels {
    let known = tracked.get(&target.pid).map(|tracked| &tracked.labels);
    let own = Labels::parse(&target.exe, b"");
    match known.or_else(|| left.get(&target.pid)) {
        Some(labels) => Labels { exe: own.exe, ..labels.clone() },
        None => own,
    }
}

/// The levels at which a process can be looked at: those of all its profiles.
fn possible(facts: &TargetFacts) -> Vec<Level> {
    let offers = |level: &Level| {
        facts.allocators.iter().any(|one| profile::levels(&one.profile).contains(level))
    };
    Level::ALL.into_iter().filter(offers).collect()
}

/// What this process uses, and has used.
pub(super) fn own_use(map_bytes: u64) -> SelfUse {
    let facts = self_use(Duration::ZERO, map_bytes);
    SelfUse {
        cpu_seconds: facts.cpu.as_secs_f64(),
        cpu_ratio: None,
        rss_bytes: facts.rss_bytes,
        peak_rss_bytes: facts.peak_rss_bytes,
        map_bytes: facts.map_bytes,
    }
}

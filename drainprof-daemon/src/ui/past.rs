//! States of the past: from what the history keeps of them.

use std::collections::BTreeMap;

use drainprof_census::Summary;
use drainprof_node::{
    Alert, AlertState, Heaps, MemoryWatch, NodeState, NodeTarget, SCHEMA, WindowRecord,
    store::{Moment, ProcessMoment, ProfileMoment, Readings},
};
use drainprof_process::memory::{MemoryReading, Pressure, Waiting};
use drainprof_profile::{KINDS, Level};
use drainprof_report::{Allocator, Cost, Granules, Retention, SelfUse, Tool};

/// The state of a node of which only this is known. `readings` are those of the last minutes, for what they say of growth;
/// `windows` those that had begun, oldest first.
#[must_use]
pub fn state_of(moment: &Moment, readings: &Readings, windows: Vec<WindowRecord>) -> NodeState {
    let waiting = |avg10: Option<f64>| avg10.map(|avg10| Waiting { avg10, ..Waiting::default() });
    let (some, full) = (waiting(moment.some_avg10), waiting(moment.full_avg10));
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: Tool { name: "drainprof".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        unix_ms: moment.unix_ms,
        uptime_seconds: 0.0,
        ready: true,
        killed: moment.killed,
        degraded: Vec::new(),
        complete: moment.complete,
        incomplete: if moment.complete {
            Vec::new()
        } else {
            vec!["something that counts need was lost; the history does not keep what".to_owned()]
        },
        losses: BTreeMap::new(),
        self_use: SelfUse {
            cpu_seconds: moment.self_cpu_seconds,
            cpu_ratio: None,
            rss_bytes: moment.self_rss_bytes,
            peak_rss_bytes: moment.self_rss_bytes,
            map_bytes: 0,
        },
        pressure: some.zip(full).map(|(some, full)| Pressure { some, full }),
        targets: moment
            .processes
            .iter()
            .map(|process| {
                let key = (process.pid, process.start_time);
                target(process, readings.get(&key).map_or(&[], Vec::as_slice), moment.unix_ms)
            })
            .collect(),
        processes_late: 0,
        processes_given_up: 0,
        probes_put_off: 0,
        label_sets: Vec::new(),
        counts: Vec::new(),
        windows,
        pushed: None,
    }
}

fn target(process: &ProcessMoment, readings: &[(u64, MemoryReading)], now: u64) -> NodeTarget {
    let mut watch = MemoryWatch::default();
    for (unix_ms, memory) in readings {
        watch.add(*unix_ms as f64 / 1000.0, Some(*memory));
    }
    let trend = watch.trend();
    let heaps = process.heaps.first().map(|first| Heaps {
        unix_ms: first.unix_ms,
        summary: Summary {
            heaps: process.heaps.iter().map(|point| point.heap.clone()).collect(),
            ..Summary::default()
        },
        failure: None,
    });
    let alert = |(rule, message): (&String, &String)| Alert {
        rule: rule.clone(),
        state: AlertState::Firing,
        since_unix_ms: now,
        message: message.clone(),
    };
    NodeTarget {
        pid: process.pid,
        start_time: process.start_time,
        comm: process.comm.clone(),
        exe: process.exe.clone(),
        labels: process.labels.clone(),
        matched: !process.profiles.is_empty() || process.level.is_some(),
        level: process.level,
        observed_ratio: None,
        reason: if process.reason.is_empty() {
            "the history does not say why".to_owned()
        } else {
            process.reason.clone()
        },
        since_unix_ms: now,
        memory: process.memory,
        rss_slope_bytes_per_second: trend.map(|trend| trend.slope_bytes_per_second),
        rss_slope_interval: trend.map(|trend| trend.slope_interval),
        rss_r_squared: trend.and_then(|trend| trend.r_squared),
        seconds_to_limit: trend.and_then(|trend| trend.seconds_to_limit),
        faults_per_second: watch.faults_per_second(),
        shares: None,
        heaps,
        cgroup_pressure: None,
        cost: Cost {
            hits: process.hits,
            cpu_seconds: process.cost_seconds,
            cpu_ratio: None,
            measured: true,
        },
        allocators: process
            .profiles
            .iter()
            .filter_map(|profile| allocator(profile, process.level))
            .collect(),
        findings: Vec::new(),
        alerts: process.firing.iter().map(alert).collect(),
    }
}

/// All allocators of a profile as one; `None` for a kind that this version does not know.
fn allocator(of: &ProfileMoment, level: Option<Level>) -> Option<Allocator> {
    let kind = KINDS.into_iter().find(|kind| kind.name() == of.kind)?;
    let (counts, held) = (of.counts.granules, of.counts.held);
    Some(Allocator {
        granules: Granules {
            opened: counts.opened,
            closed: counts.closed(),
            drainable: counts.drainable,
            pinned: counts.pinned,
            unknown: counts.unknown,
            open_now: held.open_now,
            ..Granules::default()
        },
        dsr: counts.dsr(kind),
        retention: Retention {
            granules: held.retained_granules,
            bytes: held.retained_bytes,
            ..Retention::default()
        },
        ..Allocator::unknown(&of.profile, kind, level.unwrap_or(Level::Boundary))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::samples;

    /// What is kept of a state is seen again: processes, counts, memory, heaps, alerts.
    #[test]
    fn seen_again() {
        let state = samples::state();
        let past = state_of(&Moment::of(&state), &Readings::new(), state.windows.clone());
        // The one without a profile is kept for its alert only, and has none.
        for (now, then) in state.targets.iter().filter(|target| target.matched).zip(&past.targets) {
            let known = |target: &NodeTarget| {
                let (comm, labels) = (target.comm.clone(), target.labels.clone());
                let rules: Vec<_> = target.alerts.iter().map(|one| one.rule.clone()).collect();
                (target.pid, comm, labels, target.level, target.memory, target.cost.hits, rules)
            };
            assert_eq!(known(now), known(then));
            let sums = |target: &NodeTarget| {
                let of = |get: fn(&Granules) -> u64| {
                    target.allocators.iter().map(|one| get(&one.granules)).sum::<u64>()
                };
                [of(|one| one.opened), of(|one| one.closed), of(|one| one.pinned)]
            };
            assert_eq!(sums(now), sums(then), "{}", now.comm);
        }
        assert_eq!(past.windows, state.windows);
    }
}

//! States without a daemon: from the reports of an observer of our own.

use std::collections::BTreeMap;

use drainprof_node::{Labels, MemoryWatch, NodeState, NodeTarget, SCHEMA, WindowRecord};
use drainprof_process::memory::{MemoryReading, Pressure};
use drainprof_profile::Level;
use drainprof_report::{
    Report, Target,
    health::{Health, Line},
};

/// What is known beside the report.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Pressure on the machine's memory.
    pub pressure: Option<Pressure>,
    /// The memory of each process.
    pub memory: BTreeMap<u32, MemoryReading>,
    /// Windows, oldest first.
    pub windows: Vec<WindowRecord>,
}

/// What earlier readings say of growth.
#[derive(Clone, Debug, Default)]
pub struct Courses(BTreeMap<(u32, u64), MemoryWatch>);

impl Courses {
    /// Takes the readings of this moment; what has no reading any more is forgotten.
    pub fn take(&mut self, report: &Report, memory: &BTreeMap<u32, MemoryReading>) {
        let mut kept = std::mem::take(&mut self.0);
        for target in &report.targets {
            let Some(now) = memory.get(&target.pid) else { continue };
            let key = (target.pid, target.start_time);
            let mut course = kept.remove(&key).unwrap_or_default();
            course.add(report.window.seconds, Some(*now));
            self.0.insert(key, course);
        }
    }

    fn of(&self, target: &Target) -> Option<&MemoryWatch> {
        self.0.get(&(target.pid, target.start_time))
    }
}

/// The state of a node of which only this report is known.
#[must_use]
pub fn state_of(report: &Report, courses: &Courses, beside: &Beside) -> NodeState {
    let window = report.window.seconds;
    let targets = report.targets.iter().map(|target| of(target, courses, beside, window));
    let mut targets: Vec<NodeTarget> = targets.collect();
    targets.sort_by_key(|target| (target.pid, target.start_time));
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: report.tool.clone(),
        unix_ms: beside.unix_ms,
        uptime_seconds: window,
        ready: true,
        killed: false,
        degraded: Vec::new(),
        complete: report.complete,
        incomplete: Health::from_names(&report.losses).incomplete().map(Line::sentence).collect(),
        // What a sample cannot know is not zero, and left out.
        losses: report
            .losses
            .iter()
            .filter_map(|(name, count)| Some((name.clone(), (*count)?)))
            .collect(),
        self_use: report.self_use,
        pressure: beside.pressure,
        targets,
        processes_late: 0,
        processes_given_up: 0,
        probes_put_off: 0,
        label_sets: Vec::new(),
        counts: Vec::new(),
        windows: beside.windows.clone(),
        pushed: None,
    }
}

fn of(target: &Target, courses: &Courses, beside: &Beside, window: f64) -> NodeTarget {
    let ended = target.ended.is_some();
    let memory = beside.memory.get(&target.pid).copied().filter(|_| !ended);
    let course = courses.of(target).filter(|_| memory.is_some());
    let trend = course.and_then(MemoryWatch::trend);
    let level = target.allocators.iter().map(|allocator| allocator.level).max();
    let level = level.or_else(|| placed(target));
    #[allow(clippy::cast_sign_loss, reason = "a length of time; the cast saturates")]
    let since = beside.unix_ms.saturating_sub((window * 1000.0) as u64);
    NodeTarget {
        pid: target.pid,
        start_time: target.start_time,
        comm: target.comm.clone(),
        exe: target.exe.clone(),
        labels: Labels {
            exe: target.exe.rsplit('/').next().unwrap_or_default().to_owned(),
            ..Labels::default()
        },
        matched: true,
        level: level.filter(|_| !ended),
        observed_ratio: None,
        reason: match (ended, level) {
            (true, _) => "it has ended; its counts stay".to_owned(),
            (false, None) => "no probe is in it".to_owned(),
            (false, Some(_)) if target.allocators.is_empty() => {
                "its probes were not hit yet".to_owned()
            }
            (false, Some(_)) => "as asked for on the command line".to_owned(),
        },
        since_unix_ms: since,
        memory,
        rss_slope_bytes_per_second: trend.map(|trend| trend.slope_bytes_per_second),
        rss_slope_interval: trend.map(|trend| trend.slope_interval),
        rss_r_squared: trend.and_then(|trend| trend.r_squared),
        seconds_to_limit: trend.and_then(|trend| trend.seconds_to_limit),
        faults_per_second: course.and_then(MemoryWatch::faults_per_second),
        shares: None,
        heaps: None,
        cgroup_pressure: None,
        cost: target.cost,
        allocators: target.allocators.clone(),
        findings: target.findings.clone(),
        alerts: Vec::new(),
    }
}

/// The level of probes that were not hit yet, as far as they show it.
fn placed(target: &Target) -> Option<Level> {
    let objects = target.probes.iter().any(|probe| matches!(probe.role.as_str(), "alloc" | "free"));
    let level = if objects { Level::Objects } else { Level::Boundary };
    (!target.probes.is_empty()).then_some(level)
}

#[cfg(test)]
mod tests {
    use drainprof_report::Ended;

    use super::*;
    use crate::ui::samples::{allocator, report};

    /// A report of one process after so many seconds.
    fn after(seconds: f64) -> Report {
        let mut report = report();
        report.window.seconds = seconds;
        report.losses.insert("granule_map_full".to_owned(), Some(2));
        report.losses.insert("ring_full".to_owned(), None);
        let target = serde_json::json!({
            "target": 0, "pid": 7, "start_time": 1, "comm": "svc", "exe": "/usr/bin/svc",
            "began": { "how": "attached" }, "ended": null, "rss_bytes": null, "findings": [],
            "cost": { "hits": 0, "cpu_seconds": 0.0, "cpu_ratio": null, "measured": true },
            "probes": [], "allocators": [],
        });
        report.targets = vec![serde_json::from_value(target).unwrap()];
        report.targets[0].allocators = vec![allocator("arena")];
        report
    }

    fn reading(rss_bytes: u64, minor_faults: u64) -> BTreeMap<u32, MemoryReading> {
        let more =
            MemoryReading { cgroup_room_bytes: Some(20_000_000), ..MemoryReading::default() };
        BTreeMap::from([(7, MemoryReading { rss_bytes, minor_faults, ..more })])
    }

    /// Steady growth is reported exactly, but not before there is enough of it; it is forgotten with the process.
    #[test]
    fn growth_of_memory() {
        let mut courses = Courses::default();
        let mut shown = Vec::new();
        for second in 0..40_u32 {
            let report = after(f64::from(second));
            let memory = reading(50_000 + 100_000 * u64::from(second), 30 * u64::from(second));
            courses.take(&report, &memory);
            let beside = Beside { memory, ..Beside::default() };
            shown.push(state_of(&report, &courses, &beside).targets.remove(0));
        }
        assert_eq!(shown[9].rss_slope_bytes_per_second, None);
        let slope = shown[39].rss_slope_bytes_per_second.unwrap();
        assert!((slope - 100_000.0).abs() < 1e-6, "{slope}");
        let limit = shown[39].seconds_to_limit.unwrap();
        assert!((limit - 200.0).abs() < 1e-6, "{limit}");
        assert_eq!((shown[0].faults_per_second, shown[1].faults_per_second), (None, Some(30.0)));
        courses.take(&after(40.0), &BTreeMap::new());
        assert!(courses.0.is_empty());
    }

    /// A process that has ended keeps its counts and has no level and no memory; what a sample cannot know is not 0.
    #[test]
    fn ended() {
        let mut report = after(3.0);
        let beside = Beside { memory: reading(1, 1), unix_ms: 10_000, ..Beside::default() };
        let state = state_of(&report, &Courses::default(), &beside);
        assert_eq!(state.losses, BTreeMap::from([("granule_map_full".to_owned(), 2)]));
        let target = &state.targets[0];
        assert_eq!((target.level, target.since_unix_ms), (Some(Level::Boundary), 7_000));
        assert_eq!(
            (target.memory.map(|memory| memory.rss_bytes), target.labels.exe.as_str()),
            (Some(1), "svc")
        );
        report.targets[0].ended = Some(Ended::Exit { code: Some(0), signal: None });
        let state = state_of(&report, &Courses::default(), &beside);
        let target = &state.targets[0];
        assert_eq!((target.level, target.memory, target.allocators.len()), (None, None, 1));
        report.targets[0].ended = None;
        report.targets[0].allocators.clear();
        let state = state_of(&report, &Courses::default(), &beside);
        assert_eq!(
            (state.targets[0].level, state.targets[0].reason.as_str()),
            (None, "no probe is in it")
        );
    }
}

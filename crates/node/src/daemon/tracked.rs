//! One process that is watched: how deep, why, and what was read of it lately.

use std::time::{Duration, Instant};

use drainprof_observe::ObserveError;
use drainprof_process::{
    Process,
    memory::{GroupPressure, MemoryReading},
    printable,
};
use drainprof_profile::{Kind, Level};
use drainprof_report::{Allocator, Cost, Finding, Severity, Target, facts::TargetFacts};

use super::{counters::ProcessId, observed::Observed};
use crate::{
    Alert, Heaps, Labels, MemoryWatch, NodeTarget, Shares,
    govern::Governor,
    trigger::{Closes, Engine, Objects, ProfileSignals, Signals, Slope},
};

/// Pauses before probes are tried again that a process was in the way of.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What is kept of a watched process.
#[derive(Debug)]
pub(super) struct Tracked {
    /// Its identity.
    pub(super) process: Process,
    /// Where it belongs.
    pub(super) labels: Labels,
    /// Whether a profile matches it; else its memory alone is watched.
    pub(super) matched: bool,
    /// The level of its probes; `None`: no probe is in it.
    pub(super) level: Option<Level>,
    /// Why at that level, in one sentence.
    pub(super) reason: String,
    /// Since when, in milliseconds since 1970.
    pub(super) since_unix_ms: u64,
    /// Why its probes could not be attached, where that is so.
    pub(super) not_attached: Option<Finding>,
    /// When its probes are tried again, where a process was in their way, and after which pause.
    retry: Option<(Instant, Duration)>,
    /// The rules that watch it.
    pub(super) engine: Engine,
    /// The levels that its profiles offer; empty until they are known.
    pub(super) possible: Vec<Level>,
    /// Decides the level.
    pub(super) governor: Governor,
    /// For how much of the time it is observed.
    pub(super) observed: Observed,
    /// The alerts of its rules, as of the last cycle.
    pub(super) alerts: Vec<Alert>,
    /// Its memory.
    memory: MemoryWatch,
    shares: Option<Shares>,
    heaps: Option<Heaps>,
    /// When its last census began, seconds since any fixed moment.
    census_at: Option<f64>,
    /// Pressure on its control group.
    pressure: Option<GroupPressure>,
    /// Seconds, hits and CPU seconds of the probes: the reading before.
    spent_before: Option<(f64, u64, f64)>,
    spent: Option<Spent>,
}

/// What the probes took between two cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    /// Hits per second.
    pub(super) hits_per_second: f64,
    /// A share of one CPU.
    pub(super) cpu_ratio: f64,
}

impl Tracked {
    /// A process that is watched from now on, without a probe.
    #[must_use]
    pub(super) fn new(process: Process, labels: Labels, reason: String, unix_ms: u64) -> Self {
        Self {
            process,
            labels,
            matched: true,
            level: None,
            reason,
            since_unix_ms: unix_ms,
            not_attached: None,
            retry: None,
            engine: Engine::default(),
            possible: Vec::new(),
            governor: Governor::default(),
            observed: Observed::default(),
            alerts: Vec::new(),
            memory: MemoryWatch::default(),
            shares: None,
            heaps: None,
            census_at: None,
            pressure: None,
            spent_before: None,
            spent: None,
        }
    }

    /// Keeps what was known of the memory of the same program in the same process.
    #[must_use]
    pub(super) fn after(self, earlier: Option<Self>) -> Self {
        match earlier.filter(|earlier| earlier.process.exe == self.process.exe) {
            Some(Self { engine, alerts, memory, shares, heaps, census_at, pressure, .. }) => {
                Self { engine, alerts, memory, shares, heaps, census_at, pressure, ..self }
            }
            None => self,
        }
    }

    /// It is traced at another level from now on.
    pub(super) fn turn(&mut self, level: Option<Level>, reason: String, unix_ms: u64) {
        if self.level != level {
            self.since_unix_ms = unix_ms;
            self.spent_before = None;
            self.spent = None;
        }
        self.level = level;
        self.reason = reason;
    }

    /// Its probes cannot be attached.
    pub(super) fn fail(&mut self, error: &ObserveError, unix_ms: u64) {
        let pid = self.process.pid;
        tracing::warn!(pid, %error, "cannot attach the probes");
        self.not_attached = Some(Finding {
            code: "not_attached".to_owned(),
            severity: Severity::Warning,
            profile: None,
            instance: None,
            message: error.to_string(),
        });
        self.turn(None, "its probes could not be attached".to_owned(), unix_ms);
        let is_for_now = matches!(error, ObserveError::Bpf(error) if error.is_for_now());
        self.retry = is_for_now.then(|| {
            let pause = self.retry.map_or(FIRST_RETRY, |(_, last)| (last * 2).min(LAST_RETRY));
            (Instant::now() + pause, pause)
        });
    }

    /// Its probes are in place.
    pub(super) fn placed(&mut self) {
        self.not_attached = None;
        self.retry = None;
    }

    /// Whether its probes are to be tried again now.
    pub(super) fn wants_probes(&self) -> bool {
        self.retry.is_some_and(|(at, _)| at <= Instant::now())
    }

    /// Keeps a reading of its memory and of the pressure on its control group; `seconds` is a time since any fixed moment.
    /// Growth is that of the last `over` seconds.
    pub(super) fn remember(
        &mut self,
        seconds: f64,
        over: f64,
        read: Option<(MemoryReading, Option<GroupPressure>)>,
    ) {
        if self.memory.reach().total_cmp(&over).is_ne() {
            self.memory = MemoryWatch::over(over);
        }
        let (reading, pressure) = read.unzip();
        self.memory.add(seconds, reading);
        self.pressure = pressure.flatten();
    }

    /// Whether its memory could be read last time.
    #[must_use]
    pub(super) const fn has_memory(&self) -> bool {
        self.memory.now().is_some()
    }

    /// Keeps what of its memory it shares.
    pub(super) fn share(&mut self, shares: Shares) {
        self.shares = Some(shares);
    }

    /// Whether `interval` seconds have passed since its last census began.
    #[must_use]
    pub(super) fn wants_census(&self, seconds: f64, interval: f64) -> bool {
        self.has_memory() && self.census_at.is_none_or(|last| seconds - last >= interval)
    }

    /// A census of it begins.
    pub(super) fn census_begins(&mut self, seconds: f64) {
        self.census_at = Some(seconds);
    }

    /// Keeps the heaps of the process that began at `start_time`.
    pub(super) fn census_ended(&mut self, start_time: u64, heaps: Option<Heaps>) {
        if self.process.start_time == start_time {
            self.heaps = heaps;
        }
    }

    /// Takes notice of its heaps; `None`: nothing is known of them any more.
    pub(super) fn count_heaps(&mut self, heaps: Option<Heaps>) {
        self.heaps = heaps;
    }

    /// Its control group, as far as pressure is known of it.
    #[must_use]
    pub(super) fn group(&self) -> Option<&str> {
        self.pressure.as_ref().map(|pressure| &*pressure.group)
    }

    /// By how much it is to blame for a shortage: how fast it grows, then how much it holds.
    #[must_use]
    pub(super) fn blame(&self) -> (f64, u64) {
        let sure = self.memory.trend().map_or(0.0, |trend| trend.sure_slope().max(0.0));
        (sure, self.memory.now().map_or(0, |memory| memory.rss_bytes))
    }

    /// What the counters need to know of it.
    pub(super) const fn counted(&self) -> (ProcessId, &Labels, Option<MemoryReading>) {
        ((self.process.pid, self.process.start_time), &self.labels, self.memory.now())
    }

    /// Takes notice of what its probes have taken so far.
    pub(super) fn spend(&mut self, seconds: f64, cost: &Cost) {
        self.spent = self.spent_before.and_then(|(before, hits, cpu)| {
            let passed = seconds - before;
            let counts_on = cost.hits >= hits && cost.cpu_seconds >= cpu;
            (passed > 0.0 && counts_on).then(|| Spent {
                hits_per_second: (cost.hits - hits) as f64 / passed,
                cpu_ratio: (cost.cpu_seconds - cpu) / passed,
            })
        });
        self.spent_before = Some((seconds, cost.hits, cost.cpu_seconds));
    }

    /// What its probes took between the last two readings; `None` before.
    #[must_use]
    pub(super) const fn spent(&self) -> Option<Spent> {
        self.spent
    }

    /// What the rules examine.
    #[must_use]
    pub(super) fn signals(&self, at: f64, seen: Option<(&TargetFacts, &Target)>) -> Signals {
        Signals {
            at,
            profiles: seen.map(|(facts, target)| profiles(facts, target)).unwrap_or_default(),
            memory: self.memory.now(),
            faults_per_second: self.memory.faults_per_second(),
            trend: self.memory.trend().cloned(),
            heaps: self.heaps.clone(),
            pressure: self.pressure.as_ref().map(|group| group.pressure),
            observed: self.observed.ratio(),
        }
    }

    /// What is shown of it.
    #[must_use]
    pub(super) fn state(&self, target: Option<&Target>) -> NodeTarget {
        let trend = self.memory.trend();
        let mut findings = target.map(|target| target.findings.clone()).unwrap_or_default();
        findings.extend(self.not_attached.clone());
        let no_cost = Cost { hits: 0, cpu_seconds: 0.0, cpu_ratio: None, measured: false };
        // A report's own ratio is over the time of its kernel side, which others share.
        let cost = target.map_or(no_cost, |target| Cost {
            cpu_ratio: self.spent.map(|spent| spent.cpu_ratio),
            ..target.cost
        });
        NodeTarget {
            pid: self.process.pid,
            start_time: self.process.start_time,
            comm: printable(&self.process.comm),
            exe: printable(self.process.exe.as_os_str().as_encoded_bytes()),
            labels: self.labels.clone(),
            matched: self.matched,
            level: self.level,
            observed_ratio: self.observed.ratio(),
            reason: self.reason.clone(),
            since_unix_ms: self.since_unix_ms,
            memory: self.memory.now(),
            rss_slope_bytes_per_second: trend.map(|trend| trend.slope_bytes_per_second),
            rss_slope_interval: trend.map(|trend| trend.slope_interval),
            rss_r_squared: trend.and_then(|trend| trend.r_squared),
            seconds_to_limit: trend.and_then(|trend| trend.seconds_to_limit),
            faults_per_second: self.memory.faults_per_second(),
            shares: self.shares,
            heaps: self.heaps.clone(),
            cgroup_pressure: self.pressure.as_ref().map(|group| group.pressure),
            cost,
            allocators: target.map(|target| target.allocators.clone()).unwrap_or_default(),
            findings,
            alerts: self.alerts.clone(),
        }
    }
}

/// The counts of all instances of each profile together.
fn profiles(facts: &TargetFacts, target: &Target) -> Vec<ProfileSignals> {
    let mut profiles: Vec<ProfileSignals> = Vec::new();
    for allocator in &target.allocators {
        let known = profiles.iter().position(|known| known.profile == allocator.profile);
        let index = known.unwrap_or_else(|| {
            let profile = allocator.profile.clone();
            profiles.push(ProfileSignals { profile, ..ProfileSignals::default() });
            profiles.len() - 1
        });
        add(&mut profiles[index], allocator);
    }
    for sum in &mut profiles {
        let Some(objects) = &mut sum.objects else { continue };
        let own = facts.allocators.iter().filter(|one| one.profile.name == sum.profile);
        objects.unmatched_frees = own.map(|one| one.totals.unmatched_frees).sum();
        objects.frees += objects.unmatched_frees;
    }
    profiles
}

fn add(sum: &mut ProfileSignals, allocator: &Allocator) {
    if allocator.kind == Kind::Drain && allocator.not_measurable.is_none() {
        let closes = sum.closes.get_or_insert(Closes::default());
        closes.drainable += allocator.granules.drainable;
        closes.pinned += allocator.granules.pinned;
    }
    if let (Some(objects), None) = (&allocator.objects, &allocator.sampling) {
        let counts = sum.objects.get_or_insert(Objects::default());
        counts.allocs += objects.allocated;
        counts.frees += objects.freed;
    }
    let retention = &allocator.retention;
    if let Some(bytes) = retention.bytes {
        sum.retained_bytes = Some(sum.retained_bytes.unwrap_or(0) + bytes);
    }
    // Slopes of instances add up, and so do their intervals, cautiously.
    if let (Some(slope), Some(granules), Some(interval)) = (
        retention.slope_bytes_per_second,
        retention.slope_granules_per_second.filter(|slope| *slope != 0.0),
        retention.slope_interval,
    ) {
        // The interval is reported in granules; the bytes of one follow from the two slopes.
        let bytes = slope / granules;
        let before =
            sum.retention_slope.unwrap_or(Slope { bytes_per_second: 0.0, interval: [0.0; 2] });
        let ends = [interval[0] * bytes, interval[1] * bytes];
        sum.retention_slope = Some(Slope {
            bytes_per_second: before.bytes_per_second + slope,
            interval: [
                before.interval[0] + ends[0].min(ends[1]),
                before.interval[1] + ends[0].max(ends[1]),
            ],
        });
    }
}

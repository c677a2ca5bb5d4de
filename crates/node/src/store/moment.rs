//! What is kept of a [`NodeState`], and what has happened between two of them. Pure.

use std::collections::{BTreeMap, HashMap};

use drainprof_census::HeapSummary;
use drainprof_process::memory::MemoryReading;
use drainprof_profile::Level;
use drainprof_report::{Allocator, Counts, Held};

use crate::{AlertState, Labels, NodeState, NodeTarget};

/// Characters of a name that are kept.
const MAX_NAME_CHARS: usize = 256;
/// Characters of a path or a label.
const MAX_PATH_CHARS: usize = 1024;
/// Resident bytes of a heap whose process is kept for it.
const LARGE_HEAP_BYTES: u64 = 64 << 20;
/// Characters of a sentence.
pub(super) const MAX_SENTENCE_CHARS: usize = 1000;

/// What is kept of one state of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// False if something that the counts need was lost.
    pub complete: bool,
    /// Whether the kill switch was thrown.
    pub killed: bool,
    /// Share of the last ten seconds in which a task waited for memory, from 0 to 1.
    pub some_avg10: Option<f64>,
    /// Share in which all tasks waited.
    pub full_avg10: Option<f64>,
    /// CPU time of the daemon since its start, seconds.
    pub self_cpu_seconds: f64,
    /// Its resident memory.
    pub self_rss_bytes: u64,
    /// The processes that were watched.
    pub processes: Vec<ProcessMoment>,
}

/// One process at that time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessMoment {
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it sees it.
    pub exe: String,
    /// Where it belongs.
    pub labels: Labels,
    /// How deep it was examined; `None`: no probe was in it.
    pub level: Option<Level>,
    /// Why at that level.
    pub reason: String,
    /// Its memory; `None` where it could not be read.
    pub memory: Option<MemoryReading>,
    /// Hits of its probes so far.
    pub hits: u64,
    /// What they have cost it so far, seconds of CPU time.
    pub cost_seconds: f64,
    /// Its allocators, those of a profile together, in order of the profiles' names.
    pub profiles: Vec<ProfileMoment>,
    /// Its heaps, as the last census found them.
    pub heaps: Vec<HeapPoint>,
    /// Rules that fire, with what they have seen, in order of their names.
    pub firing: BTreeMap<String, String>,
}

/// The allocators of one profile in one process. Counters since it is observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileMoment {
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: String,
    /// The counts.
    pub counts: ProfileCounts,
}

/// A heap at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HeapPoint {
    /// When its census was taken, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What it found.
    #[serde(flatten)]
    pub heap: HeapSummary,
}

/// Counts of granules. Of a sampled allocator those of the sample, but for what is retained, which is the estimate
/// for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ProfileCounts {
    /// Opens and closes so far.
    #[serde(flatten)]
    pub granules: Counts,
    /// What was held at that time.
    #[serde(flatten)]
    pub held: Held,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The process; `None`: the node.
    pub pid: Option<u32>,
    /// A short, stable name: `level`, `alert`, `alert_over`, `kill`, or what the daemon adds.
    pub kind: String,
    /// What, in one sentence.
    pub text: String,
}

impl Moment {
    /// What is kept of a state.
    #[must_use]
    pub fn of(state: &NodeState) -> Self {
        Self {
            unix_ms: state.unix_ms,
            complete: state.complete,
            killed: state.killed,
            some_avg10: state.pressure.map(|pressure| pressure.some.avg10),
            full_avg10: state.pressure.map(|pressure| pressure.full.avg10),
            self_cpu_seconds: state.self_use.cpu_seconds,
            self_rss_bytes: state.self_use.rss_bytes,
            processes: state
                .targets
                .iter()
                .filter(|one| is_kept(one))
                .map(ProcessMoment::of)
                .collect(),
        }
    }

    /// What has happened since another moment, or since nothing was watched: levels that changed, alerts that
    /// began or ended, the kill switch.
    #[must_use]
    pub fn events(&self, before: Option<&Self>) -> Vec<Event> {
        let mut events = Vec::new();
        let killed = before.is_some_and(|before| before.killed);
        if self.killed != killed {
            let text = if self.killed { "the kill switch was thrown" } else { "it was taken back" };
            events.push(self.event(None, "kill", text));
        }
        let earlier: HashMap<(u32, u64), &ProcessMoment> = before
            .iter()
            .flat_map(|before| &before.processes)
            .map(|process| ((process.pid, process.start_time), process))
            .collect();
        for process in &self.processes {
            let earlier = earlier.get(&(process.pid, process.start_time)).copied();
            self.process_events(process, earlier, &mut events);
        }
        events
    }

    fn process_events(
        &self,
        now: &ProcessMoment,
        before: Option<&ProcessMoment>,
        events: &mut Vec<Event>,
    ) {
        let pid = Some(now.pid);
        let (level, earlier) = (now.level, before.and_then(|before| before.level));
        if level != earlier {
            let [earlier, level] =
                [earlier, level].map(|level| level.map_or("detached", Level::name));
            let text = format!("{earlier} → {level}: {}", now.reason);
            events.push(self.event(pid, "level", &text));
        }
        for (rule, message) in &now.firing {
            if before.is_none_or(|before| !before.firing.contains_key(rule)) {
                events.push(self.event(pid, "alert", &format!("{rule}: {message}")));
            }
        }
        for rule in before.iter().flat_map(|before| before.firing.keys()) {
            if !now.firing.contains_key(rule) {
                events.push(self.event(pid, "alert_over", rule));
            }
        }
    }

    fn event(&self, pid: Option<u32>, kind: &str, text: &str) -> Event {
        let text = cut(text, MAX_SENTENCE_CHARS);
        Event { unix_ms: self.unix_ms, pid, kind: kind.to_owned(), text }
    }
}

/// A process without a profile is kept while a rule concerns it, or where a heap is large: all of them, all of the time,
/// would leave no room for the others.
fn is_kept(target: &NodeTarget) -> bool {
    let is_large = |heap: &HeapSummary| heap.resident_bytes >= LARGE_HEAP_BYTES;
    let heaps = target.heaps.iter().flat_map(|heaps| &heaps.summary.heaps);
    target.matched || !target.alerts.is_empty() || heaps.into_iter().any(is_large)
}

impl ProcessMoment {
    fn of(target: &NodeTarget) -> Self {
        let mut profiles: BTreeMap<(&str, &str), Option<ProfileCounts>> = BTreeMap::new();
        for allocator in &target.allocators {
            let sum = profiles.entry((&allocator.profile, allocator.kind.name())).or_default();
            let counts = ProfileCounts::of(allocator);
            *sum = Some(sum.map_or(counts, |sum| sum.plus(counts)));
        }
        let heaps = target.heaps.iter().flat_map(|heaps| {
            let point = |heap: &HeapSummary| HeapPoint {
                unix_ms: heaps.unix_ms,
                heap: HeapSummary {
                    allocator: cut(&heap.allocator, MAX_NAME_CHARS),
                    ..heap.clone()
                },
            };
            heaps.summary.heaps.iter().map(point)
        });
        let labels = &target.labels;
        let part = |text: &Option<String>| text.as_ref().map(|text| cut(text, MAX_PATH_CHARS));
        Self {
            pid: target.pid,
            start_time: target.start_time,
            comm: cut(&target.comm, MAX_NAME_CHARS),
            exe: cut(&target.exe, MAX_PATH_CHARS),
            labels: Labels {
                exe: cut(&labels.exe, MAX_NAME_CHARS),
                cgroup: part(&labels.cgroup),
                container: part(&labels.container),
                unit: part(&labels.unit),
                pod: part(&labels.pod),
                namespace: part(&labels.namespace),
            },
            level: target.level,
            reason: cut(&target.reason, MAX_SENTENCE_CHARS),
            memory: target.memory,
            hits: target.cost.hits,
            cost_seconds: target.cost.cpu_seconds,
            profiles: profiles
                .into_iter()
                .map(|((profile, kind), counts)| ProfileMoment {
                    profile: cut(profile, MAX_NAME_CHARS),
                    kind: kind.to_owned(),
                    counts: counts.unwrap_or_default(),
                })
                .collect(),
            heaps: heaps.collect(),
            firing: target
                .alerts
                .iter()
                .filter(|alert| alert.state == AlertState::Firing)
                .map(|alert| {
                    (cut(&alert.rule, MAX_NAME_CHARS), cut(&alert.message, MAX_SENTENCE_CHARS))
                })
                .collect(),
        }
    }
}

impl ProfileCounts {
    fn of(allocator: &Allocator) -> Self {
        Self { granules: allocator.granules.into(), held: allocator.into() }
    }

    /// Both together; what is not known of one is not known of both.
    fn plus(mut self, other: Self) -> Self {
        self.granules.add(other.granules);
        Self { held: self.held.and(other.held), ..self }
    }
}

/// The text, or its begin.
pub(super) fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

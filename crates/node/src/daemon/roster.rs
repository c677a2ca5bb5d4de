//! The processes of the machine: finds them, decides which are watched and how deep, and attaches the probes.

mod admission;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use drainprof_observe::{ObserveError, SideOptions, quiesce};
use drainprof_probe::bpf::SessionConfig;
use drainprof_process::{
    Process, Stuck,
    memory::{MemoryReading, Pressure},
    printable,
};
use drainprof_profile::{Level, Library};
use drainprof_report::{Target, facts::Snapshot};

use super::{
    arrivals::Arrivals,
    census::{Censuses, Taken},
    counters::ProcessId,
    memory::Memory,
    newcomers::Newcomers,
    observed::Observed,
    pool::Pool,
    rules,
    tracked::Tracked,
    unmatched::Unmatched,
    view::View,
};
use crate::{
    Labels, NodeTarget,
    clock::unix_ms,
    config::{Config, Selector},
    govern::{self, Reading},
    trigger::{self, Want},
};

/// The longest time to attach probes in one go; further newcomers have their turn at the next tick.
const MAX_ADMITTING_TIME: Duration = Duration::from_millis(500);
/// Newcomers that can wait for their turn. A later scan finds those beyond again.
const MAX_WAITING: usize = 4_096;

/// The level of a process from now on, and why.
pub(super) type Turn = (Option<Level>, String);

/// What a window needs to know of its process.
pub(super) struct Subject {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) labels: Labels,
    /// Whether a rule about memory fires.
    pub(super) memory_fires: bool,
    /// Whether a profile matches it.
    pub(super) matched: bool,
}

/// The processes.
pub(super) struct Roster {
    selector: Selector,
    pool: Pool,
    arrivals: Arrivals,
    /// Newcomers with their fingerprints.
    waiting: VecDeque<(Process, u64)>,
    unmatched: Unmatched,
    tracked: BTreeMap<u32, Tracked>,
    /// Labels of processes that have ended and are not counted yet.
    left: BTreeMap<u32, Labels>,
    /// Processes to attach again at the next cycle: they have mapped more.
    again: Vec<u32>,
    memory: Memory,
    /// Warnings that the log has already.
    warned: BTreeSet<&'static str>,
    /// What is known of newcomers.
    newcomers: Newcomers,
}

impl Roster {
    /// Loads the kernel side for the configured level. Must be called inside the runtime.
    pub(super) fn new(
        config: &Config,
        session: SessionConfig,
        library: Library,
        options: SideOptions,
    ) -> Result<Self, Box<ObserveError>> {
        let mut pool = Pool::new(session, library, options);
        pool.prepare(config.daemon.level)?;
        Ok(Self {
            selector: Selector::of_this_process(&config.select),
            pool,
            arrivals: Arrivals::default(),
            waiting: VecDeque::new(),
            unmatched: Unmatched::default(),
            tracked: BTreeMap::new(),
            left: BTreeMap::new(),
            again: Vec::new(),
            memory: Memory::new(),
            warned: BTreeSet::new(),
            newcomers: Newcomers::new(config.daemon.attach),
        })
    }

    /// Whether newcomers wait for their turn.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether all processes were checked once.
    pub(super) fn is_complete(&self) -> bool {
        self.waiting.is_empty() && !self.arrivals.is_empty()
    }

    /// Decides which processes change their level, by the recent cost of their probes, and which are attached again: where
    /// more is mapped, or where they are the last ones in a kernel side that is worn. Releases their probes. `level` is the
    /// configured level; `None`: the governor rests.
    pub(super) fn begin_turns(
        &mut self,
        governor: &govern::Config,
        level: Option<Level>,
        seconds: f64,
    ) -> BTreeMap<u32, Turn> {
        let mut turns = BTreeMap::new();
        for (pid, tracked) in self.tracked.iter_mut().filter(|_| level.is_some()) {
            if let Some(level) = level.filter(|_| tracked.wants_probes()) {
                turns.insert(*pid, (Some(level), "its probes were tried again".to_owned()));
            }
            // The governor leaves a process alone that never had a probe.
            if tracked.not_attached.is_some() || tracked.possible.is_empty() {
                continue;
            }
            tracked.observed.add(seconds, tracked.level.is_some());
            let spent = tracked.spent();
            if tracked.level.is_some() && spent.is_none() {
                continue;
            }
            let spent = spent.unwrap_or_default();
            let reading = Reading {
                at: seconds,
                level: tracked.level,
                wanted: level,
                possible: &tracked.possible,
                hits_per_second: spent.hits_per_second,
                cost_ratio: spent.cpu_ratio,
            };
            if let Some(step) = tracked.governor.decide(governor, &reading) {
                tracing::info!(pid, why = step.why, "the governor changes the level");
                turns.insert(*pid, (step.to, step.why));
            }
        }
        let mapped_more = std::mem::take(&mut self.again);
        let stranded = level.map_or_else(Vec::new, |_| self.pool.stranded());
        let mapped_more =
            mapped_more.into_iter().map(|pid| (pid, "it has mapped more than before"));
        let stranded = stranded.into_iter().map(|pid| (pid, "it has moved to newer counters"));
        for (pid, why) in mapped_more.chain(stranded) {
            if let Some(tracked) = self.tracked.get(&pid) {
                turns.entry(pid).or_insert((tracked.level, why.to_owned()));
            }
        }
        for pid in turns.keys() {
            self.pool.release(*pid);
        }
        turns
    }

    /// Waits until the counts of released and ended processes stand still.
    pub(super) fn quiesce(&mut self) {
        if self.pool.has_ended() {
            let kernels = || self.pool.kernels().iter();
            if !quiesce(|| kernels().flat_map(|one| one.observer.ended_totals()).collect()) {
                self.pool.count_unsettled();
            }
        }
    }

    /// Reads the memory of all watched processes, and the pressure on the machine's.
    pub(super) fn read_memory(&mut self, config: &Config, seconds: f64) -> Option<Pressure> {
        self.memory.read(config, &mut self.tracked, seconds).unwrap_or_else(|error| {
            self.warn_once("pressure", || format!("memory pressure is unknown: {error}"));
            None
        })
    }

    /// Begins the next census, if one is due.
    pub(super) fn begin_census(&mut self, censuses: &mut Censuses, config: &Config, seconds: f64) {
        if let Err(error) = censuses.begin(config, &mut self.tracked, seconds) {
            self.warn_once("census", || format!("heaps are not read: {error}"));
        }
    }

    /// Records the heaps of a process.
    pub(super) fn count_heaps(&mut self, taken: Taken) {
        if let Some(one) = self.tracked.get_mut(&taken.pid) {
            one.census_ended(taken.start_time, taken.heaps);
        }
    }

    /// All watched processes, as the counters need them.
    pub(super) fn processes(
        &self,
    ) -> impl Iterator<Item = (ProcessId, &Labels, Option<MemoryReading>)> {
        self.tracked.values().map(Tracked::counted)
    }

    /// Processes whose probes came after they had begun to run.
    pub(super) const fn processes_late(&self) -> u64 {
        self.newcomers.late()
    }

    /// The counts of now, by kernel side.
    pub(super) fn snapshots(&mut self) -> Vec<(u64, Snapshot)> {
        self.pool.snapshots()
    }

    /// The labels of a target: its process may have ended, or execute another program by now.
    pub(super) fn labels(&self, target: &Target) -> Labels {
        let known = self.tracked.get(&target.pid).map(|tracked| &tracked.labels);
        let own = Labels::parse(&target.exe, b"");
        match known.or_else(|| self.left.get(&target.pid)) {
            Some(labels) => Labels { exe: own.exe, ..labels.clone() },
            None => own,
        }
    }

    /// Puts processes on their new levels.
    pub(super) fn finish_turns(&mut self, turns: BTreeMap<u32, Turn>) {
        let unix_ms = unix_ms();
        for (pid, (level, reason)) in turns {
            // Before the old target is forgotten: probes stay where the level is the same.
            let added = match level {
                Some(level) => self.pool.add(pid, level),
                None => Ok(()),
            };
            let Some(tracked) = self.tracked.get_mut(&pid) else { continue };
            match added {
                Ok(()) => {
                    if level.is_some() {
                        tracked.placed();
                    }
                    tracked.turn(level, reason, unix_ms);
                }
                // It has its turn again at the next cycle.
                Err(ObserveError::Files(Stuck::Slow { .. })) => self.again.push(pid),
                Err(error) => tracked.fail(&error, unix_ms),
            }
        }
    }

    /// Forgets targets that are counted. Returns the kernel sides that are gone.
    pub(super) fn forget(&mut self, is_counted: impl Fn(u64, u32) -> bool) -> Vec<u64> {
        self.left.clear();
        self.pool.tidy(is_counted)
    }

    /// Evaluates the rules of every process.
    pub(super) fn evaluate(&mut self, triggers: &trigger::Config, seconds: f64, view: &View) {
        rules::evaluate(&mut self.tracked, triggers, seconds, view);
    }

    /// The windows that rules request.
    pub(super) fn wanted_windows(&self, triggers: &trigger::Config) -> Vec<(u32, Want)> {
        rules::wanted_windows(&self.tracked, triggers)
    }

    /// Whether a rule still requests a window on a process: another window may have served it.
    pub(super) fn wants_window(&self, triggers: &trigger::Config, pid: u32) -> bool {
        self.tracked.get(&pid).is_some_and(|tracked| tracked.engine.wants(triggers).is_some())
    }

    /// What a window needs to know of a process; `None`: it is not watched.
    pub(super) fn subject(&self, pid: u32) -> Option<Subject> {
        self.tracked.get(&pid).map(|tracked| Subject {
            pid,
            start_time: tracked.process.start_time,
            comm: printable(&tracked.process.comm),
            exe: printable(tracked.process.exe.as_os_str().as_encoded_bytes()),
            labels: tracked.labels.clone(),
            memory_fires: tracked.engine.memory_fires(),
            matched: tracked.matched,
        })
    }

    /// A window has opened on a process: its rules have what they requested.
    pub(super) fn served(&mut self, pid: u32) {
        rules::served(&mut self.tracked, pid);
    }

    /// The state of every watched process.
    pub(super) fn states(&self, view: &View) -> Vec<NodeTarget> {
        let now: BTreeMap<u32, &Target> =
            view.running().map(|(_, (_, target))| (target.pid, target)).collect();
        self.tracked.iter().map(|(pid, tracked)| tracked.state(now.get(pid).copied())).collect()
    }

    /// Releases the probes of all processes, which stay watched.
    pub(super) fn release_all(&mut self, reason: &str) {
        let unix_ms = unix_ms();
        self.pool.forget_programs();
        self.again.clear();
        for (pid, tracked) in &mut self.tracked {
            self.pool.release(*pid);
            tracked.turn(None, reason.to_owned(), unix_ms);
            // It is not decided any more when it is observed again.
            tracked.observed = Observed::default();
        }
    }

    /// Forgets all processes: the next scan finds them again.
    pub(super) fn rediscover(&mut self) {
        self.tracked.clear();
        self.newcomers.forget();
        self.arrivals = Arrivals::default();
    }

    /// Whether a reload with these profiles has to select the processes again.
    pub(super) fn library_differs(&self, library: &Library) -> bool {
        self.pool.library_differs(library)
    }

    /// Selects the processes again, by a new configuration and its profiles; `None`: the old ones.
    pub(super) fn select_again(
        &mut self,
        config: &Config,
        library: Option<Library>,
    ) -> Result<(), String> {
        self.selector = Selector::of_this_process(&config.select);
        for (pid, tracked) in std::mem::take(&mut self.tracked) {
            self.pool.release(pid);
            self.left.insert(pid, tracked.labels);
        }
        self.pool.renew(library, config.daemon.profiles.clone());
        self.pool.prepare(config.daemon.level).map_err(|error| error.to_string())?;
        self.arrivals = Arrivals::default();
        self.waiting.clear();
        self.unmatched = Unmatched::default();
        self.newcomers.forget();
        Ok(())
    }

    /// Takes all probes out.
    pub(super) async fn end(self) {
        let mut pool = self.pool;
        pool.end_all();
        // The kernel takes a tenth of a second for each probe; nothing else waits for that.
        let waited = tokio::task::spawn_blocking(move || pool.wait());
        let _ = waited.await;
    }

    /// Processes whose files take too long to read, a sentence each.
    pub(super) fn slow(&self) -> impl Iterator<Item = String> {
        self.pool.slow().into_iter().map(|(pid, file)| {
            format!("process {pid} has no probes for now: {file} takes too long to read; it is tried again")
        })
    }

    /// Logs a warning once that would otherwise repeat for ever.
    fn warn_once(&mut self, what: &'static str, message: impl FnOnce() -> String) {
        if self.warned.insert(what) {
            tracing::warn!("{}", message());
        }
    }
}

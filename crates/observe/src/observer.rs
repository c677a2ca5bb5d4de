//! The observer and its targets.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use drainprof_common::{
    event::{EVENT_BYTES, Event, EventKind},
    maps::ProgramName,
};
use drainprof_probe::{
    bpf::{Arming, BpfError, Detaching, Session, SessionConfig},
    plan::{NoMatch, PlanError, Sites, cost::Costs},
};
use drainprof_process::{
    ElfCache, Process, ProcessError, Stuck,
    readers::{ask, open},
};
use drainprof_profile::{Finding, Level, Library, Profile};
use drainprof_report::{
    facts::{Began, Duty, Ended, Names, TargetFacts, Windows},
    series::{HeldSeries, LiveSeries},
};

use super::{
    growth::Growth, paths::Paths, place::Placed, planning::Planner, programs::Program, windows,
};

/// What is to be observed, and how.
#[derive(Clone, Debug)]
pub struct ObserverOptions {
    /// Names of the profiles to use; empty: all of the library that match.
    pub profiles: Vec<String>,
    /// How deep to look; `None`: each profile's default.
    pub level: Option<Level>,
    /// Whether children are followed; probes then sit on the files, for all processes that map them.
    pub follow: bool,
    /// More places to search for separate debug files.
    pub debug_dirs: Vec<PathBuf>,
    /// What probes cost on this host.
    pub costs: Costs,
    /// Observe in windows only.
    pub duty: Option<Duty>,
    /// Which instructions of functions may be probed.
    pub sites: Sites,
    /// Points of a curve of what an allocator instance holds that are kept at most.
    pub curve_points: usize,
}

/// Why a process cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The process.
    #[error(transparent)]
    Target(#[from] ProcessError),
    /// No profile matches.
    #[error("no profile matches process {pid} ({comm}){}", tried(.profiles))]
    NoMatch {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
        /// Every profile that was tried, and what it missed in which object.
        profiles: Vec<NoMatch>,
    },
    /// A profile matches but cannot be used.
    #[error("profile {profile} cannot be used on process {pid}: {source}")]
    Plan {
        /// The process.
        pid: u32,
        /// The profile.
        profile: String,
        /// Why.
        #[source]
        source: Box<PlanError>,
    },
    /// The profile cannot examine the level that was asked for.
    #[error(
        "profile {profile} cannot measure at level {}; it offers {}", .level.name(), .offers.join(", ")
    )]
    Level {
        /// The profile.
        profile: String,
        /// The level.
        level: Level,
        /// What it offers.
        offers: Vec<&'static str>,
    },
    /// No profile of that name.
    #[error("no profile is called {name}; there are {}", .known.join(", "))]
    UnknownProfile {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The profile takes a census, and only a part of the time was to be observed.
    #[error("profile {profile} takes a census, which has to see all of the time: leave out --duty")]
    Census {
        /// The profile.
        profile: String,
    },
    /// It, or its files, cannot be read now.
    #[error(transparent)]
    Files(#[from] Stuck),
    /// The kernel side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The rings or a process.
    #[error("cannot wait for events of the kernel side")]
    Wait(#[source] std::io::Error),
    /// The thread for names.
    #[error("cannot start the thread that finds names")]
    Symbols(#[source] std::io::Error),
}

/// One profile that was asked for is reported in full; of a whole library, the names.
fn tried(profiles: &[NoMatch]) -> String {
    match profiles {
        [] => String::new(),
        [one] => format!("\n{one}"),
        many => format!(
            "; tried {}. `drainprof profile check NAME -p PID` says what one of them misses",
            many.iter().map(|tried| tried.profile.as_str()).collect::<Vec<_>>().join(", ")
        ),
    }
}

/// One allocator of the session: a profile at a level.
#[derive(Clone, Debug)]
pub(super) struct Allocator {
    pub(super) profile: Arc<Profile>,
    pub(super) level: Level,
}

/// Why nothing can be said of allocators, by their numbers.
pub(super) type Reasons = BTreeMap<u32, String>;

/// One process incarnation.
#[derive(Debug)]
#[allow(clippy::struct_field_names, reason = "`target` is its index, as everywhere")]
pub(super) struct Target {
    pub(super) target: u32,
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) comm: String,
    pub(super) exe: String,
    pub(super) container: Option<String>,
    pub(super) began: Began,
    pub(super) ended: Option<Ended>,
    /// `None` for a process that was gone before it could be examined.
    pub(super) process: Option<Process>,
    /// Allocators whose probes are in place in it.
    pub(super) allocators: Vec<u32>,
    /// Those of which nothing can be said, with the reasons; no probe is in place for them.
    pub(super) not_measurable: Reasons,
    pub(super) findings: Vec<Finding>,
}

/// What an event means for whoever drives the observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing to do.
    Nothing,
    /// A new process is followed: wait for its end.
    Follow(u32),
}

/// The loaded kernel side and all that is known of the targets.
pub struct Observer {
    pub(super) config: SessionConfig,
    pub(super) session: Session,
    pub(super) library: Library,
    pub(super) options: ObserverOptions,
    pub(super) cache: ElfCache,
    pub(super) planner: Planner,
    /// Targets whose new program is still to be examined: its files take long to read.
    pub(super) unexamined: Vec<u32>,
    pub(super) allocators: Vec<Allocator>,
    pub(super) placed: Vec<Placed>,
    pub(super) targets: Vec<Target>,
    /// Names of series, for events: filled as they are asked for.
    pub(super) series: BTreeMap<u32, (u32, u64)>,
    pub(super) began_ns: Option<u64>,
    pub(super) cpu_at_start: Duration,
    /// Windows of a duty cycle that have ended.
    pub(super) windows: Windows,
    /// When this window began.
    pub(super) window_ns: Option<u64>,
    /// When counting was stopped.
    pub(super) stopped_ns: Option<u64>,
    /// When nested granules are to be ended again, unless room is needed before.
    pub(super) nested_due_ns: u64,
    /// What was held back over time, by series.
    pub(super) curves: BTreeMap<u32, HeldSeries>,
    /// What was live over time, by series, of kind `slab`.
    pub(super) live_curves: BTreeMap<u32, LiveSeries>,
    /// Call paths; `None` at other levels than `stacks`.
    pub(super) paths: Option<Paths>,
    /// Page faults and mappings; `None` where they are not wanted.
    pub(super) growth: Option<Growth>,
    /// Programs whose further processes are noticed.
    pub(super) programs: BTreeMap<ProgramName, Program>,
}

impl Observer {
    /// Loads the kernel side.
    pub fn new(
        config: &SessionConfig,
        library: Library,
        options: ObserverOptions,
    ) -> Result<Self, ObserveError> {
        for name in &options.profiles {
            if library.get(name).is_none() {
                return Err(ObserveError::UnknownProfile {
                    name: name.clone(),
                    known: library.iter().map(|profile| profile.name.clone()).collect(),
                });
            }
        }
        let census = super::place::wanted(&library, &options).find(|profile| profile.implicit);
        if let Some(profile) = census.filter(|_| options.duty.is_some()) {
            return Err(ObserveError::Census { profile: profile.name.clone() });
        }
        let mut session = windows::load(config, &options)?;
        super::place::load_ahead(&mut session, &library, &options);
        Ok(Self {
            config: config.clone(),
            session,
            library,
            cache: ElfCache::new(),
            planner: Planner::default(),
            unexamined: Vec::new(),
            allocators: Vec::new(),
            placed: Vec::new(),
            targets: Vec::new(),
            series: BTreeMap::new(),
            began_ns: None,
            cpu_at_start: super::snapshot::own_cpu(),
            windows: Windows::new(config.sizes.instances as usize),
            window_ns: None,
            stopped_ns: None,
            nested_due_ns: 0,
            curves: BTreeMap::new(),
            live_curves: BTreeMap::new(),
            paths: Paths::wanted(config, &options),
            growth: config.growth.map(|_| Growth::default()),
            programs: BTreeMap::new(),
            options,
        })
    }

    /// Places the probes of all matching profiles in a process and arms it, all at once.
    pub fn add(&mut self, pid: u32, from_start: bool) -> Result<(), ObserveError> {
        let process = open(pid)?;
        // Whatever fails in a process that ends meanwhile fails because of that.
        self.add_open(&process, from_start).map_err(|error| {
            let process = process.clone();
            let has_ended = ask(pid, move || !process.is_alive()) == Ok(true);
            if has_ended { ProcessError::Ended { pid }.into() } else { error }
        })
    }

    fn add_open(&mut self, process: &Process, from_start: bool) -> Result<(), ObserveError> {
        let pid = process.pid;
        let (plans, mut findings) = match self.plan(process) {
            // What its memory does can be reported without any profile.
            Err(ObserveError::NoMatch { .. })
                if self.growth.is_some() || self.library.iter().next().is_none() =>
            {
                Default::default()
            }
            planned => planned?,
        };
        let (allocators, unplanned) = self.place(process, &plans)?;
        findings.extend(unplanned);
        let target = self.session.next_target();
        let began = if from_start { Began::FromStart } else { Began::Attached };
        let follow = self.options.follow;
        self.meet_paths(target, pid);
        self.begin_growth(target, pid);
        self.session.arm(pid, target, Arming { from_start, follow })?;
        let since_ns = super::snapshot::now_ns();
        if self.began_ns.is_none() {
            self.began_ns = Some(since_ns);
            self.cpu_at_start = super::snapshot::own_cpu();
        }
        self.window_ns.get_or_insert(since_ns);
        self.targets.push(Target {
            target,
            pid,
            start_time: process.start_time,
            comm: process.comm.clone(),
            exe: drainprof_process::printable(process.exe.as_os_str().as_encoded_bytes()),
            container: self.container_of(pid),
            began,
            ended: None,
            process: Some(process.clone()),
            allocators,
            not_measurable: super::place::not_measurable(&plans),
            findings,
        });
        Ok(())
    }

    /// The container of a process, where growth is grouped by it.
    pub(super) fn container_of(&self, pid: u32) -> Option<String> {
        self.growth.as_ref()?;
        ask(pid, move || drainprof_process::container_of(pid)).ok().flatten()
    }

    /// How many probes are in place, as `--dry-run` lists them.
    #[must_use]
    pub const fn attached(&self) -> usize {
        self.placed.len()
    }

    /// The session, for its events' descriptor.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Events that can wait to be taken, at most.
    #[must_use]
    pub fn most_events(&self) -> usize {
        // A record of the ring has a header of eight bytes.
        self.config.sizes.ring() as usize / (EVENT_BYTES + 8)
    }

    /// Takes the events that have come; each is passed on after the observer has taken notice of it. Where events are
    /// held back, the loop reports them later.
    pub fn events(&mut self, pass_on: impl FnMut(&mut Self, EventKind, &Event, Ending)) -> usize {
        self.some_events(usize::MAX, pass_on)
    }

    /// The same for at most so many events.
    pub fn some_events(
        &mut self,
        most: usize,
        mut pass_on: impl FnMut(&mut Self, EventKind, &Event, Ending),
    ) -> usize {
        self.examine_later();
        let events = self.session.drain_events(most);
        let mut children = super::lifecycle::open_children(&events);
        for (kind, event) in &events {
            let ending = self.notice(*kind, event, &mut children);
            if let Some(pins) = self.paths.as_mut().and_then(|paths| paths.pins.as_mut()) {
                pins.hold_back(*kind, event);
            }
            pass_on(self, *kind, event, ending);
        }
        events.len()
    }

    /// The targets that came after the first `known` ones, without anything that was counted.
    #[must_use]
    pub fn newcomers(&self, known: usize) -> Vec<TargetFacts> {
        let targets = self.targets.iter().skip(known);
        targets.map(|target| super::snapshot::target_facts(target, None)).collect()
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        self.targets
            .iter()
            .filter(|target| target.ended.is_none())
            .map(|target| target.pid)
            .collect()
    }

    /// The same with the number of each target: number, process.
    #[must_use]
    pub fn living(&self) -> Vec<(u32, u32)> {
        let living = self.targets.iter().filter(|target| target.ended.is_none());
        living.map(|target| (target.target, target.pid)).collect()
    }

    /// A descriptor that becomes readable when the process ends; `None` once it has.
    #[must_use]
    pub fn pidfd(&self, pid: u32) -> Option<std::os::fd::OwnedFd> {
        let target = self.live(pid)?;
        let process = target.process.clone()?;
        ask(pid, move || process.pidfd().ok()).ok().flatten()
    }

    pub(super) fn live(&self, pid: u32) -> Option<&Target> {
        self.targets.iter().find(|target| target.pid == pid && target.ended.is_none())
    }

    /// A process has ended; the status is known where it is our child.
    pub fn ended(&mut self, pid: u32, status: Option<Result<i32, i32>>) {
        let Some(index) =
            self.targets.iter().position(|target| target.pid == pid && target.ended.is_none())
        else {
            return;
        };
        // Its curves end here.
        self.sample();
        self.end_sites(self.targets[index].target);
        self.targets[index].ended = Some(Ended::Exit(status));
        self.session.disarm_target(pid, self.targets[index].target);
    }

    /// Stops counting everywhere; what was counted stays readable.
    pub fn stop(&mut self) {
        for pid in self.running() {
            self.session.disarm(pid);
        }
        self.stopped_ns.get_or_insert_with(super::snapshot::now_ns);
        self.take_mappings();
        self.sample();
    }

    /// Takes all probes out, in the background. What was counted stays readable.
    pub fn detach(&mut self) -> Detaching {
        self.session.detach()
    }

    /// Learns the names of all series that are there now.
    pub fn learn_series(&mut self) {
        for record in self.session.read_series() {
            let key = record.state.key;
            self.series.insert(record.series, (key.allocator, key.instance));
        }
    }

    /// Whether a series' name is known.
    #[must_use]
    pub fn knows_series(&self, series: u32) -> bool {
        self.series.contains_key(&series)
    }
}

impl Names for Observer {
    fn pid(&self, target: u32) -> Option<u32> {
        self.targets.iter().find(|known| known.target == target).map(|known| known.pid)
    }

    fn series(&self, series: u32) -> Option<(&str, u64)> {
        let (allocator, instance) = self.series.get(&series)?;
        let allocator = self.allocators.get(*allocator as usize)?;
        Some((allocator.profile.name.as_str(), *instance))
    }

    fn began_ns(&self) -> u64 {
        self.began_ns.unwrap_or_default()
    }
}

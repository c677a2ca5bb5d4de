//! A kernel side with all that is known of its targets: each part owns its state, and [`Side`] answers what concerns
//! several of them.

mod allocators;
pub(crate) mod clock;
mod curves;
mod events;
mod fallback;
mod growth;
mod lifecycle;
pub(crate) mod options;
mod pages;
mod paths;
pub(crate) mod pins;
mod plan;
mod planner;
mod probes;
mod programs;
mod reclaim;
mod release;
mod sites;
mod snapshot;
mod targets;
pub(crate) mod windows;

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use drainprof_common::{event::EVENT_BYTES, loss::Loss};
use drainprof_probe::{
    bpf::{Arming, BpfError, Detaching, Session, SessionConfig},
    plan::AttachPlan,
};
use drainprof_process::{
    Process, ProcessError,
    readers::{ask, open},
};
use drainprof_profile::{Finding, Library};
use drainprof_report::{
    facts::{Began, CallPath, Duty, Ended, Names, TargetFacts, Windows},
    series::FIRST_INTERVAL,
};

use self::{
    clock::{Clock, SHARE, own_cpu},
    curves::Curves,
    growth::Growth,
    options::SideOptions,
    paths::Paths,
    pins::Pins,
    planner::Planner,
    probes::Probes,
    programs::Programs,
    sites::{Sites, Sources},
    targets::{Probed, Target, Targets},
};
use crate::ObserveError;

/// However slowly the curves grow, new instances are noticed after this time.
const LONGEST: Duration = Duration::from_millis(200);

/// What an event means for the loop around a kernel side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Nothing to do.
    Nothing,
    /// A new process is followed: wait for its end.
    Follow(u32),
}

/// The loaded kernel side and all that is known of the targets.
pub struct Side {
    config: SessionConfig,
    session: Session,
    clock: Clock,
    planner: Planner,
    probes: Probes,
    targets: Targets,
    /// Targets whose new program is still to be examined: its files take long to read.
    unexamined: Vec<u32>,
    /// Programs whose further processes are noticed.
    programs: Programs,
    /// Parts of the time in which all is observed; `None`: all of it.
    duty: Option<Duty>,
    /// Windows of a duty cycle that have ended.
    windows: Windows,
    curves: Curves,
    /// Call paths, and what allocates by them; `None` where they are not wanted.
    paths: Option<Paths>,
    sites: Sites,
    /// Events that are held back; `None`: they are reported at once.
    pins: Option<Pins>,
    /// Page faults and mappings; `None` where they are not wanted.
    growth: Option<Growth>,
    /// When nested granules are to be ended again, unless room is needed before.
    nested_due_ns: u64,
}

/// What is kept from one window of a duty cycle to the next.
struct Kept {
    config: SessionConfig,
    clock: Clock,
    planner: Planner,
    targets: Targets,
    duty: Option<Duty>,
    windows: Windows,
}

impl Side {
    /// Loads the kernel side.
    pub fn new(
        config: &SessionConfig,
        library: Library,
        options: SideOptions,
    ) -> Result<Self, ObserveError> {
        let kept = Kept {
            config: config.clone(),
            clock: Clock::new(),
            duty: options.duty,
            planner: Planner::new(library, options, config.sample)?,
            targets: Targets::default(),
            windows: Windows::new(config.sizes.instances as usize),
        };
        let mut session = kept.load()?;
        kept.planner.load_ahead(&mut session);
        Ok(Self::begin(session, kept))
    }

    /// A kernel side with nothing in it yet.
    fn begin(session: Session, kept: Kept) -> Self {
        let Kept { config, clock, planner, targets, duty, windows } = kept;
        let options = planner.options();
        let has_paths = config.sizes.call_paths > 0;
        Self {
            session,
            clock,
            probes: Probes::new(options),
            targets,
            unexamined: Vec::new(),
            programs: Programs::default(),
            duty,
            windows,
            curves: Curves::new(options.curve_points, config.sample),
            paths: has_paths.then(|| Paths::new(&options.debug_dirs)),
            sites: Sites::default(),
            pins: (has_paths && config.events).then(Pins::default),
            growth: config.growth.map(|_| Growth::default()),
            nested_due_ns: 0,
            config,
            planner,
        }
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
        let (plans, findings) = match self.planner.plan(process) {
            // What its memory does can be reported without any profile.
            Err(ObserveError::NoMatch { .. })
                if self.growth.is_some() || !self.planner.has_profiles() =>
            {
                Default::default()
            }
            planned => planned?,
        };
        let began = if from_start { Began::FromStart } else { Began::Attached };
        let number = self.session.next_target();
        let mut target =
            Target::new(number, pid, began, Some(process)).inside(self.container_of(pid));
        target.findings().extend(findings);
        self.observe(&mut target, &plans, from_start)?;
        self.clock.begin();
        self.targets.push(target);
        Ok(())
    }

    /// Places the probes of a target, and has it counted from now on.
    fn observe(
        &mut self,
        target: &mut Target,
        plans: &[AttachPlan],
        from_start: bool,
    ) -> Result<(), ObserveError> {
        let (number, pid) = (target.number(), target.pid());
        for unplanned in self.probes.place(&mut self.session, pid, plans)? {
            target.note(unplanned);
        }
        target.set_probed(Probed::by(plans));
        self.meet_paths(number, pid);
        if let Some(growth) = &mut self.growth {
            growth.begin(&mut self.session, number, pid);
        }
        let follow = self.follows();
        Ok(self.session.arm(pid, number, Arming { from_start, follow })?)
    }

    /// Whether children are followed.
    const fn follows(&self) -> bool {
        self.planner.options().follow
    }

    /// The container of a process, where growth is grouped by it.
    fn container_of(&self, pid: u32) -> Option<String> {
        self.growth.as_ref()?;
        ask(pid, move || drainprof_process::container_of(pid)).ok().flatten()
    }

    /// A process is about to be observed as a target.
    fn meet_paths(&mut self, target: u32, pid: u32) {
        if let Some(paths) = &mut self.paths {
            paths.meet(&mut self.session, target, pid);
        }
    }

    /// The plans of all profiles that match a process, and what the user should know of them. Attaches
    /// nothing.
    pub fn plan(
        &mut self,
        process: &Process,
    ) -> Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError> {
        self.planner.plan(process)
    }

    /// A loop waits for plans from now on: those that take longer go on beside it, and the process is to be asked for
    /// again later ([`drainprof_process::Stuck::Slow`]).
    pub const fn plan_beside(&mut self) {
        self.planner.plan_beside();
    }

    /// Processes that wait since their files took too long, with the files.
    pub fn slow(&self) -> impl Iterator<Item = (u32, &str)> {
        self.planner.slow()
    }

    /// Forgets what was read of ELF files; what is needed again is read again.
    pub fn forget_files(&mut self) {
        self.planner.forget_files();
    }

    /// How many probes are in place, as `--dry-run` lists them.
    #[must_use]
    pub const fn attached(&self) -> usize {
        self.probes.len()
    }

    /// Seconds of CPU that the probes in place took from the processes, since they were placed.
    pub(crate) fn cost_seconds(&self) -> f64 {
        self.probes.cost_seconds(&self.session)
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

    /// The targets that came after the first `known` ones, without anything that was counted.
    #[must_use]
    pub fn newcomers(&self, known: usize) -> Vec<TargetFacts> {
        self.targets.iter().skip(known).map(|target| target.facts(None)).collect()
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        self.targets.running().map(Target::pid).collect()
    }

    /// The same with the number of each target: number, process.
    #[must_use]
    pub fn living(&self) -> Vec<(u32, u32)> {
        self.targets.living()
    }

    /// A descriptor that becomes readable when the process ends; `None` once it has.
    #[must_use]
    pub fn pidfd(&self, pid: u32) -> Option<OwnedFd> {
        let process = self.targets.of_pid(pid)?.process()?.clone();
        ask(pid, move || process.pidfd().ok()).ok().flatten()
    }

    /// Unwinds the stacks that have come, all of them.
    pub fn learn_paths(&mut self) {
        while self.learn_some_paths() {}
    }

    /// Unwinds a few of the stacks that have come; whether there may be more. A target that makes new ones all the time
    /// does not keep the caller from its other work.
    pub fn learn_some_paths(&mut self) -> bool {
        self.paths.as_mut().is_some_and(|paths| paths.learn(&mut self.session) != 0)
    }

    /// The call paths that were found since this was last asked, each with its target. Their addresses mean something now;
    /// libraries may be unloaded soon.
    pub fn take_new_paths(&mut self) -> Vec<(u32, Arc<CallPath>)> {
        self.paths.as_mut().map(Paths::take_new).unwrap_or_default()
    }

    /// Tries again to unwind what could not be; called now and then.
    pub fn retry_paths(&mut self) {
        if let Some(paths) = &mut self.paths {
            paths.retry(&mut self.session);
        }
    }

    /// Notices further processes of the program that a process executes.
    pub fn watch_program(&mut self, pid: u32) -> Result<(), BpfError> {
        let Some(target) = self.targets.of_pid(pid) else { return Ok(()) };
        self.programs.watch(&mut self.session, &target.program(), self.planner.options().follow)
    }

    /// Notices no further processes.
    pub fn forget_programs(&mut self) {
        self.programs.forget(&mut self.session);
    }

    /// Takes a newcomer back that is not to be observed: nothing of it is reported.
    pub fn discard(&mut self, pid: u32, target: u32) {
        self.session.disarm_target(pid, target);
        drop(self.targets.take(target));
    }

    /// Counts a loss that only the caller can know of, such as processes without probes that were to be there.
    pub fn count_loss(&mut self, loss: Loss, number: u64) {
        self.session.count_loss(loss, number);
    }

    /// Takes a point of every curve that is not at its end, those of sites too where it is time; returns the time
    /// until the next is due.
    pub fn sample(&mut self) -> Duration {
        // Not the time of day: while other programs have the CPU, nothing is spent.
        let began = own_cpu();
        let at_ns = self.clock.at_ns();
        self.end_nested();
        let (ended, allocators) = (self.targets.ended(), self.planner.allocators());
        let due_ns = self.curves.sample(&self.session, allocators, &ended, at_ns);
        let wait = Duration::from_nanos(due_ns.saturating_sub(at_ns))
            .clamp(FIRST_INTERVAL, LONGEST)
            .max(own_cpu().saturating_sub(began) * SHARE);
        // Sites take a share of their own.
        self.with_sites(Sites::sample);
        if let Some(growth) = self.growth.as_mut().filter(|_| !self.clock.is_stopped()) {
            growth.sample(&self.session);
        }
        wait
    }

    /// Does something with the sites, where there are call paths.
    fn with_sites<T>(&mut self, act: impl FnOnce(&mut Sites, &Sources<'_>) -> T) -> Option<T> {
        let (session, allocators) = (&self.session, self.planner.allocators());
        let (targets, clock, sample) = (&self.targets, &self.clock, self.config.sample);
        let paths = self.paths.as_ref()?;
        let sources = Sources::new(session, paths, allocators, targets, clock, sample);
        Some(act(&mut self.sites, &sources))
    }

    /// The curves of a target end here.
    fn end_curves(&mut self, target: u32) {
        self.sample();
        self.with_sites(|sites, from| sites.end(from, target));
    }

    /// A process has ended; the status is known where it is our child.
    pub fn ended(&mut self, pid: u32, status: Option<Result<i32, i32>>) {
        let Some(number) = self.targets.of_pid(pid).map(Target::number) else { return };
        self.end_curves(number);
        self.targets.end(pid, Ended::exit(status));
        self.session.disarm_target(pid, number);
    }

    /// Stops counting everywhere; what was counted stays readable.
    pub fn stop(&mut self) {
        for pid in self.running() {
            self.session.disarm(pid);
        }
        self.clock.stop();
        self.take_mappings();
        self.sample();
    }

    /// Takes the records of growth that have come.
    fn take_mappings(&mut self) {
        if let Some(growth) = &mut self.growth {
            growth.take_mappings(&mut self.session, &self.targets);
        }
    }

    /// Takes all probes out, in the background. What was counted stays readable.
    pub fn detach(&mut self) -> Detaching {
        self.session.detach()
    }

    /// Ends the session in the background: its probes, then all that was counted.
    pub fn end(self) -> Detaching {
        self.session.end()
    }
}

impl Names for Side {
    fn pid(&self, target: u32) -> Option<u32> {
        self.targets.get(target).map(Target::pid)
    }

    fn series(&self, series: u32) -> Option<(&str, u64)> {
        let key = self.session.series_key(series)?;
        let allocator = self.planner.allocators().get(key.allocator)?;
        Some((allocator.profile().name.as_str(), key.instance))
    }

    fn began_ns(&self) -> u64 {
        self.clock.began_ns()
    }
}

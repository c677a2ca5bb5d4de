//! Between the windows of a duty cycle: no probe, no kernel side, only what the windows have told.
//!
//! Every window has a kernel side of its own. So what one left behind (open granules, objects, calls on
//! their way) cannot meet the next, and the maps are as empty at the thousandth window as at the first.

use std::{collections::BTreeMap, time::Duration};

use drainprof_probe::bpf::{Arming, Detaching, Session, SessionConfig};
use drainprof_process::{ElfCache, Process, printable, readers::open};
use drainprof_profile::{self as profile, Finding, Level, Library};
use drainprof_report::facts::{Began, Duty, DutyFacts, Ended, Snapshot, Windows};

use super::{
    observer::{Allocator, ObserveError, Observer, ObserverOptions, Reasons, Target},
    paths::Paths,
    planning::Planner,
    snapshot,
};

/// A kernel side, for a window where there is a duty cycle, and for files where children are followed.
pub(super) fn load(
    config: &SessionConfig,
    options: &ObserverOptions,
) -> Result<Session, ObserveError> {
    let loaded = match options.duty {
        Some(_) => Session::load_for_window(config),
        None if options.follow => Session::load_for_files(config),
        None => Session::load(config),
    };
    Ok(loaded?)
}

/// What is kept from one window to the next.
pub struct Resting {
    config: SessionConfig,
    library: Library,
    options: ObserverOptions,
    cache: ElfCache,
    allocators: Vec<Allocator>,
    targets: Vec<Target>,
    began_ns: Option<u64>,
    cpu_at_start: Duration,
    windows: Windows,
}

impl Observer {
    /// Ends a window. Counting was stopped ([`Observer::stop`]) and has settled. Probes and maps go in the
    /// background; the next window must not begin before.
    pub fn rest(mut self) -> (Resting, Detaching) {
        let (window, length) = (self.window(), self.window_length());
        let mut resting = Resting {
            config: self.config,
            library: self.library,
            options: self.options,
            cache: self.cache,
            allocators: self.allocators,
            targets: self.targets,
            began_ns: self.began_ns,
            cpu_at_start: self.cpu_at_start,
            windows: self.windows,
        };
        resting.windows.add(window, length);
        (resting, self.session.end())
    }
}

impl Resting {
    /// A new kernel side for the next window. Fails where the machine cannot give it now; the window can
    /// be tried later.
    pub fn load(&self) -> Result<Session, ObserveError> {
        let mut session = load(&self.config, &self.options)?;
        let taken = self.targets.iter().map(|target| target.target + 1).max();
        session.reserve_targets(taken.unwrap_or_default());
        for known in &self.allocators {
            session.load_ahead(&known.profile, known.level);
        }
        Ok(session)
    }

    /// Begins the next window: puts the probes in place again in every process that has not ended. One
    /// that cannot be probed any more has a finding that says why.
    #[must_use]
    pub fn wake(self, session: Session) -> Observer {
        let paths = Paths::wanted(&self.config, &self.options);
        let mut observer = Observer {
            growth: None,
            config: self.config,
            session,
            library: self.library,
            options: self.options,
            cache: self.cache,
            planner: Planner::default(),
            unexamined: Vec::new(),
            allocators: self.allocators,
            placed: Vec::new(),
            targets: self.targets,
            series: BTreeMap::new(),
            began_ns: self.began_ns,
            cpu_at_start: self.cpu_at_start,
            windows: self.windows,
            window_ns: None,
            stopped_ns: None,
            nested_due_ns: 0,
            curves: BTreeMap::new(),
            live_curves: BTreeMap::new(),
            paths,
            programs: BTreeMap::new(),
        };
        for index in 0..observer.targets.len() {
            if observer.targets[index].ended.is_none() {
                observer.look_again(index);
            }
        }
        let now_ns = *observer.window_ns.get_or_insert_with(snapshot::now_ns);
        observer.began_ns.get_or_insert(now_ns);
        observer
    }

    /// What the windows have told so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let now_ns = snapshot::now_ns();
        let resident = snapshot::resident(&self.targets);
        let facts =
            |target: &Target| snapshot::target_facts(target, resident.get(&target.pid).copied());
        let now = Snapshot {
            now_ns,
            window: Duration::from_nanos(now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns))),
            duty: self.options.duty.map(|duty| DutyFacts {
                duty,
                windows: self.windows.count(),
                observed: self.windows.observed(),
            }),
            sample: self.config.sample,
            targets: self.targets.iter().map(facts).collect(),
            self_use: snapshot::self_use(self.cpu_at_start, 0),
            prices_measured: self.options.costs.measured,
            ..Snapshot::default()
        };
        self.windows.join(now)
    }

    /// What the windows have told is dropped: the next is the first, at another level.
    pub(super) fn begin_again_at(&mut self, level: Level) {
        self.options.level = Some(level);
        self.windows = Windows::new(self.config.sizes.instances as usize);
        self.began_ns = None;
        self.targets.retain(|target| target.ended.is_none());
        self.targets.iter_mut().for_each(|target| target.began = Began::Attached);
    }

    /// A process has ended.
    pub fn ended(&mut self, pid: u32) {
        let running = |target: &&mut Target| target.pid == pid && target.ended.is_none();
        if let Some(target) = self.targets.iter_mut().find(running) {
            target.ended = Some(Ended::Exit(None));
        }
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        let running = self.targets.iter().filter(|target| target.ended.is_none());
        running.map(|target| target.pid).collect()
    }

    /// The same with the number of each target: number, process.
    #[must_use]
    pub fn living(&self) -> Vec<(u32, u32)> {
        let living = self.targets.iter().filter(|target| target.ended.is_none());
        living.map(|target| (target.target, target.pid)).collect()
    }

    /// How many windows there were.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.windows.count()
    }
}

impl Observer {
    /// How many windows have begun.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.windows.count() + 1
    }

    /// The next level below, where the level is a profile's default and the profile offers one that costs less.
    pub(super) fn cheaper_level(&self) -> Option<Level> {
        let is_free =
            |allocator: &&Allocator| self.options.level.is_none() && allocator.level > Level::Close;
        let below = |allocator: &Allocator| {
            let offers = profile::judging_levels(&allocator.profile);
            offers.filter(|level| *level < allocator.level).max()
        };
        self.allocators.iter().filter(is_free).filter_map(below).max()
    }

    /// Whether parts of the time can be left out. A census has to see all of it, and so have children that are followed.
    pub(super) fn can_pause(&self) -> bool {
        let is_census = |allocator: &Allocator| allocator.profile.implicit;
        !self.options.follow && !self.allocators.iter().any(is_census)
    }

    /// This window is the first of a duty cycle. Growth has to see all of the time, and ends here.
    pub(super) fn pause_as(&mut self, duty: Duty) {
        self.options.duty = Some(duty);
        if self.config.growth.take().is_some() {
            let message =
                "growth is not reported: the probes are in place for parts of the time only";
            let finding =
                Finding { code: "growth_dropped".to_owned(), message: message.to_owned() };
            self.targets.iter_mut().for_each(|target| target.findings.push(finding.clone()));
        }
    }

    /// Looks at a process again at the begin of a window.
    fn look_again(&mut self, index: usize) {
        let (pid, number) = (self.targets[index].pid, self.targets[index].target);
        let process = match open(pid) {
            Ok(process) if process.start_time == self.targets[index].start_time => process,
            // A number that was given out again is another process.
            Err(error) if !error.is_gone() => return missed(&mut self.targets[index], &error),
            _ => {
                self.targets[index].ended = Some(Ended::Exit(None));
                return;
            }
        };
        let exe = printable(process.exe.as_os_str().as_encoded_bytes());
        let index = if exe == self.targets[index].exe {
            index
        } else {
            // It has called exec while nobody looked.
            self.targets[index].ended = Some(Ended::Exec);
            self.targets.push(Target {
                target: self.session.next_target(),
                pid,
                start_time: process.start_time,
                comm: process.comm.clone(),
                exe,
                container: None,
                began: Began::Exec(number),
                ended: None,
                process: None,
                allocators: Vec::new(),
                not_measurable: BTreeMap::new(),
                findings: Vec::new(),
            });
            self.targets.len() - 1
        };
        let placed = self.place_again(&process, self.targets[index].target);
        let target = &mut self.targets[index];
        target.comm.clone_from(&process.comm);
        target.process = Some(process);
        match placed {
            Ok((allocators, not_measurable, findings)) => {
                target.allocators = allocators;
                target.not_measurable = not_measurable;
                for finding in findings {
                    if !target.findings.contains(&finding) {
                        target.findings.push(finding);
                    }
                }
            }
            Err(error) => missed(target, &error),
        }
    }

    fn place_again(
        &mut self,
        process: &Process,
        number: u32,
    ) -> Result<(Vec<u32>, Reasons, Vec<Finding>), ObserveError> {
        let (plans, mut findings) = self.plan(process)?;
        let (allocators, unplanned) = self.place(process, &plans)?;
        findings.extend(unplanned);
        self.meet_paths(number, process.pid);
        let follow = self.options.follow;
        self.session.arm(process.pid, number, Arming { follow, ..Arming::default() })?;
        self.window_ns.get_or_insert_with(snapshot::now_ns);
        Ok((allocators, super::place::not_measurable(&plans), findings))
    }
}

/// Says that a process was not seen in a window.
fn missed(target: &mut Target, error: &dyn std::error::Error) {
    target.allocators.clear();
    let message = format!("it could not be probed in every window: {error}");
    let finding = Finding { code: "window_missed".to_owned(), message };
    if !target.findings.contains(&finding) {
        target.findings.push(finding);
    }
}

//! Between the windows of a duty cycle: no probe, no kernel side, only what the windows have counted.
//!
//! Every window has a kernel side of its own. So what one left behind (open granules, objects, calls on
//! their way) cannot meet the next, and the maps are as empty at the thousandth window as at the first.

use std::time::Duration;

use drainprof_probe::bpf::{Detaching, Session};
use drainprof_process::{Process, readers::open};
use drainprof_profile::{Finding, Level};
use drainprof_report::facts::{Began, Duty, Ended, Snapshot, Windows};

use super::{Kept, Side, clock::now_ns, targets::Target};
use crate::ObserveError;

/// What is kept from one window to the next.
pub struct Resting(Kept);

impl Kept {
    /// A kernel side, for a window where there is a duty cycle, and for files where children are followed.
    pub(super) fn load(&self) -> Result<Session, ObserveError> {
        let loaded = match self.duty {
            Some(_) => Session::load_for_window(&self.config),
            None if self.planner.options().follow => Session::load_for_files(&self.config),
            None => Session::load(&self.config),
        };
        Ok(loaded?)
    }

    /// What the windows have counted so far is dropped: the next is the first.
    fn begin_again(&mut self) {
        self.windows = Windows::new(self.config.sizes.instances as usize);
        self.clock.forget_begin();
        self.targets.begin_again();
    }
}

impl Resting {
    /// A new kernel side for the next window. Fails where the machine cannot give it now; the window can
    /// be tried later.
    pub fn load(&self) -> Result<Session, ObserveError> {
        let mut session = self.0.load()?;
        session.reserve_targets(self.0.targets.next_number());
        self.0.planner.load_known(&mut session);
        Ok(session)
    }

    /// Begins the next window: puts the probes in place again in every process that has not ended. One
    /// that cannot be probed any more has a finding that says why.
    #[must_use]
    pub fn wake(self, session: Session) -> Side {
        let mut side = Side::begin(session, self.0);
        for (number, _) in side.targets.living() {
            side.meet_again(number);
        }
        side.clock.begin_window();
        side
    }

    /// What the windows have counted so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let Kept { config, clock, planner, targets, duty, windows } = &self.0;
        let now_ns = now_ns();
        let now = Snapshot {
            now_ns,
            window: clock.since_begin(now_ns),
            duty: duty.map(|duty| duty.after(windows.count(), windows.observed())),
            sample: config.sample,
            targets: targets.facts(),
            self_use: clock.self_use(0),
            prices_measured: planner.options().costs.measured,
            ..Snapshot::default()
        };
        windows.join(now)
    }

    /// All is dropped that was counted: the next window is the first, at another level.
    pub(crate) fn begin_again_at(&mut self, level: Level) {
        self.0.planner.set_level(level);
        self.0.begin_again();
    }

    /// A process has ended.
    pub fn ended(&mut self, pid: u32) {
        self.0.targets.end(pid, Ended::exit(None));
    }

    /// Number and process of the targets that have not ended.
    #[must_use]
    pub fn living(&self) -> Vec<(u32, u32)> {
        self.0.targets.living()
    }

    /// How many windows there were.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.0.windows.count()
    }
}

impl Side {
    /// Ends a window. Counting was stopped ([`Side::stop`]) and has settled. Probes and maps go in the
    /// background; the next window must not begin before.
    pub fn rest(mut self) -> (Resting, Detaching) {
        let (window, length) = (self.window(), self.clock.window_length());
        self.windows.add(window, length);
        self.clock.end_window();
        let Self { config, clock, planner, targets, duty, windows, session, .. } = self;
        (Resting(Kept { config, clock, planner, targets, duty, windows }), session.end())
    }

    /// How many windows have begun.
    #[must_use]
    pub const fn windows(&self) -> u64 {
        self.windows.count() + 1
    }

    /// For how long was observed, in all windows.
    #[must_use]
    pub fn observed(&self) -> Duration {
        self.windows.observed() + self.clock.window_length()
    }

    /// The next level below, where the level is a profile's default and the profile offers one that costs less.
    pub(crate) fn cheaper_level(&self) -> Option<Level> {
        self.planner.cheaper_level()
    }

    /// Whether parts of the time can be left out. A census has to see all of it, and so have children that are followed.
    pub(crate) fn can_pause(&self) -> bool {
        !self.follows() && !self.planner.allocators().has_census()
    }

    /// This window is the first of a duty cycle. Growth has to see all of the time, and ends here.
    pub(crate) fn pause_as(&mut self, duty: Duty) {
        self.duty = Some(duty);
        if self.config.growth.take().is_some() {
            let message =
                "growth is not reported: the probes are in place for parts of the time only";
            let finding =
                Finding { code: "growth_dropped".to_owned(), message: message.to_owned() };
            self.targets.iter_mut().for_each(|target| target.note(finding.clone()));
        }
    }

    /// Examines a process again at the begin of a window.
    fn meet_again(&mut self, number: u32) {
        let Some((at, mut target)) = self.targets.take(number) else { return };
        match open(target.pid()) {
            Ok(process) if target.is(&process) && target.executes(&process) => {
                self.observe_again(&process, &mut target);
            }
            Ok(process) if target.is(&process) => {
                // It has called exec while no probe was in place.
                target.end(Ended::Exec);
                let (next, began) =
                    (self.session.next_target(), Began::Exec { from_target: number });
                let mut next = Target::new(next, process.pid, began, Some(&process));
                self.observe_again(&process, &mut next);
                self.targets.push(next);
            }
            Err(error) if !error.is_gone() => missed(&mut target, &error),
            // A number that was given out again is another process.
            Ok(_) | Err(_) => target.end(Ended::exit(None)),
        }
        self.targets.put_back((at, target));
    }

    fn observe_again(&mut self, process: &Process, target: &mut Target) {
        target.meet(process.clone());
        let observed = self.planner.plan(process).and_then(|(plans, findings)| {
            for finding in findings {
                target.note(finding);
            }
            self.observe(target, &plans, false)
        });
        match observed {
            Ok(()) => self.clock.begin_window(),
            Err(error) => missed(target, &error),
        }
    }
}

/// Says that a process was not seen in a window.
fn missed(target: &mut Target, error: &dyn std::error::Error) {
    target.set_probed(target.probed().without_probes());
    let message = format!("it could not be probed in every window: {error}");
    target.note(Finding { code: "window_missed".to_owned(), message });
}

//! Duty cycles: observe for a while, then leave no probe, then begin again.

use std::{
    io,
    time::{Duration, Instant},
};

use drainprof_probe::bpf::Detaching;
use drainprof_report::facts::Duty;

use super::{Observation, Sink, Step, budget::Budget};
use crate::{Side, side::windows::Resting};

/// How often it is checked whether the probes are gone.
const CHECK: Duration = Duration::from_millis(20);
/// When the kernel side is loaded again, where that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Whether the targets are observed now.
pub(super) enum Stage {
    /// The probes are in place.
    Observing(Box<Side>),
    /// Between two duty cycles.
    Resting(Box<Resting>),
    /// On the way from one to the other.
    Changing,
}

impl Stage {
    pub(super) fn side(&mut self) -> Option<&mut Side> {
        match self {
            Self::Observing(side) => Some(side),
            Self::Resting(_) | Self::Changing => None,
        }
    }

    pub(super) fn observing(&self) -> Option<&Side> {
        match self {
            Self::Observing(side) => Some(side),
            Self::Resting(_) | Self::Changing => None,
        }
    }
}

/// Where a duty cycle is.
pub(super) struct Cycle {
    /// `None`: there is one change only, to other probes as soon as the last are gone.
    duty: Option<Duty>,
    /// How long the period has to be for each second with probes; 0 where nobody has asked for less.
    stretch: f64,
    /// When the last one began.
    began: Instant,
    /// When the next change is due; `None` before the first begins.
    change: Option<Instant>,
    /// The probes of the last one, as long as they are not gone.
    detaching: Option<Detaching>,
}

impl Cycle {
    pub(super) fn new(duty: Duty) -> Self {
        Self::resting(Some(duty), 0.0)
    }

    /// The first window has just ended. Its probes cost until they are gone, which counts in the length of periods.
    pub(super) fn resting(duty: Option<Duty>, stretch: f64) -> Self {
        Self { duty, stretch, began: Instant::now(), change: None, detaching: None }
    }

    pub(super) fn detaching(self) -> Option<Detaching> {
        self.detaching
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        self.change = self.duty.map(|duty| self.began + duty.on);
    }

    /// The next cycle does not begin before all probes of the last are gone.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.detaching {
            Some(_) => Some(Instant::now() + CHECK),
            None => self.change,
        }
    }
}

/// Years later at most.
fn after(begin: Instant, time: Duration) -> Instant {
    begin.checked_add(time).unwrap_or_else(|| begin + Duration::from_secs(1 << 30))
}

impl Observation {
    /// The first cycle begins.
    pub(super) fn start_cycle(&mut self) {
        if let Some(cycle) = &mut self.cycle {
            cycle.begin();
            self.say_began();
        }
    }

    fn say_began(&mut self) {
        let duty = self.cycle.as_ref().and_then(|cycle| cycle.duty);
        let (Some(side), Some(duty)) = (self.stage.observing(), duty) else { return };
        self.steps.push_back(Step::CycleBegan {
            number: side.windows(),
            length: duty.on,
            probes: side.attached(),
            pids: side.running(),
        });
    }

    /// Ends the cycle or begins the next, where it is time.
    pub(super) fn turn_cycle(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let Some(cycle) = &mut self.cycle else { return Ok(()) };
        if let Some(detaching) = cycle.detaching.take_if(|detaching| detaching.is_over()) {
            // Probes cost as long as they are there; what else is taken down costs the targets nothing.
            let gone = detaching.gone().unwrap_or_else(Instant::now);
            detaching.wait();
            let cost = gone.saturating_duration_since(cycle.began).mul_f64(cycle.stretch);
            let earliest = after(cycle.began, cost);
            cycle.change = cycle.change.max(Some(earliest));
            if let (Stage::Resting(resting), Some(_)) = (&self.stage, cycle.duty) {
                let left = cycle.change.map(|at| at.saturating_duration_since(Instant::now()));
                self.steps.push_back(Step::CycleEnded {
                    number: resting.windows(),
                    left: left.unwrap_or_default(),
                });
            }
        }
        let is_due = cycle.change.is_some_and(|change| change <= Instant::now());
        if !is_due || cycle.detaching.is_some() {
            return Ok(());
        }
        if self.stage.observing().is_some() {
            self.stop(sink)?;
            self.end_interval(sink)?;
        }
        match std::mem::replace(&mut self.stage, Stage::Changing) {
            Stage::Observing(side) => {
                self.poller.forget_rings();
                self.rest(side);
            }
            Stage::Resting(resting) => {
                let loaded = resting.load().and_then(|session| {
                    let watched = self.poller.watch_rings(&session);
                    watched.map(|()| session).map_err(crate::ObserveError::Wait)
                });
                match loaded {
                    Ok(session) => {
                        self.stage = Stage::Observing(Box::new(resting.wake(session)));
                        self.cycle.iter_mut().for_each(Cycle::begin);
                        let now = Instant::now();
                        self.tick = self.interval.map(|interval| now + interval);
                        self.say_began();
                        if self.cycle.take_if(|cycle| cycle.duty.is_none()).is_some() {
                            self.steps.push_back(Step::BeganAgain);
                        }
                    }
                    // It may be possible later: what was measured so far is not given up for it.
                    Err(error) => {
                        self.stage = Stage::Resting(resting);
                        if let Some(cycle) = &mut self.cycle {
                            let period = cycle.duty.map_or(RETRY, |duty| duty.period);
                            cycle.change = Some(Instant::now() + period);
                        }
                        self.steps.push_back(Step::CycleSkipped(error));
                    }
                }
            }
            Stage::Changing => {}
        }
        Ok(())
    }

    /// Leaves no probe until the next window.
    pub(super) fn rest(&mut self, side: Box<Side>) {
        let (resting, detaching) = side.rest();
        self.budget.iter_mut().for_each(Budget::rest);
        self.stage = Stage::Resting(Box::new(resting));
        if let Some(cycle) = &mut self.cycle {
            cycle.detaching = Some(detaching);
            let period = cycle.duty.map_or(Duration::ZERO, |duty| duty.period);
            cycle.change = Some(cycle.began + period);
        }
    }
}

//! Duty cycles: observe for a while, then leave no probe, then begin again.

use std::{
    io,
    time::{Duration, Instant},
};

use drainprof_probe::bpf::Detaching;
use drainprof_report::facts::Duty;

use super::{Observation, Sink, Step};
use crate::{Observer, Resting};

/// How often it is checked whether the probes are gone.
const CHECK: Duration = Duration::from_millis(20);

/// Whether the targets are observed now.
pub(super) enum Stage {
    /// The probes are in place.
    Observing(Box<Observer>),
    /// Between two duty cycles.
    Resting(Box<Resting>),
    /// On the way from one to the other.
    Changing,
}

impl Stage {
    pub(super) fn observer(&mut self) -> Option<&mut Observer> {
        match self {
            Self::Observing(observer) => Some(observer),
            Self::Resting(_) | Self::Changing => None,
        }
    }

    pub(super) fn observing(&self) -> Option<&Observer> {
        match self {
            Self::Observing(observer) => Some(observer),
            Self::Resting(_) | Self::Changing => None,
        }
    }
}

/// Where a duty cycle is.
pub(super) struct Cycle {
    duty: Duty,
    /// When the last one began.
    began: Instant,
    /// When the next change is due; `None` before the first begins.
    change: Option<Instant>,
    /// The probes of the last one, as long as they are not gone.
    detaching: Option<Detaching>,
}

impl Cycle {
    pub(super) fn new(duty: Duty) -> Self {
        Self { duty, began: Instant::now(), change: None, detaching: None }
    }

    pub(super) fn detaching(self) -> Option<Detaching> {
        self.detaching
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        self.change = Some(self.began + self.duty.on);
    }

    /// The next cycle does not begin before all probes of the last are gone.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.detaching {
            Some(_) => Some(Instant::now() + CHECK),
            None => self.change,
        }
    }
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
        let (Some(observer), Some(cycle)) = (self.stage.observing(), &self.cycle) else { return };
        self.steps.push_back(Step::CycleBegan {
            number: observer.windows(),
            length: cycle.duty.on,
            probes: observer.attached(),
            pids: observer.running(),
        });
    }

    /// Ends the cycle or begins the next, where it is time.
    pub(super) fn turn_cycle(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let Some(cycle) = &mut self.cycle else { return Ok(()) };
        if let Some(detaching) = cycle.detaching.take_if(|detaching| detaching.is_over()) {
            detaching.wait();
            if let Stage::Resting(resting) = &self.stage {
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
        let Some(cycle) = &mut self.cycle else { return Ok(()) };
        match std::mem::replace(&mut self.stage, Stage::Changing) {
            Stage::Observing(observer) => {
                self.poller.forget_rings();
                let (resting, detaching) = observer.rest();
                cycle.detaching = Some(detaching);
                cycle.change = Some(cycle.began + cycle.duty.period);
                self.stage = Stage::Resting(Box::new(resting));
            }
            Stage::Resting(resting) => {
                let loaded = resting.load().and_then(|session| {
                    let watched = self.poller.watch_rings(&session);
                    watched.map(|()| session).map_err(crate::ObserveError::Wait)
                });
                match loaded {
                    Ok(session) => {
                        self.stage = Stage::Observing(Box::new(resting.wake(session)));
                        cycle.begin();
                        let now = Instant::now();
                        self.tick = self.interval.map(|interval| now + interval);
                        self.say_began();
                    }
                    // It may be possible later: what was measured so far is not given up for it.
                    Err(error) => {
                        self.stage = Stage::Resting(resting);
                        cycle.change = Some(Instant::now() + cycle.duty.period);
                        self.steps.push_back(Step::CycleSkipped(error));
                    }
                }
            }
            Stage::Changing => {}
        }
        Ok(())
    }
}

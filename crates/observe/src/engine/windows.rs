//! From one window of a duty cycle to the next.

use std::{io, time::Instant};

use super::{
    Engine,
    budget::Budget,
    cycle::{Cycle, Stage},
    terms::{Sink, Step},
};
use crate::{ObserveError, Side};

impl Engine {
    /// The first cycle begins.
    pub(super) fn start_cycle(&mut self) {
        if let Some(cycle) = &mut self.cycle {
            cycle.begin();
            self.say_cycle_began();
        }
    }

    fn say_cycle_began(&mut self) {
        let duty = self.cycle.as_ref().and_then(Cycle::duty);
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
        if let (Some(left), Stage::Resting(resting), Some(_)) =
            (cycle.take_gone(), &self.stage, cycle.duty())
        {
            self.steps.push_back(Step::CycleEnded { number: resting.windows(), left });
        }
        if !cycle.is_due() {
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
                    watched.map(|()| session).map_err(ObserveError::Wait)
                });
                match loaded {
                    Ok(session) => {
                        self.stage = Stage::Observing(Box::new(resting.wake(session)));
                        self.woke();
                    }
                    // It may be possible later: what was measured so far is not given up for it.
                    Err(error) => {
                        self.stage = Stage::Resting(resting);
                        self.cycle.iter_mut().for_each(Cycle::skip);
                        self.steps.push_back(Step::CycleSkipped(error));
                    }
                }
            }
            Stage::Changing => {}
        }
        Ok(())
    }

    /// The probes of the next window are in place.
    fn woke(&mut self) {
        self.cycle.iter_mut().for_each(Cycle::begin);
        let now = Instant::now();
        self.tick = self.interval.map(|interval| now + interval);
        self.say_cycle_began();
        if self.cycle.take_if(|cycle| cycle.duty().is_none()).is_some() {
            self.say_began(true);
        }
    }

    /// Leaves no probe until the next window.
    pub(super) fn rest(&mut self, side: Box<Side>) {
        let (resting, detaching) = side.rest();
        self.budget.iter_mut().for_each(Budget::rest);
        self.stage = Stage::Resting(Box::new(resting));
        if let Some(cycle) = &mut self.cycle {
            cycle.end(detaching);
        }
    }
}

//! What is done where the probes cost more than the budget: less is observed, and never nothing without a word.
//!
//! First one level less, unless this one was asked for; then parts of the time only. What was measured at the
//! level before is dropped: a report is of one level.

use std::{
    io,
    time::{Duration, Instant},
};

use drainprof_report::facts::Duty;

use super::{
    Engine,
    budget::Budget,
    cycle::{Cycle, Stage},
    terms::{Saving, Sink},
};
use crate::{Side, side::windows::Resting};

/// Cycles that a limited time has room for.
const CYCLES: u32 = 4;
/// The length of a cycle without a limit.
const PERIOD: Duration = Duration::from_secs(10);
/// No window is shorter: placing and removing the probes takes as long.
const SHORTEST: Duration = Duration::from_millis(100);
/// Of the budget, so much is for the windows. Probes also cost until the last is gone, which takes the kernel a tenth of a
/// second each and more: the pause after a window is as long as all of that wants.
const FOR_WINDOWS: f64 = 0.5;

impl Engine {
    /// Observes less, after [`super::Step::OverBudget`] with its share.
    pub fn spend_less(&mut self, sink: &mut impl Sink, share: f64) -> io::Result<Saving> {
        let Some(budget) = self.budget.map(Budget::share) else {
            return Ok(Saving::Nothing);
        };
        let Some(side) = self.stage.side() else { return Ok(Saving::Nothing) };
        if let Some(level) = side.cheaper_level() {
            self.stop(sink)?;
            self.change_probes(None, 0.0, |_| (), |resting| resting.begin_again_at(level));
            return Ok(Saving::Level(level));
        }
        if !side.can_pause() {
            return Ok(Saving::Nothing);
        }
        let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let duty = duty(share, budget, left);
        self.stop(sink)?;
        self.end_interval(sink)?;
        let stretch = share / (FOR_WINDOWS * budget);
        self.change_probes(Some(duty), stretch, |side| side.pause_as(duty), |_| ());
        Ok(Saving::Duty(duty))
    }

    /// Takes the probes out. Others come when they are gone, or when the period of the duty cycle is over.
    fn change_probes(
        &mut self,
        duty: Option<Duty>,
        stretch: f64,
        before: impl FnOnce(&mut Side),
        after: impl FnOnce(&mut Resting),
    ) {
        match std::mem::replace(&mut self.stage, Stage::Changing) {
            Stage::Observing(mut side) => {
                before(&mut side);
                self.poller.forget_rings();
                self.cycle = Some(Cycle::resting(duty, stretch));
                self.rest(side);
            }
            other => self.stage = other,
        }
        if let Stage::Resting(resting) = &mut self.stage {
            after(resting);
        }
        self.budget.iter_mut().for_each(Budget::forgive);
    }
}

/// Windows that together cost at most a part of the budget.
fn duty(share: f64, budget: f64, left: Option<Duration>) -> Duty {
    let part = (FOR_WINDOWS * budget / share).clamp(1e-6, 1.0);
    let period = left.map_or(PERIOD, |left| left / CYCLES);
    let on = period.mul_f64(part).max(SHORTEST);
    Duty { on, period: period.max(on.div_f64(part)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows cost half of the budget, several fit into the time, and none is too short to see anything.
    #[test]
    fn duties() {
        let seconds = Duration::from_secs;
        for (share, budget, left) in [
            (0.6, 0.05, Some(seconds(20))),
            (0.6, 0.2, Some(seconds(20))),
            (40.0, 0.05, Some(seconds(5))),
            (0.06, 0.05, None),
        ] {
            let Duty { on, period } = duty(share, budget, left);
            let cost = share * on.as_secs_f64() / period.as_secs_f64();
            assert!((cost - budget / 2.0).abs() < 1e-6, "{share} {budget}: {on:?} of {period:?}");
            assert!(on >= SHORTEST && on <= period);
        }
        let several = duty(0.6, 0.2, Some(seconds(20)));
        assert!(several.period == seconds(5) && several.on > Duration::from_millis(800));
    }
}

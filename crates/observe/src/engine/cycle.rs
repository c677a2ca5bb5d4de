//! Duty cycles: observe for a while, then leave no probe, then begin again.

use std::time::{Duration, Instant};

use drainprof_probe::bpf::Detaching;
use drainprof_report::facts::Duty;

use crate::{Side, side::windows::Resting};

/// When the kernel side is loaded again, where that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How often it is checked whether the probes are gone.
const CHECK: Duration = Duration::from_millis(20);

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
    /// How long the period has to be for each second with probes; 0 where no budget asked for less.
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

    pub(super) const fn duty(&self) -> Option<Duty> {
        self.duty
    }

    /// A window begins.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        self.change = self.duty.map(|duty| self.began + duty.on);
    }

    /// A window has ended, and its probes are on their way out.
    pub(super) fn end(&mut self, detaching: Detaching) {
        self.detaching = Some(detaching);
        let period = self.duty.map_or(Duration::ZERO, |duty| duty.period);
        self.change = Some(self.began + period);
    }

    /// The next window cannot begin: it is tried later.
    pub(super) fn skip(&mut self) {
        let period = self.duty.map_or(RETRY, |duty| duty.period);
        self.change = Some(Instant::now() + period);
    }

    /// Whether the next change is due, and no probe is in its way.
    pub(super) fn is_due(&self) -> bool {
        self.detaching.is_none() && self.change.is_some_and(|change| change <= Instant::now())
    }

    /// If the probes of the last window are just gone: the time until the next begins.
    pub(super) fn take_gone(&mut self) -> Option<Duration> {
        let detaching = self.detaching.take_if(|detaching| detaching.is_over())?;
        // Probes cost as long as they are there; what else is taken down costs the targets nothing.
        let gone = detaching.gone().unwrap_or_else(Instant::now);
        detaching.wait();
        let cost = gone.saturating_duration_since(self.began).mul_f64(self.stretch);
        let change = self.change.max(Some(after(self.began, cost)));
        self.change = change;
        change.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// When the next change is due. The next cycle does not begin before all probes of the last are gone.
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

//! What an observation is asked for, and what it says.

use std::{io, time::Duration};

use drainprof_probe::bpf::SessionConfig;
use drainprof_profile::Library;
use drainprof_report::facts::{CallPath, EventFacts, Names, Snapshot};

use crate::{ObserveError, Side, SideOptions, names::SymbolOptions};

/// What is observed, how, and what has to happen in time.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernel side.
    pub session: SessionConfig,
    /// The profiles that there are.
    pub library: Library,
    /// Which of them, and how.
    pub side: SideOptions,
    /// How names are found; `None`: addresses only.
    pub symbols: Option<SymbolOptions>,
    /// Time between [`Step::Interval`]s; `None`: there are none.
    pub interval: Option<Duration>,
    /// Time from [`super::Observation::start`] to [`Step::TimeUp`].
    pub duration: Option<Duration>,
    /// The share of one CPU that the probes may cost, on average; above it [`Step::OverBudget`] comes.
    pub budget: Option<f64>,
    /// Whether the memory of the targets is read as a time series.
    pub memory: bool,
}

impl Options {
    /// A kernel side alone, which plans and attaches, and has no loop.
    pub fn side(self) -> Result<Side, ObserveError> {
        Side::new(&self.session, self.library, self.side)
    }
}

/// Receives events.
pub trait Sink {
    /// An event; the call stacks that it names came before.
    fn event(&mut self, event: &EventFacts<'_>, names: &dyn Names) -> io::Result<()>;

    /// A call stack of a target gets a number.
    fn path(
        &mut self,
        number: u64,
        target: u32,
        path: &CallPath,
        names: &dyn Names,
    ) -> io::Result<()>;
}

/// Nobody wants events.
impl Sink for () {
    fn event(&mut self, _: &EventFacts<'_>, _: &dyn Names) -> io::Result<()> {
        Ok(())
    }

    fn path(&mut self, _: u64, _: u32, _: &CallPath, _: &dyn Names) -> io::Result<()> {
        Ok(())
    }
}

/// Something that happened.
#[derive(Debug)]
pub enum Step {
    /// A process ended. The caller calls [`super::Observation::ended`], with its status where it knows that.
    Ended(u32),
    /// An interval is over: what is known now, with the names that are known now.
    Interval(Box<Snapshot>),
    /// The probes take this share of one CPU since they were placed, and the budget is spent. Comes again until the caller
    /// ends the observation, or calls [`super::Observation::spend_less`].
    OverBudget(f64),
    /// The probes of a lower level are in place, and what was measured before is dropped. Children that were born
    /// meanwhile are not followed: the caller adds them.
    BeganAgain,
    /// A duty cycle begins.
    CycleBegan {
        /// Its number, from 1 on.
        number: u64,
        /// How long it observes.
        length: Duration,
        /// Probes in place.
        probes: usize,
        /// Processes that have not ended.
        pids: Vec<u32>,
    },
    /// The probes of a duty cycle are gone.
    CycleEnded {
        /// Its number.
        number: u64,
        /// Time until the next one begins.
        left: Duration,
    },
    /// A duty cycle cannot begin now; the next one is tried.
    CycleSkipped(ObserveError),
    /// The time is up.
    TimeUp,
}

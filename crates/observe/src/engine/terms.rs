//! What an observation is asked for, and what it says.

use std::{io, time::Duration};

use drainprof_probe::bpf::SessionConfig;
use drainprof_profile::{Level, Library};
use drainprof_report::facts::{CallPath, Duty, EventFacts, Names, Snapshot};

use crate::{ObserveError, Side, SideOptions, names::SymbolOptions};

/// The code of the finding that the probes cost more than the budget, and less could not be observed.
pub const OVER_BUDGET: &str = "over_budget";

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
    /// Time from [`super::Engine::start`] to [`Step::TimeUp`].
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

    /// Something happened while the engine drives itself ([`super::Engine::run`]).
    fn step(&mut self, step: &Step) -> io::Result<()>;
}

/// Events and steps go nowhere.
impl Sink for () {
    fn event(&mut self, _: &EventFacts<'_>, _: &dyn Names) -> io::Result<()> {
        Ok(())
    }

    fn path(&mut self, _: u64, _: u32, _: &CallPath, _: &dyn Names) -> io::Result<()> {
        Ok(())
    }

    fn step(&mut self, _: &Step) -> io::Result<()> {
        Ok(())
    }
}

/// Why an observation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time is up.
    TimeUp,
    /// All processes have ended.
    Ended,
    /// A signal asked for it.
    Signal,
    /// The probes cost more than the budget allows, and less cannot be observed.
    OverBudget,
}

/// How less is spent from now on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Saving {
    /// At another level, from the beginning again: [`Step::Began`] comes when its probes are in place.
    Level(Level),
    /// In parts of the time.
    Duty(Duty),
    /// Nothing can be left out: the caller ends the observation.
    Nothing,
}

/// A member of a family that no profile matches: neither it nor what it starts is observed.
#[derive(Clone, Debug)]
pub struct Excluded {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
}

/// Something that happened.
#[derive(Debug)]
pub enum Step {
    /// A process ended. The caller calls [`super::Engine::ended`], with its status where it knows that.
    Ended(u32),
    /// An interval is over: what is known now, with the names that are known now.
    Interval(Box<Snapshot>),
    /// The probes take this share of one CPU since they were placed, and the budget is spent. Comes again until the caller
    /// ends the observation, or calls [`super::Engine::spend_less`].
    OverBudget(f64),
    /// The probes are in place, and the time begins; `again`: those of a lower level, and what was measured before is
    /// dropped.
    Began {
        /// Whether it began before.
        again: bool,
        /// Probes in place.
        probes: usize,
        /// Processes that are observed.
        pids: Vec<u32>,
    },
    /// Less is observed from now on, because the probes took this share of one CPU.
    Saved {
        /// The share.
        share: f64,
        /// How less is observed.
        saving: Saving,
    },
    /// A member of a family is not observed.
    Excluded(Excluded),
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

//! The observe loop: a [`Side`] with everything that has to happen in time.
//!
//! [`Engine::turn`] does what is due and never waits. A program with a loop of its own calls it when
//! [`Engine::descriptor`] is readable or [`Engine::due`] has come; [`Engine::next`] waits in a tokio runtime.
//! Both report [`Step`]s. Events go to a [`Sink`].

mod budget;
pub mod command;
mod cycle;
mod drive;
mod family;
mod governor;
pub mod launched;
mod memory;
mod naming;
mod poller;
mod signals;
mod terms;
mod windows;

use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use drainprof_common::loss::Loss;
use drainprof_probe::{bpf::Detaching, plan::AttachPlan};
use drainprof_process::Process;
use drainprof_profile::Finding;
use drainprof_report::facts::{EventFacts, History, Snapshot};

use self::{
    budget::Budget,
    cycle::{Cycle, Stage},
    memory::Memories,
    naming::Naming,
    poller::Poller,
};
pub use self::{
    signals::Signals,
    terms::{End, Excluded, OVER_BUDGET, Options, Saving, Sink, Step},
};
use crate::{Ending, ObserveError, Side, quiesce, side::pins::PathNumbers};

/// How long one turn takes events: a program may make them faster than they are taken.
const EVENTS: Duration = Duration::from_millis(100);
/// How often the maps are checked for room, however rarely anything is shown.
const RECLAIM: Duration = Duration::from_millis(200);
/// Batches of stacks that one turn unwinds at most.
const STACKS: usize = 64;

/// Observes processes, in duty cycles or all the time.
pub struct Engine {
    stage: Stage,
    cycle: Option<Cycle>,
    poller: Poller,
    /// What happened and was not taken yet.
    steps: VecDeque<Step>,
    /// Whether stacks wait in the ring, as far as is known.
    more_stacks: bool,
    /// Whether events wait in the ring, as far as is known.
    more_events: bool,
    interval: Option<Duration>,
    tick: Option<Instant>,
    reclaim: Instant,
    /// When the curves are due.
    sample: Instant,
    duration: Option<Duration>,
    deadline: Option<Instant>,
    budget: Option<Budget>,
    /// When what the probes cost is checked.
    account: Instant,
    naming: Naming,
    /// What was allocated and freed earlier.
    history: History,
    /// Call stacks that events have named.
    paths: PathNumbers,
    memories: Option<Memories>,
    /// Processes whose families are observed.
    families: Vec<u32>,
}

impl Engine {
    /// Loads the kernel side. Nothing is attached.
    pub fn new(options: Options) -> Result<Self, ObserveError> {
        let Options { session, library, side, symbols, interval, duration, budget, memory } =
            options;
        let cycle = side.duty.map(Cycle::new);
        let naming = Naming::new(symbols).map_err(ObserveError::Symbols)?;
        let side = Box::new(Side::new(&session, library, side)?);
        let mut poller = Poller::new().map_err(ObserveError::Wait)?;
        poller.watch_rings(side.session()).map_err(ObserveError::Wait)?;
        let now = Instant::now();
        Ok(Self {
            stage: Stage::Observing(side),
            cycle,
            poller,
            steps: VecDeque::new(),
            more_stacks: false,
            more_events: false,
            interval,
            tick: None,
            reclaim: now,
            sample: now,
            duration,
            deadline: None,
            budget: budget.map(Budget::new),
            account: now,
            naming,
            history: History::default(),
            paths: PathNumbers::default(),
            memories: memory.then(Memories::new),
            families: Vec::new(),
        })
    }

    /// What would be attached to a process, and what the user should know of it. Attaches nothing.
    pub fn plan(
        &mut self,
        process: &Process,
    ) -> Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError> {
        self.stage.side().map_or_else(|| Ok(Default::default()), |one| one.plan(process))
    }

    /// Adds a process: its probes are in place when this returns.
    pub fn add(&mut self, pid: u32, from_start: bool) -> Result<(), ObserveError> {
        if let Some(side) = self.stage.side() {
            side.add(pid, from_start)?;
        }
        self.follow(vec![pid]);
        Ok(())
    }

    /// All probes are in place: the time of durations, intervals and duty cycles begins.
    pub fn start(&mut self) {
        let now = Instant::now();
        self.tick = self.interval.map(|interval| now + interval);
        self.deadline = self.duration.map(|duration| now + duration);
        self.say_began(false);
        self.start_cycle();
        // Growth is judged over the whole time.
        self.read_memory();
    }

    /// Says what is observed from now on.
    fn say_began(&mut self, again: bool) {
        let (probes, pids) = (self.attached(), self.running());
        self.steps.push_back(Step::Began { again, probes, pids });
    }

    fn read_memory(&mut self) {
        let living = self.living();
        self.memories.iter_mut().for_each(|memories| memories.read(&living));
    }

    /// Whether a process is counted already: it was added, or the kernel side followed its parent.
    #[must_use]
    pub fn counts(&self, pid: u32) -> bool {
        self.stage.observing().is_some_and(|side| side.session().target_of(pid).is_some())
    }

    /// A process has ended; the status is known where it is our child.
    pub fn ended(&mut self, pid: u32, status: Option<Result<i32, i32>>) {
        match &mut self.stage {
            Stage::Observing(side) => side.ended(pid, status),
            Stage::Resting(resting) => resting.ended(pid),
            Stage::Changing => {}
        }
    }

    /// Processes that have not ended.
    #[must_use]
    pub fn running(&self) -> Vec<u32> {
        self.living().into_iter().map(|(_, pid)| pid).collect()
    }

    /// Numbers and pids of the targets that have not ended.
    fn living(&self) -> Vec<(u32, u32)> {
        match &self.stage {
            Stage::Observing(side) => side.living(),
            Stage::Resting(resting) => resting.living(),
            Stage::Changing => Vec::new(),
        }
    }

    /// How many probes are in place.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.stage.observing().map_or(0, Side::attached)
    }

    /// Readable when [`Engine::turn`] has something to do.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.descriptor()
    }

    /// When [`Engine::turn`] has something to do, whether or not anything happens before.
    #[must_use]
    pub fn due(&self) -> Instant {
        if self.more_stacks || self.more_events || !self.steps.is_empty() {
            return Instant::now();
        }
        let observing = self.stage.observing().is_some();
        let account = self.budget.map(|_| self.account);
        let timers = [Some(self.reclaim), Some(self.sample), self.tick, account];
        let timers = timers.into_iter().filter(|_| observing);
        let others = [
            self.memories.as_ref().map(Memories::due),
            self.cycle.as_ref().and_then(Cycle::due),
            self.deadline,
        ];
        let due = timers.chain(others).flatten().min();
        due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    /// What happened since this was last asked, one at a time.
    pub fn step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Waits for the next thing to happen. Must be called inside a tokio runtime; nothing is lost when it is dropped.
    pub async fn next(&mut self, sink: &mut impl Sink) -> io::Result<Step> {
        loop {
            if let Some(step) = self.step() {
                return Ok(step);
            }
            let due = self.due();
            self.poller.wait(due).await?;
            self.turn(sink)?;
        }
    }

    /// Takes notice of all that has happened, and does what is due. Does not wait.
    pub fn turn(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let ended = self.poller.ended()?;
        // What a process did last is in the ring already when its end is known.
        let until = ended.is_empty().then(|| Instant::now() + EVENTS);
        self.take_events(sink, until)?;
        self.steps.extend(ended.into_iter().map(Step::Ended));
        let now = Instant::now();
        if let Some(side) = self.stage.side() {
            self.more_stacks = (0..STACKS).all(|_| side.learn_some_paths());
            self.naming.place(side);
            if self.reclaim <= now {
                self.reclaim = now + RECLAIM;
                side.reclaim();
                side.retry_paths();
                self.naming.place(side);
                if self.history.due(side.observed()) {
                    self.history.add(side.moment());
                }
            }
            if let Some(budget) = self.budget.as_mut().filter(|_| self.account <= now) {
                self.account = now + budget::CHECK;
                let cost = budget::BESIDE * side.cost_seconds();
                let over = budget.check(now, cost, self.cycle.is_none());
                self.steps.extend(over.map(Step::OverBudget));
            }
            if self.sample <= now {
                self.sample = Instant::now() + side.sample();
            }
            if self.tick.is_some_and(|tick| tick <= now) {
                self.tick = self.interval.map(|interval| now + interval);
                self.end_interval(sink)?;
            }
        } else {
            self.more_stacks = false;
        }
        if self.memories.as_ref().is_some_and(|memories| memories.due() <= now) {
            self.read_memory();
        }
        self.turn_cycle(sink)?;
        if self.deadline.take_if(|deadline| *deadline <= now).is_some() {
            self.steps.push_back(Step::TimeUp);
        }
        Ok(())
    }

    /// Ends an interval.
    fn end_interval(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        self.learn_paths();
        self.report_pins(sink)?;
        let snapshot = self.snapshot();
        self.steps.push_back(Step::Interval(Box::new(snapshot)));
        Ok(())
    }

    /// Unwinds the stacks that have come, and looks up at once where their code lies.
    fn learn_paths(&mut self) {
        if let Some(side) = self.stage.side() {
            side.learn_paths();
            self.naming.place(side);
        }
    }

    /// Reads the ring until it is empty, or the time is up: programs may fill it faster than it is read.
    fn take_events(&mut self, sink: &mut impl Sink, until: Option<Instant>) -> io::Result<()> {
        self.more_events = false;
        while self.take_many(sink, until)? {
            self.report_pins(sink)?;
            if self.more_events {
                break;
            }
        }
        Ok(())
    }

    /// The same; or until so many events are held back that they should be reported: `true`.
    fn take_many(&mut self, sink: &mut impl Sink, until: Option<Instant>) -> io::Result<bool> {
        let Some(side) = self.stage.side() else { return Ok(false) };
        let (mut new, mut failure) = (Vec::new(), None);
        while !side.holds_many_back()
            && take(side, &mut new, |side, facts| {
                if !side.holds_back() {
                    failure = failure.take().or(sink.event(facts, side).err());
                }
            })
        {
            if until.is_some_and(|until| until <= Instant::now()) {
                self.more_events = true;
                break;
            }
        }
        let many = side.holds_many_back();
        self.follow(new);
        failure.map_or(Ok(many), Err)
    }

    /// Reports the events that were held back.
    fn report_pins(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        let Some(side) = self.stage.side() else { return Ok(()) };
        let mut new = Vec::new();
        let take_all = |side: &mut Side| while take(side, &mut new, |_, _| ()) {};
        let reported = side.report_pins(&mut self.paths, take_all, sink);
        self.follow(new);
        reported
    }

    /// Waits for the ends of processes that are new, and reads what names need as long as they live.
    fn follow(&mut self, pids: Vec<u32>) {
        let Some(side) = self.stage.side() else { return };
        if !pids.is_empty() {
            self.naming.meet(side);
        }
        for pid in pids {
            let watched = side.pidfd(pid).map(|pidfd| self.poller.watch_process(pid, pidfd));
            // It has ended already, or nothing would tell its end.
            if !matches!(watched, Some(Ok(()))) {
                self.steps.push_back(Step::Ended(pid));
            }
        }
    }

    /// What is known now, with the names that are known now.
    pub fn snapshot(&mut self) -> Snapshot {
        let mut snapshot = self.facts();
        self.naming.now(&mut snapshot);
        snapshot
    }

    fn facts(&mut self) -> Snapshot {
        let mut snapshot = match &mut self.stage {
            Stage::Observing(side) => side.snapshot(),
            Stage::Resting(resting) => resting.snapshot(),
            Stage::Changing => Snapshot::default(),
        };
        let living = self.living();
        if let Some(memories) = &mut self.memories {
            memories.add_to(&living, &mut snapshot);
        }
        snapshot.halfway = self.history.middle(snapshot.observed()).cloned();
        snapshot
    }

    /// Whether names are still searched for.
    #[must_use]
    pub fn is_naming(&self) -> bool {
        self.naming.is_pending()
    }

    /// Stops counting, and takes notice of all that came before.
    pub fn stop(&mut self, sink: &mut impl Sink) -> io::Result<()> {
        if let Some(side) = self.stage.side() {
            side.stop();
            if !quiesce(|| side.totals()) {
                side.count_loss(Loss::CountsUnsettled, 1);
            }
        }
        self.learn_paths();
        self.take_events(sink, None)?;
        self.report_pins(sink)
    }

    /// Takes all probes out, in the background. What was counted stays readable.
    pub fn detach(&mut self) -> Option<Detaching> {
        match &mut self.stage {
            Stage::Observing(side) => Some(side.detach()),
            Stage::Resting(_) | Stage::Changing => self.cycle.take().and_then(Cycle::detaching),
        }
    }

    /// Stops counting and waits for names, within limits. Returns all that is known, and the probes on their way out.
    /// Meanwhile `progress` is called with the time waited; it asks how many addresses have names, and of how many.
    pub fn finish(
        &mut self,
        sink: &mut impl Sink,
        progress: impl FnMut(Duration, &dyn Fn() -> (usize, usize)),
    ) -> io::Result<(Snapshot, Option<Detaching>)> {
        self.stop(sink)?;
        let detaching = self.detach();
        let mut snapshot = self.facts();
        self.naming.at_last(&mut snapshot, progress);
        Ok((snapshot, detaching))
    }
}

/// Takes events that have come: whether there were any. New processes are added to `new`.
fn take(
    side: &mut Side,
    new: &mut Vec<u32>,
    mut on_event: impl FnMut(&Side, &EventFacts<'_>),
) -> bool {
    let taken = side.events(|side, kind, event, ending| {
        if let Ending::Follow(pid) = ending {
            new.push(pid);
        }
        on_event(side, &EventFacts { kind, event, pinned_by: None });
    });
    taken != 0
}

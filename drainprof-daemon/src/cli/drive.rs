//! The loop that `attach` and `run` share: events, ticks, ends, and the reports.

mod stage;

use std::{collections::HashSet, time::Duration};

use anyhow::{Context as _, Result};
use drainprof_common::event::{Event, EventKind};
use drainprof_observe::{Ending, Observer, PathNumbers, Telling, names::Symbols, settle};
use drainprof_report::{
    self as report, Report, Verdict,
    export::{Format, Interval as Between, Told, live},
    facts::{History, Snapshot},
    filter::Filter,
};
use tokio::{
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until},
};

use self::stage::wait_readable;
pub(super) use self::stage::{Rings, Stage, block_on, until};
use super::{
    args::ObserveArgs,
    budget::Budget,
    duty::{self, Cycle, Leaving},
    memory::Memories,
    options,
    output::{Output, clock},
    symbols,
};

/// How often the maps are looked at for room, however rarely anything is shown.
const RELIEF: Duration = Duration::from_millis(200);
/// While targets run, so many events may happen between the first and the last counter that is read.
pub(super) const SLACK: u64 = u64::MAX / 4;

/// Something that happened while driving.
pub(super) enum Happening {
    /// A traced process ended.
    Ended(u32),
    /// The time is up.
    TimeUp,
    /// The probes cost more than `--budget` allows.
    TooDear,
    /// Nothing that the caller must act on.
    Quiet,
}

/// Drives an observer and writes what it sees.
pub(super) struct Driver {
    pub(super) stage: Stage,
    pub(super) cycle: Option<Cycle>,
    ends: JoinSet<u32>,
    awaited: HashSet<u32>,
    tick: Interval,
    relief: Interval,
    /// Whether stacks wait in the ring, as far as is known.
    more_stacks: bool,
    /// When the curves are due.
    sample: Instant,
    deadline: Option<Instant>,
    duration: Option<Duration>,
    output: Output,
    format: &'static Format,
    options: report::Options,
    filter: Filter,
    fail_under: Option<f64>,
    budget: Option<Budget>,
    before: Option<Report>,
    symbols: Option<Symbols>,
    /// Targets whose mappings were looked at.
    met: usize,
    /// What was allocated and freed earlier.
    history: History,
    /// Call paths that events have named.
    paths: PathNumbers,
    /// The memory of the targets, where it was asked for.
    memories: Option<Memories>,
}

impl Driver {
    /// Prepares output and the loop. Must be called inside the runtime.
    pub(super) fn new(args: &ObserveArgs) -> Result<Self> {
        let format = options::format(args)?;
        let mut output = Output::open(args.output.as_deref(), options::top(args))?;
        output.weigh(args.weight.into());
        let symbols = symbols::wanted(args)?;
        let observer = Box::new(options::observer(args)?);
        let rings =
            Rings::of(observer.session()).context("cannot wait for events of the kernel side")?;
        let period = args.interval.max(Duration::from_millis(10));
        let mut tick = interval_at(Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut relief = interval_at(Instant::now() + RELIEF, RELIEF);
        relief.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            stage: Stage::Watching { observer, rings },
            cycle: args.duty.map(Cycle::new),
            ends: JoinSet::new(),
            awaited: HashSet::new(),
            tick,
            relief,
            more_stacks: false,
            sample: Instant::now(),
            deadline: None,
            duration: args.duration,
            output,
            format,
            options: options::report(args),
            filter: args.filter.live(options::top(args)),
            fail_under: args.fail_under,
            budget: args.budget.map(Budget::new),
            before: None,
            symbols,
            met: 0,
            history: History::default(),
            paths: PathNumbers::default(),
            memories: args.growth.then(Memories::new),
        })
    }

    /// Adds a process: its probes are in place when this returns.
    pub(super) fn add(&mut self, pid: u32, from_start: bool) -> Result<()> {
        if let Stage::Watching { observer, .. } = &mut self.stage {
            observer.add(pid, from_start)?;
        }
        self.meet();
        self.await_end(pid);
        Ok(())
    }

    /// Whether a process is counted already: it was added, or the kernel side followed its parent.
    pub(super) fn counts(&self, pid: u32) -> bool {
        matches!(&self.stage, Stage::Watching { observer, .. } if observer.session().target_of(pid).is_some())
    }

    /// A process has ended; the status is known where it is our child.
    pub(super) fn ended(&mut self, pid: u32, status: Option<Result<i32, i32>>) {
        match &mut self.stage {
            Stage::Watching { observer, .. } => observer.ended(pid, status),
            Stage::Resting(resting) => resting.ended(pid),
            Stage::Changing => {}
        }
    }

    /// Processes that have not ended.
    pub(super) fn running(&self) -> Vec<u32> {
        match &self.stage {
            Stage::Watching { observer, .. } => observer.running(),
            Stage::Resting(resting) => resting.running(),
            Stage::Changing => Vec::new(),
        }
    }

    /// Numbers and pids of the targets that have not ended.
    fn living(&self) -> Vec<(u32, u32)> {
        match &self.stage {
            Stage::Watching { observer, .. } => observer.living(),
            Stage::Resting(resting) => resting.living(),
            Stage::Changing => Vec::new(),
        }
    }

    /// Says that all probes are in place; the time of `--duration` and of intervals begins.
    pub(super) fn attached(&mut self) {
        if let Stage::Watching { observer, .. } = &self.stage {
            eprintln!(
                "drainprof: attached {} probes to {}",
                observer.attached(),
                observer.running().iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        self.first_window();
        self.deadline = self.duration.map(|duration| Instant::now() + duration);
        self.tick.reset();
    }

    /// Waits for the process's end.
    fn await_end(&mut self, pid: u32) {
        if !self.awaited.insert(pid) {
            return;
        }
        let pidfd = match &self.stage {
            Stage::Watching { observer, .. } => observer.pidfd(pid),
            Stage::Resting(_) | Stage::Changing => None,
        };
        match pidfd {
            Some(pidfd) => {
                self.ends.spawn(async move {
                    wait_readable(pidfd).await;
                    pid
                });
            }
            // It has ended already.
            None => {
                self.ends.spawn(async move { pid });
            }
        }
    }

    /// Waits for the next thing to happen, and deals with what needs no decision.
    pub(super) async fn next(&mut self) -> Result<Happening> {
        let deadline = self.deadline;
        tokio::select! {
            ready = self.stage.events() => {
                ready.context("waiting for events failed")?;
                self.take_events()?;
                Ok(Happening::Quiet)
            }
            ready = self.stage.stacks() => {
                ready.context("waiting for stacks failed")?;
                self.more_stacks = true;
                Ok(Happening::Quiet)
            }
            // Yields, so that whatever else happens has its turn.
            () = tokio::task::yield_now(), if self.more_stacks => {
                self.more_stacks = match &mut self.stage {
                    Stage::Watching { observer, .. } => observer.learn_some_paths(),
                    Stage::Resting(_) | Stage::Changing => false,
                };
                self.place_paths();
                Ok(Happening::Quiet)
            }
            Some(ended) = self.ends.join_next(), if !self.ends.is_empty() => {
                // What it did last is in the ring already.
                self.take_events()?;
                let Ok(pid) = ended else { return Ok(Happening::Quiet) };
                self.awaited.remove(&pid);
                Ok(Happening::Ended(pid))
            }
            _ = self.tick.tick(), if self.stage.is_watching() => {
                self.interval()?;
                Ok(if self.is_too_dear() { Happening::TooDear } else { Happening::Quiet })
            }
            _ = self.relief.tick(), if self.stage.is_watching() => {
                if let Stage::Watching { observer, .. } = &mut self.stage {
                    observer.relieve();
                    observer.retry_paths();
                    symbols::place(&mut self.symbols, observer);
                    if self.history.due(observer.observed()) {
                        self.history.add(observer.moment());
                    }
                }
                Ok(Happening::Quiet)
            }
            () = sleep_until(self.sample), if self.stage.is_watching() => {
                if let Stage::Watching { observer, .. } = &mut self.stage {
                    self.sample = Instant::now() + observer.sample();
                }
                Ok(Happening::Quiet)
            }
            () = until(self.memories.as_ref().map(Memories::due)) => {
                let living = self.living();
                if let Some(memories) = &mut self.memories {
                    memories.look(&living);
                }
                Ok(Happening::Quiet)
            }
            turn = duty::due(&mut self.cycle) => {
                if turn {
                    self.turn().await?;
                } else {
                    self.say_end();
                }
                Ok(Happening::Quiet)
            }
            () = until(deadline) => Ok(Happening::TimeUp),
        }
    }

    /// Processes that are new are looked at for their symbols now: they may end at any time.
    fn meet(&mut self) {
        if let (Some(symbols), Stage::Watching { observer, .. }) = (&mut self.symbols, &self.stage)
        {
            let newcomers = observer.newcomers(self.met);
            self.met += newcomers.len();
            symbols.meet(&newcomers);
        }
    }

    /// Unwinds the stacks that have come, and looks up at once where their code lies.
    fn learn_paths(&mut self) {
        if let Stage::Watching { observer, .. } = &mut self.stage {
            observer.learn_paths();
        }
        self.place_paths();
    }

    /// Looks up where the code of new paths lies, as long as it is there.
    fn place_paths(&mut self) {
        if let Stage::Watching { observer, .. } = &mut self.stage {
            symbols::place(&mut self.symbols, observer);
        }
    }

    /// Reads the ring until it is empty.
    fn take_events(&mut self) -> Result<()> {
        while self.take_many()? {
            self.tell_events()?;
        }
        Ok(())
    }

    /// Reads the ring until it is empty, or until so many events are held back that they should be told: `true`.
    fn take_many(&mut self) -> Result<bool> {
        let Self { stage, output, format, filter, .. } = self;
        // Events are ids: even that a process ended is told with its own.
        let tell = !filter.wanted().no_paths;
        let Stage::Watching { observer, .. } = stage else { return Ok(false) };
        let mut follow = Vec::new();
        let mut failure = None;
        while !observer.holds_many_back()
            && take(observer, &mut follow, |observer, kind, event| {
                if tell && !observer.holds_back() {
                    let told = Told { kind, event, pinned_by: None };
                    let written = format.exporter.event(&told, observer, output.writer());
                    failure = failure.take().or(written.err());
                }
            })
        {}
        let many = observer.holds_many_back();
        self.follow(follow);
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(many),
        }
    }

    /// Writes the events that were held back.
    fn tell_events(&mut self) -> Result<()> {
        let Self { stage, output, format, filter, paths, .. } = self;
        let wanted = !filter.wanted().no_paths;
        let Stage::Watching { observer, .. } = stage else { return Ok(()) };
        let mut follow = Vec::new();
        let take_all = |observer: &mut Observer| while take(observer, &mut follow, |_, _, _| ()) {};
        let told = observer.tell_events(paths, take_all, |observer, telling| match telling {
            _ if !wanted => Ok(()),
            Telling::Path(number, target, path) => {
                format.exporter.path(number, target, path, observer, output.writer())
            }
            Telling::Event(told) => format.exporter.event(&told, observer, output.writer()),
        });
        self.follow(follow);
        Ok(told?)
    }

    /// Waits for the ends of processes that are new.
    fn follow(&mut self, pids: Vec<u32>) {
        if !pids.is_empty() {
            self.meet();
        }
        for pid in pids {
            self.await_end(pid);
        }
    }

    /// One line, record or screen.
    pub(super) fn interval(&mut self) -> Result<()> {
        self.learn_paths();
        self.tell_events()?;
        let mut snapshot = self.snapshot();
        symbols::now(&mut self.symbols, &mut snapshot);
        let options = report::Options { slack: SLACK, ..self.options.clone() };
        let mut now = Report::build(&snapshot, &options);
        self.filter.anonymise(&mut now);
        let clock = clock();
        let between = Between { before: self.before.as_ref(), now: &now, clock: &clock };
        let style = self.output.style();
        if self.format.name == "text" && self.output.is_terminal() {
            self.output.clear()?;
            live::screen(&between, &style, self.output.writer())?;
        } else {
            self.format.exporter.interval(&between, &style, self.output.writer())?;
        }
        self.output.flush()?;
        self.before = Some(now);
        Ok(())
    }

    /// Whether the last intervals were over the budget.
    fn is_too_dear(&mut self) -> bool {
        let (Some(budget), Some(now)) = (&mut self.budget, &self.before) else { return false };
        let Some(share) = budget.spent(now) else { return false };
        eprintln!(
            "drainprof: the probes take {:.1} % of one CPU from the observed processes, more than --budget allows; \
             --level, --sample and --duty make it cheaper",
            share * 100.0
        );
        true
    }

    /// What is known now.
    fn snapshot(&mut self) -> Snapshot {
        let mut snapshot = match &mut self.stage {
            Stage::Watching { observer, .. } => observer.snapshot(),
            Stage::Resting(resting) => resting.snapshot(),
            Stage::Changing => Snapshot::default(),
        };
        let living = self.living();
        if let Some(memories) = &mut self.memories {
            memories.tell(&living, &mut snapshot);
        }
        let halfway = self.history.middle(snapshot.observed()).cloned();
        Snapshot { halfway, ..snapshot }
    }

    /// Stops counting, and takes notice of all that came before.
    pub(super) async fn stop(&mut self) -> Result<()> {
        if let Stage::Watching { observer, .. } = &mut self.stage {
            observer.stop();
            settle(|| observer.totals()).await;
        }
        self.learn_paths();
        self.take_events()?;
        self.tell_events()
    }

    /// Stops counting, writes the final report, and judges it. The probes go meanwhile: at the very end
    /// the caller waits for that.
    pub(super) async fn finish(&mut self) -> Result<(Verdict, Leaving)> {
        self.stop().await?;
        let leaving = match (&mut self.stage, self.cycle.take().and_then(Cycle::leaving)) {
            (Stage::Watching { observer, .. }, _) => Leaving::of(observer.detach()),
            (_, leaving) => leaving.unwrap_or_default(),
        };
        let mut snapshot = self.snapshot();
        symbols::at_last(&mut self.symbols, &mut snapshot).await;
        let mut report = Report::build(&snapshot, &self.filter.rows(&self.options));
        self.filter.apply(&mut report);
        if self.format.name == "text" && self.output.is_terminal() {
            self.output.clear()?;
        }
        let style = self.output.style();
        self.format.exporter.report(&report, &style, self.output.writer())?;
        self.output.flush()?;
        Ok((report::verdict(&report, self.fail_under), leaving))
    }
}

/// Takes events that have come: whether there were any. New processes are added to `follow`.
pub(super) fn take(
    observer: &mut Observer,
    follow: &mut Vec<u32>,
    mut pass_on: impl FnMut(&Observer, EventKind, &Event),
) -> bool {
    let taken = observer.events(|observer, kind, event, ending| {
        if let Ending::Follow(pid) = ending {
            follow.push(pid);
        }
        let has_series =
            matches!(kind, EventKind::Close | EventKind::LateDrain | EventKind::PinFreed);
        if has_series && !observer.knows_series(event.series) {
            observer.learn_series();
        }
        pass_on(observer, kind, event);
    });
    taken != 0
}

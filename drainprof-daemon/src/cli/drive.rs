//! What becomes of an observation: lines and records while it runs, and the report at its end.

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use anyhow::{Context as _, Result};
use drainprof_observe::engine::{Engine, OVER_BUDGET, Saving, Sink, Step};
use drainprof_probe::bpf::Detaching;
use drainprof_process::{printable, printable_lines};
use drainprof_report::{
    self as report, Finding, Report, Severity, Verdict,
    export::{self, Exporter, Format, Interval, live},
    facts::{CallPath, EventFacts, Names, Snapshot},
    filter::Filter,
    units,
};

use super::{
    asked::Asked,
    heaps::Heaps,
    options,
    output::{Output, clock},
};

/// While targets run, so many events may happen between the first and the last counter that is read.
pub(super) const SLACK: u64 = u64::MAX / 4;

/// Processes that are listed one by one.
const LISTED: usize = 20;

/// Writes what an observation shows.
pub(super) struct Reporter {
    output: Output,
    chosen: Chosen,
    options: report::Options,
    filter: Filter,
    fail_under: Option<f64>,
    /// Heaps, read from outside.
    heaps: Heaps,
    before: Option<Report>,
    /// How less was observed than was asked for, and why.
    savings: Vec<Finding>,
}

/// The format of an observation.
struct Chosen {
    format: &'static Format,
    /// Where the format is made of what an observation shows while it runs.
    recorder: Option<Box<dyn Exporter>>,
}

impl Chosen {
    fn new(format: &'static Format) -> Self {
        Self { format, recorder: format.exporter.recorder() }
    }

    fn exporter(&self) -> &dyn Exporter {
        self.recorder.as_deref().unwrap_or(self.format.exporter)
    }
}

impl Sink for Reporter {
    fn event(&mut self, event: &EventFacts<'_>, names: &dyn Names) -> io::Result<()> {
        if !self.shows_events() {
            return Ok(());
        }
        self.chosen.exporter().event(event, names, self.output.writer()).map_err(of_export)?;
        self.output.end_record(false)
    }

    fn path(
        &mut self,
        number: u64,
        target: u32,
        path: &CallPath,
        names: &dyn Names,
    ) -> io::Result<()> {
        if !self.shows_events() {
            return Ok(());
        }
        let written =
            self.chosen.exporter().path(number, target, path, names, self.output.writer());
        written.map_err(of_export)?;
        self.output.end_record(false)
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Interval(snapshot) => return self.interval(snapshot).map_err(of_export),
            Step::Began { probes, pids, .. } => {
                eprintln!("drainprof: attached {probes} probes to {}", list(pids));
            }
            Step::Saved { share, saving } => self.saved(*share, *saving),
            Step::Excluded(one) => eprintln!(
                "drainprof: no profile matches {} ({}) of the family; neither it nor its children are observed",
                one.pid,
                printable(&one.comm)
            ),
            Step::CycleBegan { number, length, probes, pids } => eprintln!(
                "drainprof: duty cycle {number} begins: {probes} probes for {length:?} in {}",
                list(pids)
            ),
            Step::CycleEnded { number, left } => eprintln!(
                "drainprof: duty cycle {number} has ended, no probe is left; the next begins in {:.1} s",
                left.as_secs_f64()
            ),
            Step::CycleSkipped(error) => {
                let why = printable_lines(&chain(error));
                eprintln!("drainprof: skipped a duty cycle, the next is tried: {why}");
            }
            Step::Ended(_) | Step::TimeUp | Step::OverBudget(_) => {}
        }
        Ok(())
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn of_export(error: export::Error) -> io::Error {
    match error {
        export::Error::Write(error) => error,
        other => io::Error::other(other),
    }
}

impl Reporter {
    /// Opens the output, then loads the kernel side.
    pub(super) fn new(asked: Asked) -> Result<(Self, Engine)> {
        let Asked { goal, sizes, cache, format, filter, output, rows, .. } = asked;
        // What grows meanwhile (`ndjson`, the lines of `text`) may have a reader that follows it.
        let open = if format.grows { Output::in_place } else { Output::open };
        let mut output = open(output.as_deref(), rows)?.queued()?;
        output.weigh(asked.weight);
        let engine = Engine::new(options::resolve(&goal, sizes, &cache)?)?;
        let reporter = Self {
            output,
            chosen: Chosen::new(format),
            options: asked.report,
            filter,
            fail_under: asked.fail_under,
            heaps: Heaps::new(goal.heaps),
            before: None,
            savings: Vec::new(),
        };
        Ok((reporter, engine))
    }

    /// Reads the heaps of processes before the first probe is placed, where that is asked for.
    pub(super) fn read_heaps(&mut self, pids: &[u32]) {
        self.heaps.begin(pids);
    }

    /// Whether events may be shown: they are made of ids.
    const fn shows_events(&self) -> bool {
        !self.filter.wanted().no_paths
    }

    /// Less is observed, because the probes take this share of one CPU.
    fn saved(&mut self, share: f64, saving: Saving) {
        let costs = format!("over --budget: the probes take {} of one CPU", units::percent(share));
        let (code, then) = match saving {
            Saving::Level(level) => {
                ("level_lowered", format!("measured again at level {}", level.name()))
            }
            Saving::Duty(duty) => (
                "duty_lowered",
                format!("measured for {:.2?} of every {:.2?}", duty.on, duty.period),
            ),
            Saving::Nothing => {
                (OVER_BUDGET, "ended; a lower --level or --duty costs less".to_owned())
            }
        };
        let message = format!("{costs}; {then}");
        eprintln!("drainprof: {message}");
        self.before = None;
        self.savings.push(Finding {
            code: code.to_owned(),
            severity: Severity::Info,
            profile: None,
            instance: None,
            message,
        });
    }

    /// One line, record or screen.
    fn interval(&mut self, snapshot: &Snapshot) -> Result<(), export::Error> {
        let options = report::Options { slack: SLACK, ..self.options.clone() };
        let mut now = Report::build(snapshot, &options);
        now.findings.extend_from_slice(&self.savings);
        self.filter.anonymise(&mut now);
        let clock = clock();
        let between = Interval { before: self.before.as_ref(), now: &now, clock: &clock };
        let style = self.output.style();
        if self.chosen.format.name == "text" && self.output.is_terminal() {
            self.output.clear().map_err(export::Error::Write)?;
            live::screen(&between, &style, self.output.writer())?;
        } else {
            self.chosen.exporter().interval(&between, &style, self.output.writer())?;
        }
        self.output.end_record(true).map_err(export::Error::Write)?;
        self.before = Some(now);
        Ok(())
    }

    /// Stops counting, writes the final report, and judges it. The probes go meanwhile: at the very end the caller waits
    /// for that.
    pub(super) fn finish(&mut self, mut engine: Engine) -> Result<(Verdict, Leaving)> {
        let stderr = io::stderr();
        let mut progress = stderr.is_terminal().then(|| Progress::new(&stderr));
        let (mut snapshot, detaching) = engine.finish(self, |waited, reached| {
            if let Some(progress) = &mut progress {
                progress.say(waited, reached);
            }
        })?;
        drop(progress);
        snapshot.records_dropped(self.output.settle()?);
        let mut report = Report::build(&snapshot, &self.filter.rows(&self.options));
        report.findings.append(&mut self.savings);
        self.heaps.end(&mut report);
        self.filter.apply(&mut report);
        if self.chosen.format.name == "text" && self.output.is_terminal() {
            self.output.clear()?;
        }
        let style = self.output.style();
        self.chosen.exporter().report(&report, &style, self.output.writer())?;
        self.output.finish()?;
        Ok((report::verdict(&report, self.fail_under), Leaving(detaching)))
    }
}

/// Probes on their way out.
pub(super) struct Leaving(Option<Detaching>);

impl Leaving {
    /// Returns once they are gone.
    pub(super) fn wait(self) {
        if let Some(detaching) = self.0 {
            detaching.wait();
        }
    }
}

fn list(pids: &[u32]) -> String {
    if pids.len() > LISTED {
        return format!("{} processes", pids.len());
    }
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs a future on a runtime of this thread alone.
pub(super) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

/// A terminal shows how far naming is after this time.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// How often the line changes.
const SAY_EVERY: Duration = Duration::from_millis(100);
/// Back to the line's beginning, and erase it.
const CLEAR: &str = "\r\x1b[K";

/// A line on a terminal that says how far naming is, and goes when it is dropped.
struct Progress<W: Write> {
    terminal: W,
    /// When the line is next written, from the beginning of the wait on.
    due: Duration,
    shown: bool,
}

impl<W: Write> Progress<W> {
    const fn new(terminal: W) -> Self {
        Self { terminal, due: SAY_AFTER, shown: false }
    }

    /// Shows how many addresses have names after `waited`, and of how many. A terminal that is gone is no trouble.
    fn say(&mut self, waited: Duration, reached: impl FnOnce() -> (usize, usize)) {
        if waited < self.due {
            return;
        }
        let (named, places) = reached();
        self.due = waited + SAY_EVERY;
        self.shown = true;
        let _ = write!(
            self.terminal,
            "{CLEAR}drainprof: looking for names: {named} of {places} places"
        );
        let _ = self.terminal.flush();
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(self.terminal, "{CLEAR}");
            let _ = self.terminal.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(say: impl FnOnce(&mut Progress<&mut Vec<u8>>)) -> String {
        let mut bytes = Vec::new();
        say(&mut Progress::new(&mut bytes));
        String::from_utf8(bytes).unwrap()
    }

    /// Short waits leave no trace; long ones are shown now and then, in one line that is gone at the end.
    #[test]
    fn a_line_that_goes() {
        let at = Duration::from_millis;
        let short = written(|line| {
            line.say(at(0), || (0, 9));
            line.say(at(999), || (8, 9));
        });
        assert_eq!(short, "");
        let long = written(|line| {
            for (waited, named) in [(500, 1), (1000, 2), (1005, 3), (1099, 4), (1200, 5)] {
                line.say(at(waited), || (named, 9));
            }
        });
        assert!(!long.contains('\n'), "{long:?}");
        let lines: Vec<&str> = long.split(CLEAR).collect();
        let line = |named| format!("drainprof: looking for names: {named} of 9 places");
        assert_eq!(lines, ["", &line(2), &line(5), ""]);
    }
}

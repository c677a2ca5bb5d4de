//! What `attach` and `run` share: an observation, and the output that it goes to.

use std::{
    io::{self, IsTerminal as _, Write},
    time::Duration,
};

use anyhow::{Context as _, Result};
use drainprof_observe::{
    Observation,
    observation::{Saving, Sink, Step},
};
use drainprof_probe::bpf::Detaching;
use drainprof_process::printable_lines;
use drainprof_report::{
    self as report, Finding, Report, Verdict, Weight,
    export::{self, Exporter, Format, Interval, live},
    facts::{CallPath, EventFacts, Names, Snapshot},
    filter::Filter,
    units,
};

use super::{
    args::ObserveArgs,
    filter::ROWS,
    heaps::Heaps,
    options,
    output::{Output, clock},
};

/// While targets run, so many events may happen between the first and the last counter that is read.
pub(super) const SLACK: u64 = u64::MAX / 4;

/// Processes that are listed one by one.
const LISTED: usize = 20;

/// Something that the caller must act on.
pub(super) enum Happening {
    /// A traced process ended.
    Ended(u32),
    /// The time is up.
    TimeUp,
    /// The probes cost more than `--budget` allows, and less cannot be observed.
    OverBudget,
    /// All was dropped, and the observation begins again: whoever was born meanwhile is not observed.
    BeganAgain,
}

/// An observation whose results are written.
pub(super) struct Driver {
    pub(super) observation: Observation,
    writer: Writer,
    options: report::Options,
    filter: Filter,
    fail_under: Option<f64>,
    /// Heaps, read from outside.
    pub(super) heaps: Heaps,
    before: Option<Report>,
    /// How less was observed than was asked for, and why.
    savings: Vec<Finding>,
}

/// Where results go, and how they are written.
struct Writer {
    output: Output,
    chosen: Chosen,
    /// Whether events may be shown: they are made of ids.
    events: bool,
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

impl Sink for Writer {
    fn event(&mut self, event: &EventFacts<'_>, names: &dyn Names) -> io::Result<()> {
        if !self.events {
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
        if !self.events {
            return Ok(());
        }
        let written =
            self.chosen.exporter().path(number, target, path, names, self.output.writer());
        written.map_err(of_export)?;
        self.output.end_record(false)
    }
}

fn of_export(error: export::Error) -> io::Error {
    match error {
        export::Error::Write(error) => error,
        other => io::Error::other(other),
    }
}

impl Driver {
    /// Opens the output, then loads the kernel side.
    pub(super) fn new(args: &ObserveArgs) -> Result<Self> {
        let format = options::format(args)?;
        // What grows meanwhile (`ndjson`, the lines of `text`) may have a reader that follows it.
        let open = if format.grows { Output::in_place } else { Output::open };
        let mut output = open(args.output.as_deref(), args.filter.rows(ROWS))?.queued()?;
        output.weigh(args.weight.into());
        let filter = args.filter.live(options::top(args));
        Ok(Self {
            observation: Observation::new(options::observation(args)?)?,
            writer: Writer {
                output,
                chosen: Chosen::new(format),
                events: !filter.wanted().no_paths,
            },
            options: options::report(args),
            filter,
            fail_under: args.fail_under,
            heaps: Heaps::new(args),
            before: None,
            savings: Vec::new(),
        })
    }

    /// Says that all probes are in place, and starts the clocks.
    pub(super) fn attached(&mut self) {
        let (probes, pids) = (self.observation.attached(), self.observation.running());
        eprintln!("drainprof: attached {probes} probes to {}", list(&pids));
        self.observation.start();
    }

    /// Waits for the next thing that the caller must act on, and writes what comes before.
    pub(super) async fn next(&mut self) -> Result<Happening> {
        loop {
            match self.observation.next(&mut self.writer).await? {
                Step::Ended(pid) => return Ok(Happening::Ended(pid)),
                Step::TimeUp => return Ok(Happening::TimeUp),
                Step::Interval(snapshot) => self.interval(&snapshot)?,
                Step::OverBudget(share) => {
                    if let Some(happening) = self.save(share)? {
                        return Ok(happening);
                    }
                }
                Step::BeganAgain => {
                    let (probes, pids) = (self.observation.attached(), self.observation.running());
                    eprintln!("drainprof: attached {probes} probes to {}", list(&pids));
                    return Ok(Happening::BeganAgain);
                }
                Step::CycleBegan { number, length, probes, pids } => eprintln!(
                    "drainprof: duty cycle {number} begins: {probes} probes for {length:?} in {}",
                    list(&pids)
                ),
                Step::CycleEnded { number, left } => eprintln!(
                    "drainprof: duty cycle {number} has ended, no probe is left; the next begins in {:.1} s",
                    left.as_secs_f64()
                ),
                Step::CycleSkipped(error) => {
                    let error = anyhow::Error::from(error);
                    let why = printable_lines(&format!("{error:#}"));
                    eprintln!("drainprof: skipped a duty cycle, the next is tried: {why}");
                }
            }
        }
    }

    /// Observes less, because the probes take this share of one CPU.
    fn save(&mut self, share: f64) -> Result<Option<Happening>> {
        let saving = self.observation.spend_less(&mut self.writer, share)?;
        let costs = format!("over --budget: the probes take {} of one CPU", units::percent(share));
        let (code, then, happening) = match saving {
            Saving::Level(level) => {
                ("level_lowered", format!("measured again at level {}", level.name()), None)
            }
            Saving::Duty(duty) => (
                "duty_lowered",
                format!("measured for {:.2?} of every {:.2?}", duty.on, duty.period),
                None,
            ),
            Saving::Nothing => (
                "over_budget",
                "ended; a lower --level or --duty costs less".to_owned(),
                Some(Happening::OverBudget),
            ),
        };
        let message = format!("{costs}; {then}");
        eprintln!("drainprof: {message}");
        self.before = None;
        self.savings.push(Finding {
            code: code.to_owned(),
            weight: Weight::Info,
            profile: None,
            instance: None,
            message,
        });
        Ok(happening)
    }

    /// One line, record or screen.
    fn interval(&mut self, snapshot: &Snapshot) -> Result<()> {
        let options = report::Options { slack: SLACK, ..self.options.clone() };
        let mut now = Report::build(snapshot, &options);
        now.findings.extend_from_slice(&self.savings);
        self.filter.anonymise(&mut now);
        let clock = clock();
        let between = Interval { before: self.before.as_ref(), now: &now, clock: &clock };
        let Writer { output, chosen, .. } = &mut self.writer;
        let style = output.style();
        if chosen.format.name == "text" && output.is_terminal() {
            output.clear()?;
            live::screen(&between, &style, output.writer())?;
        } else {
            chosen.exporter().interval(&between, &style, output.writer())?;
        }
        output.end_record(true)?;
        self.before = Some(now);
        Ok(())
    }

    /// Stops counting, writes the final report, and judges it. The probes go meanwhile: at the very end the caller waits
    /// for that.
    pub(super) fn finish(&mut self) -> Result<(Verdict, Leaving)> {
        let stderr = io::stderr();
        let mut progress = stderr.is_terminal().then(|| Progress::new(&stderr));
        let (mut snapshot, detaching) =
            self.observation.finish(&mut self.writer, |waited, reached| {
                if let Some(progress) = &mut progress {
                    progress.say(waited, reached);
                }
            })?;
        drop(progress);
        snapshot.records_dropped(self.writer.output.settle()?);
        let mut report = Report::build(&snapshot, &self.filter.rows(&self.options));
        report.findings.append(&mut self.savings);
        self.heaps.end(&mut report);
        self.filter.apply(&mut report);
        let Writer { output, chosen, .. } = &mut self.writer;
        if chosen.format.name == "text" && output.is_terminal() {
            output.clear()?;
        }
        let style = output.style();
        chosen.exporter().report(&report, &style, output.writer())?;
        output.finish()?;
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

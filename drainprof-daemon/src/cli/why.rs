//! `drainprof why`.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    ffi::OsString,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_census::{Census, Options as CensusOptions, take};
use drainprof_observe::{
    engine::{Signals, launched::Launched},
    why::{
        Found, Parts, Sequence,
        policy::{MAX_HEAP_BYTES, MAX_PROCESSES},
    },
};
use drainprof_probe::launch::{Disposition, LaunchEvent};
use drainprof_process::{family, memory::MemoryReader};
use drainprof_report::{
    Verdict, export, units,
    why::{Answer, Measured, Why},
};

use super::{
    args::{CacheArgs, SizeArgs},
    code,
    drive::block_on,
    exit::Failure,
    heaps, options,
    output::Output,
    selection::Selection,
    values::{AnswerFormat, duration},
};

/// How often the terminal shows how far it is.
const PROGRESS: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
pub(super) struct WhyArgs {
    #[command(flatten)]
    selection: Selection,
    /// How long to observe. Ctrl-C answers with what is known by then.
    #[arg(short, long, value_parser = duration, value_name = "TIME", default_value = "30s")]
    duration: Duration,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = AnswerFormat::Text)]
    format: AnswerFormat,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Profile to use: a name, or a file. Default: all that match. Repeatable.
    #[arg(long, value_name = "NAME|FILE", env = "DRAINPROF_PROFILE", value_delimiter = ',')]
    profile: Vec<String>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Start this command, and observe it and what it starts from their first instructions on. It goes on after the answer.
    #[arg(last = true, value_name = "CMD", group = "selection")]
    command: Vec<OsString>,
}

/// Says why the memory of processes is as large as it is.
pub(super) fn main(args: &WhyArgs) -> Result<u8> {
    let mut output = Output::open(args.output.as_deref(), 1)?;
    let parts = parts(args)?;
    block_on(async {
        let mut signals = Signals::new().context("cannot wait for signals")?;
        if args.command.is_empty() {
            let mut unseen = Vec::new();
            let pids = largest(&args.selection, &mut unseen)?;
            let sequence = Sequence::begin(&pids, parts)?;
            let found = measure(sequence, None, &mut signals).await?;
            return answer(&found, unseen, args.format, &mut output);
        }
        let mut command = Held::start(&args.command).await?;
        let parts = Parts { from_start: true, ..parts };
        let sequence = Sequence::begin(&[command.launched.pid()], parts)?;
        command.launched.resume(command.launched.pid(), Disposition::KeepTracing);
        let found = measure(sequence, Some(&mut command), &mut signals).await?;
        command.launched.release();
        let left_out = command.left_out;
        let unseen = (left_out > 0).then(|| format!("{left_out} more processes were left out"));
        let code = answer(&found, unseen.into_iter().collect(), args.format, &mut output)?;
        command.launched.wait_forwarding(&mut signals).await;
        if let Some(status) = command.launched.status() {
            eprintln!("drainprof: the command has ended with {status}");
        }
        Ok(code)
    })
}

/// A command each image of which is held at its first instruction until it is observed.
struct Held {
    launched: Launched,
    /// Processes that run unobserved because there are too many.
    left_out: usize,
}

impl Held {
    /// Starts a command, and returns once it stands at its first instruction.
    ///
    /// # Errors
    /// If it cannot be started, or ends before.
    async fn start(argv: &[OsString]) -> Result<Self> {
        let mut launched = Launched::start(argv)?;
        if launched.at_entry().await.context("the command could not be held at its entry")? {
            return Ok(Self { launched, left_out: 0 });
        }
        let text = "the command ended before it could be examined";
        Err(Failure::new(code::NO_TARGET, text).into())
    }

    /// Observes what is held, and lets it go on.
    fn on_event(&mut self, event: LaunchEvent, sequence: &mut Sequence) -> Result<()> {
        let (pid, from_start) = match event {
            LaunchEvent::AtEntry { pid, .. } => (pid, true),
            // It begins with what its parent has.
            LaunchEvent::Forked { child, .. } => (child, false),
            LaunchEvent::Exited { .. } => return Ok(()),
            LaunchEvent::Error { pid, error } => {
                tracing::warn!(pid, %error, "a process could not be held, and is not observed");
                return Ok(());
            }
        };
        if sequence.pids().contains(&pid) || sequence.pids().len() < MAX_PROCESSES {
            let joined = sequence.join(pid, from_start);
            self.launched.resume(pid, Disposition::KeepTracing);
            joined?;
        } else {
            self.left_out += 1;
            self.launched.resume(pid, Disposition::Detach);
        }
        Ok(())
    }
}

/// Writes what was found out.
fn answer(
    found: &Found,
    mut unseen: Vec<String>,
    format: AnswerFormat,
    output: &mut Output,
) -> Result<u8> {
    unseen.extend(found.unseen.iter().cloned());
    let censuses = censuses(found, &mut unseen);
    let why = Why::of(&Measured {
        growth: &found.growth,
        probes: &found.probes,
        censuses: &censuses,
        draft: found.draft.as_ref(),
        undrafted: found.undrafted.as_deref(),
        unseen: &unseen,
    });
    let style = output.style();
    match format {
        AnswerFormat::Text => export::write_why(&why, &style, output.writer())?,
        AnswerFormat::Html => export::html::write_why(&why, output.writer())?,
        AnswerFormat::Json => {
            serde_json::to_writer_pretty(output.writer(), &why).map_err(io::Error::from)?;
            output.writer().write_all(b"\n")?;
        }
    }
    output.finish()?;
    Ok(if why.answer == Answer::Unknown { Verdict::Incomplete.exit_code() } else { code::OK })
}

/// The selected processes and their families, those with most memory first.
fn largest(selection: &Selection, unseen: &mut Vec<String>) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for process in selection.open()? {
        // It may have ended since, which the observation finds.
        pids.extend(family(process.pid).unwrap_or_else(|_| vec![process.pid]));
    }
    pids.sort_unstable();
    pids.dedup();
    let mut reader = MemoryReader::new();
    let read: BTreeMap<_, _> = reader.read_each(pids.iter().copied()).into_iter().collect();
    let rss = |pid: &u32| {
        let reading = read.get(pid).and_then(Option::as_ref);
        Reverse(reading.map(|(reading, _)| reading.rss_bytes))
    };
    pids.sort_by_cached_key(rss);
    if pids.len() > MAX_PROCESSES {
        unseen.push(format!("{} smaller processes were left out", pids.len() - MAX_PROCESSES));
        pids.truncate(MAX_PROCESSES);
    }
    Ok(pids)
}

/// The host, the profiles, and how long.
fn parts(args: &WhyArgs) -> Result<Parts> {
    let (library, profiles) = options::library(&args.profile, &[])?;
    let host = options::host(true, options::sizes(&SizeArgs::default()), &args.cache)?;
    let (duration, drafts) = (args.duration, drafts(args));
    Ok(Parts { duration, drafts, from_start: false, host, library, profiles })
}

/// Where drafts of profiles go: a place of the user's own. None are made where profiles are given.
fn drafts(args: &WhyArgs) -> Option<PathBuf> {
    let cache = options::calibration(&args.cache, false).cache.filter(|_| args.profile.is_empty());
    cache.map(|directory| directory.join("drafts"))
}

/// Measures until the time is up, or a signal asks for the answer.
async fn measure(
    mut sequence: Sequence,
    mut command: Option<&mut Held>,
    signals: &mut Signals,
) -> Result<Found> {
    let is_shown = io::stderr().is_terminal();
    if !is_shown {
        let count = units::counted(sequence.pids().len() as u64, "process", "processes");
        eprintln!("drainprof: observing {count} for {:?}", sequence.duration());
    }
    let mut tick = tokio::time::interval(PROGRESS);
    loop {
        let event = async {
            match &mut command {
                Some(command) => command.launched.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            run = sequence.run() => {
                run?;
                break;
            }
            event = event => {
                if let Some(command) = &mut command {
                    command.on_event(event, &mut sequence)?;
                }
            }
            _ = signals.next() => break,
            _ = tick.tick(), if is_shown => {
                // A terminal that is gone is no failure.
                let percent = sequence.progress() * 100.0;
                let _ = write!(io::stderr(), "\r\x1b[Kobserving: {percent:.0} %");
            }
        }
    }
    if is_shown {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(sequence.finish()?)
}

/// The heaps of the processes that still run.
fn censuses(found: &Found, unseen: &mut Vec<String>) -> Vec<Census> {
    let options = CensusOptions {
        largest_bytes: Some(MAX_HEAP_BYTES),
        contexts: drainprof_census::ContextDetail::Names,
        ..CensusOptions::default()
    };
    let (mut censuses, began) = (Vec::new(), Instant::now());
    for target in found.growth.targets.iter().filter(|target| target.ended.is_none()) {
        match take(target.pid, &heaps::within(&options, began)) {
            Ok(census) => censuses.push(census),
            Err(error) => {
                let error = anyhow::Error::from(error);
                unseen.push(format!("the heaps of {}: {error:#}", target.pid));
            }
        }
    }
    censuses
}

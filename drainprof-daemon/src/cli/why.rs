//! `drainprof why`.

mod command;

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
    names::SymbolOptions,
    observation::Options,
    why::{Inquired, Inquiry, Parts},
};
use drainprof_probe::{bpf::SessionConfig, kernel::LiveHost, plan::Sites};
use drainprof_process::{family, memory::MemoryReader};
use drainprof_profile::Library;
use drainprof_report::{
    Verdict, export, units,
    why::{Answer, Measured, Why},
};
use tokio::signal::unix::{SignalKind, signal};

use self::command::Command;
use super::{
    args::{AnswerFormat, CacheArgs, duration},
    code,
    drive::block_on,
    heaps, options,
    output::Output,
    selection::Selection,
};

/// Processes that are observed; of more, those with most resident memory.
const MOST: usize = 64;
/// What the probes may cost, of one CPU.
const BUDGET: f64 = 0.01;
/// Heaps with more writable memory are not read.
const LARGEST: u64 = 64 << 30;
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
        if args.command.is_empty() {
            let mut unseen = Vec::new();
            let pids = largest(&args.selection, &mut unseen)?;
            let inquired = inquire(Inquiry::begin(&pids, parts)?, None).await?;
            return answer(&inquired, unseen, args.format, &mut output);
        }
        let mut command = Command::start(&args.command).await?;
        let inquiry = Inquiry::begin(&[command.pid()], Parts { from_start: true, ..parts })?;
        command.go();
        let inquired = inquire(inquiry, Some(&mut command)).await?;
        let left_out = command.release();
        let unseen = (left_out > 0).then(|| format!("{left_out} more processes were left out"));
        let code = answer(&inquired, unseen.into_iter().collect(), args.format, &mut output)?;
        if let Some(status) = command.ended().await? {
            eprintln!("drainprof: the command has ended with {status}");
        }
        Ok(code)
    })
}

/// Writes what was found out.
fn answer(
    inquired: &Inquired,
    mut unseen: Vec<String>,
    format: AnswerFormat,
    output: &mut Output,
) -> Result<u8> {
    unseen.extend(inquired.unseen.iter().cloned());
    let censuses = censuses(inquired, &mut unseen);
    let why = Why::of(&Measured {
        growth: &inquired.growth,
        probes: &inquired.probes,
        censuses: &censuses,
        draft: inquired.draft.as_ref(),
        undrafted: inquired.undrafted.as_deref(),
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
        // It may have ended since; the observation will say so.
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
    if pids.len() > MOST {
        unseen.push(format!("{} smaller processes were left out", pids.len() - MOST));
        pids.truncate(MOST);
    }
    Ok(pids)
}

fn probes(args: &WhyArgs) -> Result<Options> {
    let plain = options::plain(&args.profile, &[], None, Sites::Cheapest, &args.cache)?;
    let sizes = drainprof_probe::bpf::Sizes {
        call_paths: drainprof_probe::bpf::Sizes::CALL_PATHS,
        ..plain.session.sizes
    };
    Ok(Options {
        session: SessionConfig { sizes, ..plain.session },
        symbols: Some(SymbolOptions::default()),
        budget: Some(BUDGET),
        ..plain
    })
}

/// Memory, growth by call stack, and probes.
fn parts(args: &WhyArgs) -> Result<Parts> {
    let probes = probes(args)?;
    let mut memory =
        Options { library: Library::default(), budget: None, memory: true, ..probes.clone() };
    memory.side.profiles.clear();
    memory.session.calls = false;
    let mut growth = Options { memory: false, ..memory.clone() };
    growth.session.sizes.growth = true;
    growth.session.growth = Some(options::growth_offsets(&LiveHost)?);
    growth.session.growth_paths = true;
    let (duration, drafts) = (args.duration, drafts(args));
    Ok(Parts { duration, drafts, from_start: false, memory, growth, probes })
}

/// Where drafts of profiles go: a place of the user's own. None are made where profiles are given.
fn drafts(args: &WhyArgs) -> Option<PathBuf> {
    let cache = options::calibration(&args.cache, false).cache.filter(|_| args.profile.is_empty());
    cache.map(|directory| directory.join("drafts"))
}

async fn inquire(mut inquiry: Inquiry, mut command: Option<&mut Command>) -> Result<Inquired> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let is_shown = io::stderr().is_terminal();
    if !is_shown {
        let count = units::counted(inquiry.pids().len() as u64, "process", "processes");
        eprintln!("drainprof: observing {count} for {:?}", inquiry.duration());
    }
    let mut tick = tokio::time::interval(PROGRESS);
    loop {
        let event = async {
            match &mut command {
                Some(command) => command.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            run = inquiry.run() => {
                run?;
                break;
            }
            event = event => {
                if let (Some(event), Some(command)) = (event, &mut command) {
                    command.heard(event, &mut inquiry)?;
                }
            }
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = tick.tick(), if is_shown => {
                // A terminal that is gone is no trouble.
                let _ = write!(io::stderr(), "\r\x1b[Kobserving: {:.0} %", inquiry.progress() * 100.0);
            }
        }
    }
    if is_shown {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    Ok(inquiry.finish()?)
}

/// The heaps of the processes that still run.
fn censuses(inquired: &Inquired, unseen: &mut Vec<String>) -> Vec<Census> {
    let options = CensusOptions {
        largest_bytes: Some(LARGEST),
        contexts: drainprof_census::ContextDetail::Names,
        ..CensusOptions::default()
    };
    let (mut censuses, began) = (Vec::new(), Instant::now());
    for target in inquired.growth.targets.iter().filter(|target| target.ended.is_none()) {
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

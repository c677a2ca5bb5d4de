//! `drainprof history`, and what `drainprof report` takes from the daemon's history.

use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use drainprof_node::{
    history as show, store,
    store::{DEFAULT_PATH, History, Options, Who, Writer},
};
use drainprof_report::{Report, export::Format, units::clock};

use super::{code, exit::Failure, output::Output, values::duration};

/// Windows that are listed at most.
const MAX_WINDOWS: u32 = 1000;

/// Which history.
#[derive(Args, Clone, Debug)]
pub(super) struct StoreArgs {
    /// The daemon's history.
    #[arg(long, value_name = "PATH", env = "DRAINPROF_STORE", default_value = DEFAULT_PATH)]
    store: PathBuf,
}

impl StoreArgs {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.store
    }
}

#[derive(Args, Debug)]
pub(super) struct HistoryArgs {
    /// Time series of this process. Default: a table of all.
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// How far to look back: 30m, 2h.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2h")]
    since: Duration,
    #[command(flatten)]
    store: StoreArgs,
    /// Show a recording: `drainprof.node/1` documents, one per line. `--since` counts from the last.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    replay: Option<PathBuf>,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = HistoryFormat::Text)]
    format: HistoryFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HistoryFormat {
    /// Tables and sparklines.
    Text,
    /// One document.
    Json,
    /// A picture of resident and retained memory; with --pid.
    Svg,
}

/// Shows processes and windows, or the time series of one process.
pub(super) fn main(args: &HistoryArgs) -> Result<u8> {
    let Some(recording) = &args.replay else {
        let since = ago(now(), args.since);
        return shown(&History::open(&args.store.store)?, args, since);
    };
    // A history like any other, for as long as it is examined.
    let directory = tempfile::tempdir().context("cannot make a directory for the replay")?;
    let options = Options {
        path: directory.path().join("replay.db"),
        max_age: Duration::from_secs(u64::from(u32::MAX)),
        max_bytes: 8 << 30,
        boot: Some("replay".to_owned()),
    };
    let mut writer = Writer::open(&options)?;
    let file =
        File::open(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    store::replay(&mut BufReader::new(file), &mut writer)
        .with_context(|| format!("cannot replay {}", recording.display()))?;
    let history = History::open(&options.path)?;
    let since = ago(history.latest()?.unwrap_or(0), args.since);
    shown(&history, args, since)
}

fn shown(history: &History, args: &HistoryArgs, since: u64) -> Result<u8> {
    let mut output = Output::open(None, 0)?;
    let style = output.style();
    if let Some(pid) = args.pid {
        let series = history.series(Who::Pid(pid), since)?;
        if series.is_empty() {
            return Err(unseen(pid));
        }
        let course = show::Course {
            since_unix_ms: since,
            series,
            events: history.events(Some(pid), since)?,
        };
        match args.format {
            HistoryFormat::Text => show::course_text(&course, &clock, &style, output.writer())?,
            HistoryFormat::Json => show::course_json(&course, output.writer())?,
            HistoryFormat::Svg => show::course_svg(&course, &clock, output.writer())?,
        }
    } else {
        let changes = gathered(history, None, since)?;
        match args.format {
            HistoryFormat::Text => show::changes_text(&changes, &clock, &style, output.writer())?,
            HistoryFormat::Json => show::changes_json(&changes, output.writer())?,
            HistoryFormat::Svg => {
                let text = "svg shows one process: name it with --pid";
                return Err(Failure::new(code::USAGE, text).into());
            }
        }
    }
    output.finish()?;
    Ok(code::OK)
}

/// `report --since`: what has changed.
pub(super) fn changes(
    store: &StoreArgs,
    since: Duration,
    pid: Option<u32>,
    format: &Format,
    path: Option<&Path>,
) -> Result<u8> {
    if !["text", "json"].contains(&format.name) {
        let text = format!("what has changed is shown as text or json, not as {}", format.name);
        return Err(Failure::new(code::USAGE, text).into());
    }
    let changes = gathered(&History::open(&store.store)?, pid, ago(now(), since))?;
    if let Some(pid) = pid.filter(|_| changes.processes.is_empty()) {
        return Err(unseen(pid));
    }
    let mut output = Output::open(path, 0)?;
    let style = output.style();
    if format.name == "json" {
        show::changes_json(&changes, output.writer())?;
    } else {
        show::changes_text(&changes, &clock, &style, output.writer())?;
        show::events_text(&changes.events, &clock, output.writer())?;
    }
    output.finish()?;
    Ok(code::OK)
}

/// `report --window`: what a window has left, and the name that it is shown under.
pub(super) fn window(store: &StoreArgs, id: u64) -> Result<(String, Report)> {
    let report = History::open(&store.store)?.window_report(id)?.ok_or_else(|| {
        let text = format!("no report of window {id} is kept; `drainprof history` lists windows");
        Failure::new(code::NO_TARGET, text)
    })?;
    Ok((format!("window {id}"), report))
}

fn gathered(history: &History, pid: Option<u32>, since: u64) -> Result<show::Changes> {
    let processes = match pid {
        Some(pid) => history.process(pid, since)?,
        None => history.processes(since)?,
    };
    let mut windows = history.windows(MAX_WINDOWS)?;
    windows
        .retain(|window| window.began_unix_ms >= since && pid.is_none_or(|pid| window.pid == pid));
    let events = history.events(pid, since)?;
    Ok(show::Changes { since_unix_ms: since, processes, windows, events })
}

fn unseen(pid: u32) -> anyhow::Error {
    let text =
        format!("process {pid} is not in the history of that time; look further back with --since");
    Failure::new(code::NO_TARGET, text).into()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn ago(now: u64, time: Duration) -> u64 {
    now.saturating_sub(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

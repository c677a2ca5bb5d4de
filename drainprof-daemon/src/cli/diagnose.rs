//! `drainprof diagnose`: has the daemon open a diagnostic window, waits for its end, and shows its report.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use drainprof_node::{Answer, Outcome, Request, WindowRecord, serve::Client};
use drainprof_report::{self as report, export, export::FORMATS};

use super::{
    ctl::SocketArgs,
    exit::{Failure, code},
    filter::{FilterArgs, ROWS},
    output::{Output, require_no_terminal},
    selection::Selection,
    values::{WeightArg, duration, format_names},
};

/// From one check of the window to the next.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How much longer than planned a window may take: it has to attach, detach and name call paths.
const ENDING_GRACE: Duration = Duration::from_secs(120);
/// Among so many of the latest windows ours is searched for.
const MAX_WINDOWS: u32 = 100;

#[derive(Args, Debug)]
pub(super) struct DiagnoseArgs {
    #[command(flatten)]
    selection: Selection,
    /// For how long: 30, 30s, 5m. Default: from the daemon's configuration.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Also record page faults, heap and mappings. Default: from the daemon's configuration.
    #[arg(long)]
    growth: bool,
    /// Output format.
    #[arg(short = 'o', long, value_parser = format_names(), default_value = FORMATS[0].name,
          value_name = "FORMAT", env = "DRAINPROF_FORMAT")]
    format: String,
    /// Meaning of widths (folded, flamegraph).
    #[arg(long, value_enum, default_value_t = WeightArg::Granules, value_name = "WHAT",
          env = "DRAINPROF_WEIGHT")]
    weight: WeightArg,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Asks, waits, writes; the exit code is that of the report.
pub(super) fn main(args: &DiagnoseArgs) -> Result<u8> {
    let format = export::format(&args.format)
        .ok_or_else(|| Failure::new(code::USAGE, format!("no format is called {}", args.format)))?;
    if args.weight.is_of_growth() && !args.growth {
        return Err(Failure::new(code::USAGE, "this --weight is of growth: add --growth").into());
    }
    require_no_terminal(format, args.output.as_deref())?;
    let pid = args.selection.resolve_one()?;
    let mut client = args.socket.connect()?;
    // A wrong path is reported before anything is asked for.
    let mut output = Output::open(args.output.as_deref(), args.filter.rows(ROWS))?;
    output.weigh(args.weight.into());
    let seconds = args.time.map(|time| time.as_secs_f64());
    let growth = args.growth.then_some(true);
    let request = Request::Diagnose { pid, seconds, growth };
    let Answer::Window { window } = client.ask(&request)? else {
        bail!("the daemon has answered something else than was asked");
    };
    eprintln!(
        "drainprof: window {} on process {} lasts {:.0} s; Ctrl-C leaves it to the daemon, which keeps its report",
        window.id, window.pid, window.seconds
    );
    let window = wait(&mut client, &window)?;
    if !window.has_report {
        bail!("window {} has left no report: {}", window.id, outcome_text(window.outcome));
    }
    if window.outcome != Outcome::Finished {
        eprintln!("drainprof: window {}: {}", window.id, outcome_text(window.outcome));
    }
    let request = Request::WindowReport { id: window.id };
    let Answer::Report { mut report } = client.ask(&request)? else {
        bail!("the daemon has answered something else than was asked");
    };
    let verdict = report::verdict(&report, None);
    args.filter.saved().apply(&mut report);
    format.exporter.report(&report, &output.style(), output.writer())?;
    output.finish()?;
    Ok(verdict.exit_code())
}

/// The window once it has ended.
fn wait(client: &mut Client, opened: &WindowRecord) -> Result<WindowRecord> {
    let planned = Duration::try_from_secs_f64(opened.seconds).unwrap_or(Duration::MAX);
    let patience = planned.saturating_add(ENDING_GRACE);
    let began = Instant::now();
    loop {
        let Answer::Windows { windows } = client.ask(&Request::Windows { limit: MAX_WINDOWS })?
        else {
            bail!("the daemon has answered something else than was asked");
        };
        match windows.into_iter().find(|window| window.id == opened.id) {
            Some(window) if window.outcome != Outcome::Running => return Ok(window),
            Some(_) => {}
            None => bail!("the daemon does not know window {} any more", opened.id),
        }
        if began.elapsed() > patience {
            bail!(
                "window {} has not ended {} s after its time; its report can be asked for later",
                opened.id,
                ENDING_GRACE.as_secs()
            );
        }
        // The daemon sends nothing by itself; the connection is bounded by what it bears.
        thread::sleep(POLL_INTERVAL);
    }
}

const fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "it still runs",
        Outcome::Finished => "it has lasted its time",
        Outcome::TargetEnded => "the process has ended",
        Outcome::OverCost => "it cost the process too much and was ended",
        Outcome::Interrupted => "the daemon was stopped, or detached everything",
        Outcome::Failed => "it could not begin; the daemon's log says why",
    }
}

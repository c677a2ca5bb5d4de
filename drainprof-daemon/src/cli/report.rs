//! `drainprof report`: saved reports in any format, filtered or not.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use drainprof_report::{self as report, Verdict, export, export::FORMATS};

use super::{
    exit::{Failure, code},
    filter::{FilterArgs, ROWS},
    history::{self, StoreArgs},
    output::{Output, require_no_terminal},
    saved,
    values::{WeightArg, format_names, ratio, require_weight},
};

/// Formats of which several in a row can be read again.
const IN_A_ROW: [&str; 4] = ["text", "json", "ndjson", "folded"];

#[derive(Args, Debug)]
pub(super) struct ReportArgs {
    /// Saved reports: json, or ndjson, whose last line counts. `-` is stdin.
    #[arg(required_unless_present_any = ["window", "since"], value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The report of a diagnostic window, by its number (`drainprof history`).
    #[arg(long, value_name = "ID", conflicts_with = "files")]
    window: Option<u64>,
    /// Changes in this time, from the daemon's history: 30m, 2h (text, json).
    #[arg(long, value_name = "TIME", value_parser = super::values::duration,
          conflicts_with_all = ["files", "window"])]
    since: Option<Duration>,
    /// With --since: this process only.
    #[arg(short, long, value_name = "PID", requires = "since",
          value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    #[command(flatten)]
    store: StoreArgs,
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
    /// Exit with 3 if the DSR of any allocator is below this (0 to 1).
    #[arg(long, value_name = "DSR", value_parser = ratio)]
    fail_under: Option<f64>,
    #[command(flatten)]
    filter: FilterArgs,
}

/// Reads, filters and writes; the exit code is that of the worst report.
pub(super) fn main(args: &ReportArgs) -> Result<u8> {
    let format = export::format(&args.format)
        .ok_or_else(|| Failure::new(code::USAGE, format!("no format is called {}", args.format)))?;
    if let Some(since) = args.since {
        return history::changes(&args.store, since, args.pid, format, args.output.as_deref());
    }
    let several = args.files.len() > 1;
    if several && !IN_A_ROW.contains(&format.name) {
        let text = format!("{} holds one report: name one file", format.name);
        return Err(Failure::new(code::USAGE, text).into());
    }
    require_no_terminal(format, args.output.as_deref())?;
    // All are read before the output is made, which may be one of them.
    let reports = match args.window {
        Some(id) => vec![history::window(&args.store, id)?],
        None => saved::read(&args.files)?,
    };
    for (_, report) in &reports {
        require_weight(format, args.weight, report)?;
        args.filter.check_report(report)?;
    }
    let mut output = Output::open(args.output.as_deref(), args.filter.rows(ROWS))?;
    output.weigh(args.weight.into());
    let style = output.style();
    let mut filter = args.filter.saved();
    let mut worst = Verdict::Ok;
    for (index, (name, mut report)) in reports.into_iter().enumerate() {
        worst = worse(worst, report::verdict(&report, args.fail_under));
        filter.apply(&mut report);
        if several && format.name == "text" {
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(output.writer(), "{gap}== {name} ==")?;
        }
        format.exporter.report(&report, &style, output.writer())?;
    }
    output.finish()?;
    Ok(worst.exit_code())
}

/// What is incomplete proves nothing about what is below.
const fn worse(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Incomplete, _) | (_, Verdict::Incomplete) => Verdict::Incomplete,
        (Verdict::BelowThreshold, _) | (_, Verdict::BelowThreshold) => Verdict::BelowThreshold,
        (Verdict::Ok, Verdict::Ok) => Verdict::Ok,
    }
}

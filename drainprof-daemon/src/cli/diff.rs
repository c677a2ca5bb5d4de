//! `drainprof diff`: what changed between two saved reports.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, builder::PossibleValue};
use drainprof_report::{
    Verdict,
    diff::Diff,
    export::diff::{DIFF_FORMATS, diff_format},
};

use super::{
    exit::{Failure, code},
    output::Output,
    saved,
    values::WeightArg,
};

#[derive(Args, Debug)]
pub(super) struct DiffArgs {
    /// The earlier report (json or ndjson). `-` is stdin.
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The later report.
    #[arg(value_name = "B")]
    after: PathBuf,
    /// Output format.
    #[arg(short = 'o', long, value_parser = format_names(), default_value = DIFF_FORMATS[0].name,
          value_name = "FORMAT")]
    format: String,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Meaning of widths (folded, flamegraph).
    #[arg(long, value_enum, default_value_t = WeightArg::Granules, value_name = "WHAT")]
    weight: WeightArg,
    /// Sites per allocator in text.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
}

fn format_names() -> clap::builder::PossibleValuesParser {
    DIFF_FORMATS
        .iter()
        .map(|format| PossibleValue::new(format.name).help(format.what))
        .collect::<Vec<_>>()
        .into()
}

/// Reads both, compares and writes. A comparison with an incomplete report has that code.
pub(super) fn main(args: &DiffArgs) -> Result<u8> {
    let format = diff_format(&args.format)
        .ok_or_else(|| Failure::new(code::USAGE, format!("no format is called {}", args.format)))?;
    let reports = saved::read(&[args.before.clone(), args.after.clone()])?;
    let [before, after] = &reports[..] else {
        return Err(Failure::new(code::USAGE, "two reports are compared").into());
    };
    let diff = Diff::of((&before.0, &before.1), (&after.0, &after.1));
    let mut output = Output::open(args.output.as_deref(), args.top)?;
    output.weigh(args.weight.into());
    let style = output.style();
    (format.write)(&diff, &style, output.writer())?;
    output.finish()?;
    Ok(if diff.complete { Verdict::Ok } else { Verdict::Incomplete }.exit_code())
}

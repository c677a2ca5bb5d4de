//! `drainprof census`.

use std::{io, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_census::{ContextDetail, Options, take};
use drainprof_report::export;

use super::{args::AnswerFormat, code, output::Output, selection::Selection};

/// Rows of a table.
const ROWS: usize = 8;

#[derive(Args, Debug)]
pub(super) struct CensusArgs {
    #[command(flatten)]
    selection: Selection,
    /// Stop the process for the reading, so that all figures are of one moment: 0.1 s for 100 MB.
    #[arg(long)]
    freeze: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = AnswerFormat::Text)]
    format: AnswerFormat,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rows of each table in text.
    #[arg(long, value_name = "N", default_value_t = ROWS)]
    top: usize,
    /// Show the idents of PostgreSQL's memory contexts. They can be SQL text.
    #[arg(long)]
    idents: bool,
}

/// Reads the heaps of a process from outside. Places no probe.
pub(super) fn main(args: &CensusArgs) -> Result<u8> {
    let pid = args.selection.resolve_one()?;
    let mut output = Output::open(args.output.as_deref(), args.top)?;
    let contexts = if args.idents { ContextDetail::Idents } else { ContextDetail::Names };
    let options = Options { freeze: args.freeze, contexts, ..Options::default() };
    let census = take(pid, &options).context("cannot take a census")?;
    let style = output.style();
    match args.format {
        AnswerFormat::Text => export::write_heaps(&census, &style, output.writer())?,
        AnswerFormat::Html => export::html::write_census(&census, &style, output.writer())?,
        AnswerFormat::Json => {
            serde_json::to_writer_pretty(output.writer(), &census).map_err(io::Error::from)?;
            output.writer().write_all(b"\n")?;
        }
    }
    output.finish()?;
    Ok(if census.heaps.is_empty() { code::NO_TARGET } else { code::OK })
}

//! `drainprof census`.

use std::{io, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use drainprof_census::{Census, ContextDetail, Options, take};
use drainprof_observe::structures;
use drainprof_report::export;

use super::{code, exit::Failure, options, output::Output, selection::Selection};

/// Rows of a table.
const ROWS: usize = 8;

/// Formats of a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CensusFormat {
    /// Tables for people.
    Text,
    /// One page for a browser, in one file.
    Html,
    /// One JSON document.
    Json,
    /// A picture: granules by address and fill.
    Svg,
    /// Gauges for Prometheus.
    Openmetrics,
}

#[derive(Args, Debug)]
pub(super) struct CensusArgs {
    #[command(flatten)]
    selection: Selection,
    /// Stop the process for the reading, so that all figures are of one moment: 0.1 s for 100 MB.
    #[arg(long)]
    freeze: bool,
    /// Format of the census.
    #[arg(short = 'o', long, value_enum, default_value_t = CensusFormat::Text)]
    format: CensusFormat,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rows of each table in text.
    #[arg(long, value_name = "N", default_value_t = ROWS)]
    top: usize,
    /// Walk the structures (`[[walk]]`) of this profile too: a name, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Show the idents of PostgreSQL's memory contexts. They can be SQL text.
    #[arg(long)]
    idents: bool,
}

/// Reads the heaps of a process from outside. Places no probe.
pub(super) fn main(args: &CensusArgs) -> Result<u8> {
    let pid = args.selection.resolve_one()?;
    let mut output = Output::open(args.output.as_deref(), args.top)?;
    let contexts = if args.idents { ContextDetail::Idents } else { ContextDetail::Names };
    let map = args.format == CensusFormat::Svg;
    let options = Options { freeze: args.freeze, contexts, map, ..Options::default() };
    let mut census = take(pid, &options).context("cannot take a census")?;
    if let Some(asked) = &args.profile {
        add_structures(asked, &mut census)?;
    }
    let style = output.style();
    match args.format {
        CensusFormat::Text => export::write_heaps(&census, &style, output.writer())?,
        CensusFormat::Html => export::html::write_census(&census, &style, output.writer())?,
        CensusFormat::Svg => export::write_heap_map(&census, output.writer())?,
        CensusFormat::Openmetrics => export::write_heap_metrics(&census, output.writer())?,
        CensusFormat::Json => {
            serde_json::to_writer_pretty(output.writer(), &census).map_err(io::Error::from)?;
            output.writer().write_all(b"\n")?;
        }
    }
    output.finish()?;
    Ok(if census.heaps.is_empty() { code::NO_TARGET } else { code::OK })
}

/// Walks the structures of a profile.
fn add_structures(asked: &str, census: &mut Census) -> Result<()> {
    let (library, names) = options::library(&[asked.to_owned()], &[])?;
    let profile = names.first().and_then(|name| library.get(name));
    let profile = profile.filter(|profile| !profile.structures.is_empty()).ok_or_else(|| {
        Failure::new(code::NO_TARGET, format!("no profile {asked} that has a [[walk]]"))
    })?;
    let (heaps, notes) = structures::walk(profile, census.pid).context("cannot walk structures")?;
    census.structures = heaps;
    census.notes.extend(notes);
    Ok(())
}

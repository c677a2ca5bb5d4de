//! The options that choose what a report lists, for all commands that write one.

use std::time::Duration;

use clap::Args;
use drainprof_report::{
    filter::{Filter, Pattern, Wanted, Which},
    values::Bytes,
};

use super::args::duration;

/// Rows of each list of a live report, where nothing else is asked for.
pub(super) const ROWS: usize = 20;

/// What is listed, and whether a report may be passed on.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Filters (counts always cover all)")]
pub(super) struct FilterArgs {
    /// Rows per list and allocator. Default: 20; 1000 for folded, flamegraph, pprof; all of a saved report.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// List only granules this old, and sites that may have held a pin so long.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    min_age: Duration,
    /// List only granules and sites with at least this many bytes, if known: 4096, 64KiB.
    #[arg(long, value_name = "SIZE", default_value = "0")]
    min_size: Bytes,
    /// List only rows whose call stack or opener matches (function, file, module). Repeatable: one must match.
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    include: Vec<Pattern>,
    /// Leave out rows that match; wins over --include. Repeatable.
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    exclude: Vec<Pattern>,
    /// List only sites with live pins (without pins: live objects).
    #[arg(long, conflicts_with = "drained")]
    live_only: bool,
    /// List only sites with all pins freed; no retained granules.
    #[arg(long)]
    drained: bool,
    /// Make the report anonymous: no addresses, files, labels; pseudonyms for the rest. Function names stay.
    #[arg(long)]
    no_paths: bool,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|error| error.to_string())
}

impl FilterArgs {
    /// Rows that are listed, `default` unless another number is asked for.
    pub(super) fn rows(&self, default: usize) -> usize {
        self.top.unwrap_or(default)
    }

    /// Granules below are not listed.
    pub(super) const fn min_age(&self) -> Duration {
        self.min_age
    }

    /// Granules below are not listed.
    pub(super) const fn min_size(&self) -> u64 {
        self.min_size.0
    }

    /// Whether names and ids are taken out.
    pub(super) const fn no_paths(&self) -> bool {
        self.no_paths
    }

    /// For a report that is made now, with so many rows.
    pub(super) fn live(&self, rows: usize) -> Filter {
        Filter::new(self.wanted(rows))
    }

    /// For one that was saved.
    pub(super) fn saved(&self) -> Filter {
        Filter::new(self.wanted(self.top.unwrap_or(usize::MAX)))
    }

    fn wanted(&self, top: usize) -> Wanted {
        Wanted {
            top,
            min_age: self.min_age,
            min_bytes: self.min_size.0,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            which: match (self.live_only, self.drained) {
                (true, _) => Which::Live,
                (_, true) => Which::Drained,
                _ => Which::All,
            },
            no_paths: self.no_paths,
        }
    }
}

//! The options that choose what a report lists, for all commands that write one.

use std::time::Duration;

use clap::Args;
use drainprof_report::filter::{Filter, Pattern, Wanted, Which};

use super::args::duration;

/// Rows of each list of a live report, where nothing else is asked for.
pub(super) const ROWS: usize = 20;

/// What is listed, and whether a report may be passed on.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "What is listed (counts, rates and verdicts are always of all)")]
pub(super) struct FilterArgs {
    /// Sites and granules that the report lists at most, per allocator. Default: 20, or
    /// 1000 in formats that show call paths alone; of saved reports, all that they list.
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// List only granules of at least this age, and sites that have, or may have, held a pin that long.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    min_age: Duration,
    /// List only granules and sites that hold at least this many bytes, where bytes are known.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    min_size: u64,
    /// List only sites with a function, file or module in their path that matches, and granules opened by one.
    /// May be given again: one must match.
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    include: Vec<Pattern>,
    /// List no site or granule with a match; wins over --include. May be given again.
    #[arg(long, value_name = "REGEX", value_parser = pattern)]
    exclude: Vec<Pattern>,
    /// List only sites with pins that are live (allocators without pins: with live objects).
    #[arg(long, conflicts_with = "drained")]
    live_only: bool,
    /// List only sites whose pins have all been freed, and no retained granule.
    #[arg(long)]
    drained: bool,
    /// Make the report fit to be passed on: no addresses, ids, files, labels; pseudonyms for modules,
    /// processes and threads. Names of functions stay.
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
        self.min_size
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
            min_bytes: self.min_size,
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

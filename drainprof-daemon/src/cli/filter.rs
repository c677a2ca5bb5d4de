//! The options that choose what a report lists, for all commands that write one.

use std::time::Duration;

use clap::Args;
use drainprof_report::{
    Report,
    filter::{Filter, Pattern, Range, Times, Wanted, Which},
    values::Bytes,
};

use super::{
    exit::{Failure, code},
    values::duration,
};

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
    /// List only sites with objects that were live at this time after the attach; also the widths of pictures.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    alive_at: Option<Duration>,
    /// The same of objects allocated between two times: 10s,30s.
    #[arg(long, value_name = "FROM,TO", value_parser = range)]
    allocated_between: Option<Range>,
    /// The same of objects freed between two times.
    #[arg(long, value_name = "FROM,TO", value_parser = range)]
    freed_between: Option<Range>,
    /// The same of objects that lived for at least this long, freed or not.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    alive_at_least: Option<Duration>,
    /// The same of freed objects that lived for at most this long.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    alive_at_most: Option<Duration>,
    /// The same of objects live at the end; goes with the others.
    #[arg(long)]
    until_end: bool,
    /// Of growth, list only call stacks that added resident memory between two times: 10s,30s.
    #[arg(long, value_name = "FROM,TO", value_parser = range)]
    grown_between: Option<Range>,
    /// Make the report anonymous: no addresses, files, labels; pseudonyms for the rest. Function names stay.
    #[arg(long)]
    no_paths: bool,
}

/// Two times, the first before the second.
fn range(text: &str) -> Result<Range, String> {
    let (from, to) =
        text.split_once(',').ok_or_else(|| "expected two times: 10s,30s".to_owned())?;
    let range = [duration(from)?, duration(to)?];
    if range[0] >= range[1] {
        return Err("the first time must be before the second".to_owned());
    }
    Ok(range)
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

    /// Whether objects are asked for by when they lived.
    pub(super) fn by_time(&self) -> bool {
        self.times().is_any()
    }

    /// Whether growth is asked for by when it was.
    pub(super) const fn by_growth(&self) -> bool {
        self.grown_between.is_some()
    }

    /// Refuses filters by time that do not go together, or that the observation could not answer.
    pub(super) fn check(&self, sampled: bool, duty: bool) -> Result<(), Failure> {
        let checked = self.times().check(sampled, duty);
        checked.map_err(|error| Failure::new(code::USAGE, error.to_string()))
    }

    /// Refuses those that a saved report does not answer.
    pub(super) fn check_report(&self, report: &Report) -> Result<(), Failure> {
        let checked = self.saved().check(report);
        checked.map_err(|error| Failure::new(code::USAGE, error.to_string()))
    }

    const fn times(&self) -> Times {
        Times {
            alive_at: self.alive_at,
            allocated_between: self.allocated_between,
            freed_between: self.freed_between,
            alive_at_least: self.alive_at_least,
            alive_at_most: self.alive_at_most,
            until_end: self.until_end,
        }
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
            times: self.times(),
            grown_between: self.grown_between,
            no_paths: self.no_paths,
        }
    }
}

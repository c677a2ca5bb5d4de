//! What an exporter is.

use std::{fmt, io};

use super::weigh::PinWeight;
use crate::{
    facts::{CallPath, EventFacts, Names},
    model::Report,
};

/// Most characters that are shown of a sentence.
pub(super) const SENTENCE: usize = 1_000;

/// Why nothing, or only a part, was written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The writer failed.
    #[error("cannot write the report")]
    Write(#[from] io::Error),
    /// A value has no JSON form.
    #[error("cannot write the report as JSON")]
    Json(#[source] serde_json::Error),
    /// A picture of nothing.
    #[error(
        "there is nothing to draw: no call path has a weight; only reports of level stacks have any"
    )]
    NothingToDraw,
}

impl Error {
    /// Whether the reader has gone away (`drainprof … | head`), which is no failure.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// How output looks. `json`, `ndjson` and `pprof` ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether to colour; the caller knows whether this is a terminal and what `NO_COLOR` says.
    pub colour: bool,
    /// Columns to fill.
    pub width: u16,
    /// Rows that a list shows at most.
    pub top: usize,
    /// What the widths of `folded` and `flamegraph` mean.
    pub weight: PinWeight,
}

impl Default for Style {
    fn default() -> Self {
        Self { colour: false, width: 100, top: 10, weight: PinWeight::Granules }
    }
}

impl Style {
    /// The text in colour, where there is any.
    pub(super) fn paint(&self, paint: anstyle::Style, text: &str) -> String {
        if self.colour { format!("{paint}{text}{paint:#}") } else { text.to_owned() }
    }
}

/// Two reports in a row.
#[derive(Clone, Copy, Debug)]
pub struct Interval<'a> {
    /// The earlier one; `None`: the interval began with the attach.
    pub before: Option<&'a Report>,
    /// The later one.
    pub now: &'a Report,
    /// The time of day, as it is to be shown.
    pub clock: &'a str,
}

/// One output format.
pub trait Exporter: fmt::Debug + Send + Sync {
    /// Writes a whole report.
    fn report(&self, report: &Report, style: &Style, out: &mut dyn io::Write) -> Result<(), Error>;

    /// One that remembers the intervals and events of an observation for its report; `None` where the format needs none
    /// of them.
    fn recorder(&self) -> Option<Box<dyn Exporter>> {
        None
    }

    /// Writes what changed in an interval; nothing where the format has no such thing.
    fn interval(
        &self,
        _interval: &Interval<'_>,
        _style: &Style,
        _out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Writes one event as decoded; nothing where the format has no such thing.
    fn event(
        &self,
        _event: &EventFacts<'_>,
        _names: &dyn Names,
        _out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Writes what a number stands for by which events name a call path of a target; nothing where the format has no
    /// such thing.
    fn path(
        &self,
        _number: u64,
        _target: u32,
        _path: &CallPath,
        _names: &dyn Names,
        _out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        Ok(())
    }
}

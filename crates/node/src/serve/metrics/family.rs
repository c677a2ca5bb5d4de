//! One metric with its series, and how they are gathered.

use std::collections::BTreeMap;

use super::table::{Definition, METRICS, WHERE};
use crate::{Labels, PinDelays};

/// A value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A measure, in the metric's base unit.
    Measure(f64),
    /// Counts by size.
    Delays(PinDelays),
}

/// The upper bounds of a histogram's buckets in seconds, as the label `le` has them, and how many are below each.
pub(crate) fn cumulative(delays: &PinDelays) -> impl Iterator<Item = (String, u64)> {
    let mut below = 0_u64;
    delays.buckets.iter().enumerate().map(move |(bucket, count)| {
        below = below.saturating_add(*count);
        let bound = PinDelays::bound(bucket);
        (bound.map_or("+Inf".to_owned(), |nanos| (nanos as f64 / 1e9).to_string()), below)
    })
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its labels, none of them empty.
    pub labels: Vec<(&'static str, String)>,
    /// Its value.
    pub value: Value,
    /// An example of what it counts.
    pub exemplar: Option<Exemplar>,
}

/// What points from a series to something that is given elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Where.
    pub labels: Vec<(&'static str, String)>,
    /// How much of the series that was.
    pub value: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// One metric and its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The metric.
    pub definition: &'static Definition,
    /// Its series; none where nothing is known.
    pub series: Vec<Series>,
}

/// The label pairs of a set, the empty ones left out, and those of `more`.
pub(super) fn pairs(labels: &Labels, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let optional =
        [&labels.cgroup, &labels.container, &labels.unit, &labels.pod, &labels.namespace];
    let values = [Some(labels.exe.as_str())].into_iter().chain(optional.map(Option::as_deref));
    let values = WHERE.iter().copied().zip(values.map(Option::unwrap_or_default));
    let all = values.chain(more.iter().copied()).filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| (name, shown(value))).collect()
}

/// A label's value without control characters.
pub(super) fn shown(text: &str) -> String {
    let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(clean).collect()
}

/// A label set with one more label.
pub(super) fn with(
    labels: &[(&'static str, String)],
    name: &'static str,
    value: &str,
) -> Vec<(&'static str, String)> {
    let mut labels = labels.to_vec();
    labels.push((name, value.to_owned()));
    labels
}

/// Families under construction.
#[derive(Debug, Default)]
pub(super) struct Families(BTreeMap<&'static str, Vec<Series>>);

impl Families {
    pub(super) fn count(
        &mut self,
        of: &'static Definition,
        labels: Vec<(&'static str, String)>,
        count: u64,
    ) {
        self.push(of, labels, Value::Count(count), None);
    }

    pub(super) fn push(
        &mut self,
        of: &'static Definition,
        labels: Vec<(&'static str, String)>,
        value: Value,
        exemplar: Option<Exemplar>,
    ) {
        self.0.entry(of.stem).or_default().push(Series { labels, value, exemplar });
    }

    /// What is no number has no series.
    pub(super) fn measure(
        &mut self,
        of: &'static Definition,
        labels: Vec<(&'static str, String)>,
        measure: f64,
    ) {
        if measure.is_finite() {
            self.push(of, labels, Value::Measure(measure), None);
        }
    }

    pub(super) fn finish(mut self) -> Vec<Family> {
        let series = |of: &'static Definition| Family {
            definition: of,
            series: self.0.remove(of.stem).unwrap_or_default(),
        };
        METRICS.iter().map(series).collect()
    }
}

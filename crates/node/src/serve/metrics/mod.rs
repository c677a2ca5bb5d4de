//! From the state of the node to metrics: pure, no clock and no I/O. `text` writes them for Prometheus, `otlp` (beside
//! this module) hands the same to OpenTelemetry.
//!
//! The daemon's counters bound the label sets ([`NodeState::label_sets`]); a process whose labels have no set shows as
//! `exe="other"`. No series has a pid, a command line or a stack. Exemplars name the site that pins most by its id; the
//! report of the diagnostic window has its call stack under that id.

mod heaps;
mod node;
#[cfg(test)]
mod pages;
mod table;
mod text;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use table::{ALLOCATOR, Definition, METRICS, Type, WHERE};
pub use text::{Flavour, negotiate, render};

use crate::{Labels, NodeState, PinDelays, WorstSite, config::Label, daemon::other};

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
    /// Its series; none where there is nothing to tell.
    pub series: Vec<Series>,
}

/// The label pairs of a set, the empty ones left out, and those of `more`.
fn pairs(labels: &Labels, more: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let optional =
        [&labels.cgroup, &labels.container, &labels.unit, &labels.pod, &labels.namespace];
    let values = [Some(labels.exe.as_str())].into_iter().chain(optional.map(Option::as_deref));
    let values = WHERE.iter().copied().zip(values.map(Option::unwrap_or_default));
    let all = values.chain(more.iter().copied()).filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| (name, shown(value))).collect()
}

/// A label's value without control characters.
fn shown(text: &str) -> String {
    let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(clean).collect()
}

/// The metrics, and what they need to remember of earlier states.
#[derive(Debug)]
pub struct Metrics {
    labels: Vec<Label>,
    single: BTreeMap<String, u64>,
    windows: BTreeSet<u64>,
    outcomes: BTreeMap<&'static str, u64>,
    families: Vec<Family>,
}

impl Metrics {
    /// With these labels, as the daemon counts them.
    #[must_use]
    pub fn new(labels: &[Label]) -> Self {
        Self {
            labels: labels.to_vec(),
            single: BTreeMap::new(),
            windows: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            families: Vec::new(),
        }
    }

    /// Takes in a state. Doing so twice changes nothing.
    pub fn observe(&mut self, state: &NodeState) {
        let mut families = Families::default();
        allocators(state, &mut families);
        self.processes(state, &mut families);
        self.node(state, &mut families);
        self.families = families.finish();
    }

    /// All metrics as of the last state, in the order of [`METRICS`].
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The same, with the age of that state.
    #[must_use]
    pub fn families_at(&self, age: Duration) -> Vec<Family> {
        let mut families = self.families.clone();
        if let Some(own) = families.iter_mut().find(|own| *own.definition == table::STATE_AGE) {
            let value = Value::Measure(age.as_secs_f64());
            own.series = vec![Series { labels: Vec::new(), value, exemplar: None }];
        }
        families
    }
}

fn allocators(state: &NodeState, families: &mut Families) {
    for counts in &state.counts {
        let more = [("profile", counts.profile.as_str()), ("kind", counts.kind.as_str())];
        let labels = pairs(&counts.labels, &more);
        families.count(&table::OPENS, labels.clone(), counts.opened);
        let site = counts.worst_site.as_ref().map(exemplar);
        for (outcome, count, exemplar) in [
            ("drainable", counts.drainable, None),
            ("pinned", counts.pinned, site),
            ("unknown", counts.unknown, None),
        ] {
            let labels = with(&labels, "outcome", outcome);
            families.push(&table::CLOSED, labels, Value::Count(count), exemplar);
        }
        families.count(&table::OBJECTS_ALLOCATED, labels.clone(), counts.allocated);
        families.count(&table::OBJECTS_FREED, labels.clone(), counts.freed);
        families.count(&table::HITS, labels.clone(), counts.hits);
        families.measure(&table::COST, labels.clone(), counts.cost_seconds);
        if counts.pin_delays.count() > 0 {
            let delays = Value::Delays(counts.pin_delays);
            families.push(&table::PIN_DELAY, labels.clone(), delays, None);
        }
        families.count(&table::PROCESSES, labels.clone(), counts.processes);
        families.count(&table::OPEN, labels.clone(), counts.open_now);
        if let Some(granules) = counts.retained_granules {
            families.count(&table::RETAINED_GRANULES, labels.clone(), granules);
        }
        if let Some(bytes) = counts.retained_bytes {
            families.count(&table::RETAINED_BYTES, labels, bytes);
        }
    }
}

fn exemplar(site: &WorstSite) -> Exemplar {
    Exemplar {
        labels: vec![("site", shown(&site.site)), ("window", site.window.to_string())],
        value: site.granules_pinned,
        unix_ms: site.unix_ms,
    }
}

fn with(
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
struct Families(BTreeMap<&'static str, Vec<Series>>);

impl Families {
    fn count(&mut self, of: &'static Definition, labels: Vec<(&'static str, String)>, count: u64) {
        self.push(of, labels, Value::Count(count), None);
    }

    fn push(
        &mut self,
        of: &'static Definition,
        labels: Vec<(&'static str, String)>,
        value: Value,
        exemplar: Option<Exemplar>,
    ) {
        self.0.entry(of.stem).or_default().push(Series { labels, value, exemplar });
    }

    /// What is no number has no series.
    fn measure(
        &mut self,
        of: &'static Definition,
        labels: Vec<(&'static str, String)>,
        measure: f64,
    ) {
        if measure.is_finite() {
            self.push(of, labels, Value::Measure(measure), None);
        }
    }

    fn finish(mut self) -> Vec<Family> {
        let series = |of: &'static Definition| Family {
            definition: of,
            series: self.0.remove(of.stem).unwrap_or_default(),
        };
        METRICS.iter().map(series).collect()
    }
}

#[cfg(test)]
mod tests;

//! From the state of the node to metrics: pure, no clock and no I/O. `text` writes them for Prometheus, `otlp` (beside
//! this module) hands the same to OpenTelemetry.
//!
//! Label sets are bounded: what is beyond the bound is counted in series whose `exe` (and `profile`) is `other`. No
//! series has a pid, a command line or a stack. Exemplars name the site that pins most by an id, under which the report of
//! a diagnostic window has its call path.

mod ledger;
mod node;
#[cfg(test)]
mod pages;
mod table;
mod text;

use std::collections::{BTreeMap, BTreeSet};

use ledger::{Ledger, Reading};
pub use table::{ALLOCATOR, Definition, METRICS, Type, WHERE};
pub use text::{Flavour, negotiate, render};

use crate::{Counts, Labels, NodeState, NodeTarget, PinDelays, WorstSite, config::Label};

/// What `exe` and `profile` are in series for the rest.
pub const OTHER: &str = "other";
/// Characters of a label's value that are shown.
const VALUE_CHARS: usize = 200;
/// Names of losses, rules and outcomes that are shown; there are a few dozen.
const MOST_NAMES: usize = 256;

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

/// What points from a series to something that is told elsewhere.
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

/// The label set of a row, as it is shown. Empty: not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Row {
    place: [String; 6],
    /// Profile and kind; both empty for what concerns processes.
    profile: String,
    kind: String,
}

/// Which of the labels of a place are shown, in the order of [`Label::ALL`].
type Wanted = [bool; 6];

impl Row {
    fn new(labels: &Labels, allocator: Option<(&str, &str)>, wanted: Wanted) -> Self {
        let optional = |text: &Option<String>| text.as_deref().map(shown).unwrap_or_default();
        let (profile, kind) = allocator.unwrap_or_default();
        let mut place = [
            shown(&labels.exe),
            optional(&labels.cgroup),
            optional(&labels.container),
            optional(&labels.unit),
            optional(&labels.pod),
            optional(&labels.namespace),
        ];
        for (value, wanted) in place.iter_mut().zip(wanted) {
            if !wanted {
                value.clear();
            }
        }
        Self {
            place,
            profile: shown(profile),
            kind: match kind {
                "drain" | "bulk" | "slab" | "" => kind.to_owned(),
                _ => OTHER.to_owned(),
            },
        }
    }

    /// The row for the rest.
    fn other(&self) -> Self {
        let mut place = <[String; 6]>::default();
        OTHER.clone_into(&mut place[0]);
        let profile = if self.profile.is_empty() { String::new() } else { OTHER.to_owned() };
        Self { place, profile, kind: self.kind.clone() }
    }

    fn labels(&self) -> Vec<(&'static str, String)> {
        let values = self.place.iter().chain([&self.profile, &self.kind]);
        let pairs = ALLOCATOR.iter().copied().zip(values.cloned());
        pairs.filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// A label's value: bounded, and without control characters.
fn shown(text: &str) -> String {
    let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(VALUE_CHARS).map(clean).collect()
}

/// Numbers that are kept of a source of counts: eight counts, and the delays with their sum.
const COUNTS: usize = 8 + 1 + PinDelays::BUCKETS;

/// Who a source of counts is: all that it is told apart by.
type CountsSource = (Labels, String, String);
/// A process, by pid and start time.
type ProcessSource = (u32, u64);

/// The metrics, and what they need to remember of earlier states.
#[derive(Debug)]
pub struct Metrics {
    wanted: Wanted,
    counts: Ledger<CountsSource, Row, COUNTS>,
    faults: Ledger<ProcessSource, Row, 2>,
    single: BTreeMap<String, u64>,
    lost: Ledger<String, String, 1>,
    windows: BTreeSet<u64>,
    outcomes: BTreeMap<&'static str, u64>,
    families: Vec<Family>,
}

impl Metrics {
    /// With these labels, and at most so many sets of them of each kind. Processes that these labels do not tell
    /// apart are counted together.
    #[must_use]
    pub fn new(labels: &[Label], most: usize) -> Self {
        Self {
            wanted: Label::ALL.map(|(label, _)| labels.contains(&label)),
            counts: Ledger::new(most, true, Row::other),
            faults: Ledger::new(most, false, Row::other),
            single: BTreeMap::new(),
            lost: Ledger::new(MOST_NAMES, true, |_| OTHER.to_owned()),
            windows: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            families: Vec::new(),
        }
    }

    /// Takes in a state. Doing so twice changes nothing. No state should be left out: what happens in between is not
    /// lost, but a label set whose counts are gone from the state takes with it what was not seen.
    pub fn observe(&mut self, state: &NodeState) {
        let wanted = self.wanted;
        self.counts.observe(state.counts.iter().map(|one| count_reading(one, wanted)).collect());
        self.faults.observe(state.targets.iter().map(|one| fault_reading(one, wanted)).collect());
        self.lost.observe(state.losses.iter().map(loss_reading).collect());
        let mut families = Families::default();
        self.allocators(state, &mut families);
        self.processes(state, &mut families);
        self.node(state, &mut families);
        self.families = families.finish();
    }

    /// All metrics as of the last state, in the order of [`METRICS`].
    #[must_use]
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    fn allocators(&self, state: &NodeState, families: &mut Families) {
        let mut worst: BTreeMap<Row, &WorstSite> = BTreeMap::new();
        for counts in &state.counts {
            let (Some(row), Some(site)) = (self.counts.row(&source(counts)), &counts.worst_site)
            else {
                continue;
            };
            let most = worst.entry(row).or_insert(site);
            if site.granules_pinned > most.granules_pinned {
                *most = site;
            }
        }
        for (row, sums) in self.counts.rows() {
            let &[
                opened,
                drainable,
                pinned,
                unknown,
                allocated,
                freed,
                hits,
                nanos,
                delayed,
                ref delays @ ..,
            ] = sums;
            let labels = row.labels();
            families.count(&table::OPENS, labels.clone(), opened);
            for (outcome, count) in
                [("drainable", drainable), ("pinned", pinned), ("unknown", unknown)]
            {
                let exemplar =
                    worst.get(row).filter(|_| outcome == "pinned").map(|site| exemplar(site));
                let labels = with(&labels, "outcome", outcome);
                families.push(&table::CLOSED, labels, Value::Count(count), exemplar);
            }
            families.count(&table::OBJECTS_ALLOCATED, labels.clone(), allocated);
            families.count(&table::OBJECTS_FREED, labels.clone(), freed);
            families.count(&table::HITS, labels.clone(), hits);
            families.measure(&table::COST, labels.clone(), nanos as f64 / 1e9);
            let delays = PinDelays { buckets: *delays, sum_nanoseconds: delayed };
            if delays.count() > 0 {
                families.push(&table::PIN_DELAY, labels, Value::Delays(delays), None);
            }
        }
        let mut now: BTreeMap<Row, Now> = BTreeMap::new();
        for counts in &state.counts {
            if let Some(row) = self.counts.row(&source(counts)) {
                now.entry(row).or_default().add(counts);
            }
        }
        for (row, now) in now {
            let labels = row.labels();
            families.count(&table::PROCESSES, labels.clone(), now.processes);
            families.count(&table::OPEN, labels.clone(), now.open);
            if let Some(granules) = now.retained_granules {
                families.count(&table::RETAINED_GRANULES, labels.clone(), granules);
            }
            if let Some(bytes) = now.retained_bytes {
                families.count(&table::RETAINED_BYTES, labels, bytes);
            }
        }
    }
}

/// What holds now of the label sets of one row.
#[derive(Default)]
struct Now {
    processes: u64,
    open: u64,
    retained_granules: Option<u64>,
    retained_bytes: Option<u64>,
}

impl Now {
    fn add(&mut self, counts: &Counts) {
        let plus = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0).saturating_add(more));
            }
        };
        self.processes = self.processes.saturating_add(counts.processes);
        self.open = self.open.saturating_add(counts.open_now);
        plus(&mut self.retained_granules, counts.retained_granules);
        plus(&mut self.retained_bytes, counts.retained_bytes);
    }
}

fn exemplar(site: &WorstSite) -> Exemplar {
    Exemplar {
        labels: vec![("site", shown(&site.site)), ("window", site.window.to_string())],
        value: site.granules_pinned,
        unix_ms: site.unix_ms,
    }
}

fn source(counts: &Counts) -> CountsSource {
    (counts.labels.clone(), counts.profile.clone(), counts.kind.clone())
}

fn count_reading(counts: &Counts, wanted: Wanted) -> Reading<CountsSource, Row, COUNTS> {
    #[allow(clippy::cast_sign_loss, reason = "not below 0; `as` saturates")]
    let nanos = (counts.cost_seconds.max(0.0) * 1e9).round() as u64;
    let mut totals = [0; COUNTS];
    let (single, delays) = totals.split_at_mut(COUNTS - PinDelays::BUCKETS);
    single.copy_from_slice(&[
        counts.opened,
        counts.drainable,
        counts.pinned,
        counts.unknown,
        counts.allocated,
        counts.freed,
        counts.hits,
        nanos,
        counts.pin_delays.sum_nanoseconds,
    ]);
    delays.copy_from_slice(&counts.pin_delays.buckets);
    Reading {
        source: source(counts),
        row: Row::new(&counts.labels, Some((&counts.profile, &counts.kind)), wanted),
        totals: Some(totals),
        alive: counts.processes > 0,
    }
}

fn fault_reading(target: &NodeTarget, wanted: Wanted) -> Reading<ProcessSource, Row, 2> {
    Reading {
        source: (target.pid, target.start_time),
        row: Row::new(&target.labels, None, wanted),
        totals: target.memory.map(|memory| [memory.minor_faults, memory.major_faults]),
        alive: true,
    }
}

fn loss_reading((name, lost): (&String, &u64)) -> Reading<String, String, 1> {
    Reading { source: name.clone(), row: shown(name), totals: Some([*lost]), alive: true }
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

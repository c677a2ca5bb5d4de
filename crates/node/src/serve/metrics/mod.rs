//! From the state of the node to metrics: pure, no clock and no I/O. `text` writes them for Prometheus, `otlp` (beside
//! this module) hands the same to OpenTelemetry.
//!
//! The daemon's counters bound the label sets ([`NodeState::label_sets`]); a process whose labels have no set shows as
//! `exe="other"`. No series has a pid, a command line or a stack. Exemplars name the site that pins most by its id; the
//! report of the diagnostic window has its call stack under that id.

mod family;
mod heaps;
mod node;
#[cfg(test)]
mod pages;
mod table;
mod text;

use std::{cell::OnceCell, sync::Arc, time::Duration};

pub(super) use family::cumulative;
pub use family::{Exemplar, Family, Series, Value};
use family::{Families, pairs, shown, with};
use node::Past;
pub use table::{ALLOCATOR, Definition, METRICS, Type, WHERE};
pub use text::{Flavour, negotiate, render};

use crate::{NodeState, WorstSite, config::Label};

/// The metrics of the last state, and what they need to remember of earlier ones.
#[derive(Debug)]
pub struct Metrics {
    labels: Vec<Label>,
    past: Past,
    state: Option<Arc<NodeState>>,
    /// Made when they are needed first; all scrapes and exports of one state share them.
    families: OnceCell<Arc<[Family]>>,
}

impl Metrics {
    /// With these labels, as the daemon counts them.
    #[must_use]
    pub fn new(labels: &[Label]) -> Self {
        Self {
            labels: labels.to_vec(),
            past: Past::default(),
            state: None,
            families: OnceCell::new(),
        }
    }

    /// Takes in a state. Doing so twice changes nothing.
    pub fn observe(&mut self, state: &Arc<NodeState>) {
        if self.state.as_ref().is_some_and(|known| Arc::ptr_eq(known, state)) {
            return;
        }
        self.past.observe(state);
        self.state = Some(Arc::clone(state));
        self.families.take();
    }

    /// All metrics as of the last state, in the order of [`METRICS`]; none before the first one.
    #[must_use]
    pub fn families(&self) -> Arc<[Family]> {
        let make = || self.state.as_deref().map_or_else(Arc::default, |state| self.make(state));
        Arc::clone(self.families.get_or_init(make))
    }

    fn make(&self, state: &NodeState) -> Arc<[Family]> {
        let mut families = Families::default();
        allocators(state, &mut families);
        node::processes(state, &self.labels, &mut families);
        self.past.node(state, &mut families);
        families.finish().into()
    }
}

/// The age of the state that is shown: it grows from scrape to scrape.
#[must_use]
pub fn state_age(age: Duration) -> Family {
    let value = Value::Measure(age.as_secs_f64());
    let series = vec![Series { labels: Vec::new(), value, exemplar: None }];
    Family { definition: &table::STATE_AGE, series }
}

fn allocators(state: &NodeState, families: &mut Families) {
    for counts in &state.counts {
        let more = [("profile", counts.profile.as_str()), ("kind", counts.kind.as_str())];
        let labels = pairs(&counts.labels, &more);
        families.count(&table::OPENS, labels.clone(), counts.granules.opened);
        let site = counts.worst_site.as_ref().map(exemplar);
        for (outcome, count, exemplar) in [
            ("drainable", counts.granules.drainable, None),
            ("pinned", counts.granules.pinned, site),
            ("unknown", counts.granules.unknown, None),
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
        families.count(&table::OPEN, labels.clone(), counts.held.open_now);
        if let Some(granules) = counts.held.retained_granules {
            families.count(&table::RETAINED_GRANULES, labels.clone(), granules);
        }
        if let Some(bytes) = counts.held.retained_bytes {
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

#[cfg(test)]
mod tests;

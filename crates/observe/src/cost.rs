//! What a hit costs at a planned probe's place.

use drainprof_probe::plan::{
    PlannedProbe,
    cost::{Costs, InstructionKind},
};

use crate::Observer;

/// Nanoseconds of a hit at the probe's place. Where the planner could not read the code, as much as the most expensive
/// kind of instruction.
pub(super) fn entry_ns(probe: &PlannedProbe, costs: &Costs) -> f64 {
    let known = probe.choice.here.as_ref().map(|here| here.cost_ns);
    known.unwrap_or_else(|| costs.entry(InstructionKind::Other))
}

impl Observer {
    /// Seconds of CPU that the probes in place took from the processes, since they were placed.
    pub(super) fn cost_seconds(&self) -> f64 {
        let costs = self.placed.iter().map(|placed| {
            let counts = self.session().read_probe(placed.spec);
            let returns = counts.returns as f64 * self.options.costs.return_ns;
            (counts.entries as f64).mul_add(placed.entry_ns, returns)
        });
        costs.sum::<f64>() / 1e9
    }
}

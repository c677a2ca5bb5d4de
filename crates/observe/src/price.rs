//! What a hit costs at a planned probe's place.

use drainprof_probe::plan::{
    PlannedProbe,
    cost::{Costs, InstructionKind},
};

/// Nanoseconds of a hit at the probe's place. Where the planner could not read the code, as much as the dearest
/// kind of instruction.
pub(super) fn entry_ns(probe: &PlannedProbe, costs: &Costs) -> f64 {
    let known = probe.choice.here.as_ref().map(|here| here.cost_ns);
    known.unwrap_or_else(|| costs.entry(InstructionKind::Other))
}

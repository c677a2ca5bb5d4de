//! Attaching a probe, and what becomes of it where the kernel refuses the place that was chosen.
//!
//! The planner knows which instructions kernels treat how, but no list is complete: a kernel may refuse one
//! that it believes to be fine. The function's first instruction is then tried instead, once. Called by
//! `place` with what attaches.

use drainprof_probe::{
    bpf::BpfError,
    plan::{PlannedProbe, fall_back},
};
use drainprof_process::printable;
use drainprof_profile::Finding;

/// A probe that is attached.
#[derive(Debug)]
pub(super) struct Attached {
    /// The number of its spec.
    pub(super) spec: u32,
    /// The probe, where it really is.
    pub(super) probe: PlannedProbe,
    /// What the user should know, if it is not where it was planned.
    pub(super) finding: Option<Finding>,
}

/// Attaches `probe` by `attach`: at the place that was chosen, or else at its function's first instruction.
///
/// An error is the last that `attach` had; any but a refusal of the place is final.
pub(super) fn attach(
    probe: &PlannedProbe,
    mut attach: impl FnMut(&PlannedProbe) -> Result<u32, BpfError>,
) -> Result<Attached, BpfError> {
    let error = match attach(probe) {
        Ok(spec) => return Ok(Attached { spec, probe: probe.clone(), finding: None }),
        Err(error) => error,
    };
    let at_entry = fall_back(probe).filter(|_| error.is_place_refused());
    let Some(at_entry) = at_entry else { return Err(error) };
    let spec = attach(&at_entry)?;
    let finding = Some(reported(probe, &at_entry));
    Ok(Attached { spec, probe: at_entry, finding })
}

fn reported(planned: &PlannedProbe, placed: &PlannedProbe) -> Finding {
    let text = |probe: &PlannedProbe| match &probe.choice.here {
        Some(here) => {
            format!("+{:#x} `{}` ({:.0} ns)", probe.choice.offset, here.instruction, here.cost_ns)
        }
        None => format!("+{:#x}", probe.choice.offset),
    };
    Finding {
        code: "place_refused".to_owned(),
        message: format!(
            "the kernel refuses a probe at {}{} in {}; it sits on the first instruction instead, {}",
            printable(&planned.site.symbol),
            text(planned),
            planned.site.shown_path,
            text(placed)
        ),
    }
}

#[cfg(test)]
mod tests;

//! The probes that are in place: what they are, where, and what their hits cost.

use std::num::NonZeroU32;

use drainprof_probe::{
    bpf::{OpenFiles, Session},
    plan::{
        AttachPlan, PlannedProbe,
        cost::{Costs, InstructionKind},
    },
};
use drainprof_profile::{Finding, Phase};
use drainprof_report::facts::ProbeFacts;

use super::{allocators::Allocators, fallback, options::SideOptions, targets::Target};
use crate::ObserveError;

/// A probe in place.
#[derive(Debug)]
struct Placed {
    /// The spec's number, under which hits are counted.
    spec: u32,
    allocator: u32,
    /// The process; `None`: all that map the object.
    pid: Option<u32>,
    probe: PlannedProbe,
    /// Nanoseconds of a hit at its place.
    entry_ns: f64,
}

/// All probes of a kernel side.
#[derive(Debug)]
pub(super) struct Probes {
    placed: Vec<Placed>,
    /// Whether probes sit on files, for all processes that map them.
    on_files: bool,
    costs: Costs,
}

impl Probes {
    /// None yet.
    pub(super) fn new(options: &SideOptions) -> Self {
        Self { placed: Vec::new(), on_files: options.follow, costs: options.costs.clone() }
    }

    /// How many are in place.
    pub(super) const fn len(&self) -> usize {
        self.placed.len()
    }

    fn scope(&self, pid: u32) -> Option<u32> {
        (!self.on_files).then_some(pid)
    }

    /// Attaches what is planned for a process and not in place yet; returns what did not go as planned.
    pub(super) fn place(
        &mut self,
        session: &mut Session,
        pid: u32,
        plans: &[AttachPlan],
    ) -> Result<Vec<Finding>, ObserveError> {
        let pid = self.scope(pid);
        let missing: Vec<_> = plans
            .iter()
            .flat_map(|plan| plan.probes.iter().map(|probe| (probe, plan.allocator)))
            .filter(|(probe, allocator)| !self.in_place(probe, *allocator, pid))
            .map(|(probe, _)| probe)
            .collect();
        let scope = pid.and_then(NonZeroU32::new);
        session.load_for(&missing, scope);
        let mut files = OpenFiles::default();
        let mut findings = Vec::new();
        for plan in plans {
            let allocator = plan.allocator;
            for probe in &plan.probes {
                if self.in_place(probe, allocator, pid) {
                    continue;
                }
                let attach = |probe: &_| session.attach(probe, scope, &mut files);
                let attached = fallback::attach(probe, attach)?;
                findings.extend(attached.finding);
                let (spec, probe) = (attached.spec, attached.probe);
                let entry_ns = entry_ns(&probe, &self.costs);
                self.placed.push(Placed { spec, allocator, pid, probe, entry_ns });
            }
        }
        Ok(findings)
    }

    /// Whether a planned probe is there already: an image that was executed again, or another process of
    /// a file on which probes sit for all.
    fn in_place(&self, probe: &PlannedProbe, allocator: u32, scope: Option<u32>) -> bool {
        self.placed.iter().any(|placed| {
            placed.allocator == allocator
                && placed.pid == scope
                && placed.probe.site.inode == probe.site.inode
                && placed.probe.site.entry_offset == probe.site.entry_offset
                && placed.probe.role == probe.role
        })
    }

    /// Whether all of a process's planned probes are in place.
    pub(super) fn all_in_place(&self, pid: u32, plans: &[AttachPlan]) -> bool {
        let scope = self.scope(pid);
        let in_place = |probe, plan: &AttachPlan| self.in_place(probe, plan.allocator, scope);
        plans.iter().all(|plan| plan.probes.iter().all(|probe| in_place(probe, plan)))
    }

    /// The probes of a process alone are gone.
    pub(super) fn forget(&mut self, pid: u32) {
        self.placed.retain(|placed| placed.pid != Some(pid));
    }

    /// Seconds of CPU that the probes took from the processes, since they were placed.
    pub(super) fn cost_seconds(&self, session: &Session) -> f64 {
        let costs = self.placed.iter().map(|placed| {
            let counts = session.read_probe(placed.spec);
            let returns = counts.returns as f64 * self.costs.return_ns;
            (counts.entries as f64).mul_add(placed.entry_ns, returns)
        });
        costs.sum::<f64>() / 1e9
    }

    /// How often each was hit.
    pub(super) fn hits(&self, session: &Session) -> Vec<u64> {
        let counts = self.placed.iter().map(|placed| session.read_probe(placed.spec));
        counts.flat_map(|counts| [counts.entries, counts.returns]).collect()
    }

    /// The probes of a target that were not `reported` with another.
    pub(super) fn facts(
        &self,
        session: &Session,
        allocators: &Allocators,
        target: &Target,
        reported: &mut Vec<u32>,
    ) -> Vec<ProbeFacts> {
        let mut facts = Vec::new();
        for placed in &self.placed {
            let own = target.probed().allocators().contains(&placed.allocator)
                && placed.pid.is_none_or(|pid| pid == target.pid());
            if !own || reported.contains(&placed.spec) {
                continue;
            }
            reported.push(placed.spec);
            let Some(allocator) = allocators.get(placed.allocator) else { continue };
            let counts = session.read_probe(placed.spec);
            facts.push(ProbeFacts {
                profile: allocator.profile().name.clone(),
                role: placed.probe.role.name(),
                symbol: placed.probe.site.symbol.clone(),
                object: placed.probe.site.shown_path.clone(),
                at_return: placed.probe.phase == Phase::Return,
                entries: counts.entries,
                returns: counts.returns,
                rejected: counts.rejected,
                faults: counts.faults,
                entry_ns: placed.entry_ns,
                return_ns: self.costs.return_ns,
            });
        }
        facts
    }
}

/// Nanoseconds of a hit at the probe's place. Where the planner could not read the code, as much as the most expensive
/// kind of instruction.
fn entry_ns(probe: &PlannedProbe, costs: &Costs) -> f64 {
    let known = probe.choice.here.as_ref().map(|here| here.cost_ns);
    known.unwrap_or_else(|| costs.entry(InstructionKind::Other))
}

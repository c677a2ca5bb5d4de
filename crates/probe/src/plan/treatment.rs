//! How the kernel treats each kind of instruction, derived from the costs alone.
//!
//! A probe costs one trap where the kernel emulates the instruction, two where it single-steps a copy, and
//! none where it replaces a nop by a call. So costs lie in up to three heaps, and heaps are distinguished by ratios,
//! never by what a kernel of some version is known to do.

use super::cost::{Costs, InstructionKind, Treatment};

/// A second trap shows as a step in the sorted costs of at least this ratio. It is 2.7 on bare metal and 12 to 33
/// on virtual machines; what lies within one treatment differs by less than 1.3.
const SECOND_TRAP: f64 = 1.5;
/// A call instead of a trap costs at most this share of the cheapest trap. It is 0.43 on Intel, and 0.79 on an
/// AMD processor whose returns are guarded; a longer nop that is emulated costs what other nops do.
const NO_TRAP: f64 = 0.9;

impl Costs {
    /// How the kernel treats each kind, in the order of [`InstructionKind::ALL`].
    ///
    /// The rule: the costs of all kinds but the nops of five and ten bytes are sorted. The widest step between two
    /// neighbours, if the more expensive costs at least 1.5 times the cheaper, separates emulated from
    /// single-stepped kinds; without such a step all are emulated, and nothing is to be gained by choosing.
    /// A nop of five or ten bytes is replaced by a call if it costs at most 0.9 of the cheapest other kind, else it is
    /// what its cost is nearer to. A kind without a cost is unusable.
    #[must_use]
    pub fn treatments(&self) -> [Treatment; InstructionKind::ALL.len()] {
        let trapped = InstructionKind::ALL.into_iter().filter(|kind| !kind.can_be_call());
        let mut trapped: Vec<f64> =
            trapped.filter_map(|kind| self.entry_ns[kind as usize]).collect();
        trapped.sort_by(f64::total_cmp);
        let cheapest = self.cheapest_trap();
        let limit = widest_step(&trapped).map(|(below, above)| (below * above).sqrt());
        InstructionKind::ALL.map(|kind| match self.entry_ns[kind as usize] {
            None => Treatment::Unusable,
            Some(cost) if kind.can_be_call() && cost <= NO_TRAP * cheapest => Treatment::Call,
            Some(cost) if limit.is_some_and(|limit| cost > limit) => Treatment::SingleStepped,
            Some(_) => Treatment::Emulated,
        })
    }

    /// How the kernel treats one kind; [`Costs::treatments`] has the rule.
    #[must_use]
    pub fn treatment(&self, kind: InstructionKind) -> Treatment {
        self.treatments()[kind as usize]
    }
}

/// The neighbours in a sorted list that are farthest apart, if that is far enough for a second trap.
fn widest_step(sorted: &[f64]) -> Option<(f64, f64)> {
    sorted
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .max_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)))
        .filter(|(below, above)| above / below >= SECOND_TRAP)
}

#[cfg(test)]
mod tests {
    use InstructionKind as K;
    use Treatment::{Call, Emulated, SingleStepped, Unusable};

    use super::*;

    /// Costs: of the nops of five and ten bytes, of what kernels emulate, and of what they single-step; in each heap they
    /// differ a little.
    fn costs(calls: [Option<f64>; 2], emulated: f64, stepped: f64) -> Costs {
        let mut costs = Costs::assumed();
        for (index, kind) in K::ALL.into_iter().enumerate() {
            let wobble = 1.0 + 0.03 * (index % 4) as f64;
            costs.entry_ns[index] = match kind {
                K::Nop5 => calls[0],
                K::Nop10 => calls[1],
                K::Nop | K::Push | K::Branch => Some(emulated * wobble),
                _ => Some(stepped * wobble),
            };
        }
        costs
    }

    /// The costs of a virtual machine and of bare metal give the same treatments.
    #[test]
    fn three_heaps() {
        let measured =
            [costs([Some(235.0), None], 540.0, 18_200.0), costs([Some(137.0), None], 316.0, 909.0)];
        for costs in measured {
            assert_eq!(costs.treatment(K::Nop5), Call);
            assert_eq!(costs.treatment(K::Nop10), Unusable);
            for kind in [K::Nop, K::Push, K::Branch] {
                assert_eq!(costs.treatment(kind), Emulated, "{kind:?} of {costs:?}");
            }
            let stepped = [K::LongNop, K::Endbr, K::Move, K::Memory, K::Arithmetic, K::Return];
            for kind in stepped.into_iter().chain([K::Other]) {
                assert_eq!(costs.treatment(kind), SingleStepped, "{kind:?} of {costs:?}");
            }
        }
        let assumed = Costs::assumed();
        assert_eq!(assumed.treatment(K::Nop5), Unusable);
        assert_eq!(assumed.treatment(K::Push), Emulated);
        assert_eq!(assumed.treatment(K::Lea), SingleStepped);
    }

    /// Which nop is a call, and what the other one is, shows by the cost: as on Linux 6.12, 6.18 and 7.2, and on one that
    /// had neither.
    #[test]
    fn nops_are_what_they_cost() {
        let treatments = |calls: [Option<f64>; 2]| {
            let costs = costs(calls, 500.0, 5_000.0);
            (costs.treatment(K::Nop5), costs.treatment(K::Nop10))
        };
        assert_eq!(treatments([Some(5_100.0), None]), (SingleStepped, Unusable));
        assert_eq!(treatments([Some(400.0), None]), (Call, Unusable));
        assert_eq!(treatments([Some(505.0), Some(400.0)]), (Emulated, Call));
        assert_eq!(treatments([None, Some(505.0)]), (Unusable, Emulated));
    }

    /// A kernel that emulates more shows by the cost, whatever the kind.
    #[test]
    fn emulated_by_a_newer_kernel() {
        let mut costs = costs([Some(235.0), None], 540.0, 18_200.0);
        costs.entry_ns[K::Arithmetic as usize] = Some(560.0);
        costs.entry_ns[K::Endbr as usize] = Some(530.0);
        costs.entry_ns[K::LongNop as usize] = Some(545.0);
        assert_eq!(costs.treatment(K::Arithmetic), Emulated);
        assert_eq!(costs.treatment(K::Endbr), Emulated);
        assert_eq!(costs.treatment(K::LongNop), Emulated);
        assert_eq!(costs.treatment(K::Move), SingleStepped);
    }

    /// Where all kinds cost the same, none is called single-stepped.
    #[test]
    fn one_heap() {
        let costs = costs([Some(1_000.0); 2], 1_000.0, 1_000.0);
        assert!(costs.treatments().iter().all(|found| *found == Emulated));
    }

    /// One cost that a disturbance doubled does not move the others.
    #[test]
    fn an_outlier_moves_nothing() {
        let mut costs = costs([Some(235.0), None], 540.0, 18_200.0);
        let undisturbed = costs.treatments();
        for kind in [K::Lea, K::Push] {
            let cost = &mut costs.entry_ns[kind as usize];
            *cost = cost.map(|cost| cost * 2.0);
            assert_eq!(costs.treatments(), undisturbed);
        }
    }
}

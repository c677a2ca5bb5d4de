//! How the kernel treats each kind of instruction, derived from the costs alone.
//!
//! A probe costs one trap where the kernel emulates the instruction, two where it single-steps a copy, and
//! none where it replaces a 5-byte nop by a call. So costs lie in up to three heaps, and heaps are distinguished
//! apart by ratios, never by what a kernel of some version is known to do.

use super::cost::{Costs, InstructionKind, Treatment};

/// A second trap shows as a step in the sorted costs of at least this ratio. It is 2.7 on bare metal and 12 to 33
/// on virtual machines; what lies within one treatment differs by less than 1.3.
const SECOND_TRAP: f64 = 1.5;
/// A call instead of a trap costs at most this share of the cheapest trap. It is 0.43 on Intel, and 0.79 on an
/// AMD processor whose returns are guarded; a 5-byte nop that is emulated costs what other nops do.
const NO_TRAP: f64 = 0.9;

impl Costs {
    /// How the kernel treats each kind, in the order of [`InstructionKind::ALL`].
    ///
    /// The rule: the costs of all kinds but the 5-byte nop are sorted. The widest step between two
    /// neighbours, if the more expensive costs at least 1.5 times the cheaper, separates emulated from
    /// single-stepped kinds; without such a step all are emulated, and nothing is to be gained by choosing.
    /// The 5-byte nop is replaced by a call if it costs at most 0.9 of the cheapest other kind, else it is
    /// what its cost is nearer to.
    #[must_use]
    pub fn treatments(&self) -> [Treatment; InstructionKind::ALL.len()] {
        let nop5 = self.entry(InstructionKind::Nop5);
        let mut trapped: Vec<f64> = InstructionKind::ALL
            .into_iter()
            .filter(|kind| *kind != InstructionKind::Nop5)
            .map(|kind| self.entry(kind))
            .collect();
        trapped.sort_by(f64::total_cmp);
        let cheapest = trapped.first().copied().unwrap_or(nop5);
        let limit = widest_step(&trapped).map(|(below, above)| (below * above).sqrt());
        InstructionKind::ALL.map(|kind| {
            let cost = self.entry(kind);
            if kind == InstructionKind::Nop5 && cost <= NO_TRAP * cheapest {
                Treatment::Call
            } else if limit.is_some_and(|limit| cost > limit) {
                Treatment::SingleStepped
            } else {
                Treatment::Emulated
            }
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

    use super::*;

    /// Costs: of the 5-byte nop, of what kernels emulate, and of what they single-step; in each heap they
    /// differ a little.
    fn costs(nop5: f64, emulated: f64, stepped: f64) -> Costs {
        let mut costs = Costs::assumed();
        for (index, kind) in K::ALL.into_iter().enumerate() {
            let wobble = 1.0 + 0.03 * (index % 4) as f64;
            costs.entry_ns[index] = match kind {
                K::Nop5 => nop5,
                K::Nop | K::Push | K::Branch => emulated * wobble,
                _ => stepped * wobble,
            };
        }
        costs
    }

    /// The costs of a virtual machine and of bare metal give the same treatments.
    #[test]
    fn three_heaps() {
        for costs in [costs(235.0, 540.0, 18_200.0), costs(137.0, 316.0, 909.0), Costs::assumed()] {
            assert_eq!(costs.treatment(K::Nop5), Treatment::Call);
            for kind in [K::Nop, K::Push, K::Branch] {
                assert_eq!(costs.treatment(kind), Treatment::Emulated, "{kind:?} of {costs:?}");
            }
            for kind in [K::Endbr, K::Move, K::Memory, K::Arithmetic, K::Return, K::Other] {
                assert_eq!(
                    costs.treatment(kind),
                    Treatment::SingleStepped,
                    "{kind:?} of {costs:?}"
                );
            }
        }
    }

    /// Before Linux 6.18 the 5-byte nop is single-stepped; one that is emulated like other nops is no call.
    #[test]
    fn nop5_is_what_it_costs() {
        assert_eq!(costs(5_100.0, 500.0, 5_000.0).treatment(K::Nop5), Treatment::SingleStepped);
        assert_eq!(costs(505.0, 500.0, 5_000.0).treatment(K::Nop5), Treatment::Emulated);
    }

    /// A kernel that emulates more shows by the cost, whatever the kind.
    #[test]
    fn emulated_by_a_newer_kernel() {
        let mut costs = costs(235.0, 540.0, 18_200.0);
        costs.entry_ns[K::Arithmetic as usize] = 560.0;
        costs.entry_ns[K::Endbr as usize] = 530.0;
        assert_eq!(costs.treatment(K::Arithmetic), Treatment::Emulated);
        assert_eq!(costs.treatment(K::Endbr), Treatment::Emulated);
        assert_eq!(costs.treatment(K::Move), Treatment::SingleStepped);
    }

    /// Where all kinds cost the same, none is called single-stepped.
    #[test]
    fn one_heap() {
        let costs = costs(1_000.0, 1_000.0, 1_000.0);
        assert!(costs.treatments().iter().all(|found| *found == Treatment::Emulated));
    }

    /// One cost that a disturbance doubled does not move the others.
    #[test]
    fn an_outlier_moves_nothing() {
        let mut costs = costs(235.0, 540.0, 18_200.0);
        let undisturbed = costs.treatments();
        costs.entry_ns[K::Lea as usize] *= 2.0;
        assert_eq!(costs.treatments(), undisturbed);
        costs.entry_ns[K::Push as usize] *= 2.0;
        assert_eq!(costs.treatments(), undisturbed);
    }
}

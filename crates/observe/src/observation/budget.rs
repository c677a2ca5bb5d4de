//! An observation that costs its processes more than its budget.

use drainprof_report::facts::{ProbeFacts, Snapshot};

/// So many intervals in a row must be over the budget: one burst is no reason to give up.
const IN_A_ROW: u32 = 3;

/// What the probes may cost, and what they have cost so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// A share of one CPU.
    limit: f64,
    /// Time and CPU time at the last interval, seconds.
    before: (f64, f64),
    over: u32,
}

impl Budget {
    pub(super) const fn new(limit: f64) -> Self {
        Self { limit, before: (0.0, 0.0), over: 0 }
    }

    /// Adds an interval. If enough of them were over the budget: what this one cost, as a share of one CPU.
    pub(super) fn spent_of(&mut self, now: &Snapshot) -> Option<f64> {
        let probes = now.targets.iter().flat_map(|target| &target.probes);
        self.spent(now.window.as_secs_f64(), probes.map(ProbeFacts::cost_seconds).sum())
    }

    fn spent(&mut self, seconds: f64, cost: f64) -> Option<f64> {
        let before = std::mem::replace(&mut self.before, (seconds, cost));
        let passed = seconds - before.0;
        if passed <= 0.0 {
            return None;
        }
        let share = (cost - before.1) / passed;
        self.over = if share > self.limit { self.over + 1 } else { 0 };
        (self.over >= IN_A_ROW).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three intervals in a row must be over it, by what each has cost itself.
    #[test]
    fn three_in_a_row() {
        let mut budget = Budget::new(0.1);
        let costs = [0.2, 0.4, 0.41, 0.6, 0.8, 1.0];
        let spent: Vec<_> = costs
            .iter()
            .zip(1..)
            .map(|(cost, second)| budget.spent(f64::from(second), *cost))
            .collect();
        assert_eq!(&spent[..5], [None; 5], "the third was cheap");
        assert!((spent[5].unwrap() - 0.2).abs() < 1e-9);
        assert_eq!(budget.spent(6.0, 1.0), None, "no time has passed");
    }
}

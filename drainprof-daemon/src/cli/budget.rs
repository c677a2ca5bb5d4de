//! `--budget`: an observation that costs its processes too much ends by itself.
//!
//! Called by `drive` at each interval, with the report of that moment.

use drainprof_report::Report;

/// So many intervals in a row must be over the budget: one burst is no reason to give up.
const IN_A_ROW: u32 = 3;

/// What the probes may cost, and what they have cost so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// A share of one CPU.
    limit: f64,
    /// Seconds of CPU, at the time of the last interval.
    before: Option<(f64, f64)>,
    over: u32,
}

impl Budget {
    pub(super) const fn new(limit: f64) -> Self {
        Self { limit, before: None, over: 0 }
    }

    /// Takes notice of one interval. Where it was one too many over the budget: what the last has cost, as a share of
    /// one CPU.
    pub(super) fn spent(&mut self, report: &Report) -> Option<f64> {
        let cost = report.targets.iter().map(|target| target.cost.cpu_seconds).sum();
        let now = (report.window.seconds, cost);
        let (seconds, cost) = match self.before.replace(now) {
            Some(before) => (now.0 - before.0, now.1 - before.1),
            None => now,
        };
        if seconds <= 0.0 {
            return None;
        }
        let share = cost / seconds;
        self.over = if share > self.limit { self.over + 1 } else { 0 };
        (self.over >= IN_A_ROW).then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use drainprof_report::{Options, samples};

    use super::*;

    fn at(seconds: f64, cost: f64) -> Report {
        let mut report = Report::build(&samples::drain_snapshot(), &Options::default());
        report.window.seconds = seconds;
        for (index, target) in report.targets.iter_mut().enumerate() {
            target.cost.cpu_seconds = if index == 0 { cost } else { 0.0 };
        }
        report
    }

    /// Three intervals in a row must be over it, by what each has cost itself.
    #[test]
    fn three_in_a_row() {
        let mut budget = Budget::new(0.1);
        let costs = [0.2, 0.4, 0.41, 0.6, 0.8, 1.0];
        let spent: Vec<_> = costs
            .iter()
            .zip(1..)
            .map(|(cost, second)| budget.spent(&at(f64::from(second), *cost)))
            .collect();
        assert_eq!(&spent[..5], [None; 5], "the third was cheap");
        assert!((spent[5].unwrap() - 0.2).abs() < 1e-9);
        assert_eq!(budget.spent(&at(6.0, 1.0)), None, "no time has passed");
    }
}

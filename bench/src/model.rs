//! What benchmarks yield: tables of variants, and goals with what was reached.
//!
//! All samples are kept; medians, spreads and ratios are computed from them, per round, so that what
//! disturbs one round disturbs both sides of its ratio.

use serde::{Deserialize, Serialize};

use crate::stats::{Summary, median};

/// Name and version of the file format.
pub(crate) const SCHEMA: &str = "drainprof.bench/1";

/// Everything that was measured in one go, or put together with `--keep`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) schema: String,
    /// One short round of each: the figures mean little.
    pub(crate) quick: bool,
    pub(crate) machine: Machine,
    pub(crate) benchmarks: Vec<Benchmark>,
}

impl Results {
    /// An earlier result that may stand beside new ones, measured on `machine`.
    pub(crate) fn of(&self, name: &str, quick: bool, machine: &Machine) -> Option<Benchmark> {
        let fits = |benchmark: &&Benchmark| benchmark.name == name && self.quick == quick;
        let mut found = self.benchmarks.iter().find(fits)?.clone();
        let (there, here) = (found.elsewhere.take().unwrap_or(self.machine.name()), machine.name());
        found.elsewhere = (there != here).then_some(there);
        Some(found)
    }
}

/// Where it was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) is_virtual: bool,
    pub(crate) memory_gib: f64,
    /// Program and version, or that it is missing.
    pub(crate) versions: Vec<(String, String)>,
}

impl Machine {
    /// What distinguishes its figures from those of others.
    pub(crate) fn name(&self) -> String {
        let Self { kernel, cpus, cpu, .. } = self;
        format!("Linux {kernel}, {cpus} × {cpu}")
    }
}

/// One benchmark.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Benchmark {
    pub(crate) name: String,
    pub(crate) title: String,
    /// What is measured, and how.
    pub(crate) about: String,
    pub(crate) date: String,
    /// How long it took.
    pub(crate) seconds: f64,
    /// Load average of the machine when it began: what else ran.
    pub(crate) load: f64,
    /// Where it was measured, if not on the machine of the other results.
    #[serde(default)]
    pub(crate) elsewhere: Option<String>,
    pub(crate) tables: Vec<Table>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) notes: Vec<String>,
    /// Why there is no result, or only a part of it.
    pub(crate) failed: Option<String>,
}

/// What the last column of a table shows.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Compare {
    /// The difference from the baseline.
    Added,
    /// The quotient by the baseline.
    Ratio,
    /// Nothing.
    Nothing,
}

/// Variants that were measured in turn.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) compare: Compare,
    pub(crate) rows: Vec<Row>,
}

/// One variant.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Whether the others are compared with it; of several, with their mean in each round.
    pub(crate) baseline: bool,
    /// All samples, one list per round.
    pub(crate) samples: Vec<Vec<f64>>,
    /// Of the rounds' medians.
    pub(crate) summary: Option<Summary>,
    /// Why there are no samples.
    pub(crate) unavailable: Option<String>,
}

impl Row {
    /// What the others are compared with; one sample per round.
    pub(crate) fn baseline(name: &str, samples: &[f64]) -> Self {
        Self { baseline: true, ..Self::single(name, samples) }
    }

    /// A variant with its samples.
    pub(crate) fn new(name: &str, baseline: bool, samples: Vec<Vec<f64>>) -> Self {
        let mut row =
            Self { name: name.to_owned(), baseline, samples, summary: None, unavailable: None };
        row.summary = Summary::of(&row.rounds());
        row
    }

    /// One sample per round.
    pub(crate) fn single(name: &str, samples: &[f64]) -> Self {
        Self::new(name, false, samples.iter().map(|sample| vec![*sample]).collect())
    }

    /// A variant that could not be measured.
    pub(crate) fn unavailable(name: &str, why: &str) -> Self {
        let mut row = Self::new(name, false, Vec::new());
        row.unavailable = Some(why.to_owned());
        row
    }

    /// Adds a round.
    pub(crate) fn push(&mut self, samples: Vec<f64>) {
        self.samples.push(samples);
        self.summary = Summary::of(&self.rounds());
    }

    /// The median of each round.
    pub(crate) fn rounds(&self) -> Vec<f64> {
        self.samples.iter().filter_map(|round| median(round)).collect()
    }
}

impl Table {
    pub(crate) fn new(title: &str, unit: &str, compare: Compare, rows: Vec<Row>) -> Self {
        Self { title: title.to_owned(), unit: unit.to_owned(), compare, rows }
    }

    /// What the rows are compared with, in each round.
    fn baseline(&self) -> Vec<f64> {
        let rows: Vec<Vec<f64>> =
            self.rows.iter().filter(|row| row.baseline).map(Row::rounds).collect();
        let rounds = rows.iter().map(Vec::len).min().unwrap_or(0);
        (0..rounds)
            .map(|round| rows.iter().map(|row| row[round]).sum::<f64>() / rows.len() as f64)
            .collect()
    }

    /// A row against the baseline, round by round.
    pub(crate) fn compared(&self, name: &str) -> Vec<f64> {
        let Some(row) = self.rows.iter().find(|row| row.name == name) else { return Vec::new() };
        row.rounds()
            .iter()
            .zip(self.baseline())
            .map(|(value, base)| match self.compare {
                Compare::Added => value - base,
                Compare::Ratio => value / base,
                Compare::Nothing => *value,
            })
            .collect()
    }

    /// Why a row has no samples.
    pub(crate) fn why_not(&self, name: &str) -> Option<String> {
        self.rows.iter().find(|row| row.name == name)?.unavailable.clone()
    }

    /// What one row adds, as a multiple of what another adds, round by round.
    pub(crate) fn times(&self, name: &str, other: &str) -> Vec<f64> {
        self.compared(name).iter().zip(self.compared(other)).map(|(a, b)| a / b).collect()
    }
}

/// What the levels are to leave of the rate that the kernel's own part of their hits leaves.
pub(crate) const CLOSE_LEAVES: Bound = Bound::AtLeast(0.95);
pub(crate) const BOUNDARY_LEAVES: Bound = Bound::AtLeast(0.90);

impl Table {
    /// A goal of a row, as it compares with the baseline.
    pub(crate) fn goal(&self, what: &str, unit: &str, bound: Bound, row: &str) -> Goal {
        Goal::new(what, unit, bound, self.compared(row)).because(self.why_not(row))
    }

    /// A goal of what one row adds, as a multiple of what another adds.
    pub(crate) fn goal_of_times(&self, what: &str, bound: Bound, row: &str, other: &str) -> Goal {
        let why = self.why_not(row).or_else(|| self.why_not(other));
        Goal::new(what, "×", bound, self.times(row, other)).because(why)
    }

    /// The goals of a row of rates, `what`: it is stated beside bare, and has a bound beside that of empty programs at the
    /// same places.
    pub(crate) fn beside_floor(
        &self,
        what: &str,
        row: &str,
        floor: &str,
        bound: Bound,
    ) -> [Goal; 2] {
        [
            self.goal(&format!("{what} ÷ bare"), "×", Bound::Stated, row),
            self.goal_of_times(&format!("{what} ÷ with empty programs"), bound, row, floor),
        ]
    }
}

/// What is to be reached.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// It is only to be stated.
    Stated,
}

/// A goal, and what was reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) bound: Bound,
    /// One value per round.
    pub(crate) rounds: Vec<f64>,
    pub(crate) summary: Option<Summary>,
    /// Whether the median is within the bound; `None` where there is none, or no value.
    pub(crate) reached: Option<bool>,
    /// Why there is no value.
    pub(crate) unavailable: Option<String>,
}

impl Goal {
    /// Judges the median of one value per round.
    pub(crate) fn new(what: &str, unit: &str, bound: Bound, rounds: Vec<f64>) -> Self {
        let summary = Summary::of(&rounds);
        let reached = summary.and_then(|summary| match bound {
            Bound::AtMost(limit) => Some(summary.median <= limit),
            Bound::AtLeast(limit) => Some(summary.median >= limit),
            Bound::Stated => None,
        });
        let unavailable = summary.is_none().then(|| "not measured".to_owned());
        let (what, unit) = (what.to_owned(), unit.to_owned());
        Self { what, unit, bound, rounds, summary, reached, unavailable }
    }

    /// Says why there is no value, where there is none.
    pub(crate) fn because(mut self, why: Option<String>) -> Self {
        if self.summary.is_none() {
            self.unavailable = why.or(self.unavailable);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(compare: Compare) -> Table {
        let row = |name: &str, baseline, values: [f64; 2]| {
            Row::new(name, baseline, values.map(|value| vec![value]).to_vec())
        };
        let rows = vec![
            row("bare", true, [10.0, 20.0]),
            row("floor", false, [110.0, 120.0]),
            row("drainprof", false, [130.0, 145.0]),
            row("bare again", true, [10.0, 20.0]),
            Row::unavailable("peer", "not installed"),
        ];
        Table::new("", "ns", compare, rows)
    }

    /// A round is compared with its own baseline, not with that of all rounds.
    #[test]
    fn rounds_are_compared_by_themselves() {
        assert_eq!(table(Compare::Added).compared("drainprof"), [120.0, 125.0]);
        assert_eq!(table(Compare::Added).times("drainprof", "floor"), [1.2, 1.25]);
        assert_eq!(table(Compare::Ratio).compared("floor"), [11.0, 6.0]);
    }

    /// What was not measured is neither reached nor missed, and says why.
    #[test]
    fn a_missing_peer_is_no_result() {
        let table = table(Compare::Added);
        let goal = table.goal_of_times("x", Bound::AtMost(1.0), "peer", "drainprof");
        assert_eq!((goal.reached, goal.unavailable.as_deref()), (None, Some("not installed")));
    }

    /// Bounds are judged by the median, from both sides.
    #[test]
    fn bounds() {
        let reached = |bound| Goal::new("x", "", bound, vec![1.0, 1.2, 9.0]).reached;
        assert_eq!(reached(Bound::AtMost(1.25)), Some(true));
        assert_eq!(reached(Bound::AtMost(1.1)), Some(false));
        assert_eq!(reached(Bound::AtLeast(1.3)), Some(false));
        assert_eq!(reached(Bound::Stated), None);
    }
}

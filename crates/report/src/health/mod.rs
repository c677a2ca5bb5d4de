//! Losses as one value that the log, the reports, the metrics and `doctor` show alike.
//!
//! Turns the counters of [`drainprof_common::loss`] into lines with meaning and remedy and into the one
//! bit `complete`. It counts nothing itself and prints nothing. Callers: `report` (findings and
//! `complete`), `export` (the text forms), `cli` and `doctor`.

#[cfg(test)]
mod docs;

use std::collections::BTreeMap;

use drainprof_common::loss::{LOSSES, LossCounts, Severity};

/// What was lost, and whether the result is complete all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The counters that are not zero, in the order of the list.
    pub lines: Vec<Line>,
}

/// One counter that is not zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its name, as in JSON and metrics.
    pub name: String,
    /// How often it happened.
    pub count: u64,
    /// How it bears on the result.
    pub severity: Severity,
    /// What it means.
    pub meaning: &'static str,
    /// What the user can do about it.
    pub remedy: &'static str,
}

impl Line {
    /// Name, count, meaning and remedy in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { name, count, meaning, remedy, .. } = self;
        format!("{name} {count}: {} ({remedy})", meaning.trim_end_matches('.'))
    }
}

impl Health {
    /// From the counters themselves.
    #[must_use]
    pub fn from_counts(counts: &LossCounts) -> Self {
        let lines = LOSSES
            .iter()
            .zip(counts)
            .filter(|&(_, &count)| count > 0)
            .map(|(info, &count)| Line {
                name: info.name.to_owned(),
                count,
                severity: info.severity,
                meaning: info.meaning,
                remedy: info.remedy,
            })
            .collect();
        Self { lines }
    }

    /// From the counters of a report, by name.
    ///
    /// A name that this version does not know (the report is another version's) makes the result
    /// incomplete: what it stands for cannot be judged here.
    #[must_use]
    pub fn from_names(losses: &BTreeMap<String, Option<u64>>) -> Self {
        let mut counts: LossCounts = [0; LOSSES.len()];
        let mut unknown = Vec::new();
        for (name, count) in losses {
            // What is not known is no loss.
            let count = count.unwrap_or_default();
            if let Some(index) = LOSSES.iter().position(|info| info.name == name) {
                counts[index] = count;
            } else if count > 0 {
                unknown.push(Line {
                    name: name.clone(),
                    count,
                    severity: Severity::Incomplete,
                    meaning: "A loss that this version of drainprof does not know.",
                    remedy: "read the report with the version that wrote it",
                });
            }
        }
        let mut health = Self::from_counts(&counts);
        health.lines.extend(unknown);
        health
    }

    /// Whether nothing that the counts need was lost.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.incomplete().next().is_none()
    }

    /// The lines that make the result incomplete.
    pub fn incomplete(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.severity == Severity::Incomplete)
    }
}

/// All counters by name, the zeros included: the form in which reports carry them.
#[must_use]
pub fn by_name(counts: &LossCounts) -> BTreeMap<String, Option<u64>> {
    LOSSES.iter().zip(counts).map(|(info, &count)| (info.name.to_owned(), Some(count))).collect()
}

#[cfg(test)]
mod tests {
    use drainprof_common::loss::Loss;

    use super::*;

    fn counts(losses: &[(Loss, u64)]) -> LossCounts {
        let mut counts = [0; LOSSES.len()];
        for &(loss, count) in losses {
            counts[loss as usize] = count;
        }
        counts
    }

    /// Nothing lost is complete and silent; a notice is reported but leaves the result complete.
    #[test]
    fn notices_do_not_make_incomplete() {
        assert!(Health::from_counts(&counts(&[])).complete());
        assert_eq!(Health::from_counts(&counts(&[])).lines, []);
        let health = Health::from_counts(&counts(&[(Loss::UnmatchedFree, 7)]));
        assert!(health.complete());
        assert_eq!((health.lines[0].name.as_str(), health.lines[0].count), ("unmatched_frees", 7));
    }

    /// One event of a kind that the counts need is enough to make the result incomplete.
    #[test]
    fn one_loss_makes_incomplete() {
        for info in LOSSES.iter().filter(|info| info.severity == Severity::Incomplete) {
            assert!(!Health::from_counts(&counts(&[(info.loss, 1)])).complete(), "{}", info.name);
        }
    }

    /// Names and counters say the same, zeros are carried, and an unknown name is not believed harmless.
    #[test]
    fn names_round_trip() {
        let counts = counts(&[(Loss::RingFull, 3), (Loss::UnmatchedClose, 1)]);
        let mut names = by_name(&counts);
        assert_eq!(names.len(), LOSSES.len());
        assert_eq!(Health::from_names(&names), Health::from_counts(&counts));
        names.insert("from_the_future".to_owned(), Some(0));
        assert_eq!(Health::from_names(&names), Health::from_counts(&counts));
        let future = BTreeMap::from([("from_the_future".to_owned(), Some(1))]);
        assert!(!Health::from_names(&future).complete());
    }
}

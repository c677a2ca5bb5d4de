//! What a tracer has counted, held against what the target did.

use serde_json::Value;

use crate::worker::Counts;

/// What a tracer says that it has seen.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) counts: Counts,
    /// Losses, of a report that is not complete.
    pub(crate) losses: Option<String>,
    /// What the program does between its batches is counted as well: only too little is wrong.
    pub(crate) besides: bool,
}

impl Seen {
    /// From drainprof's report.
    pub(crate) fn of_report(report: &Value) -> Self {
        let sum = |key: &str| {
            let targets = report["targets"].as_array().into_iter().flatten();
            let allocators = targets.filter_map(|target| target["allocators"].as_array()).flatten();
            let found: Vec<f64> =
                allocators.filter_map(|allocator| allocator.pointer(key)?.as_f64()).collect();
            (!found.is_empty()).then(|| found.iter().sum())
        };
        let losses = report["losses"].as_object().into_iter().flatten();
        let losses: Vec<String> = losses
            .filter(|(_, count)| count.as_u64().unwrap_or(0) > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        Self {
            counts: Counts {
                allocated: sum("/objects/allocated"),
                opened: sum("/granules/opened"),
            },
            losses: (report["complete"] != true).then(|| losses.join(", ")),
            besides: false,
        }
    }

    /// From the maps that bpftrace prints at its end.
    pub(crate) fn of_bpftrace(printed: &[String]) -> Self {
        let map = |name: &str| {
            let line = printed.iter().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(": ")?.parse().ok()
        };
        let counts = Counts { allocated: map("@allocated"), opened: map("@opened") };
        Self { counts, losses: None, besides: false }
    }

    /// What is wrong with it, given what there was to see.
    pub(crate) fn wrong(&self, truth: Counts) -> Vec<String> {
        let mut wrong: Vec<String> = self
            .losses
            .iter()
            .map(|losses| format!("the report is not complete: {losses}"))
            .collect();
        let Counts { allocated, opened } = self.counts;
        // Where objects are not followed none were seen; where they are, they are what matters.
        let pairs = [("objects", allocated, truth.allocated), ("granules", opened, truth.opened)];
        let compared = pairs.into_iter().find(|(_, seen, _)| seen.is_some_and(|seen| seen > 0.0));
        if let Some((what, Some(seen), Some(done))) = compared
            && (done - seen > 0.5 || (seen - done > 0.5 && !self.besides))
        {
            wrong.push(format!("it counted {seen:.0} of {done:.0} {what}"));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DONE: Counts = Counts { allocated: Some(100.0), opened: Some(4.0) };

    /// Counts of reports and of bpftrace's maps are held against the truth; one event less is reported.
    #[test]
    fn counts_are_compared() {
        let report = |allocated, opened| {
            json!({"complete": true, "losses": {}, "targets": [{"allocators": [
                {"objects": {"allocated": allocated}, "granules": {"opened": opened}}]}]})
        };
        assert!(Seen::of_report(&report(100, 0)).wrong(DONE).is_empty());
        assert!(Seen::of_report(&report(0, 4)).wrong(DONE).is_empty());
        assert_eq!(Seen::of_report(&report(99, 4)).wrong(DONE), ["it counted 99 of 100 objects"]);
        let printed = |text: &str| Seen::of_bpftrace(&["ready".to_owned(), text.to_owned()]);
        assert!(printed("@allocated: 100").wrong(DONE).is_empty());
        assert_eq!(printed("@opened: 3").wrong(DONE), ["it counted 3 of 4 granules"]);
    }

    /// Where a program does some of it between its batches too, more is not wrong, and less is.
    #[test]
    fn more_may_be_besides() {
        let seen = |allocated: f64| {
            let counts = Counts { allocated: Some(allocated), opened: None };
            Seen { counts, losses: None, besides: true }
        };
        assert!(seen(107.0).wrong(DONE).is_empty());
        assert_eq!(seen(99.0).wrong(DONE), ["it counted 99 of 100 objects"]);
    }

    /// A figure that was bought with losses says so.
    #[test]
    fn losses_are_told() {
        let report = json!({"complete": false, "losses": {"object_map_full": 7, "ring_full": 0}});
        assert_eq!(
            Seen::of_report(&report).wrong(DONE),
            ["the report is not complete: object_map_full 7"]
        );
    }
}

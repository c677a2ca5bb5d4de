//! What changed between two saved reports: a [`Diff`], `drainprof.diff/1`.
//!
//! Two runs have other addresses, process ids and instances, and perhaps another build. So processes are
//! matched by executable and name, allocators by profile (all instances and worker processes together), and
//! call paths by the names in them. Counts of windows that differ in length are compared as rates. Pure;
//! `cli` reads the reports, `export::diff` writes the result.

mod allocators;
mod group;
mod growth;
mod matching;
mod model;
#[cfg(test)]
mod schema_tests;
mod sites;
mod sums;
#[cfg(test)]
mod tests;

pub use model::{
    AllocatorDiff, Change, DIFF_SCHEMA, Diff, DiffFrame, GrowthDiff, Presence, Side, SiteDiff,
    Status,
};

use crate::{
    model::Report,
    verdict::{Verdict, verdict},
};

impl Diff {
    /// Compares two reports; the names are those of their files, for the heading.
    #[must_use]
    pub fn of(before: (&str, &Report), after: (&str, &Report)) -> Self {
        let sides = [side(before.0, before.1), side(after.0, after.1)];
        let allocators = matching::pairs(group::groups(before.1), group::groups(after.1))
            .into_iter()
            .map(|pair| allocators::compare(&pair, [&sides[0], &sides[1]]))
            .collect::<Vec<_>>();
        let notes = notes(&sides, &allocators);
        let (before_report, after_report) = (before.1, after.1);
        let [before, after] = sides;
        Self {
            schema: DIFF_SCHEMA.to_owned(),
            complete: before.complete && after.complete,
            before,
            after,
            notes,
            allocators,
            growth: growth::compare(before_report, after_report),
        }
    }
}

fn side(file: &str, report: &Report) -> Side {
    Side {
        file: file.to_owned(),
        version: report.tool.version.clone(),
        kernel: report.host.kernel.clone(),
        complete: verdict(report, None) == Verdict::Ok,
        window_seconds: report.window.seconds,
        observed_seconds: report.window.observed(),
        processes: report.targets.len() as u64,
    }
}

/// What stands in the way of a fair comparison, in sentences.
fn notes(sides: &[Side; 2], allocators: &[AllocatorDiff]) -> Vec<String> {
    let mut notes = Vec::new();
    for (which, side) in ["before", "after"].into_iter().zip(sides) {
        if !side.complete {
            notes.push(format!(
                "{which} is incomplete: something that its counts need was lost, so differences may \
                 come from that"
            ));
        }
    }
    let [a, b] = [sides[0].observed_seconds, sides[1].observed_seconds];
    if a > 0.0 && b > 0.0 && (a / b).max(b / a) > 1.05 {
        notes.push(format!(
            "the windows differ in length ({} and {}): counts are compared as rates; what is retained \
             or live is not, it may grow with time",
            super::units::duration(a),
            super::units::duration(b)
        ));
    }
    if !(a > 0.0 && b > 0.0) {
        notes.push("a window is empty, so there are no rates to compare".to_owned());
    }
    for allocator in allocators {
        let about = format!("{} of {}", allocator.profile, allocator.comm);
        if allocator.presence != Presence::Both {
            continue;
        }
        if allocator.level.before != allocator.level.after {
            notes.push(format!(
                "{about} was observed at different levels: counts that only one level has are not \
                 compared"
            ));
        }
        if allocator.sampled {
            notes.push(format!(
                "{about} was sampled: its counts are estimates, those of the sample multiplied"
            ));
        }
        let cut = [
            ("before", allocator.sites_listed.before, allocator.sites_total.before),
            ("after", allocator.sites_listed.after, allocator.sites_total.after),
        ];
        for (which, listed, total) in cut {
            if let (Some(listed), Some(total)) = (listed, total)
                && listed < total
            {
                notes.push(format!(
                    "{about}: {which} lists {listed} of {total} sites, so what is missing there may \
                     only rank lower; save reports with a --top of at least {total}"
                ));
            }
        }
        if allocator.sites_listed.before.is_some() != allocator.sites_listed.after.is_some() {
            notes.push(format!("{about}: only one report has sites, so none are compared"));
        }
    }
    notes
}

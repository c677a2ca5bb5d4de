//! The filter of growth by time: what call stacks have added to resident memory between two times.
//!
//! So a leak, which continues, stands apart from what a start or a cache has taken once.

use std::cmp::Reverse;

use super::{Left, Range, Untold};
use crate::{GrowthPath, Report, SelectedGrowth, units};

/// The filter's option.
const OPTION: &str = "--grown-between";

/// Whether a report has what is asked for.
pub(super) fn check([from, _]: Range, report: &Report) -> Result<(), Untold> {
    let (from, covered) = (from.as_secs_f64(), report.window.seconds);
    if report.window.duty.is_some() {
        return Err(Untold::Duty);
    }
    if from > covered {
        return Err(Untold::Beyond(OPTION, units::duration(from), units::duration(covered)));
    }
    let has_growth = report.targets.iter().any(|target| target.growth.is_some());
    has_growth.then_some(()).ok_or(Untold::NoGrowth)
}

/// Keeps the call stacks that have added memory between the readings that enclose this time, the first `top` of them.
pub(super) fn apply([from, to]: Range, report: &mut Report, top: usize) -> Left {
    let mut left = Left::default();
    for growth in report.targets.iter_mut().filter_map(|target| target.growth.as_mut()) {
        for path in &mut growth.paths {
            path.selected = between(path, from.as_secs_f64(), to.as_secs_f64());
        }
        growth.paths.sort_by_key(|path| Reverse(path.selected.map(|selected| selected.bytes)));
        let listed = growth.paths.len() as u64;
        left.retain(&mut growth.paths, top, |path| {
            path.selected.is_some_and(|selected| selected.bytes > 0)
        });
        left.before = left.before.saturating_add(growth.paths_total.saturating_sub(listed));
    }
    left
}

/// `None` where nothing is known of the time before.
fn between(path: &GrowthPath, from: f64, to: f64) -> Option<SelectedGrowth> {
    let first = path.over_time.iter().rev().find(|point| point.0 <= from);
    // At the attach nothing was added, and the series of stacks that were not left out begin there.
    let first = first.or(path.over_time.first().filter(|point| point.1 == 0))?;
    let last = path.over_time.iter().find(|point| point.0 >= to).or(path.over_time.last())?;
    Some(SelectedGrowth {
        bytes: last.1.saturating_sub(first.1),
        from_seconds: first.0,
        to_seconds: last.0,
    })
}

/// The option as it was given.
pub(super) fn words([from, to]: Range) -> String {
    format!("{OPTION} {}s,{}s", from.as_secs_f64(), to.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::{Filter, Wanted},
        *,
    };
    use crate::samples;

    /// A leak, a start that took memory once, a cache that gave memory back, and a stack without a past.
    fn report() -> Report {
        let mut report = Report::build(&samples::growth_snapshot(), &crate::Options::default());
        report.window.seconds = 10.0;
        let growth = report.targets[0].growth.as_mut().unwrap();
        let path = growth.paths[0].clone();
        let shapes: [fn(i64) -> i64; 4] =
            [|at| 4096 * at, |_| 1 << 20, |at| 8192 * (10 - at), |_| 1 << 30];
        growth.paths = shapes
            .iter()
            .enumerate()
            .map(|(index, shape)| {
                let mut over_time: Vec<(f64, i64)> =
                    (1..=10).map(|at| (f64::from(at), shape(at.into()))).collect();
                if index < 3 {
                    over_time.insert(0, (0.0, 0));
                }
                GrowthPath { over_time, ..path.clone() }
            })
            .collect();
        growth.paths_total = 4;
        report
    }

    fn filtered(from: f64, to: f64) -> (Vec<SelectedGrowth>, Report) {
        let mut report = report();
        let range = Some([from, to].map(Duration::from_secs_f64));
        Filter::new(Wanted { grown_between: range, ..Wanted::default() }).apply(&mut report);
        let paths = &report.targets[0].growth.as_ref().unwrap().paths;
        (paths.iter().map(|path| path.selected.unwrap()).collect(), report)
    }

    /// Only what still grows is left of the second half; of the first seconds, what took most comes first. Readings
    /// enclose the time asked for.
    #[test]
    fn what_still_grows() {
        let (late, report) = filtered(5.5, 9.2);
        let leak = SelectedGrowth { bytes: 5 * 4096, from_seconds: 5.0, to_seconds: 10.0 };
        assert_eq!(late, [leak]);
        let said = &report.findings.last().unwrap().message;
        assert!(
            said.starts_with("1 of 4 growing call stacks are shown (--grown-between 5.5s,9.2s)"),
            "{said}"
        );
        let (early, _) = filtered(0.0, 2.0);
        let bytes: Vec<i64> = early.iter().map(|selected| selected.bytes).collect();
        assert_eq!(bytes, [1 << 20, 8192 * 8, 8192]);
    }

    /// Pictures and text have what was added in that time.
    #[test]
    fn pictures() {
        let (_, report) = filtered(5.0, 10.0);
        let style = crate::export::Style {
            weight: crate::export::PinWeight::Faults,
            ..crate::export::Style::default()
        };
        let written = |name: &str| {
            let mut out = Vec::new();
            crate::export::format(name)
                .unwrap()
                .exporter
                .report(&report, &style, &mut out)
                .unwrap();
            String::from_utf8(out).unwrap()
        };
        let folded = written("folded");
        assert!(folded.lines().count() == 1 && folded.ends_with(" 20480\n"), "{folded}");
        assert!(written("flamegraph").contains("only what was added from 5.00 s to 10.0 s"));
        assert!(written("text").contains("+20.0 KiB"), "{}", written("text"));
    }

    /// What a report does not have is refused.
    #[test]
    fn refused() {
        let range = |from, to| [from, to].map(Duration::from_secs_f64);
        let mut bare = report();
        assert!(check(range(1.0, 20.0), &bare).is_ok());
        assert!(matches!(check(range(11.0, 12.0), &bare), Err(Untold::Beyond(..))));
        bare.targets[0].growth = None;
        assert_eq!(check(range(1.0, 2.0), &bare), Err(Untold::NoGrowth));
    }
}

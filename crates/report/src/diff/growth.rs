//! What memory grew by in two reports, by call path.
//!
//! Processes are taken together: a path is known by its functions, and what it did in all of them is one number. What
//! takes memory away on balance is reported with its sign.

use std::collections::BTreeMap;

use super::{
    model::{Change, DiffFrame, GrowthDiff},
    sites::functions,
};
use crate::model::{Report, growth::GrowthPath};

/// What a path has done.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    rss: i64,
    heap: i64,
    outstanding: u64,
}

/// Compares the growth of two reports; those that differ most come first.
pub(super) fn compare(before: &Report, after: &Report) -> Vec<GrowthDiff> {
    let mut paths: BTreeMap<Vec<DiffFrame>, [Sum; 2]> = BTreeMap::new();
    for (side, report) in [before, after].into_iter().enumerate() {
        let grown = report.targets.iter().filter_map(|target| target.growth.as_ref());
        for path in grown.flat_map(|growth| &growth.paths) {
            add(&mut paths.entry(names(path)).or_default()[side], path);
        }
    }
    let reported = before.targets.iter().any(|target| target.growth.is_some());
    let reported = [reported, after.targets.iter().any(|target| target.growth.is_some())];
    let mut all: Vec<GrowthDiff> = paths
        .into_iter()
        .map(|(frames, sums)| GrowthDiff {
            rss_bytes: change(reported, sums.map(|sum| sum.rss)),
            heap_bytes: change(reported, sums.map(|sum| sum.heap)),
            outstanding_bytes: change(reported, sums.map(|sum| sum.outstanding)),
            frames,
        })
        .collect();
    all.sort_by_key(|path| std::cmp::Reverse(differs(path)));
    all
}

fn add(sum: &mut Sum, path: &GrowthPath) {
    sum.rss = sum.rss.saturating_add(path.rss.resident());
    sum.heap = sum.heap.saturating_add(path.heap_bytes);
    sum.outstanding = sum.outstanding.saturating_add(path.outstanding_bytes);
}

fn names(path: &GrowthPath) -> Vec<DiffFrame> {
    path.frames.iter().flat_map(|frame| functions(&frame.frame)).collect()
}

fn change<T>(reported: [bool; 2], [before, after]: [T; 2]) -> Change<T> {
    Change { before: reported[0].then_some(before), after: reported[1].then_some(after) }
}

fn differs(path: &GrowthDiff) -> u64 {
    let signed = |change: &Change<i64>| {
        change.before.unwrap_or_default().abs_diff(change.after.unwrap_or_default())
    };
    let mapped = &path.outstanding_bytes;
    let mapped = mapped.before.unwrap_or_default().abs_diff(mapped.after.unwrap_or_default());
    signed(&path.rss_bytes).max(signed(&path.heap_bytes)).max(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByKind, Frame, MemoryGrowth, Options, SiteFrame, samples};

    fn report(paths: &[(&str, i64, u64)]) -> Report {
        let mut report = Report::build(&samples::drain_snapshot(), &Options::default());
        let path = |&(function, anon_bytes, outstanding_bytes): &(&str, i64, u64)| GrowthPath {
            rss: ByKind { anon_bytes, ..ByKind::default() },
            outstanding_bytes,
            frames: vec![SiteFrame {
                address: None,
                frame: Frame { function: Some(function.to_owned()), ..Frame::default() },
            }],
            ..GrowthPath::default()
        };
        report.targets[0].growth = Some(MemoryGrowth {
            paths: paths.iter().map(path).collect(),
            ..MemoryGrowth::default()
        });
        report
    }

    /// Paths are joined by name, and what differs most comes first; a path of one report has 0 in the other.
    #[test]
    fn joined_by_name() {
        let before = report(&[("a", 100, 0), ("b", 5000, 0)]);
        let after = report(&[("b", 5500, 0), ("a", 90, 8000), ("a", 10, 0)]);
        let found = compare(&before, &after);
        let names: Vec<_> =
            found.iter().map(|path| path.frames[0].function.clone().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(found[0].rss_bytes, Change { before: Some(100), after: Some(100) });
        assert_eq!(found[0].outstanding_bytes, Change { before: Some(0), after: Some(8000) });
    }

    /// Where a report has no growth, nothing is known of its paths.
    #[test]
    fn without_growth() {
        let without = Report::build(&samples::drain_snapshot(), &Options::default());
        assert_eq!(compare(&without, &without), []);
        let found = compare(&without, &report(&[("a", 1, 0)]));
        assert_eq!(found[0].rss_bytes, Change { before: None, after: Some(1) });
    }
}

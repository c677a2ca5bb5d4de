//! What one cycle reads: the counts of all kernel sides, and the reports made from them.

use drainprof_report::{
    self as report, Report, Target,
    facts::{Snapshot, TargetFacts},
};

/// A target: its facts, and its part of the report.
pub(super) type Seen<'a> = (&'a TargetFacts, &'a Target);

/// Identifies an observed target: its kernel side, and its number there.
pub(super) type TargetId = (u64, u32);

/// While targets run, so many events may happen between the first and the last counter that is read.
const EVENTS_BETWEEN_READINGS: u64 = u64::MAX / 4;

/// The counts and reports of one moment.
pub(super) struct View(Vec<(u64, Snapshot, Report)>);

impl View {
    /// Makes the reports. `kernel` is the kernel's release.
    pub(super) fn of(snapshots: Vec<(u64, Snapshot)>, kernel: &str) -> Self {
        let options = report::Options {
            slack: EVENTS_BETWEEN_READINGS,
            kernel: kernel.to_owned(),
            ..Default::default()
        };
        let with_report = |(id, snapshot)| {
            let report = Report::build(&snapshot, &options);
            (id, snapshot, report)
        };
        Self(snapshots.into_iter().map(with_report).collect())
    }

    /// All targets.
    pub(super) fn targets(&self) -> impl Iterator<Item = (TargetId, Seen<'_>)> {
        self.0.iter().flat_map(|(id, snapshot, report)| {
            let seen = snapshot.targets.iter().zip(&report.targets);
            seen.map(|(facts, target)| ((*id, target.target), (facts, target)))
        })
    }

    /// The targets that are observed on.
    pub(super) fn running(&self) -> impl Iterator<Item = (TargetId, Seen<'_>)> {
        self.targets().filter(|(_, (_, target))| target.ended.is_none())
    }

    /// The reports, by kernel side.
    pub(super) fn reports(&self) -> impl Iterator<Item = (u64, &Report)> {
        self.0.iter().map(|(id, _, report)| (*id, report))
    }

    /// The report of one running process.
    pub(super) fn report_of(&self, pid: u32) -> Option<Report> {
        self.0.iter().find_map(|(_, _, report)| {
            let is_it = |target: &&Target| target.pid == pid && target.ended.is_none();
            let target = report.targets.iter().find(is_it)?;
            Some(Report { targets: vec![target.clone()], ..report.clone() })
        })
    }
}

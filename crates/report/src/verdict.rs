//! What a report means to a script: the exit code.

use super::Report;
use crate::health::Health;

/// The judgement on a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Complete, and no DSR below the threshold.
    Ok,
    /// Complete, and the DSR of at least one allocator is below the threshold.
    BelowThreshold,
    /// It cannot be judged: something was lost, or a threshold was asked for and no allocator has a DSR, or
    /// the sample is too small to tell on which side of the threshold one is.
    Incomplete,
}

impl Verdict {
    /// The exit code.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::BelowThreshold => 3,
            Self::Incomplete => 5,
        }
    }
}

/// Judges a report, against a threshold if there is one.
///
/// Incomplete wins over below: a DSR that was computed from part of the closes proves nothing in
/// either direction, and a script must not take 3 for a measured value. With a threshold but without a
/// single DSR there is nothing to compare, so the answer is not "ok" either.
///
/// Where granules are sampled, a DSR is below if its whole confidence interval is, and not below if no
/// part of it is. A threshold within the interval is not decided: only a larger sample could tell.
#[must_use]
pub fn verdict(report: &Report, fail_under: Option<f64>) -> Verdict {
    if !report.complete || !Health::from_names(&report.losses).complete() {
        return Verdict::Incomplete;
    }
    let Some(threshold) = fail_under else { return Verdict::Ok };
    // From where to where each DSR may be.
    let mut ranges = report
        .targets
        .iter()
        .flat_map(|target| &target.allocators)
        .filter_map(|allocator| Some(allocator.dsr_interval.unwrap_or([allocator.dsr?; 2])))
        .peekable();
    if ranges.peek().is_none() {
        return Verdict::Incomplete;
    }
    let mut verdict = Verdict::Ok;
    for [low, high] in ranges {
        if high < threshold {
            return Verdict::BelowThreshold;
        }
        if low < threshold {
            verdict = Verdict::Incomplete;
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use drainprof_common::loss::Loss;

    use super::{
        super::{Options, samples},
        *,
    };

    /// The threshold itself is good enough, below it is 3, and nobody fails without being asked.
    #[test]
    fn threshold_is_inclusive() {
        let report = Report::build(&samples::drain_snapshot(), &Options::default());
        assert_eq!(report.targets[0].allocators[0].dsr, Some(0.7526));
        assert_eq!(verdict(&report, None), Verdict::Ok);
        assert_eq!(verdict(&report, Some(0.7526)), Verdict::Ok);
        assert_eq!(verdict(&report, Some(0.76)), Verdict::BelowThreshold);
        assert_eq!(verdict(&report, Some(0.76)).exit_code(), 3);
    }

    /// A loss makes the result 5, even below the threshold.
    #[test]
    fn incomplete_wins() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.losses[Loss::GranuleMapFull as usize] = 1;
        let report = Report::build(&snapshot, &Options::default());
        assert_eq!(verdict(&report, Some(0.99)), Verdict::Incomplete);
        assert_eq!(verdict(&report, None).exit_code(), 5);
    }

    /// A sample decides only what lies outside its interval; another allocator that is surely below does
    /// not wait for it.
    #[test]
    fn samples_decide_outside_their_interval() {
        let mut snapshot = samples::sampled_snapshot();
        let report = Report::build(&snapshot, &Options::default());
        let [low, high] = report.targets[0].allocators[0].dsr_interval.unwrap();
        assert!(low < 0.7526 && 0.7526 < high);
        assert_eq!(verdict(&report, None), Verdict::Ok);
        assert_eq!(verdict(&report, Some(low)), Verdict::Ok);
        assert_eq!(verdict(&report, Some(0.7526)), Verdict::Incomplete);
        assert_eq!(verdict(&report, Some(high + 1e-9)), Verdict::BelowThreshold);
        let mut other = snapshot.targets[0].allocators[0].clone();
        (other.totals.drainable, other.totals.pinned) = (0, 10_000);
        snapshot.targets[0].allocators.push(other);
        let report = Report::build(&snapshot, &Options::default());
        assert_eq!(verdict(&report, Some(0.7526)), Verdict::BelowThreshold);
    }

    /// A threshold with nothing to compare is not a pass.
    #[test]
    fn no_data_is_no_pass() {
        let report = Report::build(&samples::bulk_snapshot(), &Options::default());
        assert_eq!(verdict(&report, None), Verdict::Ok);
        assert_eq!(verdict(&report, Some(0.5)), Verdict::Incomplete);
    }
}

//! What a report means to a script: the exit code.

use crate::{health::Health, model::Report};

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
#[must_use]
pub fn verdict(report: &Report, fail_under: Option<f64>) -> Verdict {
    if !report.complete || !Health::from_names(&report.losses).complete() {
        return Verdict::Incomplete;
    }
    let Some(threshold) = fail_under else { return Verdict::Ok };
    let allocators = report.targets.iter().flat_map(|target| &target.allocators);
    match allocators.filter_map(|allocator| allocator.dsr).reduce(f64::min) {
        None => Verdict::Incomplete,
        Some(least) if least < threshold => Verdict::BelowThreshold,
        Some(_) => Verdict::Ok,
    }
}

#[cfg(test)]
mod tests {
    use drainprof_common::loss::Loss;

    use super::{
        super::{Options, samples},
        *,
    };

    /// The threshold itself is good enough, below it is 3, and without a threshold no report fails.
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

    /// The worst allocator decides.
    #[test]
    fn the_worst_decides() {
        let mut snapshot = samples::drain_snapshot();
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

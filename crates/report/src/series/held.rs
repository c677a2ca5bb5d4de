//! What an allocator instance holds back, over time: R(t). The observer fills one per instance.

use drainprof_profile::{Key, Kind, Profile, Role};

use super::points::{Point, TimeSeries};

/// What is held back at one moment: of kind `drain` the granules that are closed, pinned and not yet
/// drained; of the other kinds those that are open, since what leaks there is never closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldPoint {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// Granules held back.
    pub granules: u64,
    /// Their bytes; 0 where unknown (see [`held_bytes`]).
    pub bytes: u64,
    /// Granules so far whose open was not seen. Of the kinds that count open granules, these appear in
    /// the curve when they are first used, though they were there before.
    pub appeared: u64,
}

impl Point for HeldPoint {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// R(t) of one allocator instance, or what a site holds of it.
pub type HeldSeries = TimeSeries<HeldPoint>;

/// Where the bytes of a curve's granules come from, or would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBytes {
    /// The counter of retained bytes (kind `drain`).
    Counter,
    /// All granules are of this size.
    Each(u64),
    /// Each granule's own, which its open names.
    Own,
    /// They are not known before the granule is closed.
    Unknown,
}

/// Where a profile's curve has its bytes from.
#[must_use]
pub fn held_bytes(profile: &Profile) -> HeldBytes {
    let reported = |at_open: bool| {
        let mut probes = profile.probes.iter().filter(|probe| probe.has(Key::Bytes));
        probes.any(|probe| !at_open || probe.role == Role::Open)
    };
    match (profile.kind, profile.granule_bytes) {
        (Kind::Drain, size) if size.is_some() || reported(false) => HeldBytes::Counter,
        (Kind::Bulk | Kind::Slab, Some(size)) => HeldBytes::Each(size),
        (Kind::Bulk | Kind::Slab, None) if reported(true) => HeldBytes::Own,
        _ => HeldBytes::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::points::MOST_POINTS, *};
    use crate::samples;

    fn point(at_ns: u64) -> HeldPoint {
        HeldPoint { at_ns, granules: at_ns / 7, bytes: at_ns, appeared: 0 }
    }

    /// A point of the newest's time corrects it, an older one is left out.
    #[test]
    fn corrected_not_reordered() {
        let mut curve = HeldSeries::default();
        assert!(curve.is_empty() && curve.due_ns() == 0);
        curve.add(point(1_000));
        curve.add(HeldPoint { granules: 5, ..point(1_000) });
        curve.add(point(999));
        assert_eq!(curve.points().map(|point| point.granules).collect::<Vec<_>>(), [5]);
        curve.add(point(2_000));
        curve.add(HeldPoint { granules: 6, ..point(2_000) });
        let all: Vec<_> = curve.points().collect();
        assert_eq!((all.len(), all[1].granules, curve.newest()), (2, 6, Some(all[1])));
        assert_eq!(curve.due_ns(), 1_000 + 50_000_000);
    }

    /// Bytes come from where the profile and the kind have them: those of open granules are known only
    /// if all are equal or the open names them.
    #[test]
    fn bytes_have_a_source() {
        let mut profile = (*samples::bulk().profile).clone();
        assert_eq!(held_bytes(&profile), HeldBytes::Each(4096));
        profile.granule_bytes = None;
        assert_eq!(held_bytes(&profile), HeldBytes::Unknown);
        let close = profile.probes.iter().position(|probe| probe.role == Role::Close).unwrap();
        profile.probes[close].expressions.insert(Key::Bytes, drainprof_profile::Expr::Arg(1));
        assert_eq!(held_bytes(&profile), HeldBytes::Unknown, "told too late");
        profile.kind = Kind::Drain;
        assert_eq!(held_bytes(&profile), HeldBytes::Counter);
        profile.kind = Kind::Slab;
        profile.probes[0].expressions.insert(Key::Bytes, drainprof_profile::Expr::Arg(1));
        assert_eq!(held_bytes(&profile), HeldBytes::Own);
    }

    proptest! {
        /// Whatever is added: memory is bounded, the first and the newest point are there, times increase,
        /// and every point is one that was added.
        #[test]
        fn bounded_and_ordered(
            steps in prop::collection::vec(0u64..400_000_000, 1..3_000),
            first in 0u64..1 << 40,
            most in 1..=MOST_POINTS,
        ) {
            let mut curve = HeldSeries::of_at_most(most);
            let mut at = first;
            let mut times = vec![];
            for step in steps {
                at += step;
                curve.add(point(at));
                times.push(at);
                prop_assert!(curve.kept.points().len() <= most);
            }
            let reported: Vec<u64> = curve.points().map(|point| point.at_ns).collect();
            prop_assert_eq!(reported[0], times[0]);
            prop_assert_eq!(reported.last(), times.last());
            prop_assert!(reported.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(reported.iter().all(|at| times.binary_search(at).is_ok()));
            prop_assert!(curve.points().all(|reported| reported == point(reported.at_ns)));
        }
    }

    /// However long it is fed at an even pace, from half to all of the points are in use.
    #[test]
    fn even_pace_fills_half() {
        let mut curve = HeldSeries::default();
        for tick in 0..100_000u64 {
            curve.add(point(tick * 50_000_000));
            if tick > 512 {
                assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&curve.kept.points().len()));
            }
        }
        let points: Vec<_> =
            curve.kept.points().windows(2).map(|two| two[1].at_ns - two[0].at_ns).collect();
        assert!(points.windows(2).all(|two| two[0] == two[1]), "evenly spaced");
    }
}

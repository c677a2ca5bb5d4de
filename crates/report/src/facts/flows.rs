//! How much was allocated and freed up to a moment, kept for a few moments of the past: so that a report can
//! distinguish what comes and goes from what continues.
//!
//! Pure: the caller says when, and hands over the counts. Used by the finding
//! `unmatched_frees_high`.

use std::{collections::BTreeMap, time::Duration};

use drainprof_common::maps::Totals;

use crate::series::{Point, Thinned};

/// Moments that are kept: spread over all that was observed, so that the middle is never far from one.
const MOMENTS: usize = 64;
/// Between the first moments.
const SPACING: Duration = Duration::from_millis(100);

/// Objects that came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Allocations seen.
    pub allocated: u64,
    /// Of these, objects that are gone: freed one by one, in bulk, or replaced.
    pub gone: u64,
    /// Frees one by one of objects whose allocation was seen.
    pub freed: u64,
    /// Frees of objects whose allocation was not seen.
    pub unmatched: u64,
}

impl Flow {
    /// What the counters of one allocator say.
    #[must_use]
    pub const fn of(totals: &Totals) -> Self {
        Self {
            allocated: totals.allocated,
            gone: totals.gone(),
            freed: totals.freed,
            unmatched: totals.unmatched_frees,
        }
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            allocated: self.allocated + other.allocated,
            gone: self.gone + other.gone,
            freed: self.freed + other.freed,
            unmatched: self.unmatched + other.unmatched,
        }
    }

    /// What has come and gone since an `earlier` moment.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            allocated: self.allocated.saturating_sub(earlier.allocated),
            gone: self.gone.saturating_sub(earlier.gone),
            freed: self.freed.saturating_sub(earlier.freed),
            unmatched: self.unmatched.saturating_sub(earlier.unmatched),
        }
    }

    /// By how much more objects went than came.
    #[must_use]
    pub const fn surplus(self) -> u64 {
        (self.gone + self.unmatched).saturating_sub(self.allocated)
    }
}

/// The flows of all allocators at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flows {
    /// By target and profile, all instances together.
    of: BTreeMap<(u32, String), Flow>,
    /// All frees of objects whose allocation was not seen, those that belong to no allocator included.
    pub unmatched: u64,
}

impl Flows {
    /// No allocator yet; all frees of objects whose allocation was not seen.
    pub(super) const fn new(unmatched: u64) -> Self {
        Self { of: BTreeMap::new(), unmatched }
    }

    /// Adds one instance of a profile in a target.
    pub fn add(&mut self, target: u32, profile: &str, totals: &Totals) {
        let flow = self.of.entry((target, profile.to_owned())).or_default();
        *flow = flow.and(Flow::of(totals));
    }

    /// That of a profile in a target; nothing where it was not seen yet.
    #[must_use]
    pub fn get(&self, target: u32, profile: &str) -> Flow {
        self.of.get(&(target, profile.to_owned())).copied().unwrap_or_default()
    }

    /// All of them, with their target and profile.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str, Flow)> {
        self.of.iter().map(|((target, profile), flow)| (*target, profile.as_str(), *flow))
    }

    /// The sum of all allocators; its unmatched frees are those that belong to one.
    #[must_use]
    pub fn sum(&self) -> Flow {
        self.of.values().fold(Flow::default(), |sum, flow| sum.and(*flow))
    }
}

/// The flows at a moment of the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// How long had been observed.
    pub after: Duration,
    /// The flows up to then.
    pub flows: Flows,
}

impl Point for Moment {
    fn at_ns(&self) -> u64 {
        self.after.as_nanos() as u64
    }
}

/// Moments of the past; bounded.
#[derive(Clone, Debug)]
pub struct History(Thinned<Moment>);

impl Default for History {
    fn default() -> Self {
        Self(Thinned::new(MOMENTS, SPACING.as_nanos() as u64))
    }
}

impl History {
    /// Whether another moment is due when `observed` has been observed.
    #[must_use]
    pub fn due(&self, observed: Duration) -> bool {
        observed.as_nanos() as u64 >= self.0.due_ns()
    }

    /// Keeps a moment.
    pub fn add(&mut self, moment: Moment) {
        self.0.add(moment);
    }

    /// The moment nearest to the middle of what was observed; `None` where there is none near it.
    #[must_use]
    pub fn middle(&self, observed: Duration) -> Option<&Moment> {
        let middle = observed / 2;
        let near = self.0.points().iter().min_by_key(|moment| moment.after.abs_diff(middle))?;
        (near.after.abs_diff(middle) <= observed / 4).then_some(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(end: Duration, tick: Duration) -> History {
        let mut history = History::default();
        let mut now = Duration::ZERO;
        while now < end {
            now += tick;
            if history.due(now) {
                history.add(Moment { after: now, flows: Flows::default() });
            }
        }
        history
    }

    /// However long is observed, memory stays bounded and there is a moment near the middle.
    #[test]
    fn the_middle_is_kept() {
        for seconds in [1, 2, 7, 60, 3_600, 90_000] {
            let end = Duration::from_secs(seconds);
            let history = filled(end, Duration::from_millis(200));
            assert!(history.0.points().len() <= MOMENTS);
            let middle = history.middle(end).map(|moment| moment.after.as_secs_f64());
            let off = (middle.unwrap_or_default() / end.as_secs_f64() - 0.5).abs();
            assert!(off <= 0.15 && (seconds < 60 || off <= 0.03), "{seconds} s: {middle:?}");
        }
    }

    /// Too early there is no middle, and one that is far off is none.
    #[test]
    fn no_middle() {
        assert_eq!(History::default().middle(Duration::from_secs(1)), None);
        let history = filled(Duration::from_secs(1), Duration::from_millis(200));
        assert_eq!(history.middle(Duration::from_secs(100)), None);
    }

    /// What goes in bulk or by replacement is gone too; a surplus is what went and did not come.
    #[test]
    fn surplus() {
        let totals = Totals {
            allocated: 100,
            freed: 50,
            freed_in_bulk: 30,
            replaced: 10,
            unmatched_frees: 25,
            ..Totals::default()
        };
        let flow = Flow::of(&totals);
        assert_eq!((flow.gone, flow.surplus()), (90, 15));
        let later = Flow { allocated: 200, gone: 190, freed: 60, unmatched: 30 };
        assert_eq!(later.since(flow), Flow { allocated: 100, gone: 100, freed: 10, unmatched: 5 });
        assert_eq!(Flow { allocated: 1000, ..flow }.surplus(), 0);
    }
}

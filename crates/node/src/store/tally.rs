//! From counters to what has changed in a time. Pure.

use drainprof_report::Counts;

/// Adds up what the counters of one profile in one process gain from point to point.
///
/// Counters begin at 0 with each run of the daemon; and where one has fallen all the same, the process is observed
/// again, and what it has now came since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    last: Option<(i64, Counts)>,
}

impl Tally {
    /// What the point adds to the one before it. The first one adds all that it has.
    pub fn add(&mut self, run: i64, now: Counts) -> Counts {
        let added = match self.last {
            Some((earlier_run, earlier)) if earlier_run == run => now.since(earlier).unwrap_or(now),
            _ => now,
        };
        self.last = Some((run, now));
        added
    }
}

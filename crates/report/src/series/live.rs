//! What is live over time, of one site or of a whole allocator instance.

use super::points::{Point, TimeSeries};

/// What is live at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivePoint {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// Objects that are live; of a sample of pages an estimate for all.
    pub objects: u64,
    /// Their bytes; 0 where sizes are not known.
    pub bytes: u64,
    /// Objects allocated so far, as they were counted.
    pub allocated: u64,
}

impl Point for LivePoint {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// Live objects over time.
pub type LiveSeries = TimeSeries<LivePoint>;

//! What was seen of a target's growth: facts, for a snapshot.

use std::{collections::BTreeMap, sync::Arc};

use drainprof_common::growth::member;
use drainprof_process::memory::{GranuleState, TouchedMemory};

use super::{mappings::MapTotals, sites::CallPath};
use crate::series::AddedSeries;

/// What one call path has done to memory by page faults and other accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTotals {
    /// Page faults of the program.
    pub faults: u64,
    /// Page faults of the kernel in its name.
    pub kernel_faults: u64,
    /// Those of both that were writes.
    pub writes: u64,
    /// Those at pages that were there already: copy on write, or another thread was first.
    pub present: u64,
    /// By how much resident memory has changed meanwhile, in bytes, by [`member`].
    pub rss: [i64; member::COUNT],
}

impl FaultTotals {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.faults += other.faults;
        self.kernel_faults += other.kernel_faults;
        self.writes += other.writes;
        self.present += other.present;
        for (sum, value) in self.rss.iter_mut().zip(other.rss) {
            *sum = sum.saturating_add(value);
        }
    }
}

/// Everything that one call path has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathGrowth {
    /// Page faults, and what was added or taken by system calls.
    pub memory: FaultTotals,
    /// The heap and mappings.
    pub maps: MapTotals,
    /// What it had added to resident memory over time; `None` where that is not known.
    pub over_time: Option<AddedSeries>,
}

/// The growth of one target.
#[derive(Clone, Debug, Default)]
pub struct GrowthFacts {
    /// By call path.
    pub paths: BTreeMap<Arc<CallPath>, PathGrowth>,
    /// Changes of resident memory that no call path has made: other system calls, by [`member`].
    pub other: [i64; member::COUNT],
    /// And those from outside the process: reclaim.
    pub outside: [i64; member::COUNT],
    /// The kernel's sizes at the last change, by [`member`]; `None` where no change was seen.
    pub last: [Option<u64>; member::COUNT],
    /// The most that they were.
    pub peak: [u64; member::COUNT],
    /// What was touched, and in which granules it lies.
    pub touched: TouchedMemory,
    /// Granules whose memory is not known (their ids are no addresses, or their bytes are not known), by state.
    pub unplaced: BTreeMap<GranuleState, u64>,
    /// Bytes unmapped of what was mapped while it was watched.
    pub unmapped: u64,
    /// Bytes unmapped of what was there before.
    pub unmapped_before: u64,
    /// Minor and major faults since the attach, by the kernel's own count; `None` where it could not be read.
    pub counted: Option<(u64, u64)>,
}

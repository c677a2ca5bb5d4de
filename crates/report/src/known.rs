//! What a profile lets us know, and how facts become values of a report.

use drainprof_common::hist::Hist;
use drainprof_profile::{Key, Profile};

use crate::{facts::AllocatorFacts, model::series::Spread};

/// What the profile lets us know; without it a 0 in the facts means "unknown".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Whether granules' bytes are known.
    pub(crate) bytes: bool,
    /// Whether objects' sizes are known.
    pub(crate) sizes: bool,
    /// Whether objects are counted at all.
    pub(crate) objects: bool,
}

impl Known {
    pub(crate) fn of(facts: &AllocatorFacts) -> Self {
        let profile: &Profile = &facts.profile;
        let objects = facts.level.has_objects();
        Self {
            bytes: profile.granule_bytes.is_some()
                || profile.probes.iter().any(|probe| probe.has(Key::Bytes)),
            sizes: objects && profile.probes.iter().any(|probe| probe.has(Key::Size)),
            objects,
        }
    }
}

/// Nanoseconds to seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Addresses and ids as text; 0 stands for "none".
pub(crate) fn hex(value: u64) -> Option<String> {
    (value != 0).then(|| format!("{value:#x}"))
}

pub(crate) fn non_zero(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

/// Three points of a histogram.
pub(crate) fn spread(hist: &Hist) -> Spread {
    Spread {
        p50: hist.quantile(0.5).map(seconds),
        p99: hist.quantile(0.99).map(seconds),
        max: (hist.count > 0).then(|| seconds(hist.max)),
    }
}

//! How a report is built.

use std::time::Duration;

/// How a report is built.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernel's release, for the report's `host`.
    pub kernel: String,
    /// Whether all processes of the machine are observed.
    pub system: bool,
    /// How many granules each list names at most.
    pub top: usize,
    /// Granules younger than this are not listed (they are counted all the same).
    pub min_age: Duration,
    /// Granules known to hold fewer bytes than this are not listed.
    pub min_bytes: u64,
    /// After this time a probe without a hit is a finding even if no other probe was hit.
    pub never_fired_after: Duration,
    /// How many events may have happened while the counters were read: by so much the conservation
    /// rules may be off without being a finding. 0 once the probes are gone or the targets have ended.
    pub slack: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kernel: String::new(),
            system: false,
            top: 20,
            min_age: Duration::ZERO,
            min_bytes: 0,
            never_fired_after: Duration::from_secs(5),
            slack: 0,
        }
    }
}

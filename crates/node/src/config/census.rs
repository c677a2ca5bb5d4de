//! The section `[census]` of the configuration.

use drainprof_report::values::{Bytes, Share, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Censuses of heaps, read from outside: live, free and trimmable bytes of the watched processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Census {
    /// Time between two censuses of a process, as far as the budget allows.
    #[schemars(extend("x-range" = ["1s", "1d"]))]
    pub interval: Time,
    /// CPU time for censuses, one process after the other, as a share of one CPU. A heap of 100 MB takes 0.1 s. `0%`:
    /// never.
    #[schemars(extend("x-range" = ["0%", "100%"]))]
    pub budget: Share,
    /// Processes with more writable anonymous memory are left out. A census needs up to a hundredth of it, for as long as
    /// it lasts.
    #[schemars(extend("x-range" = ["1MiB", "1TiB"]))]
    pub largest: Bytes,
}

impl Default for Census {
    fn default() -> Self {
        Self { interval: Time::minutes(5), budget: Share(0.001), largest: Bytes(8 << 30) }
    }
}

//! The section `[census]` of the configuration.

use drainprof_report::values::{Bytes, Share, Time};

use crate::section::section;

section! {
    /// Censuses of heaps, read from outside: live, free and trimmable bytes of the watched processes.
    Census {
        /// Time between two censuses of a process, as far as the budget allows.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        interval: Time = Time::minutes(5),
        /// CPU time for censuses, one process after the other, as a share of one CPU. A heap of 100 MB takes 0.1 s. `0%`:
        /// never.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        budget: Share = Share(0.001),
        /// Processes with more writable anonymous memory are left out. A census needs up to a hundredth of it, for as long as
        /// it lasts.
        #[schemars(extend("x-range" = ["1MiB", "1TiB"]))]
        largest: Bytes = Bytes(8 << 30),
    }
}

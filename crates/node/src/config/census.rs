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
        /// Processes with more writable anonymous memory are left out.
        #[schemars(extend("x-range" = ["1MiB", "1TiB"]))]
        largest: Bytes = Bytes(8 << 30),
        /// Memory of the daemon for all censuses together: half for its own, half for those of windows. What does not fit is
        /// unknown.
        #[schemars(extend("x-range" = ["16MiB", "64GiB"]))]
        memory: Bytes = Bytes(128 << 20),
    }
}

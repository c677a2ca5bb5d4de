//! Programs that do nothing: the floor that drainprof's own cost is measured against.
//!
//! They touch no map and read nothing, so a hit of theirs costs what the kernel's probing costs and no
//! more. Calibration and benchmarks attach them; no observation does.

use super::program::programs;

programs! {
    entry fn empty_entry(_ctx) {}

    return fn empty_return(_ctx) {}
}

//! Programs that do nothing: the floor that drainprof's own cost is measured against.
//!
//! They have only what every program has (`program`), so a hit of theirs costs what the kernel's probing costs and hardly
//! more. Calibration and benchmarks attach them; no observation does.

use super::program::programs;

programs! {
    entry fn empty_entry(ctx) {}

    return fn empty_return(ctx) {}
}

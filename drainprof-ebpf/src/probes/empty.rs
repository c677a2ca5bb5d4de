//! Programs that do nothing: the floor that drainprof's own cost is measured against.
//!
//! They touch no map and read nothing, so a hit of theirs costs what the kernel's probing costs and no
//! more. Calibration and benchmarks attach them; no observation does.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

#[uprobe]
pub fn empty_entry(_ctx: ProbeContext) -> u32 {
    0
}

#[uretprobe]
pub fn empty_return(_ctx: RetProbeContext) -> u32 {
    0
}

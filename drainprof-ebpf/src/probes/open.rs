//! Granules come to life.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use super::{at_entry, at_return};
use crate::granule;

#[uprobe]
pub fn open_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::open);
    0
}

#[uretprobe]
pub fn open_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::open(hit), |_, _| {});
    0
}

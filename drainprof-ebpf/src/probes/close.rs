//! Granules reach their boundary, hand their objects over, or are reset.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use super::{at_entry, at_return};
use crate::granule;

#[uprobe]
pub fn close_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::close);
    0
}

#[uretprobe]
pub fn close_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::close(hit), |_, _| {});
    0
}

#[uprobe]
pub fn migrate_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::migrate);
    0
}

#[uretprobe]
pub fn migrate_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::migrate(hit), |_, _| {});
    0
}

#[uprobe]
pub fn reset_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::reset);
    0
}

#[uretprobe]
pub fn reset_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::reset(hit), |_, _| {});
    0
}

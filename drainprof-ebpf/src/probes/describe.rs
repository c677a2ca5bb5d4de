//! Open granules are named, nested in others, or get another id.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};

use super::{at_entry, at_return};
use crate::granule;

#[uprobe]
pub fn reparent_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::reparent);
    0
}

#[uretprobe]
pub fn reparent_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::reparent(hit), |_, _| {});
    0
}

#[uprobe]
pub fn move_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::granule_moves);
    0
}

#[uretprobe]
pub fn move_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::granule_moves(hit), |_, _| {});
    0
}

#[uprobe]
pub fn label_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, granule::label);
    0
}

#[uretprobe]
pub fn label_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| granule::label(hit), |_, _| {});
    0
}

//! Allocator instances are created and torn down.

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use drainprof_common::{maps::SeriesKey, spec::value};

use super::{at_entry, at_return};
use crate::{hit::Hit, series};

#[inline(always)]
fn key(hit: &Hit) -> SeriesKey {
    SeriesKey {
        target: hit.target,
        allocator: hit.allocator(),
        instance: hit.value(value::INSTANCE),
    }
}

#[inline(always)]
fn init(hit: &Hit) {
    // An instance that is made again at the same address without being destroyed ends first.
    series::end(&key(hit));
    // A full map is counted there.
    let _ = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE));
}

#[inline(always)]
fn destroy(hit: &Hit) {
    series::end(&key(hit));
}

#[uprobe]
pub fn init_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, init);
    0
}

#[uretprobe]
pub fn init_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| init(hit), |_, _| {});
    0
}

#[uprobe]
pub fn destroy_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, destroy);
    0
}

#[uretprobe]
pub fn destroy_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| destroy(hit), |_, _| {});
    0
}

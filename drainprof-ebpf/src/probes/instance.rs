//! Allocator instances are created and torn down.

use drainprof_common::{maps::SeriesKey, spec::value};

use super::{at_entry, at_return, program::programs};
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

programs! {
    entry fn init_entry(ctx) {
        at_entry::<false>(&ctx, init);
    }

    return fn init_return(ctx) {
        at_return::<false>(&ctx, |hit, _| init(hit), |_, _| {});
    }

    entry fn destroy_entry(ctx) {
        at_entry::<false>(&ctx, destroy);
    }

    return fn destroy_return(ctx) {
        at_return::<false>(&ctx, |hit, _| destroy(hit), |_, _| {});
    }
}

//! Granules reach their boundary, hand their objects over, or are reset.

use super::{at_entry, at_return, program::programs};
use crate::granule;

programs! {
    entry fn close_entry(ctx) {
        at_entry::<false>(&ctx, granule::close);
    }

    return fn close_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::close(hit), |_, _| {});
    }

    entry fn migrate_entry(ctx) {
        at_entry::<false>(&ctx, granule::migrate);
    }

    return fn migrate_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::migrate(hit), |_, _| {});
    }

    entry fn reset_entry(ctx) {
        at_entry::<false>(&ctx, granule::reset);
    }

    return fn reset_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::reset(hit), |_, _| {});
    }
}

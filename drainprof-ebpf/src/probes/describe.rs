//! Open granules are named, nested in others, or get another id.

use super::{at_entry, at_return, program::programs};
use crate::granule;

programs! {
    entry fn reparent_entry(ctx) {
        at_entry::<false>(&ctx, granule::reparent);
    }

    return fn reparent_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::reparent(hit), |_, _| {});
    }

    entry fn move_entry(ctx) {
        at_entry::<false>(&ctx, granule::granule_moves);
    }

    return fn move_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::granule_moves(hit), |_, _| {});
    }

    entry fn label_entry(ctx) {
        at_entry::<false>(&ctx, granule::label);
    }

    return fn label_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::label(hit), |_, _| {});
    }
}

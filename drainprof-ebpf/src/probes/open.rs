//! Granules come to life.

use super::{at_entry, at_return, program::programs};
use crate::granule;

programs! {
    entry fn open_entry(ctx) {
        at_entry::<false>(&ctx, granule::open);
    }

    return fn open_return(ctx) {
        at_return::<false>(&ctx, |hit, _| granule::open(hit), |_, _| {});
    }
}

//! The pools of `CPython`'s obmalloc (3.9 to 3.15), and the Python types of the objects in them.
//!
//! Pools have 16 KiB, before 3.10 they have 4 KiB, and are found by their headers (`pools`), without symbols. Which arenas
//! there are, and how many pools of each are in use, is compared with the interpreter's own list (`arenas`): what is
//! listed and makes no sense, or is not in memory, is unknown. Types are read as [`runtime`] says. Free-threaded builds
//! have mimalloc instead of pools.

mod arenas;
mod pools;
mod runtime;
mod sum;
#[cfg(test)]
mod tests;
mod types;

use self::{
    pools::{MIN_POOLS, Pool, in_use},
    runtime::{KNOWN, Runtime},
    sum::Sum,
};
use crate::{
    found::{Found, Taken},
    model::Heap,
    space::Space,
};

/// Bytes of a pool: 3.10 and later, before.
const POOL_BYTES: [u64; 2] = [16 << 10, 4 << 10];

/// Looks for pools in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let [first, second] = pools::scan(space, taken, POOL_BYTES);
    let mut found = [(first, POOL_BYTES[0]), (second, POOL_BYTES[1])];
    found.sort_by_key(|(pools, _)| pools.len());
    let [(mut others, other_bytes), (mut pools, bytes)] = found;
    if in_use(&pools) < MIN_POOLS {
        return free_threaded(space);
    }
    let runtime = Runtime::find(space);
    let lists = arenas::lists(space, taken, &pools, bytes);
    let layout = runtime.map_or(Some(KNOWN), |runtime| runtime.layout);
    let mut sum = Sum::new(space, bytes, layout);
    if let (None, Some(runtime)) = (layout, runtime) {
        sum.note(format!(
            "cpython: types were not read: {} has a layout of its own",
            runtime.name()
        ));
    }
    for list in &lists {
        sum.list(list);
    }
    let is_outside = |pool: &Pool| lists.iter().all(|list| list.arena_of(pool).is_none());
    pools.retain(is_outside);
    others.retain(is_outside);
    if lists.is_empty() {
        sum.unlisted(&pools);
    } else if in_use(&pools) >= MIN_POOLS {
        sum.unknown(&pools, bytes, "of no arena that an interpreter lists");
    }
    if in_use(&others) >= MIN_POOLS {
        sum.unknown(&others, other_bytes, "of another size, so of a second interpreter");
    }
    Some(sum.finish())
}

/// Notes that objects of a free-threaded interpreter are not counted by type.
fn free_threaded(space: &Space<'_>) -> Option<Found> {
    let runtime = Runtime::find(space).filter(|runtime| runtime.is_free_threaded)?;
    let note = format!(
        "{}: its objects lie in a heap of mimalloc; types of objects are not measurable",
        runtime.name()
    );
    Some(Found { heap: Heap::default(), held_bytes: 0, taken: Vec::new(), notes: vec![note] })
}

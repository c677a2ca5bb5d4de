//! Pools of servers that export where they begin: nginx's, and those of the Apache Portable Runtime in httpd.
//!
//! They lie in the heap of malloc: they are a view of memory that its census has already counted.

mod apr;
mod nginx;
#[cfg(test)]
mod tests;

use crate::{
    contexts::Contexts,
    model::{Context, ContextKind},
    pages::Reader,
    space::Space,
};

/// Most pools that are read.
const MAX_POOLS: usize = 1 << 18;
/// Most pools, blocks and large objects that are visited, all attempts together.
const MAX_STEPS: u64 = 1 << 22;
/// Reads of what makes no sense, before it is passed over.
const ATTEMPTS: u32 = 4;
/// The largest block that is believed.
const MAX_BLOCK: u64 = 1 << 40;

/// The symbol that leads to the pools of nginx, and their reader.
pub(crate) const NGINX: (&str, fn(&Space<'_>, u64) -> Contexts) = ("ngx_cycle", nginx::read);
/// The same of httpd.
pub(crate) const APR: (&str, fn(&Space<'_>, u64) -> Contexts) = ("ap_pglobal", apr::read);

/// What a pool's blocks add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    total: u64,
    free: u64,
    blocks: u64,
}

impl Sums {
    /// Adds a block that is used up to `at`, where its bounds make sense.
    fn add(&mut self, start: u64, first: u64, at: u64, end: u64) -> Option<()> {
        let is_sane = first <= at && at <= end && end.checked_sub(start)? <= MAX_BLOCK;
        is_sane.then_some(())?;
        self.add_bytes(end - start, end - at)
    }

    fn add_bytes(&mut self, bytes: u64, free: u64) -> Option<()> {
        self.total = self.total.checked_add(bytes)?;
        self.free += free;
        self.blocks += 1;
        Some(())
    }
}

/// A pool below another one, or a root.
fn pool(name: String, parent: Option<(usize, u64)>, sums: Sums) -> Context {
    Context {
        name,
        ident: None,
        level: parent.map_or(0, |(_, level)| level + 1),
        parent: parent.map(|(index, _)| index as u64),
        kind: ContextKind::Pool,
        total_bytes: sums.total,
        free_bytes: Some(sums.free),
        blocks: Some(sums.blocks),
    }
}

/// What `read` finds; read again where something of it changes meanwhile. Returns how much is missing, too.
fn again(
    reader: &mut Reader<'_>,
    mut read: impl FnMut(&mut Reader<'_>) -> (Vec<Context>, u64),
) -> (Vec<Context>, u64) {
    let mut best: Option<(Vec<Context>, u64)> = None;
    for _ in 0..ATTEMPTS {
        reader.pages.forget();
        let found = read(reader);
        if best.as_ref().is_none_or(|best| found.1 < best.1) {
            best = Some(found);
        }
        if best.as_ref().is_some_and(|(_, missing)| *missing == 0) || reader.steps == 0 {
            break;
        }
    }
    best.unwrap_or_default()
}

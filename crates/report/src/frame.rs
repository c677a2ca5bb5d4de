//! Places by name: the frames of a report, and how far naming has come.

use std::collections::BTreeSet;

use drainprof_process::Module;

use crate::{
    facts::{Frames, SymbolFacts},
    model::{Symbols, allocator::Allocator, growth::MemoryGrowth},
};

/// The files that frames of listed sites lie in. Two of them may have the same name.
pub(super) fn modules(
    allocators: &[Allocator],
    growth: Option<&MemoryGrowth>,
    known: &[Module],
) -> Vec<Module> {
    let sites = allocators.iter().flat_map(|allocator| allocator.sites.iter().flatten());
    let paths = growth.iter().flat_map(|growth| &growth.paths);
    let names: BTreeSet<&str> = sites
        .flat_map(|site| &site.frames)
        .chain(paths.flat_map(|path| &path.frames))
        .filter_map(|frame| frame.frame.module.as_deref())
        .collect();
    known.iter().filter(|module| names.contains(module.name.as_str())).cloned().collect()
}

/// Names the places of an allocator.
pub(super) fn add(allocator: &mut Allocator, frames: &Frames) {
    let find = |place: Option<&str>| {
        let address = u64::from_str_radix(place?.strip_prefix("0x")?, 16).ok()?;
        let facts = frames.get(&address)?;
        (facts.function.is_some() || facts.module.is_some()).then(|| facts.clone())
    };
    for place in &mut allocator.lifetimes.places {
        place.frame = find(place.place.as_deref()).unwrap_or_default();
    }
    for granule in &mut allocator.open_granules {
        granule.opened_by = find(granule.place.as_deref());
    }
    for granule in &mut allocator.pinned_granules {
        granule.opened_by = find(granule.place.as_deref());
    }
    for site in allocator.sites.iter_mut().flatten() {
        site.opened_at.frame = find(site.opened_at.place.as_deref()).unwrap_or_default();
        for frame in &mut site.frames {
            frame.frame = find(frame.address.as_deref()).unwrap_or_default();
        }
    }
}

/// How far naming has come, in numbers.
pub(super) fn symbols(facts: &SymbolFacts) -> Symbols {
    Symbols {
        places: facts.places,
        named: facts.named,
        pending: facts.pending,
        left_out: facts.left_out,
        given_up: facts.given_up,
    }
}

//! Places by name: the frames of a report, and how far naming has come.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Allocator, MemoryGrowth, build::hex};
use crate::{account, account::Frames};

/// The name of a code address; what is not known is null.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// The function whose code it is, demangled.
    pub function: Option<String>,
    /// Bytes from the function's first.
    pub offset: Option<u64>,
    /// Source file of the code, as the compiler was given it.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u64>,
    /// Name of the file that the code is mapped from, without its directory; or what else it lies in, in
    /// brackets.
    pub module: Option<String>,
    /// The address in the module's own address space, as `addr2line` takes it.
    pub module_offset: Option<String>,
    /// Functions whose code the compiler put into `function` here, the outermost first.
    pub inlined: Vec<Inlined>,
}

/// A function that was inlined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inlined {
    /// Its name, demangled.
    pub function: String,
    /// Source file of the code.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u64>,
}

/// A file that frames of call paths lie in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// What frames call it: its name without the directory.
    pub name: String,
    /// Its path, as the process saw it.
    pub path: String,
    /// Its build id, in hexadecimal digits; null where it has none, or could not be read.
    pub build_id: Option<String>,
}

/// The files that frames of listed sites lie in. Two of them may have the same name.
pub(super) fn modules(
    allocators: &[Allocator],
    growth: Option<&MemoryGrowth>,
    known: &[account::Module],
) -> Vec<Module> {
    let sites = allocators.iter().flat_map(|allocator| allocator.sites.iter().flatten());
    let paths = growth.iter().flat_map(|growth| &growth.paths);
    let names: BTreeSet<&str> = sites
        .flat_map(|site| &site.frames)
        .chain(paths.flat_map(|path| &path.frames))
        .filter_map(|frame| frame.frame.module.as_deref())
        .collect();
    let used = known.iter().filter(|module| names.contains(module.name.as_str()));
    used.map(|account::Module { name, path, build_id }| Module {
        name: name.clone(),
        path: path.clone(),
        build_id: build_id.clone(),
    })
    .collect()
}

/// How far naming has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbols {
    /// Places that were seen, over all targets.
    pub places: u64,
    /// How many of them have a function's name.
    pub named: u64,
    /// How many are still looked for.
    pub pending: u64,
    /// How many were left out, because so many names are not kept.
    pub left_out: u64,
    /// How many were given up: their object's symbols could not be read in bounded time and memory.
    pub given_up: u64,
}

/// Names the places of an allocator.
pub(super) fn add(allocator: &mut Allocator, frames: &Frames) {
    let find = |place: Option<&str>| {
        let address = u64::from_str_radix(place?.strip_prefix("0x")?, 16).ok()?;
        let facts = frames.get(&address)?;
        (facts.function.is_some() || facts.module.is_some()).then(|| frame(facts))
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

pub(super) fn frame(facts: &account::Frame) -> Frame {
    Frame {
        function: facts.function.clone(),
        offset: facts.offset,
        file: facts.file.clone(),
        line: facts.line.map(u64::from),
        module: facts.module.clone(),
        module_offset: facts.module_offset.and_then(hex),
        inlined: facts
            .inlined
            .iter()
            .map(|inlined| Inlined {
                function: inlined.function.clone(),
                file: inlined.file.clone(),
                line: inlined.line.map(u64::from),
            })
            .collect(),
    }
}

/// How far naming has come, in numbers.
pub(super) fn symbols(facts: &account::SymbolFacts) -> Symbols {
    Symbols {
        places: facts.places,
        named: facts.named,
        pending: facts.pending,
        left_out: facts.left_out,
        given_up: facts.given_up,
    }
}

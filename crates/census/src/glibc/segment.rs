//! The stretches of memory of an arena, and the main arena with what it says of itself.

use super::{layout::Layout, params::Params};
use crate::space::Space;

/// A stretch of memory that is full of chunks.
#[derive(Clone)]
pub(super) struct Segment {
    /// The address of the arena's structure.
    pub(super) state: u64,
    /// The arena's number.
    pub(super) arena: usize,
    /// Whether `malloc_trim` gives its end back.
    pub(super) shrinks: bool,
    /// Where the memory begins, and where its first chunk does.
    pub(super) mapped_start: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The chunk that must be its last one; `None` where the arena has gone on to another heap.
    pub(super) top: Option<u64>,
}

/// The main arena, and what leads to the others.
pub(super) struct Main {
    pub(super) layout: &'static Layout,
    /// Its structure.
    pub(super) state: u64,
    pub(super) segments: Vec<Segment>,
    pub(super) params: Option<Params>,
    /// Bytes that it has of the system, and that were not found.
    pub(super) missing: u64,
    pub(super) next: u64,
    pub(super) attached_threads: u64,
}

impl Main {
    /// Looks for what `mp_` says, by words that can be where the memory begins.
    pub(super) fn find_params(&mut self, space: &Space<'_>, bases: &[(u64, u64)]) {
        // The first chunk is aligned, the first address need not be.
        let is_first = |word: u64| {
            self.segments
                .iter()
                .any(|one| (one.start.saturating_sub(15)..=one.start).contains(&word))
        };
        let mut params = bases.iter().filter(|(word, _)| is_first(*word));
        self.params = params.find_map(|(_, at)| Params::read(space, *at));
    }
}

//! Whether the chain of chunks is still there: a process that runs changes it while it is read.
//!
//! What is read at once was there at one time. Where the chain leads on to what was read later, or over much memory, its
//! last chunks are read again: they and the next one have to be what they were. Else the chain is followed again from an
//! earlier chunk, and what that does not lead to is no chunk. What no longer leads anywhere keeps its words, but not those
//! of all: a chunk that is freed changes its size, or a bit of the one behind it.

use super::{
    chunks::{Chunk, LARGE, chunk},
    layout::ATTEMPTS,
    segment::Segment,
};
use crate::{region::Region, space::Space};

/// Chunks that are remembered.
const REMEMBERED: usize = 8;
/// Those of them that are compared with what is there now.
const COMPARED: usize = 3;
/// Chunks that are followed from the earliest remembered one on, at most.
const MAX_FOLLOWED: usize = 4 * REMEMBERED;

/// What the chain leads to.
pub(super) enum Place {
    /// A chunk, or what is left of a free one.
    Chunk(Chunk),
    /// Nothing that is known, up to this address.
    Unknown(u64),
}

/// The last chunks of a chain: where they are, and the words that say their sizes.
#[derive(Default)]
pub(super) struct Trail {
    chunks: [(u64, u64); REMEMBERED],
    count: usize,
}

impl Trail {
    /// Remembers a chunk.
    pub(super) fn add(&mut self, at: u64, word: u64) {
        self.chunks[self.count % REMEMBERED] = (at, word);
        self.count += 1;
    }

    /// Forgets all: the chain begins anew.
    pub(super) fn clear(&mut self) {
        self.count = 0;
    }

    /// The last chunks, at most so many of the remembered ones.
    fn last(&self, most: usize) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.count.saturating_sub(most);
        (first..self.count).map(|index| self.chunks[index % REMEMBERED])
    }

    /// What is at an address, if the chain still leads there, or into it; `None` where it breaks.
    pub(super) fn confirm(
        &mut self,
        space: &Space<'_>,
        region: &mut Region<'_>,
        segment: &Segment,
        (at, read): (u64, Option<Chunk>),
    ) -> Option<Place> {
        let mut found = read;
        for _ in 0..ATTEMPTS {
            if let Some(chunk) = found.take_if(|chunk| self.stands(space, region, at, chunk)) {
                return Some(Place::Chunk(chunk));
            }
            region.narrow();
            let again = self.follow(region, segment, at);
            region.widen();
            match again? {
                // It has its size at both ends, or is the last one.
                Place::Chunk(chunk) if chunk.in_use => found = Some(chunk),
                place => return Some(place),
            }
        }
        None
    }

    /// Whether the last chunks, this one, and the one behind it are what they were.
    fn stands(&self, space: &Space<'_>, region: &mut Region<'_>, at: u64, chunk: &Chunk) -> bool {
        let next = at.saturating_add(chunk.bytes);
        let behind = if chunk.is_top { None } else { region.word(next.saturating_add(8)) };
        let own = self.last(COMPARED).chain([(at, chunk.word)]);
        let (mut places, mut words, mut count) = ([0; COMPARED + 2], [0; COMPARED + 2], 0);
        for (at, word) in own.chain(behind.map(|word| (next, word))) {
            (places[count], words[count]) = (at.saturating_add(8), word);
            count += 1;
        }
        let mut bytes = [[0; 8]; COMPARED + 2];
        let now = &mut bytes[..count];
        space.words_again(&places[..count], now.as_flattened_mut()) == count
            && now.iter().zip(words).all(|(now, word)| u64::from_le_bytes(*now) == word)
    }

    /// Follows the chain from the earliest remembered chunk to an address, and remembers the chunks that are there now.
    fn follow(&mut self, region: &mut Region<'_>, segment: &Segment, to: u64) -> Option<Place> {
        let mut at = self.last(REMEMBERED).next()?.0;
        self.count = 0;
        for _ in 0..MAX_FOLLOWED {
            let found = chunk(region, at, segment)?;
            if at == to {
                return Some(Place::Chunk(found));
            }
            self.add(at, found.word);
            at = at.saturating_add(found.bytes);
            if at > to {
                let bytes = at - to;
                return match found.in_use {
                    true if found.bytes > LARGE => None,
                    true => Some(Place::Unknown(at)),
                    false => Some(Place::Chunk(Chunk { bytes, ..found })),
                };
            }
        }
        None
    }
}

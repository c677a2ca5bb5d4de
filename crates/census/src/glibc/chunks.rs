//! Chunks that follow each other.

use super::{ATTEMPTS, PAGE, PROOF, SMALLEST, arena::Segment};
use crate::space::Region;

/// Bytes of the marks at the end of a heap, at most.
pub(super) const MOST_MARKS: u64 = 48;

/// Chunks in use that are larger are confirmed, and no chain begins with one.
pub(super) const LARGE: u64 = 16 << 10;
/// The bit of a chunk's size that says that a thread's arena has it; what is free has it not.
pub(super) const OF_THREAD: u64 = 4;

/// A chunk that validates.
pub(super) struct Chunk {
    /// The word that says its size.
    pub(super) word: u64,
    pub(super) bytes: u64,
    pub(super) in_use: bool,
    pub(super) is_top: bool,
}

/// The chunk at an address; read again some times where it makes no sense.
pub(super) fn read_chunk(region: &mut Region<'_>, at: u64, segment: &Segment) -> Option<Chunk> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            region.refresh();
        }
        if let Some(chunk) = chunk(region, at, segment) {
            return Some(chunk);
        }
        region.ask_again(at + 8);
        if let Some(word) = region.word(at + 8) {
            region.ask_again(at.saturating_add(word & !7).saturating_add(8));
        }
        if !region.is_present(at + 8) {
            return None;
        }
    }
    None
}

/// The chunk at an address, as it is read now.
pub(super) fn chunk(region: &mut Region<'_>, at: u64, segment: &Segment) -> Option<Chunk> {
    let word = region.word(at + 8)?;
    let bytes = word & !7;
    let room = segment.end - at;
    let is_mark = bytes == 16 && room <= MOST_MARKS;
    // `top` may have grown since the mappings were read.
    if segment.top == Some(at) && word & 3 == 1 && bytes > room {
        return Some(Chunk { word, bytes: room, in_use: false, is_top: true });
    }
    if word & 2 != 0 || !bytes.is_multiple_of(16) || bytes > room || (bytes < SMALLEST && !is_mark)
    {
        return None;
    }
    if is_mark || bytes == room {
        return Some(Chunk { word, bytes, in_use: is_mark, is_top: bytes == room && !is_mark });
    }
    if bytes > LARGE {
        region.skim();
    }
    let next = region.word(at + bytes + 8)?;
    let in_use = next & 1 != 0;
    // A free chunk has its size at its end, too; one in use says whose it is.
    let is_whole = if in_use {
        (word & OF_THREAD != 0) == (segment.arena > 0)
    } else {
        region.word(at + bytes)? == bytes
    };
    is_whole.then_some(Chunk { word, bytes, in_use, is_top: false })
}

/// The next address from which on the chain is whole again, at the latest the segment's end. What was a free chunk once
/// still says that it is large: none in use that says so proves a chain. Where there is no other, it begins behind that.
pub(super) fn resume(region: &mut Region<'_>, broken: u64, segment: &Segment) -> u64 {
    let (mut at, mut behind) = (broken + 16, segment.end);
    while at + SMALLEST <= behind {
        if !region.is_present(at) {
            at = region.next_present(at);
            continue;
        }
        match chain(region, at, segment) {
            Chain::Whole => return at,
            Chain::Large(end) => behind = behind.min(end),
            Chain::Broken => {}
        }
        at += 16;
    }
    behind
}

/// What begins at an address.
enum Chain {
    Whole,
    /// A whole one, but a large chunk in use is part of it, which ends there.
    Large(u64),
    Broken,
}

pub(super) fn is_chain(region: &mut Region<'_>, start: u64, segment: &Segment) -> bool {
    !matches!(chain(region, start, segment), Chain::Broken)
}

fn chain(region: &mut Region<'_>, start: u64, segment: &Segment) -> Chain {
    let (mut at, mut large) = (start, None);
    for _ in 0..PROOF {
        let Some(chunk) = chunk(region, at, segment) else { return Chain::Broken };
        if chunk.is_top {
            break;
        }
        at += chunk.bytes;
        if chunk.in_use && chunk.bytes > LARGE {
            large = large.or(Some(at));
        }
    }
    large.map_or(Chain::Whole, Chain::Large)
}

/// Resident bytes of whole pages in a run of free chunks, as `malloc_trim(0)` gives them back: behind the header of the
/// first, up to the last page boundary.
pub(super) fn would_go(region: &Region<'_>, start: u64, end: u64) -> u64 {
    region.present_bytes((start + 48).next_multiple_of(PAGE), end / PAGE * PAGE)
}

/// Of a run that ends with the main arena's `top`: a multiple of `unit`, and not the smallest chunk. The end of a thread's
/// arena is not given back.
pub(super) fn top_would_go(region: &Region<'_>, start: u64, end: u64, unit: u64) -> u64 {
    let bytes = (end - start).saturating_sub(SMALLEST + 1) / unit * unit;
    region.present_bytes((end - bytes).next_multiple_of(PAGE), end / PAGE * PAGE)
}

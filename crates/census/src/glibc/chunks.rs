//! Chunks that follow each other.

use super::{ATTEMPTS, PAGE, PROOF, SMALLEST, arena::Segment};
use crate::space::Region;

/// Bytes of the marks at the end of a heap, at most.
pub(super) const MOST_MARKS: u64 = 48;

/// A chunk that validates.
pub(super) struct Chunk {
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
        return Some(Chunk { bytes: room, in_use: false, is_top: true });
    }
    if word & 2 != 0 || !bytes.is_multiple_of(16) || bytes > room || (bytes < SMALLEST && !is_mark)
    {
        return None;
    }
    if is_mark || bytes == room {
        return Some(Chunk { bytes, in_use: is_mark, is_top: bytes == room && !is_mark });
    }
    let next = region.word(at + bytes + 8)?;
    let in_use = next & 1 != 0;
    // A free chunk has its size at its end, too.
    let is_whole = in_use || region.word(at + bytes)? == bytes;
    is_whole.then_some(Chunk { bytes, in_use, is_top: false })
}

/// The next address from which on the chain is whole again, at the latest the segment's end.
pub(super) fn resume(region: &mut Region<'_>, broken: u64, segment: &Segment) -> u64 {
    let mut at = broken + 16;
    while at + SMALLEST <= segment.end {
        if !region.is_present(at) {
            at = region.next_present(at);
        } else if is_chain(region, at, segment) {
            return at;
        } else {
            at += 16;
        }
    }
    segment.end
}

pub(super) fn is_chain(region: &mut Region<'_>, start: u64, segment: &Segment) -> bool {
    let mut at = start;
    for _ in 0..PROOF {
        match chunk(region, at, segment) {
            Some(chunk) if chunk.is_top => return true,
            Some(chunk) => at += chunk.bytes,
            None => return false,
        }
    }
    true
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

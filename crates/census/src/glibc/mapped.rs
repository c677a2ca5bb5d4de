//! Chunks with a mapping of their own: they begin at a page, and what they say of their size fills pages. How many there
//! are, and their bytes, stand in `mp_`.

use super::{layout::Layout, params::Params};
use crate::{
    found::Taken,
    region::Region,
    space::{PAGE, RangeKind, Space},
};

/// A chunk with a mapping of its own.
#[derive(Clone, Copy)]
pub(super) struct MappedChunk {
    pub(super) at: u64,
    /// Bytes of the mapping.
    pub(super) bytes: u64,
    pub(super) resident: u64,
    /// Whether it begins where its range or another chunk ends.
    is_adjacent: bool,
}

/// What was found, held against the allocator's own counts.
#[derive(Default)]
pub(super) struct Mapped {
    pub(super) live: Vec<MappedChunk>,
    /// Those that are more than there are.
    pub(super) unknown: Vec<MappedChunk>,
    /// Bytes of those that were not found.
    pub(super) missing: u64,
    pub(super) notes: Vec<String>,
}

/// The chunks with a mapping of their own in memory that no heap has taken.
pub(super) fn find(
    space: &Space<'_>,
    taken: &Taken,
    layout: &Layout,
    params: Option<Params>,
) -> Mapped {
    let mut all = candidates(space, taken, layout);
    let Some(before) = params else {
        let note = "glibc: what it counts of objects with a mapping of their own was not found: they are not checked";
        return Mapped { live: all, notes: vec![note.to_owned()], ..Mapped::default() };
    };
    // The process may map and unmap meanwhile: one of the two has to fit.
    let after = before.again(space).unwrap_or(before);
    let mut found = Mapped::default();
    let sum: u64 = all.iter().map(|one| one.bytes).sum();
    let fits = |now: Params| all.len() as u64 == now.mapped_chunks && sum == now.mapped_bytes;
    if fits(before) || fits(after) {
        found.live = all;
        return found;
    }
    let (mut left, mut bytes) = (after.mapped_chunks, after.mapped_bytes);
    all.sort_by_key(|one| !one.is_adjacent);
    for one in all {
        if left > 0 && one.bytes <= bytes {
            (left, bytes) = (left - 1, bytes - one.bytes);
            found.live.push(one);
        } else {
            found.unknown.push(one);
        }
    }
    found.missing = bytes;
    found.notes.push(format!(
        "glibc: it counts {} objects with mappings of their own, {} bytes; of these {} bytes were not found, and {} \
         places that look like one are none: both are unknown",
        after.mapped_chunks,
        after.mapped_bytes,
        bytes,
        found.unknown.len()
    ));
    found
}

fn candidates(space: &Space<'_>, taken: &Taken, layout: &Layout) -> Vec<MappedChunk> {
    let mut all = Vec::new();
    // The kernel joins a thread's stack with what lies above it.
    let may_be = |kind| matches!(kind, RangeKind::Anonymous | RangeKind::Stack);
    let ranges = space.ranges.iter().filter(|range| range.writable && may_be(range.kind));
    for (start, end) in ranges.map(|range| (range.start, range.end)) {
        let region = Region::new(space, start, end);
        let (mut at, mut adjacent) = (start, start);
        while at < end && !space.budget.is_over() {
            if let Some(to) = taken.end_of(at) {
                (at, adjacent) = (to.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
                continue;
            }
            let words = region.is_present(at).then(|| space.words(at)).flatten();
            let bytes = words.and_then(|words| mapped_bytes(words, layout));
            let Some(bytes) = bytes.filter(|bytes| *bytes <= end - at) else {
                at = region.next_present(at + PAGE);
                continue;
            };
            let resident = region.present_bytes(at, at + bytes);
            if !space.budget.keeps::<MappedChunk>(1) {
                return all;
            }
            all.push(MappedChunk { at, bytes, resident, is_adjacent: at == adjacent });
            (at, adjacent) = (at + bytes, at + bytes);
        }
    }
    all
}

/// The bytes of a mapping that begins with these words: bit 1 of the size alone, and whole pages. Where the size does not
/// count the header, the first word is 1 for a mapping of huge pages.
fn mapped_bytes([before, size]: [u64; 2], layout: &Layout) -> Option<u64> {
    let most = u64::from(layout.mapped_less > 0);
    let bytes = (size & !7).checked_add(layout.mapped_less)?;
    let is_one = before <= most && size & 7 == 2 && bytes >= PAGE && bytes.is_multiple_of(PAGE);
    is_one.then_some(bytes)
}

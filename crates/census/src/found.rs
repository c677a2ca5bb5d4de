//! What the walkers have in common: what they find, and which memory others have found already.

use crate::{
    model::Heap,
    region::Region,
    space::{PAGE, Space},
};

/// Bytes of memory that are searched at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A heap, with what is known of its memory.
pub(crate) struct Found {
    pub(crate) heap: Heap,
    /// Resident bytes of granules with a live object.
    pub(crate) held_bytes: u64,
    /// The stretches of memory that are its, which no other walker looks at.
    pub(crate) taken: Vec<(u64, u64)>,
    /// What was not seen, in sentences.
    pub(crate) notes: Vec<String>,
}

/// Looks for an allocator's heaps in memory that no other heap has taken; `None` where there are none.
pub(crate) type Walker = fn(&Space<'_>, &Taken) -> Option<Found>;

/// Stretches of memory that belong to heaps, in ascending order.
#[derive(Clone, Default)]
pub(crate) struct Taken(Vec<(u64, u64)>);

impl Taken {
    pub(crate) fn add(&mut self, stretches: impl IntoIterator<Item = (u64, u64)>) {
        self.0.extend(stretches);
        self.0.sort_unstable();
        self.0.dedup_by(|(start, end), (_, last)| {
            let meets = *start <= *last;
            if meets {
                *last = (*last).max(*end);
            }
            meets
        });
        self.0.shrink_to_fit();
    }

    /// Whether any stretch lies between two addresses, or reaches in.
    pub(crate) fn meets(&self, start: u64, end: u64) -> bool {
        let next = self.0.partition_point(|(first, _)| *first < end);
        next.checked_sub(1).and_then(|last| self.0.get(last)).is_some_and(|(_, last)| *last > start)
    }

    /// The end of the stretch that an address lies in.
    pub(crate) fn end_of(&self, address: u64) -> Option<u64> {
        let next = self.0.partition_point(|(start, _)| *start <= address);
        let (_, end) = self.0.get(next.checked_sub(1)?)?;
        (address < *end).then_some(*end)
    }
}

/// A list of stretches, neighbours as one; it ends where there is no memory for it.
pub(crate) fn joined(
    space: &Space<'_>,
    stretches: impl Iterator<Item = (u64, u64)>,
) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in stretches {
        match joined.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            // A list that grows has its double at most.
            _ if !space.budget.keeps::<[(u64, u64); 2]>(1) => break,
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// The region that a stretch lies in: the last one, else all of its mapping from there on. Where stretches ascend, it is
/// asked once for each mapping which pages are present.
pub(crate) fn region_with<'a, 'b>(
    space: &'a Space<'a>,
    last: &'b mut Option<Region<'a>>,
    (start, end): (u64, u64),
) -> &'b mut Region<'a> {
    let known = last.take().filter(|region| region.holds(start, end));
    last.insert(known.unwrap_or_else(|| {
        let mapped = space.range_at(start).map_or(end, |range| range.end);
        Region::new(space, start, end.max(mapped))
    }))
}

/// Reads what is present of a range and not taken, piece by piece, each with the page behind it, into which a structure
/// may reach; the bytes that were read, at most `most`.
pub(crate) fn pieces(
    space: &Space<'_>,
    bounds: (u64, u64),
    taken: &Taken,
    most: u64,
    mut each: impl FnMut(&[u8]),
) -> u64 {
    pieces_at(space, bounds, taken, most, |_, piece| each(piece))
}

/// As [`pieces`], each with its address.
pub(crate) fn pieces_at(
    space: &Space<'_>,
    (start, end): (u64, u64),
    taken: &Taken,
    most: u64,
    mut each: impl FnMut(u64, &[u8]),
) -> u64 {
    let region = Region::new(space, start, end);
    let (mut at, mut searched) = (start, 0);
    let mut piece = Vec::new();
    while at < end && searched < most {
        if let Some(to) = taken.end_of(at) {
            at = to.next_multiple_of(PAGE);
            continue;
        }
        if !region.is_present(at) {
            at = region.next_present(at);
            continue;
        }
        let wanted = |at: u64| region.is_present(at) && taken.end_of(at).is_none();
        let mut to = at;
        while to < end.min(at + PIECE_BYTES) && wanted(to) {
            to += PAGE;
        }
        let more = if to < end && wanted(to) { PAGE } else { 0 };
        piece.resize((to + more - at) as usize, 0);
        if space.read(at, &mut piece) {
            each(at, &piece);
        }
        searched += (to - at).min(most - searched);
        at = to;
    }
    searched
}

/// As [`pieces_at`] for the writable data of a mapped file. Several readers search it: what is not too large is read once
/// for all of them.
pub(crate) fn data_pieces(
    space: &Space<'_>,
    bounds: (u64, u64),
    most: u64,
    mut each: impl FnMut(u64, &[u8]),
) -> u64 {
    let all = |each: &mut dyn FnMut(u64, &[u8])| {
        pieces_at(space, bounds, &Taken::default(), most, |at, piece| each(at, piece))
    };
    if bounds.1.saturating_sub(bounds.0) > PIECE_BYTES.min(most) {
        return all(&mut each);
    }
    let kept = space.data_once(bounds, || {
        let mut kept = Vec::new();
        all(&mut |at, piece| kept.push((at, piece.to_vec())));
        kept
    });
    for (at, piece) in kept.iter() {
        each(*at, piece);
    }
    kept.iter().map(|(_, piece)| piece.len() as u64).sum::<u64>().min(most)
}

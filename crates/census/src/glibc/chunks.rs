//! Chunks that follow each other.

use std::collections::HashMap;

use super::{
    layout::{ATTEMPTS, PROOF, SMALLEST},
    segment::Segment,
};
use crate::{
    pages::Pages,
    region::Region,
    space::{PAGE, Space},
};

/// Bytes of the marks at the end of a heap, at most.
pub(super) const MAX_MARK_BYTES: u64 = 48;

/// Chunks in use that are larger are confirmed, and no chain begins with one.
pub(super) const LARGE: u64 = 16 << 10;
/// The bit of a chunk's size that says that a thread's arena has it; what is free has it not.
pub(super) const OF_THREAD: u64 = 4;

/// Where chunks are read.
pub(super) trait Words {
    /// The word at an address; `None` where it is not present.
    fn word(&mut self, address: u64) -> Option<u64>;

    /// Reads little the next time.
    fn skim(&mut self) {}
}

impl Words for Region<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        Region::word(self, address)
    }

    fn skim(&mut self) {
        Region::skim(self);
    }
}

impl Words for Pages<'_> {
    fn word(&mut self, address: u64) -> Option<u64> {
        self.words::<1>(address).map(|[word]| word)
    }
}

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
pub(super) fn chunk(region: &mut impl Words, at: u64, segment: &Segment) -> Option<Chunk> {
    let word = region.word(at + 8)?;
    let bytes = word & !7;
    let room = segment.end - at;
    let is_mark = bytes == 16 && room <= MAX_MARK_BYTES;
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

/// What may be read to find where chains go on, for each byte of a segment, and in all at least.
pub(super) const SEARCHES_PER_BYTE: u64 = 4;
const LEAST_SEARCH: u64 = 4 << 20;

/// Finds where chains go on, within what may be read for that, of a segment and of all: where each place seems to lead
/// somewhere else, that would be many times as much as there is.
pub(super) struct Search<'a> {
    space: &'a Space<'a>,
    left: u64,
}

impl<'a> Search<'a> {
    /// For so many bytes in which chunks are, which may be read so many times.
    pub(super) fn new(space: &'a Space<'a>, bytes: u64, times: u64) -> Self {
        Self { space, left: bytes.saturating_mul(times).saturating_add(LEAST_SEARCH) }
    }

    /// Counts what was read since so much had been.
    pub(super) fn charge(&mut self, before: u64) {
        let bytes = self.space.read_bytes().saturating_sub(before);
        self.left = self.left.saturating_sub(bytes);
        self.space.budget.searches(bytes);
    }

    /// Bytes that may be read still.
    fn left(&self) -> u64 {
        self.left.min(self.space.budget.search_left())
    }

    /// Whether nothing more may be read.
    pub(super) fn is_over(&self) -> bool {
        self.left() == 0
    }

    /// Whether nothing more may be read, with what was read since so much had been.
    pub(super) fn is_over_since(&self, before: u64) -> bool {
        self.space.read_bytes().saturating_sub(before) >= self.left()
    }

    /// The next address from which on the chain is whole again, at the latest the segment's end. What was a free chunk
    /// once still says that it is large: none in use that says so proves a chain. Where there is no other, it begins behind
    /// that.
    pub(super) fn resume(
        &mut self,
        region: &mut Region<'_>,
        broken: u64,
        segment: &Segment,
    ) -> u64 {
        let (mut at, mut behind) = (broken + 16, segment.end);
        let (mut pages, mut known) = (Pages::new(self.space), Broken::default());
        let before = self.space.read_bytes();
        let limit = before.saturating_add(self.left());
        while at + SMALLEST <= behind {
            if self.space.read_bytes() >= limit {
                behind = segment.end;
                break;
            }
            if !region.is_present(at) {
                at = region.next_present(at);
                continue;
            }
            // What is near is in the region. What it leads to may be anywhere, and stays where it was read.
            let word = region.word(at + 8).unwrap_or_default();
            let may_be = segment.top == Some(at) || may_be_size(word, segment);
            if may_be && !known.has(at) {
                match chain(&mut pages, at, segment, &mut known) {
                    Chain::Whole => {
                        behind = at;
                        break;
                    }
                    Chain::Large(end) => behind = behind.min(end),
                    Chain::Broken => {}
                }
            }
            at += 16;
        }
        self.charge(before);
        behind
    }
}

/// Whether a word can be the size of a chunk.
fn may_be_size(word: u64, segment: &Segment) -> bool {
    word & (2 | 8) == 0 && word > 8 && word & !7 <= segment.end - segment.start
}

/// Places from which on chains break.
#[derive(Default)]
struct Broken(HashMap<u64, [u64; (PAGE / 16 / 64) as usize]>);

impl Broken {
    fn bit(at: u64) -> (u64, usize, u64) {
        let place = at % PAGE / 16;
        (at / PAGE, (place / 64) as usize, 1 << (place % 64))
    }

    fn has(&self, at: u64) -> bool {
        let (page, word, bit) = Self::bit(at);
        self.0.get(&page).is_some_and(|bits| bits[word] & bit != 0)
    }

    fn add(&mut self, at: u64) {
        let (page, word, bit) = Self::bit(at);
        self.0.entry(page).or_default()[word] |= bit;
    }
}

/// What begins at an address.
enum Chain {
    Whole,
    /// A whole one, but a large chunk in use is part of it, which ends there.
    Large(u64),
    Broken,
}

pub(super) fn is_chain(region: &mut Region<'_>, start: u64, segment: &Segment) -> bool {
    !matches!(chain(region, start, segment, &mut Broken::default()), Chain::Broken)
}

/// What begins at an address; `known` are places that are broken, and are added to.
fn chain(region: &mut impl Words, start: u64, segment: &Segment, known: &mut Broken) -> Chain {
    let (mut at, mut large) = (start, None);
    let mut met = [start; PROOF as usize];
    for place in 0..PROOF as usize {
        met[place] = at;
        let found = if known.has(at) { None } else { chunk(region, at, segment) };
        let Some(chunk) = found else {
            // What leads there breaks as well, and sooner.
            met[..=place].iter().for_each(|at| known.add(*at));
            return Chain::Broken;
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        budget::{Bounds, Budget},
        space::Range,
        testing::{Pieces, anonymous},
    };

    const BASE: u64 = 0x5555_0000_0000;
    const BYTES: u64 = 1 << 20;
    const SEGMENT: Segment = Segment {
        state: 0,
        arena: 0,
        shrinks: true,
        mapped_start: BASE,
        start: BASE,
        end: BASE + BYTES,
        top: None,
    };

    /// A broken heap in which each place seems to lead far away, over several chunks, costs a few times its bytes.
    #[test]
    fn far_chains() {
        for strips in [2, 7] {
            let strip = BYTES / strips / PAGE * PAGE;
            let mut memory = Pieces::default();
            memory.pieces.push((BASE, vec![0; BYTES as usize]));
            for at in (0..strip * strips).step_by(16) {
                let size = if at / strip + 1 < strips { strip } else { 0 };
                memory.put(BASE + at + 8, &[size | 1]);
            }
            let space = Space::new(vec![anonymous(BASE, BYTES)], &memory);
            let mut region = Region::new(&space, BASE, BASE + BYTES);
            let mut search = Search::new(&space, BYTES, SEARCHES_PER_BYTE);
            assert_eq!(search.resume(&mut region, BASE, &SEGMENT), BASE + BYTES, "{strips}");
            assert!(space.read_bytes() <= 3 * BYTES, "{strips}: {}", space.read_bytes());
        }
    }

    /// Hundreds of broken arenas of 16 KiB, in which each place seems to lead far away: all searches together read no more
    /// than a census of such a process may search.
    #[test]
    fn many_arenas() {
        const ARENA: u64 = 16 << 10;
        const ARENAS: u64 = 300;
        let mut memory = Pieces::default();
        memory.pieces.push((BASE, vec![0; ARENA as usize]));
        // Chunks that lead half an arena on, where nothing is.
        for at in (0..ARENA / 2).step_by(16) {
            memory.put(BASE + at + 8, &[(ARENA / 2) | 1]);
        }
        let range = Range { rss: ARENAS * ARENA, ..anonymous(BASE, ARENA) };
        let bounds = Bounds::of(range.rss);
        // Another bound than this one ends nothing here.
        let budget = Budget::new(Bounds { read: u64::MAX, ..bounds }, None);
        let space = Space::within(vec![range], &memory, budget);
        let whole = Segment { end: BASE + ARENA, ..SEGMENT };
        for _ in 0..ARENAS {
            let mut region = Region::new(&space, BASE, BASE + ARENA);
            let mut search = Search::new(&space, ARENA, SEARCHES_PER_BYTE);
            let mut at = BASE;
            while at < BASE + ARENA / 2 && !search.is_over() {
                search.resume(&mut region, at, &whole);
                at += 16;
            }
        }
        let read = space.read_bytes();
        assert!(space.budget.search_left() == 0 && !space.budget.is_over());
        assert!(read <= bounds.searched + ARENAS * 2 * ARENA, "{read} of {}", bounds.searched);
    }

    /// Where nothing more may be read, nothing is found.
    #[test]
    fn over() {
        let mut memory = Pieces::default();
        memory.pieces.push((BASE, vec![0; BYTES as usize]));
        for at in (BASE + 64..BASE + BYTES).step_by(64) {
            memory.put(at + 8, &[64 | 1]);
        }
        let space = Space::new(vec![anonymous(BASE, BYTES)], &memory);
        let mut region = Region::new(&space, BASE, BASE + BYTES);
        let mut search = Search::new(&space, BYTES, SEARCHES_PER_BYTE);
        assert_eq!(search.resume(&mut region, BASE, &SEGMENT), BASE + 64);
        search.left = 0;
        assert!(search.is_over());
        assert_eq!(search.resume(&mut region, BASE, &SEGMENT), BASE + BYTES);
    }
}

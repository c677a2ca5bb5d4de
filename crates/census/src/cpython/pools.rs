//! Pools: their headers, and the blocks of one that are free.
//!
//! A pool begins with a header of 48 bytes: blocks in use at 0, the list of free blocks at 8, the arena's number at 32,
//! the size index at 36, the offset of the next block that was never used at 40, the last possible one at 44. Source:
//! `Objects/obmalloc.c` and `Include/internal/pycore_obmalloc.h`.

use crate::{
    found::Taken,
    region::Region,
    space::{PAGE, Space, half_of, word_of},
};

/// Fewer pools than this may be chance.
pub(super) const MIN_POOLS: usize = 8;
/// Bytes of a pool's header.
pub(super) const HEADER: u64 = 48;
/// Size classes: 16, 32, … 512 bytes.
const CLASSES: u64 = 32;
/// Headers that are asked for at once.
const HEADERS_AT_ONCE: usize = 4096;
/// How often a pool is read whose list of free blocks does not fit its header.
const POOL_ATTEMPTS: u32 = 3;

/// A pool with a header that validates, in as few bytes as it takes: there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) address: u64,
    free_list: u64,
    arena: u32,
    size: u16,
    used: u16,
    blocks: u16,
    unused: u16,
}

impl Pool {
    /// The number of its arena, as its interpreter counts.
    pub(super) fn arena(&self) -> u64 {
        self.arena.into()
    }

    /// Bytes of a block.
    pub(super) fn size(&self) -> u64 {
        self.size.into()
    }

    /// Blocks in use.
    pub(super) fn used(&self) -> u64 {
        self.used.into()
    }

    /// Blocks that fit.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.into()
    }

    /// The offset of the first block that was never used.
    fn unused(&self) -> u64 {
        self.unused.into()
    }

    /// The pool with this header; `None` where it is none that has, or had, blocks.
    pub(super) fn of(header: &[u8], address: u64, bytes: u64) -> Option<Self> {
        let half = |at| half_of(header, at);
        let (used, arena, index) = (half(0)?, half(32)?, half(36)?);
        let (unused, last) = (half(40)?, half(44)?);
        let size = 16 * (index + 1);
        let blocks = (bytes - HEADER) / size;
        let is_pool = index < CLASSES
            && last == bytes - size
            && used <= blocks
            && unused >= HEADER
            && unused <= bytes
            && (unused - HEADER).is_multiple_of(size)
            && (unused - HEADER) / size >= used;
        let free_list = word_of(header, 8)?;
        is_pool.then_some(())?;
        let narrow = |number: u64| u16::try_from(number).ok();
        Some(Self {
            address,
            free_list,
            arena: u32::try_from(arena).ok()?,
            size: narrow(size)?,
            used: narrow(used)?,
            blocks: narrow(blocks)?,
            unused: narrow(unused)?,
        })
    }

    /// Which of the blocks that were ever used are free; `None` where the list of these does not fit the header.
    fn free_blocks(&self, bytes: &[u8]) -> Option<Vec<bool>> {
        let begun = (self.unused() - HEADER) / self.size();
        let mut is_free = vec![false; begun as usize];
        let mut next = self.free_list;
        for _ in self.used()..begun {
            let offset = next.checked_sub(self.address)?.checked_sub(HEADER)?;
            let index = offset.is_multiple_of(self.size()).then_some(offset / self.size())?;
            let flag = is_free.get_mut(usize::try_from(index).ok()?)?;
            if std::mem::replace(flag, true) {
                return None;
            }
            next = word_of(bytes, usize::try_from(next - self.address).ok()?)?;
        }
        (next == 0).then_some(is_free)
    }
}

/// The blocks of a pool.
pub(super) struct Blocks {
    pub(super) pool: Pool,
    pub(super) bytes: Vec<u8>,
    /// Pages that are not present, by their offsets: the end of a block need not have been touched.
    absent: Vec<u64>,
    is_free: Vec<bool>,
}

impl Blocks {
    /// Those that are live; `None` for one whose begin is not present.
    pub(super) fn live(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let blocks = self.bytes.get(HEADER as usize..).unwrap_or_default();
        let blocks = blocks.chunks(self.pool.size() as usize);
        let places = (HEADER..).step_by(self.pool.size() as usize);
        let live = blocks.zip(places).zip(&self.is_free).filter(|(_, is_free)| !**is_free);
        live.map(|((block, at), _)| (!self.absent.contains(&(at / PAGE * PAGE))).then_some(block))
    }
}

/// What a pool has been read as.
pub(super) enum Content {
    Blocks(Blocks),
    /// Its list of free blocks is not all present.
    Partly,
    /// It makes no sense, or changes faster than it is read.
    Broken,
}

/// Reads a pool, with its header once more: the process runs. What is read is put into a buffer of another pool.
pub(super) fn content(
    space: &Space<'_>,
    pool: &Pool,
    pool_bytes: u64,
    buffer: &mut Vec<u8>,
) -> Content {
    let end = pool.unused().max(HEADER).next_multiple_of(PAGE).min(pool_bytes);
    let mut bytes = std::mem::take(buffer);
    bytes.resize(end as usize, 0);
    let mut absent = Vec::new();
    for _ in 0..POOL_ATTEMPTS {
        absent.clear();
        if !space.read(pool.address, &mut bytes) {
            bytes.fill(0);
            let pages = bytes.chunks_mut(PAGE as usize).zip((0..end).step_by(PAGE as usize));
            let unread = pages.filter_map(|(page, at)| {
                (!space.read(pool.address.checked_add(at)?, page)).then_some(at)
            });
            absent.extend(unread);
        }
        let Some(now) = Pool::of(&bytes, pool.address, pool_bytes) else { continue };
        if now.arena != pool.arena || now.unused() > end {
            continue;
        }
        if let Some(is_free) = now.free_blocks(&bytes) {
            return Content::Blocks(Blocks { pool: now, bytes, absent, is_free });
        }
    }
    if absent.is_empty() { Content::Broken } else { Content::Partly }
}

/// All that look like pools of each of these sizes, in anonymous memory that no other heap has taken. Each place is read
/// once; the sizes are multiples of the last one.
pub(super) fn scan<const N: usize>(
    space: &Space<'_>,
    taken: &Taken,
    sizes: [u64; N],
) -> [Vec<Pool>; N] {
    let mut pools = sizes.map(|_| Vec::new());
    let (mut places, step) = (Vec::new(), sizes.last().copied().unwrap_or(PAGE));
    for range in space.anonymous() {
        let region = Region::new(space, range.start, range.end);
        let mut at = range.start.next_multiple_of(step);
        while at + step <= range.end {
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(step);
                continue;
            }
            if taken.end_of(at).is_none() {
                places.push(at);
            }
            at += step;
            if places.len() >= HEADERS_AT_ONCE {
                add(space, &mut pools, &mut places, (sizes, range.end));
            }
        }
        add(space, &mut pools, &mut places, (sizes, range.end));
    }
    pools
}

fn add<const N: usize>(
    space: &Space<'_>,
    pools: &mut [Vec<Pool>; N],
    places: &mut Vec<u64>,
    (sizes, end): ([u64; N], u64),
) {
    let headers = space.read_each::<{ HEADER as usize }>(places);
    for (at, header) in places.drain(..).zip(headers) {
        let Some(header) = header else { continue };
        for (bytes, pools) in sizes.into_iter().zip(pools.iter_mut()) {
            let is_place = at.is_multiple_of(bytes) && end - at >= bytes;
            let pool = is_place.then(|| Pool::of(&header, at, bytes)).flatten();
            // They are sifted into another list.
            pools.extend(pool.filter(|_| space.budget.keeps::<[Pool; 2]>(1)));
        }
    }
}

/// Resident bytes between two addresses of a region, whole pages.
pub(super) fn resident(region: &Region<'_>, start: u64, end: u64) -> u64 {
    region.present_bytes(start / PAGE * PAGE, end.next_multiple_of(PAGE))
}

/// How many of these are in use.
pub(super) fn in_use(pools: &[Pool]) -> usize {
    pools.iter().filter(|pool| pool.used() > 0).count()
}

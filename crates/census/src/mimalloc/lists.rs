//! The lists of a page's blocks: free ones, those that its own thread has freed, and those that others have.
//!
//! Each block that was handed out once is in use, or in one of the first two lists: the sum says whether a page is read
//! rightly. Blocks that other threads have freed count as in use until the page takes them back.

use super::{
    area::{FLAGS, Page, Read, is_list},
    links::Links,
};
use crate::space::Space;

/// Links of free blocks that are followed, at most.
const MAX_LINKS: u64 = 1 << 24;
/// This many of them are enough, if a page with a block in use is among those that add up.
pub(super) const ENOUGH_LINKS: u64 = 1 << 15;
/// How often a page that changes is read.
const PAGE_ATTEMPTS: usize = 4;

/// Whether a page's blocks add up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    Agree,
    Differ,
    /// It changed each time it was read, its blocks are not present, or there were too many.
    Open,
}

/// Takes pages for unknown whose blocks do not add up; all of them, where those of no page do that has one in use.
pub(super) fn prove(space: &Space<'_>, read: &mut Read, enough: u64) {
    let (mut left, mut is_proven) = (MAX_LINKS, false);
    let mut links = Links::new(space);
    for area in &mut read.areas {
        let mut wrong = Vec::new();
        area.pages.retain_mut(|page| {
            if is_proven && MAX_LINKS - left >= enough {
                return true;
            }
            let proof = proof(space, &mut links, page, &mut left);
            is_proven |= proof == Proof::Agree && page.used > 0;
            if proof == Proof::Differ {
                wrong.push((page.address, page.end()));
            }
            proof != Proof::Differ
        });
        area.unknown.append(&mut wrong);
    }
    if is_proven {
        return;
    }
    for area in &mut read.areas {
        let pages = std::mem::take(&mut area.pages).into_iter();
        area.unknown.extend(pages.map(|page| (page.address, page.end())));
    }
}

fn proof(space: &Space<'_>, links: &mut Links<'_>, page: &mut Page, left: &mut u64) -> Proof {
    for _ in 0..PAGE_ATTEMPTS {
        let blocks = free(links, page, left);
        if blocks == Free::Blocks(page.blocks.capacity - page.used) {
            return Proof::Agree;
        }
        let now = page.blocks.places.map(|place| place.read(space));
        let [Some(used), Some(capacity), Some(free), Some(local)] = now else { return Proof::Open };
        let known = (page.used, page.blocks.capacity, page.blocks.heads);
        if known == (used, capacity, [free, local]) {
            return if blocks == Free::Unread { Proof::Open } else { Proof::Differ };
        }
        if used > capacity || capacity > page.reserved {
            continue;
        }
        page.used = used;
        (page.blocks.capacity, page.blocks.heads) = (capacity, [free, local]);
    }
    Proof::Open
}

/// How many free blocks a page has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    Blocks(u64),
    /// A list makes no sense.
    Wrong,
    Unread,
}

fn free(links: &mut Links<'_>, page: &Page, left: &mut u64) -> Free {
    let mut count = 0;
    links.of((page.address, page.end()), page.blocks.capacity.saturating_sub(page.used));
    for head in page.blocks.heads {
        let mut block = head;
        while block != 0 {
            if count >= page.blocks.capacity || !is_block(page, block) {
                return Free::Wrong;
            }
            let link = if *left > 0 { next(links, page, block) } else { None };
            let Some(link) = link else { return Free::Unread };
            (count, *left, block) = (count + 1, *left - 1, link);
        }
    }
    Free::Blocks(count)
}

/// Blocks of a page that other threads have freed and its own thread has not taken back yet; `None` where their list
/// makes no sense.
pub(super) fn freed(links: &mut Links<'_>, page: &Page, steps: &mut u64) -> Option<u64> {
    let (mut count, mut block) = (page.waiting, page.freed & !FLAGS);
    if block == 0 {
        return (count <= page.used).then_some(count);
    }
    // How many there are is not known.
    links.of((page.address, page.end()), page.used);
    while block != 0 && *steps > 0 {
        if count >= page.used || !is_block(page, block) {
            return None;
        }
        (count, *steps) = (count + 1, *steps - 1);
        block = next(links, page, block)?;
    }
    Some(count)
}

fn is_block(page: &Page, block: u64) -> bool {
    block & FLAGS == 0 && is_list(block, page.address, page.end())
}

fn next(links: &mut Links<'_>, page: &Page, block: u64) -> Option<u64> {
    let link = links.word(block)?;
    Some(page.keys.map_or(link, |keys| decoded(link, keys)))
}

/// The link that an encoded one stands for.
fn decoded(link: u64, [first, second, last]: [u64; 3]) -> u64 {
    let block = link.wrapping_sub(first).rotate_right((first & 63) as u32) ^ second;
    if block == last { 0 } else { block }
}

/// What stands for a link.
#[cfg(test)]
pub(super) fn encoded(block: u64, [first, second, last]: [u64; 3]) -> u64 {
    let block = if block == 0 { last } else { block };
    (block ^ second).rotate_left((first & 63) as u32).wrapping_add(first)
}

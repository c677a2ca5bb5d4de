//! The interpreter's own list of its heap pages, which says whether all of them were found.
//!
//! A page's structure has at 16 the address of the part of the heap with its size of slots. These parts lie in the
//! structure of the whole heap; behind them is the address of the list, the structures of all pages by the addresses of
//! the pages. Their number stands behind that address, or (3.4) the number and what there is room for in front of the list.

use std::collections::{BTreeMap, BTreeSet};

use super::HeapPage;
use crate::{
    region::Region,
    space::{Space, word_of},
};

/// Bytes from a part of the heap on that are searched, and parts.
const BEHIND: u64 = 4096;
const MAX_PARTS: usize = 16;
/// Words in front of the list where its length is.
const IN_FRONT: u64 = 16;

/// The structures of all pages; `None` where no list has them, or several, or it has twice as many as were found.
pub(super) fn find(space: &Space<'_>, pages: &[HeapPage]) -> Option<BTreeSet<u64>> {
    let known: BTreeSet<u64> = pages.iter().map(|page| page.structure).collect();
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    for page in pages {
        *owners.entry(page.owner).or_default() += 1;
    }
    let mut owners: Vec<(u64, u64)> = owners.into_iter().map(|(at, count)| (count, at)).collect();
    owners.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
    owners.truncate(MAX_PARTS);
    owners.sort_unstable_by_key(|(_, at)| *at);
    let mut found: Vec<BTreeSet<u64>> = Vec::new();
    let mut searched = 0;
    for (_, owner) in owners {
        let end = owner.saturating_add(BEHIND).min(u64::MAX - BEHIND);
        let start = owner.max(searched).min(end);
        let mut region = Region::new(space, start, end);
        for at in (start / 8 * 8..end).step_by(8) {
            let (Some(list), Some(next)) = (region.word(at), region.word(at + 8)) else { continue };
            let listed = list_at(space, list, next, &known);
            found.extend(listed.filter(|listed| !found.contains(listed)));
        }
        searched = end;
    }
    let (Some(listed), true) = (found.pop(), found.is_empty()) else { return None };
    Some(listed)
}

/// The list at an address, whose length stands behind the word that leads to it or in front of the list.
fn list_at(
    space: &Space<'_>,
    address: u64,
    next: u64,
    known: &BTreeSet<u64>,
) -> Option<BTreeSet<u64>> {
    if address < IN_FRONT || !address.is_multiple_of(8) {
        return None;
    }
    let [first, second, third] = space.words(address)?;
    let (at, length) = if known.contains(&first) || known.contains(&second) {
        (address, next)
    } else {
        // In front: the length, and what there is room for.
        (third != 0 && first <= second).then_some((address.checked_add(IN_FRONT)?, first))?
    };
    let room = space.range_at(at)?.end - at;
    let most = (known.len() as u64).saturating_mul(2).min(room / 8);
    if !(known.len() as u64 / 2..=most).contains(&length) {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length * 8).ok()?];
    if !space.read(at, &mut bytes) {
        return None;
    }
    let words = (0..bytes.len()).step_by(8).map(|at| word_of(&bytes, at).unwrap_or_default());
    let listed: BTreeSet<u64> = words.collect();
    let writable = |at: &u64| space.range_at(*at).is_some_and(|range| range.writable);
    let is_list = listed.len() as u64 == length
        && listed.iter().all(|at| at.is_multiple_of(8) && writable(at))
        && known.intersection(&listed).count() * 2 > known.len();
    is_list.then_some(listed)
}

//! The pools of the Apache Portable Runtime (1.5 to 1.7) in httpd, by their tags.
//!
//! A pool has its parent at 0, its first child at 8, its sibling at 16, the pointer that leads to it at 24, its tag at 80,
//! the node that it takes memory from at 88, and the node that it lies in itself at 96. A node has the next one of its ring
//! at 0, the pointer that leads to it at 8, how far it is used at 24 and its end at 32; a pool follows its first node at
//! 40. Source: `apr_pools.c`, without `APR_POOL_DEBUG`.

use std::collections::HashSet;

use super::{MAX_POOLS, MAX_STEPS, Sums, again, pool};
use crate::{contexts::Contexts, model::Context, pages::Reader, space::Space};

/// Bytes of a node's own, and of a pool's.
const NODE: u64 = 40;
const POOL: u64 = 112;
/// Nodes are multiples of this.
const UNIT: u64 = 4096;
/// Ancestors that are followed to the root.
const MAX_DEPTH: usize = 64;
/// The longest tag that is believed, bytes.
const MAX_TAG: usize = 128;

/// Reads the tree of pools that the pointer at `top` leads into.
pub(super) fn read(space: &Space<'_>, top: u64) -> Contexts {
    let mut reader = Reader::new(space, MAX_STEPS);
    let (contexts, missing) =
        again(&mut reader, |reader| all(reader, top).unwrap_or((Vec::new(), 1)));
    let mut notes = Vec::new();
    if contexts.is_empty() {
        notes.push("APR: its pools are of no known layout, or there are none yet".to_owned());
    } else if missing > 0 {
        notes.push(format!(
            "APR: {missing} lists of pools are cut: swapped out, or they changed while they were read"
        ));
    }
    Contexts { contexts, notes }
}

/// What a pool begins with.
struct Head {
    child: u64,
    sibling: u64,
    name: String,
    sums: Sums,
}

/// All pools, each after its parent, and how many lists of children are cut.
fn all(reader: &mut Reader<'_>, top: u64) -> Option<(Vec<Context>, u64)> {
    let mut root = reader.word(top, 0)?;
    for _ in 0..MAX_DEPTH {
        match reader.word(root, 0)? {
            0 => break,
            parent => root = parent,
        }
    }
    let (mut found, mut missing, mut seen) = (Vec::new(), 0, HashSet::new());
    // The first of each list of pools that is to be read, with the index and level of their parent and its address.
    let mut open = vec![(root, None, 0)];
    while let Some((mut address, above, parent)) = open.pop() {
        while address != 0 {
            let is_new = seen.insert(address) && found.len() < MAX_POOLS;
            let Some(head) = is_new.then(|| head(reader, address, parent)).flatten() else {
                missing += 1;
                break;
            };
            reader.keep::<[u64; 24]>()?;
            let index = found.len();
            found.push(pool(head.name, above, head.sums));
            let level = above.map_or(0, |(_, level)| level + 1);
            if head.child != 0 {
                open.push((head.child, Some((index, level)), address));
            }
            address = if parent == 0 { 0 } else { head.sibling };
        }
    }
    Some((found, missing))
}

/// The pool at an address, where it is one of this parent.
fn head(reader: &mut Reader<'_>, address: u64, parent: u64) -> Option<Head> {
    reader.step()?;
    if !address.is_multiple_of(8) || !reader.is_heap(address) {
        return None;
    }
    let [own_parent, child, sibling, back, _, _, _, _, _, _, tag, active, node, first] =
        reader.pages.words(address)?;
    let is_led_to = back == 0 && parent == 0 || reader.word(back, 0) == Some(address);
    let is_pool = own_parent == parent
        && is_led_to
        && node.checked_add(NODE) == Some(address)
        && first >= address + POOL;
    if !is_pool {
        return None;
    }
    let (mut sums, mut at) = (Sums::default(), active);
    loop {
        reader.step()?;
        let [next, back, _, used, end] = reader.pages.words(at)?;
        let is_node = end.checked_sub(at)?.is_multiple_of(UNIT) && reader.word(back, 0)? == at;
        is_node.then_some(())?;
        sums.add(at, at.checked_add(NODE)?, used, end)?;
        at = next;
        if at == active {
            break;
        }
    }
    let name = match tag {
        0 => "(no tag)".to_owned(),
        tag => {
            let text = reader.is_constant(tag).then(|| reader.text(tag, MAX_TAG)).flatten();
            let text = text.filter(|text| !text.chars().any(char::is_control));
            text.unwrap_or_else(|| "(tag not in memory)".to_owned())
        }
    };
    Some(Head { child, sibling, name, sums })
}

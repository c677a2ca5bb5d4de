//! Objects that nothing uses, and that count as in use: in caches of threads, and in those of classes.
//!
//! A thread's cache has 32 bytes for each class: a list at 0, its length at 8, the class's size at 24; and behind 128 of
//! these, the bytes of all of them: what adds up is a cache. A class has its number, how many spans it has, and how many
//! free objects these have, which says whether spans are read rightly; and up to 64 slots with lists of as many objects
//! each, which wait for a thread that wants so many.

use std::collections::BTreeMap;

use super::{
    sizes::MAX_CLASSES,
    span::{Span, Use},
};
use crate::{
    found::{Taken, data_pieces, pieces},
    space::{Space, half_of, word_of},
};

/// Most data that is searched for the classes, and most memory for caches.
const MAX_DATA: u64 = 64 << 20;
const MAX_SEARCHED: u64 = 4 << 30;
/// Bytes of a class in a thread's cache, of all of them, and of what follows that is read.
const LIST: usize = 32;
const LISTS: usize = MAX_CLASSES * LIST;
const CACHE: usize = LISTS + 8;
/// Objects in a slot, at most.
const MAX_BATCH: u64 = 1 << 16;

/// Where a class has what.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Bytes from one class to the next.
    pub(super) bytes: u64,
    pub(super) class: usize,
    /// The head of a list of spans, whose links are at 16 and 24 there.
    pub(super) list: usize,
    pub(super) spans: usize,
    pub(super) free: usize,
    pub(super) slots: usize,
    /// Slots in use, how many there may be, and how many there ever may be, 32 bits each.
    pub(super) used: usize,
}

/// 2.10 to 2.15, from 2.16 on.
const PADDED: Layout =
    Layout { bytes: 1216, class: 8, list: 16, spans: 112, free: 120, slots: 128, used: 1152 };
pub(super) const LAYOUTS: [Layout; 2] = [PADDED, Layout { bytes: 1168, ..PADDED }];
/// Bytes of a class that are read, and slots.
const CLASS: usize = 1168;
const MAX_SLOTS: usize = 64;

/// What a class says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) spans: u64,
    /// Free objects of these.
    pub(super) free: u64,
    /// First and last object of each slot in use.
    slots: Vec<(u64, u64)>,
}

/// Where the classes are, and which layout they have; `None` where they are not found.
pub(super) fn find(space: &Space<'_>, sizes: &[u64]) -> Option<(u64, Layout)> {
    let (mut left, mut found) = (MAX_DATA, None);
    for bounds in space.data() {
        left -= data_pieces(space, bounds, left, |at, piece| {
            // The first class has no spans: its list leads to itself.
            let word = |offset: usize| word_of(piece, offset);
            let is_list = |offset: usize| {
                let itself = Some(at + (offset + PADDED.list) as u64);
                let links = [16, 24].map(|link| word(offset + PADDED.list + link));
                links == [itself; 2] && word(offset + PADDED.class) == Some(0)
            };
            if found.is_none() {
                found = (0..piece.len()).step_by(8).filter(|offset| is_list(*offset)).find_map(
                    |offset| {
                        let first = at + offset as u64;
                        let mut fitting = LAYOUTS
                            .iter()
                            .filter(|layout| read(space, first, layout, sizes.len()).is_some());
                        let layout = fitting.next()?;
                        fitting.next().is_none().then_some((first, *layout))
                    },
                );
            }
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// The classes from an address on; `None` where they make no sense.
pub(super) fn read(
    space: &Space<'_>,
    first: u64,
    layout: &Layout,
    count: usize,
) -> Option<Vec<Class>> {
    let places: Vec<u64> =
        (0..count as u64).map(|class| first.saturating_add(class * layout.bytes)).collect();
    let each = space.read_each::<CLASS>(&places).into_iter().zip(0..);
    each.map(|(bytes, number)| class(&bytes?, number, layout)).collect()
}

fn class(bytes: &[u8], number: u64, layout: &Layout) -> Option<Class> {
    let word = |at| word_of(bytes, at);
    let slots = word(layout.used)?;
    let (used, most) = ((slots & 0xffff_ffff) as usize, (slots >> 32) as usize);
    let ever = (word(layout.used + 8)? & 0xffff_ffff) as usize;
    let is_sane = word(layout.class)? == number
        && used <= most
        && most <= ever
        && (1..=MAX_SLOTS).contains(&ever);
    let slot =
        |slot: usize| Some((word(layout.slots + slot * 16)?, word(layout.slots + slot * 16 + 8)?));
    let slots: Option<Vec<(u64, u64)>> = (0..used).map(slot).collect();
    is_sane.then_some(Class { spans: word(layout.spans)?, free: word(layout.free)?, slots: slots? })
}

/// Adds the objects in the slots of classes, by size; whether all could be.
pub(super) fn slots(
    space: &Space<'_>,
    classes: &[Class],
    sizes: &[u64],
    spans: &[(u64, Span)],
    cached: &mut BTreeMap<u64, u64>,
) -> bool {
    let mut is_whole = true;
    for (class, size) in classes.iter().zip(sizes).skip(1) {
        let is_object = |at: u64| {
            let next = spans.partition_point(|(start, _)| *start <= at);
            next.checked_sub(1).and_then(|last| spans.get(last)).is_some_and(|(start, span)| {
                at < start + span.bytes()
                    && span.kind == Use::Class
                    && span.size() == *size
                    && (at - start).is_multiple_of(*size)
            })
        };
        let sound = class.slots.iter().filter(|(head, tail)| is_object(*head) && is_object(*tail));
        // All slots have as many.
        let batch = sound.clone().find_map(|(head, tail)| length(space, *head, *tail, is_object));
        let count = sound.count();
        is_whole &= count == class.slots.len() && (count == 0 || batch.is_some());
        *cached.entry(*size).or_default() += count as u64 * batch.unwrap_or_default();
    }
    is_whole
}

/// Objects from one to another.
fn length(space: &Space<'_>, head: u64, tail: u64, is_object: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut at, mut known) = (head, head);
    for count in 1..=MAX_BATCH {
        if at == tail {
            return Some(count);
        }
        at = space.word(at).filter(|next| is_object(*next))?;
        // A list that leads back never ends.
        if at == known {
            return None;
        }
        if count.is_power_of_two() {
            known = at;
        }
    }
    None
}

/// Objects in the caches of threads, by size.
pub(super) fn threads(
    space: &Space<'_>,
    taken: &Taken,
    sizes: &[u64],
    cached: &mut BTreeMap<u64, u64>,
) {
    let mut left = MAX_SEARCHED;
    for range in space.heaps() {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            for one in piece.windows(CACHE).step_by(8) {
                for (size, count) in cache(one, sizes).unwrap_or_default() {
                    *cached.entry(size).or_default() += count;
                }
            }
        });
    }
}

/// What a cache holds, by size; `None` where it is none.
fn cache(bytes: &[u8], sizes: &[u64]) -> Option<Vec<(u64, u64)>> {
    let half = |at| half_of(bytes, at);
    let mut held = Vec::new();
    for (class, size) in sizes.iter().enumerate().skip(1) {
        let at = class * LIST;
        if half(at + 24)? != *size {
            return None;
        }
        let count = half(at + 8)?;
        ((word_of(bytes, at)? == 0) == (count == 0)).then_some(())?;
        held.push((*size, count));
    }
    let all: u64 = held.iter().map(|(size, count)| size * count).sum();
    (half(LISTS)? == all).then_some(held)
}

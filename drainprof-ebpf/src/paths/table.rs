//! Tables of hashes, and the paths behind one of them.

use core::mem::offset_of;

use drainprof_common::{
    loss::Loss,
    maps::cursor,
    paths::{HASH_WAYS, NO_WORDS, PathSlot, WalkState, hash_bucket, spare_bucket},
    unwind::MAX_PATH,
};

use crate::{
    atomic, config,
    global::{global, scalars},
    losses, maps,
};

/// An entry of a table of hashes: its number, and whether it is new.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Claimed(u64);

impl Claimed {
    const NEW: u64 = 1 << 32;
    /// There is no room.
    const FULL: u64 = u64::MAX;

    /// The number.
    #[inline(always)]
    pub(crate) fn number(self) -> u32 {
        self.0 as u32
    }

    /// Whether the entry is new: then the caller has to fill it.
    #[inline(always)]
    pub(crate) fn is_new(self) -> bool {
        self.0 & Self::NEW != 0
    }
}

scalars! {
    Option<Claimed> as u64: |claimed: Option<Claimed>| claimed.map_or(Claimed::FULL, |claimed| claimed.0), |raw| {
        if raw == Claimed::FULL { None } else { Some(Claimed(raw)) }
    };
}

global! {
    /// Looks a hash up in one bucket and enters it if there is room.
    fn hash_claim(table: u32, bucket: u32, hash: u64) -> Option<Claimed> = claim_in;
    /// The number of a walk's path, by its hash: one more than it, 0 where there is no room. Kept with its return
    /// addresses if it is new.
    pub(super) fn path_enter(walk: *mut WalkState, reason: u32) -> u32 = enter;
}

/// The tables of hashes.
pub(crate) mod of {
    /// `PATH_HASHES`.
    pub(crate) const PATHS: u32 = 0;
    /// `SITE_HASHES`.
    pub(crate) const SITES: u32 = 1;
    /// `GROWTH_HASHES`.
    pub(crate) const GROWTH: u32 = 2;
}

/// A hash in a table (one of [`of`]), entered if it is not there. `None`: there is no room.
#[inline(always)]
pub(crate) fn claim(table: u32, hash: u64) -> Option<Claimed> {
    let first = hash_bucket(hash, config::path_buckets());
    hash_claim(table, first, hash).or_else(|| hash_claim(table, spare_bucket(first), hash))
}

#[inline(always)]
fn claim_in(table: u32, bucket: u32, hash: u64) -> Option<Claimed> {
    let hashes = if table == of::PATHS {
        maps::PATH_HASHES.get_ptr_mut(bucket)
    } else if table == of::GROWTH {
        maps::GROWTH_HASHES.get_ptr_mut(bucket)
    } else {
        maps::SITE_HASHES.get_ptr_mut(bucket)
    };
    let hashes = hashes?;
    for way in 0..HASH_WAYS {
        // SAFETY: map memory; the number is within the bucket.
        unsafe {
            let at = hashes.cast::<u64>().add(way);
            let number = u64::from(bucket) * HASH_WAYS as u64 + way as u64;
            let mut seen = atomic::load(at);
            if seen == 0 {
                seen = atomic::compare_swap(at, 0, hash);
                if seen == 0 {
                    return Some(Claimed(number | Claimed::NEW));
                }
            }
            if seen == hash {
                return Some(Claimed(number));
            }
        }
    }
    None
}

#[inline(always)]
fn enter(walk: *mut WalkState, reason: u32) -> u32 {
    if walk.is_null() {
        return 0;
    }
    // SAFETY: map memory that the caller has taken.
    let hash = unsafe { (*walk).hash };
    let hash = if hash == 0 { 1 } else { hash };
    let Some(path) = claim(of::PATHS, hash) else {
        losses::count(Loss::SiteTableFull);
        return 0;
    };
    if path.is_new()
        && let Some(slot) = maps::PATHS.get_ptr_mut(path.number())
    {
        // SAFETY: map memory; the program that has entered the hash fills the slot.
        unsafe { fill(walk, slot, reason) };
    }
    path.number() + 1
}

/// Writes down a new path.
#[inline(always)]
unsafe fn fill(walk: *mut WalkState, slot: *mut PathSlot, reason: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let frames = (*walk).frames;
        let at = words(frames);
        (*slot).at = at;
        (*slot).frames = frames;
        if at != NO_WORDS {
            for index in 0..MAX_PATH {
                if index as u32 >= frames {
                    break;
                }
                if let Some(word) = maps::PATH_WORDS.get_ptr_mut(at + index as u32) {
                    *word = (&raw const (*walk).addresses).cast::<u64>().add(index).read();
                }
            }
        }
        core::ptr::write_volatile(&raw mut (*slot).end, reason);
    }
}

/// Room for so many words, or [`NO_WORDS`].
#[inline(always)]
fn words(count: u32) -> u32 {
    let limit = config::path_words();
    let Some(cursor) = maps::CURSORS.get_ptr_mut(cursor::PATH_WORD) else { return NO_WORDS };
    // SAFETY: map memory, one word.
    unsafe {
        if atomic::load(cursor) >= u64::from(limit) {
            return NO_WORDS;
        }
        let at = atomic::add(cursor, u64::from(count));
        if at + u64::from(count) <= u64::from(limit) { at as u32 } else { NO_WORDS }
    }
}

/// Turns a path's [`end::NOT_SENT`] into [`end::SENT`], or back; `false` where another program was first.
#[allow(
    clippy::cast_ptr_alignment,
    reason = "values of the array begin at multiples of eight bytes"
)]
#[inline(always)]
pub(super) fn turn(number: u32, from: u32, to: u32) -> bool {
    let Some(slot) = maps::PATHS.get_ptr_mut(number) else { return false };
    // SAFETY: map memory; `end` and `reserved`, which is 0, share a word.
    unsafe {
        let word = slot.cast::<u64>().add(offset_of!(PathSlot, end) / 8);
        atomic::compare_swap(word, u64::from(from), u64::from(to)) == u64::from(from)
    }
}

const _: () = assert!(offset_of!(PathSlot, end) == 8, "end and reserved share a word");

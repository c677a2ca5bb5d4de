//! Paths with a rule missing: the shape of their stack, and what is sent of it.

use core::ffi::c_void;

use aya_ebpf::{helpers::generated::bpf_probe_read_user, maps::ring_buf::RingBufEntry};
use drainprof_common::{
    maps::MAX_FRAMES,
    paths::{
        CODE_RANGES, SNAPSHOT_LARGE, SNAPSHOT_MIDDLE, SNAPSHOT_SMALL, SPACE_SLOTS, Snapshot,
        SnapshotHead, SpaceRanges, WINDOW_BYTES, WalkState, end,
    },
    unwind::path_hash,
};

use super::{
    table,
    unwind::{stack_window, to_page_end},
};
use crate::{calls, global::global, maps};

/// Windows that are read: more than fit a snapshot, because one ends where a page cannot be read.
const WINDOWS: usize = 2 * SNAPSHOT_LARGE / WINDOW_BYTES;
/// Words of a window, and how many of them are examined at once.
const WORDS: usize = WINDOW_BYTES / 8;
const SOME: usize = 16;
/// Bytes beyond the last code address: what the frame it belongs to keeps behind it.
const MARGIN: u64 = 64;
/// Bytes of stack that are read at once.
const CHUNK: usize = 1024;
/// Separates paths that are known by their stack's shape from those that are known by their frames.
const SHAPE: u64 = 0x5741_4c4b;

global! {
    /// The number of a path of which only the first frames are known, plus one. The rest of its stack is sent.
    pub(super) fn path_unknown(walk: *mut WalkState) -> u32 = find_unknown;
    /// Adds the next [`SOME`] words of the window to the hash, and where they stand, if they could be code addresses. (The
    /// verifier goes through every round of a loop: so there is a short one, and another one around it.)
    fn path_shape(walk: *mut WalkState) -> () = add_words;
}

#[inline(always)]
fn find_unknown(walk: *mut WalkState) -> u32 {
    if walk.is_null() {
        return 0;
    }
    // SAFETY: map memory that the caller has taken.
    unsafe {
        // The same shape in another address space may be another path.
        (*walk).hash = path_hash((*walk).hash, SHAPE | u64::from((*walk).space) << 32);
        (*walk).extent = 0;
        (*walk).reach = 0;
        for _ in 0..WINDOWS {
            if (*walk).extent >= SNAPSHOT_LARGE as u64 {
                break;
            }
            let at = (*walk).at.sp.wrapping_add((*walk).extent);
            if stack_window(walk, at) == 0 {
                break;
            }
            let begin = (*walk).extent;
            for _ in 0..WORDS / SOME {
                path_shape(walk);
            }
            (*walk).extent = begin + (*walk).window_len;
        }
        let path = table::path_enter(walk, end::NOT_SENT);
        if path == 0 {
            return 0;
        }
        if table::turn(path - 1, end::NOT_SENT, end::SENT) {
            let needed = (*walk).reach + MARGIN;
            let sent = if needed <= SNAPSHOT_SMALL as u64 {
                path_send_small(walk, path - 1)
            } else if needed <= SNAPSHOT_MIDDLE as u64 {
                path_send_middle(walk, path - 1)
            } else {
                path_send_large(walk, path - 1)
            };
            if !sent {
                // User space counts what that concerns.
                table::turn(path - 1, end::SENT, end::NOT_SENT);
            }
        }
        path
    }
}

#[inline(always)]
fn add_words(walk: *mut WalkState) {
    if walk.is_null() {
        return;
    }
    // SAFETY: map memory that the walk owns; the index is masked.
    unsafe {
        let space = (*walk).space;
        let Some(ranges) = maps::SPACE_RANGES.get_ptr(space & (SPACE_SLOTS as u32 - 1)) else {
            return;
        };
        let is_known = (*ranges).space == u64::from(space);
        // The window's first byte, seen from where the walk has come to.
        let begin = (*walk).window_at.wrapping_sub((*walk).at.sp);
        let extent = &raw mut (*walk).extent;
        for _ in 0..SOME {
            // Volatile: else the compiler counts words instead of rounds, of which the verifier sees no end.
            let position = extent.read_volatile();
            let offset = position.wrapping_sub(begin);
            if offset.wrapping_add(8) > (*walk).window_len {
                break;
            }
            let index = core::hint::black_box(offset as usize / 8) & (WORDS - 1);
            let word = (&raw const (*walk).window).cast::<u64>().add(index).read();
            if !is_known || is_code(ranges, word) {
                (*walk).hash = path_hash((*walk).hash, word ^ (position << 47));
                (*walk).reach = position;
            }
            extent.write_volatile(position + 8);
        }
    }
}

/// Whether a word lies where code does.
#[inline(always)]
unsafe fn is_code(ranges: *const SpaceRanges, word: u64) -> bool {
    let mut found = false;
    for number in 0..CODE_RANGES {
        // SAFETY: the caller's promise: map memory; the number is within the array.
        let [from, length] =
            unsafe { (&raw const (*ranges).ranges).cast::<[u64; 2]>().add(number).read() };
        found |= word.wrapping_sub(from) < length;
    }
    found
}

global! {
    /// Sends a snapshot of the least size; `false` where there is no room. A reservation's size must be known when the
    /// program is loaded: hence a function for each.
    fn path_send_small(walk: *mut WalkState, path: u32) -> bool = send_small;
    /// As [`path_send_small`].
    fn path_send_middle(walk: *mut WalkState, path: u32) -> bool = send_middle;
    /// As [`path_send_small`].
    fn path_send_large(walk: *mut WalkState, path: u32) -> bool = send_large;
}

macro_rules! senders {
    ($($name:ident, $bytes:expr;)*) => {$(
        #[inline(always)]
        fn $name(walk: *mut WalkState, path: u32) -> bool {
            if walk.is_null() {
                return false;
            }
            let Some(record) = maps::SNAPSHOTS.reserve::<Snapshot<{ $bytes / 8 }>>(0) else {
                return false;
            };
            // SAFETY: the record that was reserved, of this type; the walk is the caller's.
            unsafe { send::<_, { $bytes / CHUNK }>(walk, path, record) };
            true
        }
    )*};
}

senders! {
    send_small, SNAPSHOT_SMALL;
    send_middle, SNAPSHOT_MIDDLE;
    send_large, SNAPSHOT_LARGE;
}

/// Fills a record and sends it.
///
/// # Safety
/// `T` is a [`Snapshot`]: a [`SnapshotHead`], which `CHUNKS` times [`CHUNK`] bytes of stack follow.
#[inline(always)]
unsafe fn send<T, const CHUNKS: usize>(
    walk: *mut WalkState,
    path: u32,
    mut record: RingBufEntry<T>,
) {
    let head: *mut SnapshotHead = record.as_mut_ptr().cast();
    // SAFETY: the caller's promise.
    unsafe {
        (*head).at = (*walk).at;
        (*head).path = path;
        (*head).space = (*walk).space;
        (*head).target = (*walk).target;
        (*head).tgid = ((*walk).pid_tgid >> 32) as u32;
        for number in 0..MAX_FRAMES {
            let (at, caller) = calls::call_at((*walk).pid_tgid, (*walk).target, number);
            (*head).calls[number] = [at, caller];
        }
        let stack: *mut u8 = head.add(1).cast();
        let from = (*walk).at.sp;
        let mut bytes = 0u64;
        for number in 0..CHUNKS {
            let to: *mut c_void = stack.add(number * CHUNK).cast();
            let source = from.wrapping_add((number * CHUNK) as u64);
            if bpf_probe_read_user(to, CHUNK as u32, source as *const c_void) == 0 {
                bytes += CHUNK as u64;
                continue;
            }
            let rest = to_page_end::<CHUNK>(source);
            if rest != 0 && bpf_probe_read_user(to, rest, source as *const c_void) == 0 {
                bytes += u64::from(rest);
            }
            break;
        }
        (*head).bytes = bytes;
    }
    record.submit(0);
}

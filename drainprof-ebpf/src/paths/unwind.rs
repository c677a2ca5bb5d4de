//! The walk up the stack: frame by frame, by the rules that are known.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use drainprof_common::{
    paths::{WINDOW_BYTES, WalkState},
    unwind::{
        ADDRESS_BITS, MAX_PATH, RULE_WAYS, Rule, RuleBucket, Stack, advance, path_hash,
        rule_bucket, rule_key, shown, step,
    },
};

use crate::{atomic, calls, config, global::global, maps};

/// Frames per round; rounds.
const ROUND: usize = 16;
const ROUNDS: usize = MAX_PATH / ROUND;
/// Instead of a [`step`]: there are more frames than are followed.
pub(super) const TOO_DEEP: u32 = 16;

/// The stack of a walk's thread, read window by window.
pub(super) struct Windows(pub(super) *mut WalkState);

impl Stack for Windows {
    #[inline(always)]
    fn word(&mut self, address: u64) -> Option<u64> {
        // SAFETY: map memory that the walk owns.
        unsafe {
            let mut offset = address.wrapping_sub((*self.0).window_at);
            if offset & 7 != 0 || offset.wrapping_add(8) > (*self.0).window_len || offset >> 32 != 0
            {
                if stack_window(self.0, address) < 8 {
                    return None;
                }
                offset = 0;
            }
            let index = core::hint::black_box(offset as usize / 8) & (WINDOW_BYTES / 8 - 1);
            Some((&raw const (*self.0).window).cast::<u64>().add(index).read())
        }
    }
}

global! {
    /// Reads the window that begins at an address: how many bytes could be read.
    pub(super) fn stack_window(walk: *mut WalkState, address: u64) -> u32 = read_window;
    /// Up to [`ROUND`] frames.
    fn path_round(walk: *mut WalkState) -> () = walk_round;
}

#[inline(always)]
fn read_window(walk: *mut WalkState, address: u64) -> u32 {
    if walk.is_null() {
        return 0;
    }
    // SAFETY: map memory that the walk owns; at most as many bytes are read as the window has.
    unsafe {
        (*walk).window_at = address;
        (*walk).window_len = 0;
        let window: *mut c_void = (&raw mut (*walk).window).cast();
        let source = address as *const c_void;
        if bpf_probe_read_user(window, WINDOW_BYTES as u32, source) == 0 {
            (*walk).window_len = WINDOW_BYTES as u64;
            return WINDOW_BYTES as u32;
        }
        // Such a read fails as a whole where the stack's mapping ends; mappings end where pages do.
        let length = to_page_end::<WINDOW_BYTES>(address);
        if length == 0 || bpf_probe_read_user(window, length, source) != 0 {
            return 0;
        }
        (*walk).window_len = u64::from(length);
        length
    }
}

/// Bytes to the end of an address's page, if they are fewer than `MAX_BYTES` (a power of two); else 0: a read of so many lies
/// within the page.
#[inline(always)]
pub(super) fn to_page_end<const MAX_BYTES: usize>(address: u64) -> u32 {
    let rest = 4096 - (address as u32 & 4095);
    if rest >= MAX_BYTES as u32 {
        return 0;
    }
    // The compiler must not see that the mask changes nothing: the verifier does not.
    core::hint::black_box(rest) & (MAX_BYTES as u32 - 1)
}

/// Adds the cursor's address to the path.
#[inline(always)]
pub(super) unsafe fn add(walk: *mut WalkState) {
    // SAFETY: map memory that the caller has taken.
    unsafe {
        let pc = shown(&(*walk).at);
        let frames = (*walk).frames;
        let index = core::hint::black_box(frames as usize) & (MAX_PATH - 1);
        (&raw mut (*walk).addresses).cast::<u64>().add(index).write(pc);
        (*walk).frames = frames + 1;
        (*walk).hash_before = (*walk).hash;
        (*walk).hash = path_hash((*walk).hash, pc);
    }
}

/// Goes from a function's first instruction to its caller.
#[inline(always)]
pub(super) unsafe fn enter(walk: *mut WalkState) {
    // SAFETY: map memory that the caller has taken.
    unsafe {
        let sp = (*walk).at.sp;
        match Windows(walk).word(sp) {
            Some(pc) => {
                (*walk).at.pc = pc;
                (*walk).at.sp = sp.wrapping_add(8);
                arrived(walk);
            }
            None => (*walk).end = step::UNREADABLE,
        }
    }
}

/// The cursor has come to a caller's frame.
#[inline(always)]
unsafe fn arrived(walk: *mut WalkState) {
    // SAFETY: map memory that the caller has taken.
    unsafe {
        if (*walk).at.pc << 52 == 0 {
            // The kernel's return trampoline begins a page: the return address is with the probe's call.
            let real = calls::call_return_address(
                (*walk).pid_tgid,
                (*walk).target,
                (*walk).at.sp.wrapping_sub(8),
            );
            if real != 0 {
                (*walk).at.pc = real;
            }
        }
        add(walk);
    }
}

/// The rule for the cursor; unknown where it has not been taught.
#[inline(always)]
unsafe fn rule(walk: *mut WalkState) -> Rule {
    // SAFETY: map memory that the caller has taken.
    let key = unsafe { rule_key((*walk).space, &(*walk).at) };
    let Some(bucket) = maps::RULES.get_ptr(rule_bucket(key, config::rule_buckets())) else {
        return Rule::UNKNOWN;
    };
    for way in 0..RULE_WAYS {
        // SAFETY: map memory, word by word; the index is in bounds.
        unsafe {
            let bucket: *const RuleBucket = bucket;
            let at = (&raw const (*bucket).keys).cast::<u64>().add(way);
            if atomic::load(at) == key {
                let rule = atomic::load((&raw const (*bucket).rules).cast::<u64>().add(way));
                // User space may give the place to another rule: then the key went first.
                if atomic::load(at) == key {
                    return Rule(rule);
                }
            }
        }
    }
    Rule::UNKNOWN
}

/// Walks as far as the rules lead; why it ends stands in the walk.
#[inline(always)]
pub(super) unsafe fn path_walk(walk: *mut WalkState) {
    for _ in 0..ROUNDS {
        // SAFETY: map memory that the caller has taken.
        if unsafe { (*walk).end } != step::CALLER {
            return;
        }
        path_round(walk);
    }
    // SAFETY: as above.
    unsafe {
        if (*walk).end == step::CALLER {
            (*walk).end = TOO_DEEP;
        }
    }
}

#[inline(always)]
fn walk_round(walk: *mut WalkState) {
    if walk.is_null() {
        return;
    }
    for _ in 0..ROUND {
        // SAFETY: map memory that the walk owns.
        unsafe {
            let rule = rule(walk);
            let led = advance(rule, &mut (*walk).at, &mut Windows(walk));
            if led == step::NO_FRAME {
                // The last address is none: the path ends with the one before.
                (*walk).end = step::STOP;
                let frames = (*walk).frames;
                // None where the probed function's own code is not known: there the walk has begun.
                if frames != 0 {
                    (*walk).frames = frames - 1;
                    (*walk).hash = (*walk).hash_before;
                }
                return;
            }
            if led != step::CALLER {
                (*walk).end = led;
                return;
            }
            if (*walk).at.pc >> ADDRESS_BITS != 0 {
                // No program has code there: the rule has led astray.
                (*walk).end = step::STOP;
                return;
            }
            if (*walk).at.pc == 0 {
                // Without a return address the stack begins here: so begin those that programs make themselves.
                (*walk).end = step::START;
                return;
            }
            if (*walk).frames >= MAX_PATH as u32 {
                (*walk).end = TOO_DEEP;
                return;
            }
            arrived(walk);
        }
    }
}

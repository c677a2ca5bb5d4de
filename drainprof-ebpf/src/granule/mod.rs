//! Granules: their life from open to close and late drain, as the programs call it.
//!
//! A slot is found through the index (series, id) while it is that id's current generation, and through
//! the references that objects hold. It is used again only when neither is left: no live object, and
//! another generation (or user space's sweep) has taken its place in the index. So a free, which holds a
//! reference, never meets another granule's slot; an alloc, which does not, checks the generation after
//! it has counted itself.
//!
//! A new generation is begun by whoever swaps the closed one's state word (or, without a slot, its index
//! word); all others look again.
//!
//! What takes long to verify is in global functions (`extern "C"`), which the verifier follows once per
//! program instead of once per path of each caller. They take numbers and return an index word.

mod close;
mod describe;
mod hold;
mod implicit;
mod moves;
mod nest;
mod open;
mod quick;
pub(crate) mod slots;

use drainprof_common::{
    loss::Loss,
    spec::{Kind, flags, value},
};

use self::{
    close::{granule_close, granule_reset},
    hold::{granule_hold, granule_take_off_id},
    open::granule_begin,
};
pub(crate) use self::{
    describe::{label, reparent},
    hold::{release, take_off},
    implicit::{granule_leave, is_apart, misses},
    moves::granule_moves,
    nest::is_over,
};
use crate::{
    calls,
    hit::Hit,
    losses,
    series::{self, bump},
};

const EEXIST: i32 = -17;

/// Instead of an index word: another CPU was first, look again.
const AGAIN: u64 = 1 << 62;
/// Instead of an index word: a counted loss.
const NOTHING: u64 = 1 << 61;
/// Instead of an index word: the granule has to be begun first.
const BEGIN: u64 = 1 << 60;
/// How often to look again before it counts as a loss.
const LOOKS: usize = 8;

/// What a global function must know of its probe and target, in one number.
pub(crate) mod mode {
    use drainprof_common::spec::{Kind, flags};

    pub(crate) const BY_OBJECT: u32 = flags::BY_OBJECT;
    pub(crate) const HAS_OPEN: u32 = flags::HAS_OPEN;
    pub(crate) const BOUNDARY: u32 = flags::BOUNDARY;
    pub(crate) const HAS_BYTES: u32 = flags::HAS_BYTES;
    pub(crate) const IMPLICIT: u32 = flags::IMPLICIT;
    /// The bits that are the spec's flags.
    pub(crate) const FLAGS: u32 = 0xffff | IMPLICIT;
    /// The target is observed since its first instruction.
    pub(crate) const FROM_START: u32 = 1 << 16;
    /// An open begins the generation.
    pub(crate) const BY_OPEN: u32 = 1 << 17;
    /// An alloc inside an open that has not returned begins it.
    pub(crate) const IN_FLIGHT: u32 = 1 << 18;
    /// If it is the first one seen of its id, it may be older than the attach.
    pub(crate) const BEFORE: u32 = 1 << 19;
    /// If it is the first one seen of its id, its open was not.
    pub(crate) const UNSEEN: u32 = 1 << 20;
    /// The close hands the live objects over.
    pub(crate) const MIGRATE: u32 = 1 << 21;
    /// Granules end with those that they are nested in.
    pub(crate) const NESTED: u32 = 1 << 22;
    /// The kind's first bit.
    pub(crate) const KIND_SHIFT: u32 = 24;

    #[inline(always)]
    pub(crate) fn is_bulk(how: u32) -> bool {
        how >> KIND_SHIFT == Kind::Bulk as u32
    }

    #[inline(always)]
    pub(crate) fn is_implicit(how: u32) -> bool {
        how & IMPLICIT != 0
    }

    /// Whether a pinned close is waited out: elsewhere the last free is no late drain.
    #[inline(always)]
    pub(crate) fn is_judged(how: u32) -> bool {
        is_drain(how) && how & BOUNDARY == 0
    }

    #[inline(always)]
    pub(crate) fn is_drain(how: u32) -> bool {
        how >> KIND_SHIFT == Kind::Drain as u32
    }
}

/// Repeats what another CPU got in the way of.
#[inline(always)]
fn repeat(step: impl Fn() -> u64) -> Option<u64> {
    for _ in 0..LOOKS {
        let word = step();
        if word & AGAIN == 0 {
            return if word & NOTHING == 0 { Some(word) } else { None };
        }
    }
    losses::count(Loss::AllocRaced);
    None
}

/// The series of the hit's instance; `None`: a counted loss.
#[inline(always)]
fn series(hit: &Hit) -> Option<u32> {
    series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
}

/// An open.
#[inline(always)]
pub(crate) fn open(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    open_in(hit, series, hit.value(value::GRANULE));
}

#[inline(always)]
fn open_in(hit: &Hit, series: u32, id: u64) {
    if quick::reopen(hit, series, id) {
        return;
    }
    let (bytes, how) = (hit.granule_bytes(), hit.mode() | mode::BY_OPEN);
    let Some(word) = repeat(|| granule_begin(series, id, how, bytes, hit.caller())) else { return };
    if hit.has(flags::HAS_PARENT | flags::HAS_LABEL) {
        describe::opened(hit, series, word);
    }
}

/// A close.
#[inline(always)]
pub(crate) fn close(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    close_in(hit, series);
}

#[inline(always)]
fn close_in(hit: &Hit, series: u32) {
    if quick::close(hit, series, hit.value(value::GRANULE)) {
        return;
    }
    let (id, bytes, how) = (hit.value(value::GRANULE), hit.granule_bytes(), hit.mode());
    let live = hit.value(value::LIVE);
    // What happened is in the counters.
    let _ = repeat(|| granule_close(series, id, how, live, bytes));
}

/// A close that hands the live objects over.
#[inline(always)]
pub(crate) fn migrate(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    // What decides a verdict elsewhere is of no interest here.
    let how = (hit.mode() & !mode::BOUNDARY) | mode::MIGRATE;
    let (id, bytes) = (hit.value(value::GRANULE), hit.constant_bytes());
    // What happened is in the counters.
    let _ = repeat(|| granule_close(series, id, how, 0, bytes));
}

/// A reset: for `drain` a close and an open at once; else the members go and the granule lives on.
#[inline(always)]
pub(crate) fn reset(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    bump!(series, resets);
    if hit.is(Kind::Drain) {
        close_in(hit, series);
        open_in(hit, series, hit.value(value::GRANULE));
        return;
    }
    let (id, bytes, how) = (hit.value(value::GRANULE), hit.granule_bytes(), hit.mode());
    // What happened is in the counters.
    let _ = repeat(|| granule_reset(series, id, how, bytes, hit.caller()));
}

/// Counts an object in the granule that an alloc belongs to, made if its open was not seen: its index
/// word. `None`: a counted loss.
#[inline(always)]
pub(crate) fn hold(hit: &Hit, series: u32, id: u64) -> Option<u64> {
    if let Some(word) = hold::hold_remembered(series, id) {
        return Some(word);
    }
    let (how, bytes) = (hit.mode(), hit.constant_bytes());
    let word = granule_hold_or_begin(series, id, how, bytes, hit.rsp);
    if word & NOTHING == 0 { Some(word) } else { None }
}

/// [`hold`] where the granule is not remembered: its index word, or [`NOTHING`] for a counted loss. A function of
/// its own for the sake of its callers' stacks.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn granule_hold_or_begin(series: u32, id: u64, how: u32, bytes: u64, rsp: u64) -> u64 {
    let word = repeat(|| {
        let word = granule_hold(series, id, how, rsp);
        if word & BEGIN == 0 {
            return word;
        }
        // The open will find its granule described but for what it alone can tell.
        let place =
            if word as u32 & mode::IN_FLIGHT == 0 { 0 } else { calls::open_in_flight(series, rsp) };
        let place = if place == 1 { 0 } else { place };
        match granule_begin(series, id, how | word as u32, bytes, place) {
            NOTHING => NOTHING,
            _ => AGAIN,
        }
    });
    let Some(word) = word else { return NOTHING };
    slots::remember(series, id, word);
    word
}

/// Takes one object off the live count of a granule that is known by id only; `Some(false)` where it has none.
/// `None`: a counted loss.
#[inline(always)]
pub(crate) fn take_off_id(hit: &Hit, series: u32, id: u64, size: u64) -> Option<bool> {
    let how = hit.mode();
    Some(repeat(|| granule_take_off_id(series, id, size, how))? == 1)
}

//! What happens to granules, as the programs report it: opens, closes, resets, and objects that come and go.
//!
//! Each event takes the short road first (`quick`, or what is remembered), and then the one that knows every case.

use drainprof_common::{
    counter,
    granule::IndexWord,
    mode::Mode,
    spec::{Kind, flags, value},
};

use super::{
    close::{close_alone, granule_close, granule_reset},
    describe,
    hold::{Held, granule_hold, granule_take_off_id, hold_remembered},
    open::granule_begin,
    quick, slots,
    step::{Step, repeat},
};
use crate::{
    calls::{self, OpenCall},
    global::global,
    hit::Hit,
    series, totals,
};

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
pub(super) fn open_in(hit: &Hit, series: u32, id: u64) {
    if quick::reopen(hit, series, id) {
        return;
    }
    let (bytes, mode) = (hit.granule_bytes(), hit.mode() | Mode::BY_OPEN);
    let Some(word) = repeat(|| granule_begin(series, id, mode, bytes, hit.caller())) else {
        return;
    };
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
    if hit.has(flags::CLOSES_ONLY) {
        return close_alone(
            series,
            hit.value(value::GRANULE),
            hit.mode(),
            hit.value(value::LIVE),
            hit.granule_bytes(),
        );
    }
    if quick::close(hit, series, hit.value(value::GRANULE)) {
        return;
    }
    let (id, bytes, mode) = (hit.value(value::GRANULE), hit.granule_bytes(), hit.mode());
    let live = hit.value(value::LIVE);
    // What happened is in the counters.
    let _ = repeat(|| granule_close(series, id, mode, live, bytes));
}

/// A close that hands the live objects over.
#[inline(always)]
pub(crate) fn migrate(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    // What decides a verdict elsewhere is of no interest here.
    let mode = hit.mode().without(Mode::BOUNDARY) | Mode::MIGRATE;
    let (id, bytes) = (hit.value(value::GRANULE), hit.constant_bytes());
    // What happened is in the counters.
    let _ = repeat(|| granule_close(series, id, mode, 0, bytes));
}

/// A reset: for `drain` a close and an open at once; else the members go and the granule lives on.
#[inline(always)]
pub(crate) fn reset(hit: &Hit) {
    let Some(series) = series(hit) else { return };
    totals::add(series, counter!(resets), 1);
    let closes_only = hit.has(flags::CLOSES_ONLY);
    if hit.is(Kind::Drain) {
        close_in(hit, series);
        if !closes_only {
            open_in(hit, series, hit.value(value::GRANULE));
        }
        return;
    }
    if closes_only {
        return;
    }
    let (id, bytes, mode) = (hit.value(value::GRANULE), hit.granule_bytes(), hit.mode());
    // What happened is in the counters.
    let _ = repeat(|| granule_reset(series, id, mode, bytes, hit.caller()));
}

/// Counts an object in the granule that an alloc belongs to, made if its open was not seen: its index
/// word. `None`: a counted loss.
#[inline(always)]
pub(crate) fn hold(hit: &Hit, series: u32, id: u64) -> Option<IndexWord> {
    if let Some(word) = hold_remembered(series, id) {
        return Some(word);
    }
    let (mode, bytes) = (hit.mode(), hit.constant_bytes());
    match granule_hold_or_begin(series, id, mode, bytes, hit.rsp) {
        Step::Done(word) => Some(word),
        Step::Again | Step::Lost => None,
    }
}

global! {
    /// [`hold`] where the granule is not remembered. A function of its own for the sake of its callers' stacks.
    fn granule_hold_or_begin(series: u32, id: u64, mode: Mode, bytes: u64, rsp: u64) -> Step<IndexWord> = hold_or_begin;
}

#[inline(always)]
fn hold_or_begin(series: u32, id: u64, mode: Mode, bytes: u64, rsp: u64) -> Step<IndexWord> {
    let word = repeat(|| {
        let begun = match granule_hold(series, id, mode, rsp) {
            Held::Counted(word) => return Step::Done(word),
            Held::Again => return Step::Again,
            Held::Begin(begun) => begun,
        };
        // The open will find its granule described but for what it alone knows.
        let place = if begun.has(Mode::IN_FLIGHT) {
            calls::open_in_flight(series, rsp).map_or(0, OpenCall::caller)
        } else {
            0
        };
        match granule_begin(series, id, mode | begun, bytes, place) {
            Step::Lost => Step::Lost,
            Step::Done(_) | Step::Again => Step::Again,
        }
    });
    let Some(word) = word else { return Step::Lost };
    slots::remember(series, id, word);
    Step::Done(word)
}

/// Takes one object off the live count of a granule that is known by id only; `Some(false)` where it has none.
/// `None`: a counted loss.
#[inline(always)]
pub(crate) fn take_off_id(hit: &Hit, series: u32, id: u64, size: u64) -> Option<bool> {
    let mode = hit.mode();
    Some(repeat(|| granule_take_off_id(series, id, size, mode))? != 0)
}

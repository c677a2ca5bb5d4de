//! Granules: slots, the index of ids, opens and closes.
//!
//! A slot is found through the index (series, id) while it is that id's current generation, and through
//! the references that objects hold. It is used again only when neither is left: no live object, and
//! another generation (or user space's sweep) has taken its place in the index. So a free, which holds a
//! reference, never meets another granule's slot; an alloc, which does not, checks the generation after
//! it has counted itself.

use drainprof_common::{
    event::EventKind,
    hist::{self, Hist},
    loss::Loss,
    maps::{HistKey, IndexKey, NO_SLOT, Slot, cursor, place_of},
    spec::{Kind, LABEL_BYTES, flags, value},
    state::{self, Verdict},
};

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;

use crate::{
    atomic, calls, config, emit,
    hit::{Hit, now},
    losses, maps,
    series::{self, bump},
};

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = -17;
const GENERATION_STEP: u64 = 1 << state::GENERATION_SHIFT;

/// A granule that is followed: its slot and the generation that is meant.
#[derive(Clone, Copy)]
pub(crate) struct Granule {
    /// The slot, or [`NO_SLOT`].
    pub(crate) slot: u32,
    /// The generation.
    pub(crate) generation: u32,
}

#[inline(always)]
pub(crate) fn slot(index: u32) -> Option<*mut Slot> {
    maps::GRANULES.get_ptr_mut(index)
}

#[inline(always)]
fn key(series: u32, id: u64) -> IndexKey {
    IndexKey { series, reserved: 0, id }
}

#[inline(always)]
fn index_word(series: u32, id: u64) -> Option<(*mut u64, u64)> {
    let word = maps::INDEX.get_ptr_mut(key(series, id))?;
    // SAFETY: map memory, one word read at once.
    Some((word, unsafe { atomic::load(word) }))
}

/// Where an id was found.
pub(crate) enum Found {
    /// Nothing is known of it.
    Nothing,
    /// It is known, but has no slot; the word's place in the index.
    Unfollowed(*mut u64, bool),
    /// Its slot, state word, and the word's place in the index.
    Slot(Granule, *mut Slot, u64, *mut u64),
}

/// Looks an id up.
#[inline(always)]
pub(crate) fn find(series: u32, id: u64) -> Found {
    let Some((place, word)) = index_word(series, id) else { return Found::Nothing };
    let index = place_of::slot(word);
    if index == NO_SLOT {
        return Found::Unfollowed(place, word & place_of::CLOSED != 0);
    }
    let Some(slot) = slot(index) else { return Found::Nothing };
    // SAFETY: map memory. The slot says itself whose it is: a word read from an index entry that was
    // deleted and recycled at this instant is recognised.
    let state = unsafe {
        if (*slot).id != id || (*slot).series != series {
            return Found::Nothing;
        }
        atomic::load(&raw const (*slot).state)
    };
    let granule = Granule { slot: index, generation: place_of::generation(word) };
    Found::Slot(granule, slot, state, place)
}

/// A slot to which neither the index nor an object refers, with a new generation. `None`: all are taken
/// (the caller counts).
#[inline(always)]
fn take_slot() -> Option<(Granule, *mut Slot)> {
    let index = match series::take_cursor(cursor::SLOT, config::max_granules()) {
        Some(index) => index,
        None => {
            let index = maps::FREE_SLOTS.pop().ok().flatten()?;
            series::level(cursor::FREE_SLOTS, false);
            index
        }
    };
    let slot = slot(index)?;
    // SAFETY: map memory. The state word is only ever added to and masked, never stored: an alloc that
    // still means the slot's last granule adds one and takes it back.
    let before = unsafe { atomic::add(&raw mut (*slot).state, GENERATION_STEP) };
    Some((Granule { slot: index, generation: next_generation(before) }, slot))
}

#[inline(always)]
fn next_generation(before: u64) -> u32 {
    state::generation(before).wrapping_add(1) & state::GENERATION_MASK as u32
}

/// Gives back a slot to which neither the index nor an object refers.
#[inline(always)]
fn give_back(index: u32) {
    if maps::FREE_SLOTS.push(index, 0).is_ok() {
        series::level(cursor::FREE_SLOTS, true);
    }
}

/// Fills a slot that the caller alone holds, and opens it.
#[inline(always)]
fn fill(slot: *mut Slot, series: u32, id: u64, opened_ns: u64, state_flags: u64) {
    // SAFETY: map memory; whoever else looks at the slot sees another generation in the index.
    unsafe {
        (*slot).series = series;
        (*slot).id = id;
        (*slot).opened_ns = opened_ns;
        (*slot).closed_ns = 0;
        (*slot).place = 0;
        (*slot).bytes = 0;
        (*slot).live_bytes = 0;
        (*slot).allocated = 0;
        (*slot).parent = 0;
        (*slot).pinned_objects = 0;
        for word in 0..LABEL_BYTES / 8 {
            core::ptr::write_volatile((&raw mut (*slot).label).cast::<u64>().add(word), 0);
        }
        atomic::and(&raw mut (*slot).state, !state::FLAGS);
        atomic::or(&raw mut (*slot).state, state::USED | state_flags);
    }
}

/// Enters a new granule for an id that the index does not know.
///
/// `Err(true)`: another CPU was first, look again; `Err(false)`: a counted loss.
#[inline(always)]
fn enter(series: u32, id: u64, opened_ns: u64, state_flags: u64) -> Result<Granule, bool> {
    let (index, generation) = match take_slot() {
        Some((granule, slot)) => {
            fill(slot, series, id, opened_ns, state_flags);
            (granule.slot, granule.generation)
        }
        None => (NO_SLOT, 0),
    };
    let word = if index == NO_SLOT {
        place_of::UNFOLLOWED
    } else {
        place_of::slot_word(index, generation)
    };
    match maps::INDEX.insert(key(series, id), word, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::INDEX, true);
            if index == NO_SLOT {
                losses::count(Loss::GranuleMapFull);
                bump!(series, unfollowed);
            }
            Ok(Granule { slot: index, generation })
        }
        Err(error) => {
            if index != NO_SLOT {
                give_back(index);
            }
            if error == EEXIST {
                return Err(true);
            }
            losses::count(Loss::GranuleIndexFull);
            Err(false)
        }
    }
}

/// Puts a new generation in the place of a closed or abandoned one.
#[inline(always)]
fn replace(
    series: u32,
    id: u64,
    old: Granule,
    old_slot: *mut Slot,
    place: *mut u64,
    opened_ns: u64,
    state_flags: u64,
) -> Granule {
    if let Some(generation) = claim(old_slot, old.generation) {
        // No object refers to it: the slot serves the new generation in place.
        fill(old_slot, series, id, opened_ns, state_flags);
        // SAFETY: the index entry's word.
        unsafe { atomic::store(place, place_of::slot_word(old.slot, generation)) };
        return Granule { slot: old.slot, generation };
    }
    // Its objects still refer to it; the last of them gives it back.
    place_new(series, id, place, opened_ns, state_flags)
}

/// Takes over a closed slot if it has no live object; else leaves it to its objects.
#[inline(always)]
fn claim(slot: *mut Slot, generation: u32) -> Option<u32> {
    // SAFETY: map memory.
    unsafe {
        let seen = atomic::load(&raw const (*slot).state);
        if state::live(seen) == 0
            && state::generation(seen) == generation
            && atomic::compare_swap(
                &raw mut (*slot).state,
                seen,
                seen.wrapping_add(GENERATION_STEP),
            ) == seen
        {
            return Some(next_generation(seen));
        }
        let before = atomic::or(&raw mut (*slot).state, state::DETACHED);
        if state::live(before) == 0 {
            // The last object went just before it could see that the slot is its to give back.
            let before = atomic::add(&raw mut (*slot).state, GENERATION_STEP);
            return Some(next_generation(before));
        }
    }
    None
}

/// Puts a granule in a new slot under an id that the index knows.
#[inline(always)]
fn place_new(series: u32, id: u64, place: *mut u64, opened_ns: u64, state_flags: u64) -> Granule {
    match take_slot() {
        Some((granule, slot)) => {
            fill(slot, series, id, opened_ns, state_flags);
            // SAFETY: the index entry's word.
            unsafe { atomic::store(place, place_of::slot_word(granule.slot, granule.generation)) };
            granule
        }
        None => {
            // SAFETY: the index entry's word.
            unsafe { atomic::store(place, place_of::UNFOLLOWED) };
            losses::count(Loss::GranuleMapFull);
            bump!(series, unfollowed);
            Granule { slot: NO_SLOT, generation: 0 }
        }
    }
}

/// Writes what an open knows of its granule.
#[inline(always)]
fn describe(hit: &Hit, slot: *mut Slot) {
    // SAFETY: map memory; these fields are written by opens and closes of this granule only.
    unsafe {
        (*slot).place = hit.caller;
        (*slot).bytes = hit.granule_bytes();
        if hit.has(flags::HAS_PARENT) {
            (*slot).parent = hit.value(value::PARENT);
        }
        if hit.has(flags::HAS_LABEL) {
            // The helper writes a terminated string or, where the text cannot be read, nothing.
            bpf_probe_read_user_str(
                (&raw mut (*slot).label).cast(),
                LABEL_BYTES as u32,
                hit.value(value::LABEL) as *const core::ffi::c_void,
            );
        }
    }
}

/// An open.
#[inline(always)]
pub(crate) fn open(hit: &Hit) {
    let id = hit.value(value::GRANULE);
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    open_in(hit, series, id);
}

#[inline(never)]
fn open_in(hit: &Hit, series: u32, id: u64) {
    let opened_ns = now();
    for _ in 0..2 {
        let granule = match find(series, id) {
            Found::Nothing => match enter(series, id, opened_ns, 0) {
                Ok(granule) => granule,
                Err(true) => continue,
                Err(false) => return,
            },
            Found::Unfollowed(place, closed) => {
                if !closed {
                    bump!(series, reopened);
                    series::closed(series);
                }
                place_new(series, id, place, opened_ns, 0)
            }
            Found::Slot(granule, slot, state, place) => {
                if state & state::IN_FLIGHT != 0 && state & state::CLOSED == 0 {
                    // An alloc inside this very call was there first: it is ours.
                    // SAFETY: map memory.
                    unsafe { atomic::and(&raw mut (*slot).state, !state::IN_FLIGHT) };
                    bump!(series, opened);
                    describe(hit, slot);
                    return;
                }
                if state & state::CLOSED == 0 {
                    // Reopened without a close: the earlier one is gone unjudged.
                    // SAFETY: map memory.
                    let before = unsafe {
                        atomic::or(&raw mut (*slot).state, state::CLOSED | state::STRAGGLER)
                    };
                    if before & state::CLOSED == 0 {
                        bump!(series, reopened);
                        series::closed(series);
                    }
                }
                replace(series, id, granule, slot, place, opened_ns, 0)
            }
        };
        bump!(series, opened);
        series::opened(series);
        if granule.slot != NO_SLOT
            && let Some(slot) = slot(granule.slot)
        {
            describe(hit, slot);
        }
        return;
    }
    losses::count(Loss::AllocRaced);
}

/// The granule that an alloc belongs to, made if its open was not seen. `None`: a counted loss.
#[inline(never)]
pub(crate) fn for_alloc(hit: &Hit, series: u32, id: u64) -> Option<(Granule, *mut Slot)> {
    let has_open = hit.has(flags::HAS_OPEN);
    for _ in 0..3 {
        match find(series, id) {
            Found::Nothing => {
                let in_flight = has_open && calls::open_in_flight(hit.target, hit.allocator());
                let state_flags = if in_flight {
                    state::IN_FLIGHT
                } else if hit.from_start() {
                    0
                } else {
                    state::BEFORE
                };
                let opened_ns = if state_flags & state::BEFORE == 0 { now() } else { 0 };
                match enter(series, id, opened_ns, state_flags) {
                    Ok(_) => {
                        if !in_flight {
                            implied_open(series, has_open, state_flags);
                        }
                        series::opened(series);
                    }
                    Err(true) => {}
                    Err(false) => return None,
                }
            }
            Found::Unfollowed(place, closed) => {
                if closed && !has_open {
                    // SAFETY: the index entry's word.
                    unsafe { atomic::store(place, place_of::UNFOLLOWED) };
                    bump!(series, opened);
                    series::opened(series);
                }
                return Some((Granule { slot: NO_SLOT, generation: 0 }, core::ptr::null_mut()));
            }
            Found::Slot(granule, slot, state, place) => {
                if state::generation(state) != granule.generation {
                    continue;
                }
                if state & state::CLOSED != 0 {
                    let in_flight = has_open && calls::open_in_flight(hit.target, hit.allocator());
                    if in_flight || !has_open {
                        let state_flags = if in_flight { state::IN_FLIGHT } else { 0 };
                        replace(series, id, granule, slot, place, now(), state_flags);
                        if !in_flight {
                            bump!(series, opened);
                        }
                        series::opened(series);
                        continue;
                    }
                }
                // SAFETY: map memory.
                let before = unsafe { atomic::add(&raw mut (*slot).state, 1) };
                if state::generation(before) != granule.generation || before & state::USED == 0 {
                    // The slot was used again in between: take the count back and look again.
                    // SAFETY: map memory.
                    unsafe { atomic::sub(&raw mut (*slot).state, 1) };
                    continue;
                }
                if before & state::CLOSED != 0 {
                    if state::live(before) == 0 {
                        // SAFETY: map memory.
                        unsafe { atomic::or(&raw mut (*slot).state, state::STRAGGLER) };
                    }
                    bump!(series, allocs_after_close);
                    losses::count(Loss::AllocAfterClose);
                }
                return Some((granule, slot));
            }
        }
    }
    losses::count(Loss::AllocRaced);
    None
}

/// Counts a granule whose open was not a hit: with no `open` probe its first use is its open, unless it
/// may be older than the attach.
#[inline(always)]
fn implied_open(series: u32, has_open: bool, state_flags: u64) {
    if has_open || state_flags & state::BEFORE != 0 {
        bump!(series, opened_before);
    } else {
        bump!(series, opened);
    }
}

/// Takes one object off a granule's live count; judges whether that was the late drain.
#[inline(never)]
pub(crate) fn release(slot_index: u32, slot: *mut Slot, size: u64) {
    // SAFETY: map memory; the caller holds (or has checked) a reference that this gives up.
    unsafe {
        if size != 0 {
            atomic::sub(&raw mut (*slot).live_bytes, size);
        }
        let before = atomic::sub(&raw mut (*slot).state, 1);
        after_release(slot_index, slot, before);
    }
}

#[inline(never)]
fn after_release(slot_index: u32, slot: *mut Slot, before: u64) {
    if state::live(before) != 1 {
        return;
    }
    // SAFETY: map memory; a closed granule's description does not change.
    unsafe {
        if state::is_late_drain(before) {
            let series = (*slot).series;
            let closed_ns = (*slot).closed_ns;
            let at = now();
            bump!(series, late_drained);
            if let Some(state) = series::state(series) {
                atomic::sub(&raw mut (*state).retained_granules, 1);
                atomic::sub(&raw mut (*state).retained_bytes, (*slot).bytes);
            }
            record(series, hist::Of::PinDelay, 0, at.saturating_sub(closed_ns));
            if config::events_wanted() != 0 {
                let (id, target) = ((*slot).id, target_of(series));
                emit::granule(EventKind::LateDrain, target, series, id, at, |event| {
                    (*event).generation = state::generation(before);
                    (*event).bytes = (*slot).bytes;
                    (*event).opened_ns = (*slot).opened_ns;
                    (*event).closed_ns = closed_ns;
                    (*event).place = (*slot).place;
                });
            }
        }
        if before & state::DETACHED != 0 {
            give_back(slot_index);
        }
    }
}

#[inline(always)]
fn target_of(series: u32) -> u32 {
    // SAFETY: map memory; the key is written before the series is handed out.
    series::state(series).map_or(0, |state| unsafe { (*state).key.target })
}

/// Takes one object off the live count of a granule that is known by id only; `false` where it has none.
#[inline(never)]
pub(crate) fn release_by_id(series: u32, id: u64, size: u64) -> bool {
    let Found::Slot(granule, slot, _, _) = find(series, id) else {
        // Without a slot nothing can be said against it.
        return matches!(find(series, id), Found::Unfollowed(..));
    };
    for _ in 0..16 {
        // SAFETY: map memory.
        unsafe {
            let seen = atomic::load(&raw const (*slot).state);
            if state::generation(seen) != granule.generation || state::live(seen) == 0 {
                return false;
            }
            if atomic::compare_swap(&raw mut (*slot).state, seen, seen - 1) == seen {
                if size != 0 {
                    atomic::sub(&raw mut (*slot).live_bytes, size);
                }
                after_release(granule.slot, slot, seen);
                return true;
            }
        }
    }
    losses::count(Loss::AllocRaced);
    true
}

/// Marks the granule's close as undecidable, because one of its objects was lost.
#[inline(always)]
pub(crate) fn taint(slot: *mut Slot) {
    // SAFETY: map memory.
    unsafe { atomic::or(&raw mut (*slot).state, state::TAINTED) };
}

/// A close.
#[inline(always)]
pub(crate) fn close(hit: &Hit) {
    let id = hit.value(value::GRANULE);
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    close_in(hit, series, id);
}

/// Closes; what happened to it is all in the counters.
#[inline(never)]
fn close_in(hit: &Hit, series: u32, id: u64) {
    let at = now();
    let has_open = hit.has(flags::HAS_OPEN);
    let boundary = hit.has(flags::BOUNDARY);
    let drain = hit.is(Kind::Drain);
    let mut closed = Closed { bytes: hit.granule_bytes(), ..Closed::NOTHING };
    let read_live = hit.value(value::LIVE);
    let by_memory = if read_live == 0 { Verdict::Drainable } else { Verdict::Pinned };
    let verdict;
    match find(series, id) {
        Found::Nothing => {
            // Older than the attach; or never used, which only an observation from the start can tell.
            let unseen = if has_open || !hit.from_start() { state::BEFORE } else { 0 };
            implied_open(series, has_open, unseen);
            verdict = if boundary {
                closed.live = read_live;
                by_memory
            } else if hit.from_start() {
                Verdict::Drainable
            } else {
                Verdict::Unknown
            };
            // Remember that it is closed, so that a second close is recognised.
            let word = place_of::UNFOLLOWED | place_of::CLOSED;
            if maps::INDEX.insert(key(series, id), word, BPF_NOEXIST).is_ok() {
                series::level(cursor::INDEX, true);
            }
        }
        Found::Unfollowed(place, was_closed) => {
            // SAFETY: the index entry's word.
            let before = unsafe { atomic::or(place, place_of::CLOSED) };
            let was_closed = was_closed && before & place_of::CLOSED != 0;
            if was_closed && has_open {
                bump!(series, unmatched_closes);
                losses::count(Loss::UnmatchedClose);
                return;
            }
            if was_closed {
                bump!(series, opened);
                verdict = if boundary { by_memory } else { Verdict::Drainable };
            } else {
                series::closed(series);
                verdict = if boundary { by_memory } else { Verdict::Unknown };
            }
            closed.live = if boundary { read_live } else { 0 };
        }
        Found::Slot(granule, slot, seen, _) => {
            // SAFETY: map memory. The time is written before the flag: whoever sees the flag, and finds
            // that it was the late drain, reads the time.
            let before = unsafe {
                if seen & state::CLOSED == 0 {
                    (*slot).closed_ns = at;
                    if hit.has(flags::HAS_BYTES) {
                        (*slot).bytes = hit.value(value::BYTES);
                    }
                    (*slot).pinned_objects = state::live(seen);
                }
                atomic::or(&raw mut (*slot).state, state::CLOSED)
            };
            // SAFETY: map memory.
            unsafe {
                closed.opened_ns = (*slot).opened_ns;
                closed.place = (*slot).place;
                closed.bytes = (*slot).bytes;
                closed.live_bytes = (*slot).live_bytes;
            }
            closed.generation = granule.generation;
            closed.live = if boundary { read_live } else { state::live(before) };
            match state::decide(before) {
                Some(decided) => {
                    series::closed(series);
                    verdict = if boundary { by_memory } else { decided };
                    if closed.opened_ns != 0 {
                        record(
                            series,
                            hist::Of::Lifetime,
                            closed.place,
                            at.saturating_sub(closed.opened_ns),
                        );
                    }
                    if hit.is(Kind::Bulk) {
                        free_members(series, slot, before);
                    }
                }
                None if has_open => {
                    bump!(series, unmatched_closes);
                    losses::count(Loss::UnmatchedClose);
                    return;
                }
                None => {
                    // Without opens, each close is a boundary: this generation was never used.
                    bump!(series, opened);
                    closed.live = if boundary { read_live } else { 0 };
                    closed.generation = closed.generation.wrapping_add(1);
                    verdict = if boundary { by_memory } else { Verdict::Drainable };
                }
            }
            if drain
                && !boundary
                && verdict == Verdict::Pinned
                && let Some(state) = series::state(series)
            {
                // SAFETY: map memory.
                unsafe {
                    atomic::add(&raw mut (*state).retained_granules, 1);
                    atomic::add(&raw mut (*state).retained_bytes, closed.bytes);
                }
            }
        }
    }
    if !drain {
        bump!(series, closed_plain);
    } else if verdict == Verdict::Drainable {
        bump!(series, drainable);
    } else if verdict == Verdict::Pinned {
        bump!(series, pinned);
        bump!(series, pinned_objects, closed.live);
        bump!(series, pinned_bytes, closed.bytes);
    } else {
        bump!(series, unknown);
    }
    bump!(series, closed_bytes, closed.bytes);
    if config::events_wanted() != 0 {
        let verdict = if drain { verdict as u32 } else { 0 };
        emit::granule(EventKind::Close, hit.target, series, id, at, |event| {
            // SAFETY: the record that `emit` has reserved.
            unsafe {
                (*event).verdict = verdict;
                (*event).generation = closed.generation;
                (*event).live = closed.live;
                (*event).live_bytes = closed.live_bytes;
                (*event).bytes = closed.bytes;
                (*event).opened_ns = closed.opened_ns;
                (*event).closed_ns = at;
                (*event).place = closed.place;
            }
        });
    }
}

/// What a close finds out about its granule.
struct Closed {
    generation: u32,
    live: u64,
    live_bytes: u64,
    bytes: u64,
    opened_ns: u64,
    place: u64,
}

impl Closed {
    const NOTHING: Self =
        Self { generation: 0, live: 0, live_bytes: 0, bytes: 0, opened_ns: 0, place: 0 };
}

/// The close or reset of a bulk granule frees its members.
#[inline(always)]
fn free_members(series: u32, slot: *mut Slot, before: u64) {
    // SAFETY: map memory.
    unsafe {
        atomic::sub(&raw mut (*slot).state, state::live(before));
        let bytes = atomic::swap(&raw mut (*slot).live_bytes, 0);
        bump!(series, freed_in_bulk, state::live(before));
        bump!(series, freed_bytes, bytes);
    }
}

/// A reset: for `drain` a close and an open at once; else the members go and the granule lives on.
#[inline(always)]
pub(crate) fn reset(hit: &Hit) {
    let id = hit.value(value::GRANULE);
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    bump!(series, resets);
    if hit.is(Kind::Drain) {
        close_in(hit, series, id);
        open_in(hit, series, id);
        return;
    }
    let at = now();
    match find(series, id) {
        Found::Nothing => {
            // Now it is known to be empty, whatever it held before.
            if let Ok(granule) = enter(series, id, at, 0) {
                bump!(series, opened_before);
                series::opened(series);
                if let Some(slot) = slot(granule.slot) {
                    describe(hit, slot);
                }
            }
        }
        Found::Unfollowed(..) => {}
        Found::Slot(granule, slot, seen, place) => {
            if seen & state::CLOSED != 0 || state::generation(seen) != granule.generation {
                return;
            }
            // A new generation: members that are still in `OBJECTS` are recognised as gone. SAFETY: map
            // memory, and the index entry's word.
            unsafe {
                let before = atomic::add(&raw mut (*slot).state, GENERATION_STEP);
                atomic::store(place, place_of::slot_word(granule.slot, next_generation(before)));
                free_members(series, slot, before);
                atomic::and(&raw mut (*slot).state, !state::BEFORE);
                if (*slot).opened_ns != 0 {
                    let lifetime = at.saturating_sub((*slot).opened_ns);
                    record(series, hist::Of::Lifetime, (*slot).place, lifetime);
                }
                (*slot).opened_ns = at;
                if hit.has(flags::HAS_BYTES) {
                    (*slot).bytes = hit.value(value::BYTES);
                }
            }
        }
    }
}

/// Adds a value to a histogram.
#[inline(never)]
fn record(series: u32, of: hist::Of, place: u64, nanoseconds: u64) {
    let key = HistKey { series, of: of as u32, place };
    let Some(hist) = maps::HISTOGRAMS.get_ptr_mut(key).or_else(|| make_hist(&key)) else {
        losses::count(Loss::HistogramMapFull);
        return;
    };
    let bucket = hist::bucket(nanoseconds);
    // SAFETY: map memory; histograms are never removed while probes are attached.
    unsafe {
        atomic::add(&raw mut (*hist).count, 1);
        atomic::add(&raw mut (*hist).sum, nanoseconds);
        atomic::raise(&raw mut (*hist).max, nanoseconds);
        atomic::raise(&raw mut (*hist).not_min, !nanoseconds);
        if bucket < hist::BUCKETS {
            atomic::add_32((&raw mut (*hist).buckets).cast::<u32>().add(bucket), 1);
        }
    }
}

#[inline(always)]
fn make_hist(key: &HistKey) -> Option<*mut Hist> {
    let zero = maps::ZERO_HIST.get_ptr(0)?;
    // SAFETY: a live value of the array map, which nobody writes.
    let _ = unsafe { maps::HISTOGRAMS.insert(key, &*zero, BPF_NOEXIST) };
    maps::HISTOGRAMS.get_ptr_mut(key)
}

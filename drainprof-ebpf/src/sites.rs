//! Sites: what each call path allocates, and what of it pins.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_comm;
use drainprof_common::{
    event::EventKind,
    granule::{Generation, IndexWord, SlotNumber},
    hist,
    loss::Loss,
    maps::cursor,
    paths::{Late, PIN_WAYS, PinPair, SITE_THREADS, SiteSlot, late, pin_word, site_hash},
};

use crate::{
    atomic,
    clock::now,
    config, emit,
    global::{global, scalars},
    granule::SlotRef,
    histogram, losses, maps, paths, series,
};

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = -17;

/// The site of a pin, and whether the pin's granule counts for it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct PinnedBy(u32);

scalars! {
    PinnedBy as u32: |pinned: PinnedBy| pinned.0, PinnedBy;
}

impl PinnedBy {
    const UNDECIDED: u32 = 1 << 30;
    const FIRST: u32 = 1 << 31;
    const NUMBER: u32 = Self::UNDECIDED - 1;

    /// No site.
    pub(crate) const NONE: Self = Self(0);

    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.0 != 0
    }

    /// Whether the granule counts for the site (one more than its number) is not decided yet.
    #[inline(always)]
    pub(crate) fn undecided(site: u32) -> Self {
        Self(site | Self::UNDECIDED)
    }

    /// It counts with this pin.
    #[inline(always)]
    fn first(site: u32) -> Self {
        Self(site | Self::FIRST)
    }

    /// It is counted already.
    #[inline(always)]
    fn counted(site: u32) -> Self {
        Self(site)
    }

    /// The site's number.
    #[inline(always)]
    fn site(self) -> u32 {
        (self.0 & Self::NUMBER).wrapping_sub(1)
    }

    #[inline(always)]
    fn is_first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    #[inline(always)]
    fn is_undecided(self) -> bool {
        self.0 & Self::UNDECIDED != 0
    }
}

global! {
    /// Counts an alloc for its site: one more than the site's number, 0 for none. `path` is one more than the path's.
    pub(crate) fn site_alloc(series: u32, path: u32, place: u64, bytes: u64, tid: u32) -> u32 = alloc;
    /// Notes the name of a thread that allocates here for the first time, as far as it can be found out.
    fn site_thread(site: *mut SiteSlot, bit: u64) -> () = note_thread;
    /// An object is about to leave its granule, which the caller still holds for it: so no other program can begin the
    /// slot's next generation while the first of a site's pins notes here that the granule counts for the site.
    /// For [`site_pin_freed`], if it turns out to be a pin. `granule` names slot and generation.
    pub(crate) fn site_pin_note(site: u32, granule: IndexWord) -> PinnedBy = note_pin;
    /// A pin was freed. `granule` names slot and generation. A close at 0 is at an unknown time.
    pub(crate) fn site_pin_freed(
        pinned: PinnedBy, granule: IndexWord, closed_ns: u64, opened_ns: u64, bytes: u64
    ) -> () = pin_freed;
    /// An object was freed that is no pin. `site` is one more than its number.
    pub(crate) fn site_object_freed(site: u32, born_ns: u64) -> () = object_freed;
    /// Reports to user space that a pin was freed.
    fn site_pin_event(site: u32, series: u32, granule: IndexWord, closed_ns: u64, bytes: u64) -> () = send;
    /// [`is_first`] for a granule with pins of many sites.
    fn pin_pair(site: u32, slot: SlotNumber, generation: Generation, last: bool) -> bool = is_first_pair;
}

#[inline(always)]
fn alloc(series: u32, path: u32, place: u64, bytes: u64, tid: u32) -> u32 {
    let hash = site_hash(series, path, place);
    let Some(claimed) = paths::claim(paths::of::SITES, hash) else {
        losses::count(Loss::SiteTableFull);
        return 0;
    };
    let index = claimed.number();
    let Some(site) = maps::SITES.get_ptr_mut(index) else { return 0 };
    let at = now();
    // SAFETY: map memory.
    unsafe {
        // The program that has entered the hash may be preempted before it has filled the site: until that is done
        // each fills it, with the same words, so that a program that knows the number finds the series.
        if (&raw const (*site).path).read_volatile() == 0 {
            (&raw mut (*site).series).write_volatile(series);
            (&raw mut (*site).place).write_volatile(place);
            atomic::compare_swap(&raw mut (*site).first_ns, 0, at);
            (&raw mut (*site).path).write_volatile(path);
        }
        atomic::store(&raw mut (*site).last_ns, at);
        atomic::add(&raw mut (*site).allocated, 1);
        if bytes != 0 {
            atomic::add(&raw mut (*site).allocated_bytes, bytes);
        }
        let bit = 1u64 << (tid.wrapping_mul(0x9e37_79b1) >> 26);
        if atomic::load(&raw const (*site).threads_seen) & bit == 0 {
            site_thread(site, bit);
        }
    }
    index + 1
}

#[inline(always)]
fn note_thread(site: *mut SiteSlot, bit: u64) {
    if site.is_null() {
        return;
    }
    let mut name = [0u64; 2];
    // SAFETY: map memory; the name has room for the sixteen bytes of a task's name.
    unsafe {
        if atomic::or(&raw mut (*site).threads_seen, bit) & bit != 0
            || bpf_get_current_comm((&raw mut name).cast::<c_void>(), 16) != 0
        {
            return;
        }
        let names: *mut [u64; 2] = (&raw mut (*site).names).cast();
        for number in 0..SITE_THREADS {
            let known = names.add(number);
            if (*known)[0] == name[0] && (*known)[1] == name[1] {
                return;
            }
        }
        let place = atomic::add(&raw mut (*site).threads, 1);
        for number in 0..SITE_THREADS {
            if number as u64 == place {
                *names.add(number) = name;
            }
        }
    }
}

#[inline(always)]
fn note_pin(site: u32, granule: IndexWord) -> PinnedBy {
    let Some(slot) = SlotRef::get(granule.slot()) else { return PinnedBy::counted(site) };
    let (seen, pins) = (slot.state(), slot.pinned_objects().of(granule.generation()));
    if !seen.has_pins() {
        return PinnedBy::undecided(site);
    }
    // Its only pin has no other to share the granule with.
    if pins == Some(1) || is_first(site.wrapping_sub(1), granule, None, seen.live() == 1) {
        PinnedBy::first(site)
    } else {
        PinnedBy::counted(site)
    }
}

#[inline(always)]
fn pin_freed(pinned: PinnedBy, granule: IndexWord, closed_ns: u64, opened_ns: u64, bytes: u64) {
    let site = pinned.site();
    let Some(counts) = maps::SITES.get_ptr_mut(site) else { return };
    let delay = if closed_ns == 0 { 0 } else { now().saturating_sub(closed_ns) };
    // SAFETY: map memory.
    unsafe {
        atomic::add(&raw mut (*counts).pins_freed, 1);
        if bytes != 0 {
            atomic::add(&raw mut (*counts).pin_bytes_freed, bytes);
        }
        if opened_ns != 0 {
            let class = match late(delay, closed_ns.saturating_sub(opened_ns)) {
                Late::Near => &raw mut (*counts).near,
                Late::Moderate => &raw mut (*counts).moderate,
                Late::Fundamental => &raw mut (*counts).fundamental,
            };
            atomic::add(class, 1);
        }
        if pinned.is_first() || (pinned.is_undecided() && is_first_late(site, granule)) {
            atomic::add(&raw mut (*counts).granules, 1);
        }
        if closed_ns != 0 {
            histogram::add((*counts).series, hist::Of::SiteDelay as u32, u64::from(site), delay);
        }
        if config::events_wanted() != 0 {
            site_pin_event(site, (*counts).series, granule, closed_ns, bytes);
        }
    }
}

#[inline(always)]
fn object_freed(site: u32, born_ns: u64) {
    let site = site.wrapping_sub(1);
    let Some(counts) = maps::SITES.get_ptr_mut(site) else { return };
    // SAFETY: map memory.
    let series = unsafe { (*counts).series };
    let life = now().saturating_sub(born_ns);
    histogram::add(series, hist::Of::SiteLife as u32, u64::from(site), life);
}

#[inline(always)]
fn send(site: u32, series: u32, granule: IndexWord, closed_ns: u64, bytes: u64) {
    emit::granule(EventKind::PinFreed, series, now(), |event| {
        // SAFETY: the record that `emit` has reserved.
        unsafe {
            (*event).generation = granule.generation().number();
            (*event).slot = granule.slot().number();
            (*event).site = site;
            (*event).closed_ns = closed_ns;
            (*event).bytes = bytes;
            if let Some(slot) = SlotRef::get(granule.slot()) {
                (*event).granule = slot.id();
                // With its last pin the slot may have become another granule's.
                (*event).live = u64::from(slot.state().generation() == granule.generation());
            }
        }
    });
}

/// [`is_first`] where the granule was closed in the instant before its object left it. What is noted of the slot's
/// next generation, should it have begun, is left alone.
#[inline(always)]
fn is_first_late(site: u32, granule: IndexWord) -> bool {
    let Some(slot) = SlotRef::get(granule.slot()) else { return false };
    slot.state().generation() != granule.generation() || is_first(site, granule, Some(slot), false)
}

/// Whether a granule is counted for a site for the first time. No program asks again after its last pin. `late`: the
/// granule's slot, where the caller holds no reference, so that the next generation may begin at any instant.
#[inline(always)]
fn is_first(site: u32, granule: IndexWord, late: Option<SlotRef>, last: bool) -> bool {
    let generation = granule.generation();
    let own = pin_word(site, generation);
    let Some(words) = maps::PIN_SITES.get_ptr_mut(granule.slot().number()) else { return false };
    for way in 0..PIN_WAYS {
        // SAFETY: map memory; the number is within the array.
        unsafe {
            let at = words.cast::<u64>().add(way);
            let mut seen = atomic::load(at);
            if (seen >> 32) as u32 != generation.number() || seen == 0 {
                // The word is older than the slot's state is known to be: so the swap cannot replace one of the next
                // generation.
                if late.is_some_and(|slot| slot.state().generation() != generation) {
                    return true;
                }
                let before = atomic::compare_swap(at, seen, own);
                if before == seen {
                    return true;
                }
                seen = before;
            }
            if seen == own {
                return false;
            }
        }
    }
    pin_pair(site, granule.slot(), generation, last)
}

#[inline(always)]
fn is_first_pair(site: u32, slot: SlotNumber, generation: Generation, last: bool) -> bool {
    let pair = PinPair { site, slot, generation, reserved: 0 };
    if last {
        let was_counted = maps::PIN_PAIRS.remove(&pair).is_ok();
        if was_counted {
            series::level(cursor::PIN_PAIRS, false);
        }
        return !was_counted;
    }
    match maps::PIN_PAIRS.insert(&pair, 1u32, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::PIN_PAIRS, true);
            true
        }
        Err(error) => {
            if error != EEXIST {
                losses::count(Loss::PinPairsFull);
            }
            false
        }
    }
}

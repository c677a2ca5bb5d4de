//! Sites: what each call path allocates, and what of it pins.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_get_current_comm;
use drainprof_common::{
    hist,
    loss::Loss,
    maps::{cursor, place_of},
    paths::{Late, PIN_WAYS, PinPair, SITE_THREADS, SiteSlot, late, pin_word, site_hash},
    state,
};

use crate::{atomic, granule::slots, histogram, hit::now, losses, maps, paths, series};

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = -17;

/// In [`site_pin_freed`]'s first argument: whether the granule counts for the site is not decided yet.
pub(crate) const UNDECIDED: u32 = 1 << 30;
/// It counts with this pin.
pub(crate) const FIRST: u32 = 1 << 31;
const NUMBER: u32 = UNDECIDED - 1;

/// Counts an alloc for its site: one more than the site's number, 0 for none. `path` is one more than the path's.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn site_alloc(
    series: u32,
    path: u32,
    place: u64,
    size: u64,
    tid: u32,
) -> u32 {
    let hash = site_hash(series, path, place);
    let Some(number) = paths::claim(paths::of::SITES, hash) else {
        losses::count(Loss::SiteTableFull);
        return 0;
    };
    let index = number as u32;
    let Some(site) = maps::SITES.get_ptr_mut(index) else { return 0 };
    let at = now();
    // SAFETY: map memory.
    unsafe {
        if number >> 32 != 0 {
            (*site).series = series;
            (*site).place = place;
            (*site).first_ns = at;
            core::ptr::write_volatile(&raw mut (*site).path, path);
        }
        atomic::store(&raw mut (*site).last_ns, at);
        atomic::add(&raw mut (*site).allocated, 1);
        if size != 0 {
            atomic::add(&raw mut (*site).allocated_bytes, size);
        }
        let bit = 1u64 << (tid.wrapping_mul(0x9e37_79b1) >> 26);
        if atomic::load(&raw const (*site).threads_seen) & bit == 0 {
            site_thread(site, bit);
        }
    }
    index + 1
}

/// Notes the name of a thread that allocates here for the first time, as far as can be told.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn site_thread(site: *mut SiteSlot, bit: u64) -> u32 {
    if site.is_null() {
        return 0;
    }
    let mut name = [0u64; 2];
    // SAFETY: map memory; the name has room for the sixteen bytes of a task's name.
    unsafe {
        if atomic::or(&raw mut (*site).threads_seen, bit) & bit != 0
            || bpf_get_current_comm((&raw mut name).cast::<c_void>(), 16) != 0
        {
            return 0;
        }
        let names: *mut [u64; 2] = (&raw mut (*site).names).cast();
        for number in 0..SITE_THREADS {
            let known = names.add(number);
            if (*known)[0] == name[0] && (*known)[1] == name[1] {
                return 0;
            }
        }
        let place = atomic::add(&raw mut (*site).threads, 1);
        for number in 0..SITE_THREADS {
            if number as u64 == place {
                *names.add(number) = name;
            }
        }
    }
    0
}

/// An object is about to leave its granule, which the caller still holds for it: then nobody can begin the slot's next
/// generation while it is noted here, by the first of a site's pins, that the granule counts for the site. The
/// flag to pass to [`site_pin_freed`] if it turns out to be a pin: [`FIRST`], 0 where the granule is counted already,
/// or [`UNDECIDED`] where it is not closed yet. `granule` is a word of [`place_of`]: slot and generation.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn site_pin_note(site: u32, granule: u64) -> u32 {
    let Some(slot) = slots::slot(place_of::slot(granule)) else { return 0 };
    // SAFETY: map memory.
    let (seen, pins) = unsafe { (atomic::load(&raw const (*slot).state), (*slot).pinned_objects) };
    if !state::has_pins(seen) {
        return UNDECIDED;
    }
    // Its only pin has no other to share the granule with.
    if pins == 1 || is_first(site.wrapping_sub(1), granule, state::live(seen) == 1) {
        FIRST
    } else {
        0
    }
}

/// A pin was freed. `granule` is a word of [`place_of`]: its slot and generation. With a close at 0 nobody knows when.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn site_pin_freed(
    site: u32,
    granule: u64,
    closed_ns: u64,
    opened_ns: u64,
    size: u64,
) -> u32 {
    let index = (site & NUMBER).wrapping_sub(1);
    let Some(slot) = maps::SITES.get_ptr_mut(index) else { return 0 };
    let delay = if closed_ns == 0 { 0 } else { now().saturating_sub(closed_ns) };
    // SAFETY: map memory.
    unsafe {
        atomic::add(&raw mut (*slot).pins_freed, 1);
        if size != 0 {
            atomic::add(&raw mut (*slot).pin_bytes_freed, size);
        }
        if opened_ns != 0 {
            let class = match late(delay, closed_ns.saturating_sub(opened_ns)) {
                Late::Near => &raw mut (*slot).near,
                Late::Moderate => &raw mut (*slot).moderate,
                Late::Fundamental => &raw mut (*slot).fundamental,
            };
            atomic::add(class, 1);
        }
        if site & FIRST != 0 || (site & UNDECIDED != 0 && is_first_late(index, granule)) {
            atomic::add(&raw mut (*slot).granules, 1);
        }
        if closed_ns != 0 {
            histogram::add((*slot).series, hist::Of::SiteDelay as u32, u64::from(index), delay);
        }
    }
    0
}

/// [`is_first`] where the granule was closed in the instant before its object left it. What is noted of the slot's
/// next generation, should it have begun, is left alone.
#[inline(always)]
fn is_first_late(site: u32, granule: u64) -> bool {
    let Some(slot) = slots::slot(place_of::slot(granule)) else { return false };
    // SAFETY: map memory, one word.
    let seen = unsafe { atomic::load(&raw const (*slot).state) };
    state::generation(seen) != place_of::generation(granule) || is_first(site, granule, false)
}

/// Whether a granule is counted for a site for the first time. With its last pin nobody will ask again.
#[inline(always)]
fn is_first(site: u32, granule: u64, last: bool) -> bool {
    let (slot, generation) = (place_of::slot(granule), place_of::generation(granule));
    let own = pin_word(site, generation);
    let Some(words) = maps::PIN_SITES.get_ptr_mut(slot) else { return false };
    for way in 0..PIN_WAYS {
        // SAFETY: map memory; the number is within the array.
        unsafe {
            let at = words.cast::<u64>().add(way);
            let mut seen = atomic::load(at);
            if (seen >> 32) as u32 != generation || seen == 0 {
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
    pin_pair(site, slot, generation, u32::from(last)) == 1
}

/// [`is_first`] for a granule with pins of many sites: 1 if it is.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn pin_pair(site: u32, slot: u32, generation: u32, last: u32) -> u32 {
    let pair = PinPair { site, slot, generation, reserved: 0 };
    if last != 0 {
        if maps::PIN_PAIRS.remove(&pair).is_ok() {
            series::level(cursor::PIN_PAIRS, false);
            return 0;
        }
        return 1;
    }
    match maps::PIN_PAIRS.insert(&pair, 1u32, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::PIN_PAIRS, true);
            1
        }
        Err(error) => {
            if error != EEXIST {
                losses::count(Loss::PinPairsFull);
            }
            0
        }
    }
}

//! Granules that have ended with the granule that they were nested in.
//!
//! The kernel side does not look for them when that one closes: it would have to walk through all that is nested in it.
//! It only notes in which generation of which slot a granule is nested; whether that one is over is found out here,
//! before facts are made and before room is needed. What is found is closed as a close would have done, and counted in
//! the same counters. A granule that the program has opened again meanwhile was counted by that open.
//!
//! Called by `granules`, where a profile says `nested`.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::offset_of,
    sync::atomic::Ordering,
};

use drainprof_common::{
    granule::{IndexWord, ParentWord, SlotNumber},
    hist::{Hist, Of},
    maps::{MAX_NESTING, Slot},
    state::{CLOSED, DETACHED, Flags, MIGRATED, RETIRING, STRAGGLER, State},
};

use super::{
    read::{Counters, now_ns},
    slots::{QUARANTINE_NS, Slots},
};

/// Ends granules, and remembers how long they lived.
#[derive(Default)]
pub(super) struct Nested {
    /// The lifetimes that are known, by series and place of opening.
    lifetimes: BTreeMap<(u32, u64), Hist>,
}

/// A chain of slots, from a granule to one that is over.
struct Chain {
    /// Each slot, and its word on what it is nested in.
    links: Vec<(usize, ParentWord)>,
    /// When the last one was closed; 0: not known, its slot serves another granule by now.
    closed_ns: u64,
}

impl Chain {
    /// From the granule in a slot to the first that is over; `None` where all of them are open.
    fn from(slots: &Slots, index: usize) -> Option<Self> {
        let mut links = Vec::new();
        let mut at = index;
        while links.len() < MAX_NESTING {
            let word = slots.parent_at(at);
            let parent = word.get()?;
            links.push((at, word));
            at = parent.slot().index();
            if at >= slots.len() {
                return None;
            }
            let seen = slots.state_at(at);
            // A slot that was given back keeps its generation until another granule takes it.
            if !seen.is_used() || seen.generation() != parent.generation() {
                return Some(Self { links, closed_ns: 0 });
            }
            if seen.is_closed() && !seen.is_moved() {
                let closed_ns = slots.closed_ns_at(at);
                return Some(Self { links, closed_ns });
            }
        }
        None
    }

    fn still_holds(&self, slots: &Slots) -> bool {
        self.links.iter().all(|(at, parent)| slots.parent_at(*at) == *parent)
    }
}

impl Nested {
    /// How long the granules lived that have ended here.
    pub(super) fn lifetimes(&self) -> impl Iterator<Item = (Of, u32, u64, Hist)> {
        let all = self.lifetimes.iter();
        all.map(|((series, place), hist)| (Of::Lifetime, *series, *place, *hist))
    }

    /// Ends the open granules that are nested in one that is over; returns how many.
    pub(super) fn end(&mut self, slots: &mut Slots, counters: &Counters) -> usize {
        let mut ended = 0;
        for index in slots.used() {
            let seen = slots.state_at(index);
            if !seen.is_used() || seen.has(CLOSED | DETACHED | RETIRING) {
                continue;
            }
            // A thread may be moving a part of the chain in this instant: it must be the same when it is looked at
            // again, after its end was found closed.
            let Some(chain) = Chain::from(slots, index).filter(|chain| chain.still_holds(slots))
            else {
                continue;
            };
            if self.end_granule(slots, index, seen, &chain, counters) {
                ended += 1;
            }
        }
        free_moved(slots);
        ended
    }

    /// Closes the granule in a slot, whose state is `seen` if nothing has happened to it since; its members go with it.
    fn end_granule(
        &mut self,
        slots: &Slots,
        index: usize,
        seen: State,
        chain: &Chain,
        counters: &Counters,
    ) -> bool {
        let slot = slots.get(index);
        let parent_closed_ns = chain.closed_ns;
        let next = seen.with(CLOSED | STRAGGLER).without(MIGRATED).emptied();
        let (Some(word), Some(closed), Some(bytes)) = (
            slots.word(index, offset_of!(Slot, state)),
            slots.word(index, offset_of!(Slot, closed_ns)),
            slots.word(index, offset_of!(Slot, live_bytes)),
        ) else {
            return false;
        };
        let swapped =
            word.compare_exchange(seen.raw(), next.raw(), Ordering::SeqCst, Ordering::SeqCst);
        if swapped.is_err() {
            return false;
        }
        closed.store(now_ns(), Ordering::SeqCst);
        let bytes = bytes.swap(0, Ordering::SeqCst);
        counters.add_ended(slot.series, seen.live(), bytes);
        if slot.opened_ns != 0 && parent_closed_ns >= slot.opened_ns {
            let lifetimes = self.lifetimes.entry((slot.series, slot.place)).or_default();
            lifetimes.record(parent_closed_ns - slot.opened_ns);
        }
        true
    }
}

/// Gives back the slots that granules have left for others, once nothing that is open is nested in them.
fn free_moved(slots: &mut Slots) {
    let mut left = Vec::new();
    let mut wanted = BTreeSet::new();
    for index in slots.used() {
        let seen = slots.state_at(index);
        if seen.is_moved() {
            left.push((index, seen));
        } else if !seen.is_used() || seen.is_closed() {
            continue;
        }
        wanted.extend(slots.parent_at(index).get().map(IndexWord::slot));
    }
    let now = now_ns();
    for (index, seen) in left {
        // A thread that has just looked it up may not have written down yet that it is nested in it.
        let closed_ns = slots.closed_ns_at(index);
        let is_wanted = wanted.contains(&SlotNumber::new(index as u32));
        if is_wanted || now.saturating_sub(closed_ns) < QUARANTINE_NS {
            continue;
        }
        let Some(word) = slots.word(index, offset_of!(Slot, state)) else { continue };
        let (seen, free) = (seen.raw(), seen.without(Flags::ALL).raw());
        let mine = word.compare_exchange(seen, free, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if mine {
            slots.give_back(index);
        }
    }
}

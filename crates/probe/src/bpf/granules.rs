//! Granules: their slots, the index of their ids, and making room in both.
//!
//! The kernel side uses a slot again by itself when its id is opened again or its last object goes. Ids
//! that never come back are retired here, but only when a map is three quarters full: as long as there
//! is room, a closed id is remembered, so that a second close is recognised. (The kernel side forgets ids
//! at their close from half of the index on, as many may come in the time between two sweeps.)

use std::{io, os::fd::OwnedFd, sync::atomic::Ordering};

use aya::{
    Ebpf,
    maps::{HashMap, MapData},
};
use drainprof_common::{
    granule::{IndexWord, SlotNumber},
    hist::{Hist, Of},
    maps::{IndexKey, cursor},
    state::{CLOSED, DETACHED, Flags, RETIRING, State, USED},
};

use super::{
    BpfError, Sizes,
    load::{Plain, descriptor, take},
    memory::Cursors,
    names,
    nested::Nested,
    read::{Counters, now_ns},
    removal::{read_parts, take_out},
    slots::{QUARANTINE_NS, Slots},
};

pub(super) const BPF_NOEXIST: u64 = 1;

/// The slots of granules, and the index of their ids.
pub(super) struct Granules {
    slots: Slots,
    nested: Nested,
    index: HashMap<MapData, Plain<IndexKey>, u64>,
    /// The same map, for what aya does not do with it.
    index_fd: OwnedFd,
    /// Ids that the index has room for.
    max_ids: u32,
    cursors: Cursors,
}

impl Granules {
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sizes: &Sizes,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
        Ok(Self {
            slots: Slots::take(ebpf, sizes, cursors)?,
            nested: Nested::default(),
            index_fd: descriptor(ebpf, names::INDEX)?,
            index: take(ebpf, names::INDEX)?,
            max_ids: sizes.index(),
            cursors: cursors.clone(),
        })
    }

    pub(super) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Ends the open granules that are nested in one that is over; returns how many.
    pub(super) fn end_nested(&mut self, counters: &Counters) -> usize {
        self.nested.end(&mut self.slots, counters)
    }

    /// How long the granules lived that have ended there.
    pub(super) fn nested_lifetimes(&self) -> impl Iterator<Item = (Of, u32, u64, Hist)> {
        self.nested.lifetimes()
    }

    /// Makes room where it is needed; returns how many entries were taken out, and adds to `raced` those that were
    /// used in that instant.
    pub(super) fn reclaim(&mut self, raced: &mut u64) -> Result<usize, BpfError> {
        if !self.are_filling_up() {
            return Ok(0);
        }
        Ok(self.retire_granules(raced) + self.forget_ids(raced)?)
    }

    /// Whether they begin to lack room.
    pub(super) fn are_filling_up(&self) -> bool {
        self.cursors.is_filling(cursor::INDEX, self.max_ids) || self.slots.are_filling_up()
    }

    fn retire_granules(&mut self, raced: &mut u64) -> usize {
        let now = now_ns();
        let mut retired = 0;
        for index in 0..self.slots.len() {
            let slot = self.slots.get(index);
            let closed_and_drained = slot.state.only(USED | CLOSED | DETACHED) == USED | CLOSED
                && slot.state.live() == 0;
            if !closed_and_drained || now.saturating_sub(slot.closed_ns) < QUARANTINE_NS {
                continue;
            }
            // The kernel side leaves a slot with this flag alone: only one of us gets it.
            let claimed = self.slots.word(index, 0).is_some_and(|word| {
                let (seen, next) = (slot.state.raw(), slot.state.with(RETIRING).raw());
                word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            });
            if claimed {
                let key = IndexKey { series: slot.series, reserved: 0, id: slot.id };
                self.remove_id(key, SlotNumber::new(index as u32), raced);
                if let Some(word) = self.slots.word(index, 0) {
                    // Changed by operations that commute with the kernel side's counting.
                    word.fetch_and(!Flags::ALL.raw(), Ordering::SeqCst);
                    word.fetch_add(State::GENERATION_STEP, Ordering::SeqCst);
                }
                self.slots.give_back(index);
                retired += 1;
            }
        }
        retired
    }

    /// Removes an id that still means the slot.
    fn remove_id(&mut self, key: IndexKey, slot: SlotNumber, raced: &mut u64) {
        match self.index.get(&Plain(key), 0) {
            Ok(found) if IndexWord::from_raw(found).slot() == slot => {}
            _ => return,
        }
        if self.index.remove(&Plain(key)).is_ok() {
            self.cursors.add(cursor::INDEX, u64::MAX);
        } else {
            *raced += 1;
        }
    }

    /// Forgets ids of granules that have no slot and are closed.
    fn forget_ids(&mut self, raced: &mut u64) -> Result<usize, BpfError> {
        let is_closed = |word: u64| IndexWord::from_raw(word) == IndexWord::CLOSED_ID;
        let failed = |source| BpfError::map("removing ids from", names::INDEX, source);
        let map = self.index_fd.try_clone().map_err(failed)?;
        let mut forgotten = 0;
        // A part at a time: the fewer ids were opened again since they were listed, the better.
        let done = read_parts(&map, |keys: &[IndexKey], words: &[u64]| {
            for (key, word) in keys.iter().zip(words).filter(|(_, word)| is_closed(**word)) {
                forgotten += usize::from(self.forget_id(*key, *word, raced)?);
            }
            Ok(())
        });
        done.map_err(failed)?;
        Ok(forgotten)
    }

    /// Forgets an id if this is its word still.
    fn forget_id(&mut self, key: IndexKey, closed: u64, raced: &mut u64) -> io::Result<bool> {
        // It may have been opened again since it was listed.
        if self.index.get(&Plain(key), 0).ok() != Some(closed) {
            return Ok(false);
        }
        match take_out::<_, u64>(&self.index_fd, &key)? {
            Some(word) if word == closed => {
                self.cursors.add(cursor::INDEX, u64::MAX);
                Ok(true)
            }
            // Opened in this very instant. A probe that looked for it meanwhile has found nothing.
            Some(word) => {
                *raced += 1;
                if self.index.insert(Plain(key), word, BPF_NOEXIST).is_err() {
                    self.cursors.add(cursor::INDEX, u64::MAX);
                }
                Ok(false)
            }
            None => Ok(false),
        }
    }
}

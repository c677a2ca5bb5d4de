//! Granules: their slots, the index of their ids, and making room in both.
//!
//! The kernel side uses a slot again by itself when its id is opened again or its last object goes. Ids
//! that never come back are retired here, but only when a map is three quarters full: as long as there
//! is room, a closed id is remembered, so that a second close is recognised. (The kernel side forgets ids
//! at their close from half of the index on, as many may come in the time between two sweeps.)

use std::{io, mem::offset_of, os::fd::OwnedFd, sync::atomic::Ordering};

use aya::{
    Ebpf,
    maps::{HashMap, MapData, Queue},
};
use bytemuck::Zeroable as _;
use drainprof_common::{
    granule::{IndexWord, SlotNumber},
    maps::{IndexKey, ObjectValue, Slot, cursor},
    state::{CLOSED, DETACHED, Flags, RETIRING, STRAGGLER, State, USED},
};

use super::{
    BpfError, GranuleRecord, Sizes,
    load::{Plain, descriptor, mapped, take},
    memory::{Cursors, Mapped},
    names,
    nested::NestedLifetimes,
    read::now_ns,
    removal::{read_parts, take_out},
};

/// Words of a granule's slot before its label.
const SLOT_HEAD: usize = offset_of!(Slot, label) / 8;
/// A granule that closed more recently than this is left alone: a probe may be on its way to it.
pub(super) const QUARANTINE_NS: u64 = 1_000_000_000;
pub(super) const BPF_NOEXIST: u64 = 1;

/// The slots of granules, and the index of their ids.
pub(super) struct Granules {
    pub(super) slots: Mapped<Slot>,
    index: HashMap<MapData, Plain<IndexKey>, u64>,
    /// The same map, for what aya does not do with it.
    index_fd: OwnedFd,
    /// Ids that the index has room for.
    most_ids: u32,
    pub(super) free_slots: Queue<MapData, u32>,
    pub(super) nested_lifetimes: NestedLifetimes,
    pub(super) cursors: Cursors,
}

impl Granules {
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sizes: &Sizes,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
        Ok(Self {
            slots: mapped(ebpf, names::GRANULES, sizes.granules as usize)?,
            index_fd: descriptor(ebpf, names::INDEX)?,
            index: take(ebpf, names::INDEX)?,
            most_ids: sizes.index(),
            free_slots: take(ebpf, names::FREE_SLOTS)?,
            nested_lifetimes: NestedLifetimes::new(),
            cursors: cursors.clone(),
        })
    }

    /// The state word of a slot.
    pub(super) fn state(&self, slot: SlotNumber) -> State {
        self.slots.get(slot.index()).state
    }

    /// A slot without its label; all zero where there is none.
    pub(super) fn head(&self, slot: SlotNumber) -> Slot {
        let mut granule = Slot::zeroed();
        let known: [u64; SLOT_HEAD] = self.slots.part(slot.index(), 0);
        bytemuck::cast_slice_mut(std::slice::from_mut(&mut granule))[..SLOT_HEAD]
            .copy_from_slice(&known);
        granule
    }

    /// Whether the granule of an object has freed it with its close.
    pub(super) fn is_over(&self, object: &ObjectValue) -> bool {
        let slot = self.slots.get(object.slot.index());
        slot.state.generation() != object.generation
            || (slot.state.is_closed() && !slot.state.is_migrated())
    }

    /// The granules that are open, or closed with live objects.
    pub(super) fn held(&self) -> Vec<GranuleRecord> {
        (0..self.cursors.filled(cursor::SLOT, self.slots.len()))
            .map(|index| self.slots.get(index))
            .filter(|slot| {
                slot.state.is_used() && (!slot.state.is_closed() || slot.state.has_pins())
            })
            .map(|slot| GranuleRecord { slot })
            .collect()
    }

    /// Granules that are closed and empty, as far as they are remembered.
    pub(super) fn drained(&self) -> impl Iterator<Item = Slot> {
        (0..self.cursors.filled(cursor::SLOT, self.slots.len()))
            .map(|index| self.slots.get(index))
            .filter(|slot| {
                // With a straggler it is not known to be empty, and a detached one is another by now.
                let others = STRAGGLER | DETACHED | RETIRING;
                slot.state.only(USED | CLOSED | others) == USED | CLOSED && slot.state.live() == 0
            })
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
        let level = |which| self.cursors.level(which);
        let used = level(cursor::SLOT).saturating_sub(level(cursor::FREE_SLOTS));
        self.cursors.is_filling(cursor::INDEX, self.most_ids)
            || used > self.slots.len() as u64 / 4 * 3
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
                if self.free_slots.push(index as u32, 0).is_ok() {
                    self.cursors.add(cursor::FREE_SLOTS, 1);
                }
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

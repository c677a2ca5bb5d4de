//! The slots of granules: one holds what is known of a granule that is open, or closed and pinned.

use std::{
    mem::offset_of,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{
    Ebpf,
    maps::{MapData, Queue},
};
use bytemuck::Zeroable as _;
use drainprof_common::{
    granule::{ParentWord, SlotNumber},
    maps::{ObjectValue, Slot, cursor},
    state::{CLOSED, DETACHED, RETIRING, STRAGGLER, State, USED},
};

use super::{
    BpfError, GranuleRecord, Sizes,
    load::{mapped, take},
    memory::{Cursors, Mapped},
    names,
};

/// Words of a granule's slot before its label.
const SLOT_HEAD: usize = offset_of!(Slot, label) / 8;
/// A granule that closed more recently than this is left alone: a probe may be on its way to it.
pub(super) const QUARANTINE_NS: u64 = 1_000_000_000;

/// All slots, and those of them that are free again.
pub(super) struct Slots {
    memory: Mapped<Slot>,
    free: Queue<MapData, u32>,
    cursors: Cursors,
}

impl Slots {
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sizes: &Sizes,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
        Ok(Self {
            memory: mapped(ebpf, names::GRANULES, sizes.granules as usize)?,
            free: take(ebpf, names::FREE_SLOTS)?,
            cursors: cursors.clone(),
        })
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Those that were ever taken.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.cursors.filled(cursor::SLOT, self.memory.len())
    }

    /// Whether they begin to lack room.
    pub(super) fn are_filling_up(&self) -> bool {
        let level = |which| self.cursors.level(which);
        let taken = level(cursor::SLOT).saturating_sub(level(cursor::FREE_SLOTS));
        taken > self.memory.len() as u64 / 4 * 3
    }

    /// Lets another granule take a slot.
    pub(super) fn give_back(&mut self, index: usize) {
        if self.free.push(index as u32, 0).is_ok() {
            self.cursors.add(cursor::FREE_SLOTS, 1);
        }
    }

    /// The whole slot; all zero where there is none.
    pub(super) fn get(&self, index: usize) -> Slot {
        self.memory.get(index)
    }

    /// The word of a slot at an offset in it ([`offset_of`]), for atomic changes.
    pub(super) fn word(&self, index: usize, offset: usize) -> Option<&AtomicU64> {
        self.memory.word(index, offset / 8)
    }

    fn load(&self, index: usize, offset: usize) -> u64 {
        self.word(index, offset).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// The state word of the slot with this index.
    pub(super) fn state_at(&self, index: usize) -> State {
        State::from_raw(self.load(index, offset_of!(Slot, state)))
    }

    /// In which granule the one in the slot is nested.
    pub(super) fn parent_at(&self, index: usize) -> ParentWord {
        ParentWord::from_raw(self.load(index, offset_of!(Slot, parent_at)))
    }

    /// When the granule in the slot was closed.
    pub(super) fn closed_ns_at(&self, index: usize) -> u64 {
        self.load(index, offset_of!(Slot, closed_ns))
    }

    /// The state word of a slot.
    pub(super) fn state(&self, slot: SlotNumber) -> State {
        self.memory.get(slot.index()).state
    }

    /// A slot without its label; all zero where there is none.
    pub(super) fn head(&self, slot: SlotNumber) -> Slot {
        let mut granule = Slot::zeroed();
        let known: [u64; SLOT_HEAD] = self.memory.part(slot.index(), 0);
        bytemuck::cast_slice_mut(std::slice::from_mut(&mut granule))[..SLOT_HEAD]
            .copy_from_slice(&known);
        granule
    }

    /// Whether the granule of an object has freed it with its close.
    pub(super) fn is_over(&self, object: &ObjectValue) -> bool {
        let slot = self.memory.get(object.slot.index());
        slot.state.generation() != object.generation
            || (slot.state.is_closed() && !slot.state.is_migrated())
    }

    /// The granules that are open, or closed with live objects.
    pub(super) fn held(&self) -> Vec<GranuleRecord> {
        self.used()
            .map(|index| self.memory.get(index))
            .filter(|slot| {
                slot.state.is_used() && (!slot.state.is_closed() || slot.state.has_pins())
            })
            .map(|slot| GranuleRecord { slot })
            .collect()
    }

    /// Granules that are closed and empty, as far as they are remembered.
    pub(super) fn drained(&self) -> impl Iterator<Item = Slot> {
        self.used().map(|index| self.memory.get(index)).filter(|slot| {
            // With a straggler it is not known to be empty, and a detached one is another by now.
            let others = STRAGGLER | DETACHED | RETIRING;
            slot.state.only(USED | CLOSED | others) == USED | CLOSED && slot.state.live() == 0
        })
    }
}

//! Making room in the index of granule ids, in the slots and among the objects.
//!
//! The kernel side uses a slot again by itself when its id is opened again or its last object goes. Ids
//! that never come back are retired here, but only when a map is three quarters full: as long as there
//! is room, a closed id is remembered, so that a second close is recognised. (The kernel side forgets ids
//! at their close from half of the index on, as many may come in the time between two sweeps.)

use std::{io, sync::atomic::Ordering};

use drainprof_common::{
    loss::Loss,
    maps::{IndexKey, NO_SLOT, ObjectValue, WAYS, cursor, place_of, tag},
    spec::Kind,
    state,
};

use super::{
    BpfError, Session, names,
    read::now_ns,
    removal::{read_parts, take_out},
    session::Plain,
};

/// A granule that closed more recently than this is left alone: a probe may be on its way to it.
pub(super) const QUARANTINE_NS: u64 = 1_000_000_000;
const BPF_NOEXIST: u64 = 1;
const GENERATION_STEP: u64 = 1 << state::GENERATION_SHIFT;

impl Session {
    /// Makes room where it is needed; returns how many entries were taken out.
    pub fn relieve(&mut self) -> Result<usize, BpfError> {
        let mut taken = 0;
        if self.is_filling_up() {
            taken += self.retire_granules();
            taken += self.forget_ids()?;
        }
        taken += self.relieve_pairs();
        Ok(taken)
    }

    /// Whether granules begin to lack room.
    #[must_use]
    pub fn is_filling_up(&self) -> bool {
        self.is_filling(cursor::INDEX, self.sizes.index()) || self.slots_are_filling()
    }

    fn level(&self, which: u32) -> u64 {
        self.cursors.get(which as usize)
    }

    fn is_filling(&self, which: u32, limit: u32) -> bool {
        self.level(which) > u64::from(limit) / 4 * 3
    }

    fn slots_are_filling(&self) -> bool {
        let used = self.level(cursor::SLOT).saturating_sub(self.level(cursor::FREE_SLOTS));
        used > u64::from(self.sizes.granules) / 4 * 3
    }

    fn retire_granules(&mut self) -> usize {
        let now = now_ns();
        let mut retired = 0;
        for index in 0..self.slots.len() {
            let slot = self.slots.get(index);
            let closed_and_drained = slot.state & (state::USED | state::CLOSED | state::DETACHED)
                == state::USED | state::CLOSED
                && state::live(slot.state) == 0;
            if !closed_and_drained || now.saturating_sub(slot.closed_ns) < QUARANTINE_NS {
                continue;
            }
            // The kernel side leaves a slot with this flag alone: only one of us gets it.
            let claimed = self.slots.word(index, 0).is_some_and(|word| {
                let next = slot.state | state::RETIRING;
                word.compare_exchange(slot.state, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            });
            if claimed {
                let key = IndexKey { series: slot.series, reserved: 0, id: slot.id };
                self.remove_id(key, index as u32);
                if let Some(word) = self.slots.word(index, 0) {
                    // Changed by operations that commute with the kernel side's counting.
                    word.fetch_and(!state::FLAGS, Ordering::SeqCst);
                    word.fetch_add(GENERATION_STEP, Ordering::SeqCst);
                }
                if self.free_slots.push(index as u32, 0).is_ok() {
                    self.move_level(cursor::FREE_SLOTS, 1);
                }
                retired += 1;
            }
        }
        retired
    }

    /// Removes an id that still means the slot.
    fn remove_id(&mut self, key: IndexKey, slot: u32) {
        match self.index.get(&Plain(key), 0) {
            Ok(found) if place_of::slot(found) == slot => {}
            _ => return,
        }
        if self.index.remove(&Plain(key)).is_ok() {
            self.move_level(cursor::INDEX, u64::MAX);
        } else {
            self.count_loss(Loss::IndexRaced, 1);
        }
    }

    /// Forgets ids of granules that have no slot and are closed.
    fn forget_ids(&mut self) -> Result<usize, BpfError> {
        let is_closed = |word: u64| place_of::slot(word) == NO_SLOT && word & place_of::CLOSED != 0;
        let failed = |source| BpfError::map("removing ids from", names::INDEX, source);
        let map = self.index_fd.try_clone().map_err(failed)?;
        let mut forgotten = 0;
        // A part at a time: the fewer ids were opened again since they were listed, the better.
        let done = read_parts(&map, |keys: &[IndexKey], words: &[u64]| {
            for (key, word) in keys.iter().zip(words).filter(|(_, word)| is_closed(**word)) {
                forgotten += usize::from(self.forget_id(*key, *word)?);
            }
            Ok(())
        });
        done.map_err(failed)?;
        Ok(forgotten)
    }

    /// Forgets an id if this is its word still.
    fn forget_id(&mut self, key: IndexKey, closed: u64) -> io::Result<bool> {
        // It may have been opened again since it was listed.
        if self.index.get(&Plain(key), 0).ok() != Some(closed) {
            return Ok(false);
        }
        match take_out::<_, u64>(&self.index_fd, &key)? {
            Some(word) if word == closed => {
                self.move_level(cursor::INDEX, u64::MAX);
                Ok(true)
            }
            // Opened in this very instant. A probe that looked for it meanwhile has found nothing.
            Some(word) => {
                self.count_loss(Loss::IndexRaced, 1);
                if self.index.insert(Plain(key), word, BPF_NOEXIST).is_err() {
                    self.move_level(cursor::INDEX, u64::MAX);
                }
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Takes out objects that a bulk close has freed, if they crowd the table out. `kind_of` tells the kind
    /// of an allocator.
    pub fn relieve_objects(&mut self, kind_of: impl Fn(u32) -> Option<Kind>) -> usize {
        if !self.is_filling(cursor::OBJECTS, self.sizes.overflow()) {
            return 0;
        }
        let mut raced = 0;
        let is_stale = |object: &ObjectValue| {
            let series = self.series_state.get(object.series as usize);
            let slot = self.slots.get(object.slot as usize);
            kind_of(series.key.allocator) == Some(Kind::Bulk)
                && (state::generation(slot.state) != object.generation
                    || (slot.state & state::CLOSED != 0 && !state::is_migrated(slot.state)))
        };
        let mut removed = 0;
        for index in 0..self.buckets.len() {
            let bucket = self.buckets.get(index);
            for way in 0..WAYS {
                let seen = bucket.tags[way];
                if seen & tag::STATE != tag::FULL || !is_stale(&bucket.entries[way].value) {
                    continue;
                }
                // Tags come first in a bucket. The swap fails if the entry is another one by now.
                let Some(word) = self.buckets.word(index, way) else { continue };
                let free = tag::with(seen, 0);
                if word.compare_exchange(seen, free, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    removed += 1;
                }
            }
        }
        let overflown = self.objects.iter().filter_map(Result::ok);
        let stale: Vec<_> =
            overflown.filter(|(_, object)| is_stale(&object.0)).map(|(key, _)| key).collect();
        for key in stale {
            // Some ids have been given out again since the first of them was listed.
            if !self.objects.get(&key, 0).is_ok_and(|object| is_stale(&object.0)) {
                continue;
            }
            let Ok(Some(object)) = take_out::<_, ObjectValue>(&self.objects_fd, &key.0) else {
                continue;
            };
            if !is_stale(&object) {
                // In this very instant. A free may have looked for it meanwhile.
                raced += 1;
                if self.objects.insert(key, Plain(object), BPF_NOEXIST).is_ok() {
                    continue;
                }
            }
            self.move_level(cursor::OBJECTS, u64::MAX);
            removed += 1;
        }
        self.count_loss(Loss::IndexRaced, raced);
        removed
    }

    /// Adds (wrapping) to a fill level that the kernel side keeps too.
    pub(super) fn move_level(&self, which: u32, by: u64) {
        if let Some(word) = self.cursors.word(which as usize, 0) {
            word.fetch_add(by, Ordering::SeqCst);
        }
    }
}

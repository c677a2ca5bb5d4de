//! What the walkers have in common: what they find, and which memory others have found already.

use crate::{model::Heap, space::Space};

/// A heap, with what is known of its memory.
pub(crate) struct Found {
    pub(crate) heap: Heap,
    /// Resident bytes of granules with a live object.
    pub(crate) held_bytes: u64,
    /// The stretches of memory that are its, which no other walker looks at.
    pub(crate) taken: Vec<(u64, u64)>,
    /// What was not seen, in sentences.
    pub(crate) notes: Vec<String>,
}

/// Looks for an allocator's heaps in memory that no other heap has taken; `None` where there are none.
pub(crate) type Walker = fn(&Space<'_>, &Taken) -> Option<Found>;

/// Stretches of memory that belong to heaps, in ascending order.
#[derive(Clone, Default)]
pub(crate) struct Taken(Vec<(u64, u64)>);

impl Taken {
    pub(crate) fn add(&mut self, stretches: impl IntoIterator<Item = (u64, u64)>) {
        self.0.extend(stretches);
        self.0.sort_unstable();
    }

    /// The end of the stretch that an address lies in.
    pub(crate) fn end_of(&self, address: u64) -> Option<u64> {
        let next = self.0.partition_point(|(start, _)| *start <= address);
        let (_, end) = self.0.get(next.checked_sub(1)?)?;
        (address < *end).then_some(*end)
    }
}

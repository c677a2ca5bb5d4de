//! Memory that no process has, for tests of the walkers and for fuzzing.

#[cfg(test)]
pub(crate) mod seeds;
mod text;

use std::cell::Cell;

pub use text::{Described, Walked};

#[cfg(test)]
use crate::{heaps::heaps, model::Heap, parts::parts, space::Space};
use crate::{
    present::Present,
    space::{Memory, PAGE, Range, RangeKind},
};

/// Whether no two fields of a structure share a place; each is where it begins, and how large it is.
#[cfg(test)]
pub(crate) fn are_apart(fields: impl IntoIterator<Item = (u64, u64)>) -> bool {
    let mut fields: Vec<(u64, u64)> = fields.into_iter().collect();
    fields.sort_unstable();
    fields.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0)
}

/// Pieces of bytes at addresses.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Address and bytes.
    pub(crate) pieces: Vec<(u64, Vec<u8>)>,
    /// Pages that are not present.
    pub(crate) absent: Vec<u64>,
    /// Stretches that are mapped, and of which nothing is present: first address, first address after.
    pub(crate) untouched: Vec<(u64, u64)>,
    /// Words that every other read finds in place of those in the pieces.
    pub(crate) torn: Vec<(u64, u64)>,
    /// Vtables with symbols, and the classes' mangled names.
    pub(crate) vtables: Vec<(u64, String)>,
    pub(crate) reads: Cell<u64>,
    /// Pages that are guards; `None`: that is not known.
    pub(crate) guards: Option<Vec<u64>>,
    /// Whether pages that are not present cost time.
    pub(crate) slow: bool,
}

impl Pieces {
    /// Writes words in a row, which lie in a piece.
    pub(crate) fn put(&mut self, address: u64, words: &[u64]) {
        assert!(self.try_put(address, words), "the addresses are in a piece");
    }

    /// The word at an address, which lies in a piece.
    #[cfg(test)]
    pub(crate) fn word(&self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        assert!(self.read(address, &mut bytes), "the address is in a piece");
        u64::from_le_bytes(bytes)
    }

    /// Writes bytes, which lie in a piece, and fill words.
    #[cfg(test)]
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        for (word, at) in bytes.chunks(8).zip((address..).step_by(8)) {
            let mut all = [0; 8];
            all[..word.len()].copy_from_slice(word);
            self.put(at, &[u64::from_le_bytes(all)]);
        }
    }

    /// Writes words in a row; false where they do not lie in a piece.
    fn try_put(&mut self, address: u64, words: &[u64]) -> bool {
        words.iter().zip(0..).all(|(word, index)| {
            let Some(at) = address.checked_add(index * 8) else { return false };
            let place = self.pieces.iter_mut().find_map(|(start, piece)| {
                let offset = usize::try_from(at.checked_sub(*start)?).ok()?;
                piece.get_mut(offset..offset.checked_add(8)?)
            });
            place.map(|place| place.copy_from_slice(&word.to_le_bytes())).is_some()
        })
    }
}

impl Memory for Pieces {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let found = self.pieces.iter().find_map(|(start, piece)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            piece.get(offset..offset.checked_add(bytes.len())?)
        });
        let Some(found) = found else { return false };
        bytes.copy_from_slice(found);
        self.reads.set(self.reads.get() + 1);
        for (at, word) in self.torn.iter().filter(|_| self.reads.get().is_multiple_of(2)) {
            let offset = at.checked_sub(address).and_then(|offset| usize::try_from(offset).ok());
            let place = offset.and_then(|offset| bytes.get_mut(offset..offset.checked_add(8)?));
            if let Some(place) = place {
                place.copy_from_slice(&word.to_le_bytes());
            }
        }
        true
    }

    fn present(&self, start: u64, end: u64) -> Present {
        let absent = self.absent.iter().map(|page| (*page, page.saturating_add(PAGE)));
        let mut holes: Vec<(u64, u64)> = self.untouched.iter().copied().chain(absent).collect();
        holes.sort_unstable();
        let (mut present, mut at) = (Present::default(), start);
        for (first, after) in holes {
            present.push(at, first.min(end));
            at = at.max(after);
        }
        present.push(at, end);
        present
    }

    fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        let guards = self.guards.as_ref()?;
        Some((start..end).step_by(PAGE as usize).all(|page| guards.contains(&page)))
    }

    fn skips_holes(&self) -> bool {
        !self.slow
    }

    fn vtable(&self, address: u64) -> Option<String> {
        let found = self.vtables.iter().find(|(vtable, _)| *vtable == address);
        found.map(|(_, name)| name.clone())
    }
}

/// Writable anonymous memory that is resident.
pub(crate) fn anonymous(start: u64, bytes: u64) -> Range {
    range(start, bytes, RangeKind::Anonymous)
}

fn range(start: u64, bytes: u64, kind: RangeKind) -> Range {
    let end = start.saturating_add(bytes);
    Range { start, end, kind, writable: true, rss: bytes, swap: 0, huge: 0, hugetlb: 0 }
}

/// Time of a processor that this thread has taken.
#[cfg(test)]
pub(crate) fn processor_time() -> std::time::Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// Reads heaps within less and less of each thing that a census may take: what is cut is said, and nothing of it is more than
/// it is as a whole.
#[cfg(test)]
pub(crate) fn cut_short(ranges: &[Range], memory: &dyn Memory) {
    use crate::budget::{Bounds, Budget};
    let read = |bounds: Bounds| {
        let mut space = Space::within(ranges.to_vec(), memory, Budget::new(bounds, None));
        let all = heaps(&mut space, &[]);
        let taken = [space.read_bytes(), space.budget.steps(), space.budget.most_kept()];
        let (rss, parts) = (crate::space::resident(ranges), parts(&space, &all));
        assert!(crate::parts::validated(&parts) <= rss);
        (all, taken, space.budget.ran_out())
    };
    let most = Bounds::of(1 << 30);
    let (whole, used, None) = read(most) else { panic!("there is enough") };
    for (which, tenth) in (0..3).flat_map(|which| (0..=20).map(move |tenth| (which, tenth))) {
        let part = |index: usize, of| if which == index { used[index] * tenth / 20 } else { of };
        let bounds = Bounds {
            read: part(0, most.read),
            steps: part(1, most.steps),
            kept: part(2, most.kept),
            ..most
        };
        let (all, taken, ran_out) = read(bounds);
        let within = [bounds.read, bounds.steps, bounds.kept];
        assert!(taken.iter().zip(within).all(|(taken, most)| *taken <= most), "{taken:?}");
        let Some(what) = ran_out else { continue };
        assert!(all.notes.iter().any(|note| note.text.contains(&what)), "{what}");
        for (heap, held) in &all.found {
            let same = whole.found.iter().find(|(one, _)| one.allocator == heap.allocator);
            let (full, full_held) = same.unwrap_or_else(|| panic!("{which} {tenth}: {heap:?}"));
            let bytes = |heap: &Heap| heap.live_bytes + heap.cached_bytes;
            assert!(
                bytes(heap) <= bytes(full) + full.unknown_bytes,
                "{which} {tenth}: {heap:?} {full:?}"
            );
            assert!(
                heap.free_bytes <= full.free_bytes + full.unknown_bytes,
                "{which} {tenth}: {heap:?}"
            );
            assert!(*held <= full.resident_bytes.max(*full_held), "{which} {tenth}: {heap:?}");
        }
        // What was read before all was used up is whole.
        let is_whole = |heap: &Heap| whole.found.iter().any(|(one, _)| one == heap);
        let is_cut = |heap: &Heap| heap.is_partial() && heap.trimmable_bytes.is_none();
        let are_said = all.found.iter().all(|(heap, _)| is_whole(heap) || is_cut(heap));
        assert!(are_said, "{which} {tenth}: {:?}", all.found);
    }
}

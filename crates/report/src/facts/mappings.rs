//! The ledger of a process's heap and mappings: what each call path has mapped and is still there.
//!
//! Pure: it is fed with records of system calls, in the order in which they took effect. Only what was mapped while
//! it was watched is kept; what was there before is reported as a sum once it is unmapped.

use std::collections::{BTreeMap, HashMap};

use drainprof_common::growth::{MapKind, MapRecord, PAGE};

/// Mappings that are kept at most; a process has 65,530 unless its administrator allows more.
const MAX_REGIONS: usize = 1 << 20;
/// Threads that are in a call at once.
const MAX_PENDING: usize = 1 << 16;

/// `MAP_ANONYMOUS`.
const ANONYMOUS: u64 = 0x20;
/// `MREMAP_MAYMOVE | MREMAP_DONTUNMAP`'s second bit: the old mapping stays.
const DONT_UNMAP: u64 = 4;
/// Advice that gives pages back: `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`, `MADV_DONTNEED_LOCKED`.
const GIVE_BACK: [u64; 4] = [4, 8, 9, 24];

/// What one call path has done. Bytes, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapTotals {
    /// Calls that changed something.
    pub calls: u64,
    /// By how much `brk` has moved the end of the heap.
    pub heap: i64,
    /// Mapped.
    pub mapped: u64,
    /// Of that still mapped.
    pub outstanding: u64,
    /// Of that anonymous memory.
    pub outstanding_anon: u64,
    /// Pieces that are still mapped: a count.
    pub regions: u64,
    /// Given back by `madvise`, counted by address range.
    pub given_back: u64,
}

impl MapTotals {
    /// Adds another one's.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.heap = self.heap.saturating_add(other.heap);
        for (sum, value) in [
            (&mut self.mapped, other.mapped),
            (&mut self.outstanding, other.outstanding),
            (&mut self.outstanding_anon, other.outstanding_anon),
            (&mut self.regions, other.regions),
            (&mut self.given_back, other.given_back),
        ] {
            *sum = sum.saturating_add(value);
        }
    }
}

/// A mapping, or what is left of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Region {
    end: u64,
    path: u32,
    anon: bool,
}

/// The ledger of one address space.
#[derive(Clone, Debug, Default)]
pub struct MappingLedger {
    /// The end of the heap; `None` until it is known.
    heap_end: Option<u64>,
    regions: BTreeMap<u64, Region>,
    /// What a thread's call has taken out, until it is known to have succeeded.
    pending: HashMap<u32, Vec<(u64, Region)>>,
    paths: BTreeMap<u32, MapTotals>,
    unmapped: u64,
    unmapped_before: u64,
    /// Records that found no room.
    lost: u64,
}

impl MappingLedger {
    /// A ledger of a process whose heap ends there (`[heap]` of its mappings); `None`: not known.
    #[must_use]
    pub fn new(heap_end: Option<u64>) -> Self {
        Self { heap_end, ..Self::default() }
    }

    /// Takes one record.
    pub fn add(&mut self, record: &MapRecord) {
        let Some(kind) = MapKind::from_raw(record.kind) else { return };
        match kind {
            MapKind::Brk => self.brk(record),
            MapKind::Mmap => self.mmap(record),
            MapKind::MunmapBegins | MapKind::MremapBegins => self.begin(record),
            MapKind::Munmap => self.munmap(record),
            MapKind::Mremap => self.mremap(record),
            MapKind::Madvise => {
                if record.result == 0 && GIVE_BACK.contains(&record.third) {
                    let own = self.own(record.path);
                    own.calls += 1;
                    own.given_back = own.given_back.saturating_add(pages(record.length));
                }
            }
        }
    }

    /// The call paths (one more than their numbers; 0: not known), with what they have done.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<u32, MapTotals> {
        let mut all = self.paths.clone();
        for (start, region) in &self.regions {
            let own = all.entry(region.path).or_default();
            let bytes = region.end.saturating_sub(*start);
            own.outstanding = own.outstanding.saturating_add(bytes);
            own.regions += 1;
            if region.anon {
                own.outstanding_anon = own.outstanding_anon.saturating_add(bytes);
            }
        }
        all
    }

    /// Bytes that were unmapped, of what was mapped while it was watched.
    #[must_use]
    pub const fn unmapped(&self) -> u64 {
        self.unmapped
    }

    /// Bytes that calls of `munmap` named and no call was seen to map: of mappings that were there before, or none.
    #[must_use]
    pub const fn unmapped_before(&self) -> u64 {
        self.unmapped_before
    }

    /// Where the heap ends, as far as is known.
    #[must_use]
    pub const fn heap_end(&self) -> Option<u64> {
        self.heap_end
    }

    /// Records that found no room.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    fn own(&mut self, path: u32) -> &mut MapTotals {
        self.paths.entry(path).or_default()
    }

    /// The kernel answers with the end of the heap, changed or not. The first answer, where nothing was known
    /// before, says nothing of a change.
    fn brk(&mut self, record: &MapRecord) {
        let end = record.result;
        if is_error(end) {
            return;
        }
        if let Some(before) = self.heap_end.replace(end)
            && before != end
        {
            let own = self.own(record.path);
            own.calls += 1;
            own.heap = own.heap.saturating_add(end.wrapping_sub(before).cast_signed());
        }
    }

    fn mmap(&mut self, record: &MapRecord) {
        if is_error(record.result) {
            return;
        }
        let (start, length) = (record.result, pages(record.length));
        // `MAP_FIXED` replaces what is there; elsewhere nothing is.
        let gone = self.carve(start, start.saturating_add(length));
        self.forget(&gone);
        let own = self.own(record.path);
        own.calls += 1;
        own.mapped = own.mapped.saturating_add(length);
        let anon = record.flags & ANONYMOUS != 0;
        self.enter(start, Region { end: start.saturating_add(length), path: record.path, anon });
    }

    /// What a call of `munmap` or `mremap` is about to take away is taken out at once: another thread may be given
    /// the addresses before the call has returned.
    fn begin(&mut self, record: &MapRecord) {
        let gone = self.carve(record.address, record.address.saturating_add(pages(record.length)));
        if self.pending.len() >= MAX_PENDING {
            self.lost += 1;
            self.forget(&gone);
            return;
        }
        self.pending.insert(record.tid, gone);
    }

    fn munmap(&mut self, record: &MapRecord) {
        let gone = self.taken(record);
        if record.result != 0 {
            self.restore(gone);
            return;
        }
        let known = self.forget(&gone);
        self.own(record.path).calls += 1;
        self.unmapped_before =
            self.unmapped_before.saturating_add(pages(record.length).saturating_sub(known));
    }

    /// A mapping that moves, grows or shrinks stays that of the path that made it; what comes on top is the caller's.
    fn mremap(&mut self, record: &MapRecord) {
        let gone = self.taken(record);
        if is_error(record.result) {
            self.restore(gone);
            return;
        }
        let (old, new) = (pages(record.length), pages(record.third));
        let to = record.result;
        if record.flags & DONT_UNMAP != 0 {
            self.restore(gone.clone());
        }
        // `MREMAP_FIXED` replaces what is there.
        let replaced = self.carve(to, to.saturating_add(new));
        self.forget(&replaced);
        let mut anon = gone.is_empty();
        let mut shrunk = Vec::new();
        for (start, region) in gone {
            anon |= region.anon;
            let from = start.saturating_sub(record.address);
            let until = region.end.saturating_sub(record.address);
            if from < new {
                let end = to.saturating_add(until.min(new));
                self.enter(to.saturating_add(from), Region { end, ..region });
            }
            if until > new {
                shrunk.push((from.max(new), Region { end: until, ..region }));
            }
        }
        if record.flags & DONT_UNMAP == 0 {
            self.forget(&shrunk);
        }
        let own = self.own(record.path);
        own.calls += 1;
        // With an old length of 0 the pages are shared with the old mapping.
        if new > old {
            own.mapped = own.mapped.saturating_add(new - old);
            let (start, end) = (to.saturating_add(old), to.saturating_add(new));
            self.enter(start, Region { end, path: record.path, anon });
        }
    }

    /// What the thread's call has taken out; where its begin was lost, what it takes out now.
    fn taken(&mut self, record: &MapRecord) -> Vec<(u64, Region)> {
        match self.pending.remove(&record.tid) {
            Some(gone) => gone,
            None if is_error(record.result) => Vec::new(),
            None => self.carve(record.address, record.address.saturating_add(pages(record.length))),
        }
    }

    /// Takes out what lies in a range, and cuts what lies across its ends.
    fn carve(&mut self, from: u64, to: u64) -> Vec<(u64, Region)> {
        let mut gone = Vec::new();
        if from >= to {
            return gone;
        }
        if let Some((&start, &region)) = self.regions.range(..from).next_back()
            && region.end > from
        {
            self.regions.insert(start, Region { end: from, ..region });
            if region.end > to {
                self.regions.insert(to, region);
            }
            gone.push((from, Region { end: region.end.min(to), ..region }));
        }
        let within: Vec<(u64, Region)> =
            self.regions.range(from..to).map(|(start, region)| (*start, *region)).collect();
        for (start, region) in within {
            self.regions.remove(&start);
            if region.end > to {
                self.regions.insert(to, region);
            }
            gone.push((start, Region { end: region.end.min(to), ..region }));
        }
        gone
    }

    fn enter(&mut self, start: u64, region: Region) {
        if start >= region.end {
            return;
        }
        if self.regions.len() >= MAX_REGIONS {
            self.lost += 1;
            return;
        }
        self.regions.insert(start, region);
    }

    fn restore(&mut self, gone: Vec<(u64, Region)>) {
        for (start, region) in gone {
            self.enter(start, region);
        }
    }

    /// Counts what has gone for good: its bytes.
    fn forget(&mut self, gone: &[(u64, Region)]) -> u64 {
        let bytes = gone.iter().fold(0u64, |sum, (start, region)| {
            sum.saturating_add(region.end.saturating_sub(*start))
        });
        self.unmapped = self.unmapped.saturating_add(bytes);
        bytes
    }
}

/// Whether a system call's answer is an error.
const fn is_error(result: u64) -> bool {
    result > u64::MAX - 4095
}

/// A length in whole pages, as the kernel rounds it.
const fn pages(length: u64) -> u64 {
    match length.checked_next_multiple_of(PAGE) {
        Some(length) => length,
        None => u64::MAX - (PAGE - 1),
    }
}

#[cfg(test)]
mod tests;

//! Reading small structures that lie all over a heap, a page at a time. Pages that are not present are not read.

use std::collections::HashMap;

use crate::{
    region::Region,
    space::{PAGE, RangeKind, Space, words_by},
};

/// Pages that are remembered.
const MAX_PAGES: usize = 4096;

/// Bytes of ours for each.
const KEPT_PAGE_BYTES: u64 = PAGE + 64;

type Page = Option<Box<[u8; PAGE as usize]>>;

/// Pages of a process as they were when they were first read.
pub(crate) struct Pages<'a> {
    pub(crate) space: &'a Space<'a>,
    known: HashMap<u64, Page>,
    /// Memory of ours that it has taken.
    kept: u64,
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<'a> Pages<'a> {
    pub(crate) fn new(space: &'a Space<'a>) -> Self {
        Self { space, known: HashMap::new(), kept: 0 }
    }

    /// Forgets what was read, so that it is read again.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
        self.space.budget.gives_back(self.kept);
        self.kept = 0;
    }

    /// Fills `bytes` from `address` on; whether all of them are present and could be read.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let Some(at) = address.checked_add(done as u64) else { return false };
            let Some(page) = self.page(at / PAGE * PAGE) else { return false };
            let from = &page[(at % PAGE) as usize..];
            let count = from.len().min(bytes.len() - done);
            bytes[done..done + count].copy_from_slice(&from[..count]);
            done += count;
        }
        true
    }

    /// Several words in a row.
    pub(crate) fn words<const N: usize>(&mut self, address: u64) -> Option<[u64; N]> {
        words_by(|bytes| self.read(address, bytes))
    }

    fn page(&mut self, address: u64) -> Option<&[u8; PAGE as usize]> {
        let space = self.space;
        if !self.known.contains_key(&address) {
            if self.known.len() >= MAX_PAGES || !space.budget.fits(KEPT_PAGE_BYTES) {
                self.forget();
            }
            self.kept +=
                if space.budget.keeps_bytes(KEPT_PAGE_BYTES) { KEPT_PAGE_BYTES } else { 0 };
        }
        let page = self.known.entry(address).or_insert_with(|| {
            let mut bytes = Box::new([0; PAGE as usize]);
            let is_read = space.range_at(address).is_some()
                && Region::new(space, address, address.saturating_add(PAGE)).is_present(address)
                && space.read(address, bytes.as_mut_slice());
            is_read.then_some(bytes)
        });
        page.as_deref()
    }
}

/// Reads structures, within a number of steps.
pub(crate) struct Reader<'a> {
    pub(crate) pages: Pages<'a>,
    /// Structures that may still be visited.
    pub(crate) steps: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(space: &'a Space<'a>, steps: u64) -> Self {
        Self { pages: Pages::new(space), steps }
    }

    /// Counts a structure that is visited; `None` once there were too many.
    pub(crate) fn step(&mut self) -> Option<()> {
        self.steps = self.steps.checked_sub(1)?;
        Some(())
    }

    /// Takes memory of ours for what is kept of a structure.
    pub(crate) fn keep<T>(&mut self) -> Option<()> {
        self.pages.space.budget.keeps::<T>(1).then_some(())
    }

    /// A word of a structure.
    pub(crate) fn word(&mut self, structure: u64, offset: u64) -> Option<u64> {
        self.pages.words::<1>(structure.checked_add(offset)?).map(|[word]| word)
    }

    /// Whether an address lies in memory where heaps may be.
    pub(crate) fn is_heap(&self, address: u64) -> bool {
        self.pages.space.range_at(address).is_some_and(|range| range.writable)
    }

    /// Whether an address lies in constants of a file.
    pub(crate) fn is_constant(&self, address: u64) -> bool {
        let range = self.pages.space.range_at(address);
        range.is_some_and(|range| range.kind == RangeKind::File && !range.writable)
    }

    /// Text up to its end, or to so many bytes. Constants are read from their file if their page is not present.
    pub(crate) fn text(&mut self, address: u64, most: usize) -> Option<String> {
        let range = self.pages.space.range_at(address)?;
        let most = most.min(usize::try_from(range.end - address).unwrap_or(most));
        let mut bytes = vec![0; most];
        // Its page may be the last one that is present.
        let here = most.min((PAGE - address % PAGE) as usize);
        let is_read = self.pages.read(address, &mut bytes)
            || self.is_constant(address) && self.pages.space.read_file(address, &mut bytes)
            || self.pages.read(address, &mut bytes[..here]);
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(most);
        is_read.then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

//! Reading small structures that lie all over a heap, a page at a time. Pages that are not present are not read.

use std::collections::HashMap;

use crate::space::{PAGE, Space, words_by};

/// Pages that are remembered.
const MAX_PAGES: usize = 4096;

type Page = Option<Box<[u8; PAGE as usize]>>;

/// Pages of a process as they were when they were first looked at.
pub(super) struct Pages<'a> {
    pub(super) space: &'a Space<'a>,
    pages: HashMap<u64, Page>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(space: &'a Space<'a>) -> Self {
        Self { space, pages: HashMap::new() }
    }

    /// Forgets what was read, so that it is read again.
    pub(super) fn forget(&mut self) {
        self.pages.clear();
    }

    /// Fills `bytes` from `address` on; whether all of them are present and could be read.
    pub(super) fn read(&mut self, address: u64, bytes: &mut [u8]) -> bool {
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
    pub(super) fn words<const N: usize>(&mut self, address: u64) -> Option<[u64; N]> {
        words_by(|bytes| self.read(address, bytes))
    }

    fn page(&mut self, address: u64) -> Option<&[u8; PAGE as usize]> {
        if self.pages.len() >= MAX_PAGES {
            self.pages.clear();
        }
        let space = self.space;
        let page = self.pages.entry(address).or_insert_with(|| {
            let mut bytes = Box::new([0; PAGE as usize]);
            let is_read = space.range_at(address).is_some()
                && space.region(address, address.saturating_add(PAGE)).is_present(address)
                && space.read(address, bytes.as_mut_slice());
            is_read.then_some(bytes)
        });
        page.as_deref()
    }
}

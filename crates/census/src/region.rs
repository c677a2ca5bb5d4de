//! Reading through a part of an address space, window by window.

use crate::{
    granules,
    present::{Numbered, Present},
    space::{PAGE, Space, word_of},
};

/// Bytes that are read at once, and where little is read.
const WINDOW_BYTES: u64 = 256 << 10;
const NARROW_WINDOW_BYTES: u64 = 4 * PAGE;

/// A part of an address space that is read from its begin to its end. Pages that are not present are not read.
pub(crate) struct Region<'a> {
    space: &'a Space<'a>,
    first: u64,
    end: u64,
    present: Present,
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of the window that were read.
    filled: usize,
    /// Bytes of the next window, at most: few behind a page that cannot be read.
    most: u64,
    /// Bytes of any window, at most.
    widest: u64,
    /// Windows that were read.
    loads: u64,
    /// Memory of ours that it has taken.
    kept: u64,
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        self.space.budget.gives_back(self.kept);
    }
}

impl<'a> Region<'a> {
    pub(crate) fn new(space: &'a Space<'_>, start: u64, end: u64) -> Self {
        let first = start / PAGE * PAGE;
        let present = space.present_now(first, end.next_multiple_of(PAGE));
        let mut region = Self {
            space,
            first,
            end,
            present,
            window: Vec::new(),
            window_at: 0,
            filled: 0,
            most: WINDOW_BYTES,
            widest: WINDOW_BYTES,
            loads: 0,
            kept: 0,
        };
        region.keep(region.present.kept_bytes());
        region
    }

    /// Takes memory of ours for it.
    fn keep(&mut self, bytes: u64) -> bool {
        let is_kept = bytes == 0 || self.space.budget.keeps_bytes(bytes);
        self.kept += if is_kept { bytes } else { 0 };
        is_kept
    }
    /// Whether it goes from the one address to the other.
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        self.first <= start && end <= self.end
    }

    /// Whether the page of an address is present.
    pub(crate) fn is_present(&self, address: u64) -> bool {
        self.present.contains(address)
    }

    /// The first address from this one on whose page is present; the end of the region where there is none.
    pub(crate) fn next_present(&self, address: u64) -> u64 {
        self.present.next(address).map_or(self.end, |page| page.max(address))
    }

    /// Bytes of the pages that are present between two page boundaries.
    pub(crate) fn present_bytes(&self, start: u64, end: u64) -> u64 {
        self.present.bytes(start, end)
    }

    /// The pages that are present, with numbers; none where there is no memory for what is kept of each.
    pub(crate) fn pages(&self) -> Numbered {
        let pages = self.present.bytes(self.first, self.end) / PAGE;
        let may_keep = self.space.budget.keeps_bytes(pages * granules::OF_PAGE);
        Numbered::new(if may_keep { self.present.clone() } else { Present::default() })
    }

    /// The word at an address that is a multiple of eight; `None` where its page is not present, or cannot be read.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let in_window = |at: u64, len: usize| {
            let fits = |offset: &u64| offset.saturating_add(8) <= len as u64;
            address.checked_sub(at).filter(fits)
        };
        if in_window(self.window_at, self.filled).is_none() {
            self.load(address)?;
        }
        let offset = in_window(self.window_at, self.filled)?;
        word_of(&self.window, usize::try_from(offset).ok()?)
    }

    /// Asks again whether the page of an address is present: while the kernel moves a page, it is not.
    pub(crate) fn ask_again(&mut self, address: u64) {
        let page = address / PAGE * PAGE;
        let is_inside = (self.first..self.end).contains(&page) && !self.is_present(page);
        let may_ask = is_inside && !self.space.budget.is_over();
        if may_ask && self.space.present_now(page, page + PAGE).contains(page) {
            self.present.insert(page);
            self.space.ask_again(page);
        }
    }

    /// Forgets what was read, so that it is read again.
    pub(crate) fn refresh(&mut self) {
        self.filled = 0;
    }

    /// Forgets what was read, and reads little at once until [`Region::widen`].
    pub(crate) fn narrow(&mut self) {
        (self.filled, self.most, self.widest) = (0, NARROW_WINDOW_BYTES, NARROW_WINDOW_BYTES);
    }

    /// Reads little the next time: what is far away is read next.
    pub(crate) fn skim(&mut self) {
        self.most = NARROW_WINDOW_BYTES;
    }

    /// Reads more at once again.
    pub(crate) fn widen(&mut self) {
        self.widest = WINDOW_BYTES;
    }

    /// How often it has read so far: what was read at once was there at one time.
    pub(crate) fn loads(&self) -> u64 {
        self.loads
    }

    /// Gives back the memory of what was read.
    pub(crate) fn release(&mut self) {
        let bytes = self.window.len() as u64;
        (self.window, self.filled) = (Vec::new(), 0);
        self.space.budget.gives_back(bytes.min(self.kept));
        self.kept = self.kept.saturating_sub(bytes);
    }

    fn load(&mut self, address: u64) -> Option<()> {
        let is_inside = address >= self.first && address.checked_add(8)? <= self.end;
        if !is_inside || self.space.budget.is_over() {
            return None;
        }
        let start = address / PAGE * PAGE;
        let mapped = self.space.mapped_end(start)?;
        let most = self.end.min(mapped).min(start + self.most);
        let mut end = start;
        while end < most && self.is_present(end) {
            end += PAGE;
        }
        let end = end.min(self.end);
        let bytes = usize::try_from(end - start).ok()?;
        if self.window.len() < bytes {
            if !self.keep((bytes - self.window.len()) as u64) {
                return None;
            }
            self.window.resize(bytes, 0);
        }
        (self.window_at, self.filled) = (start, 0);
        if bytes == 0 {
            return None;
        }
        if self.space.read(start, &mut self.window[..bytes]) {
            self.filled = bytes;
            self.most = self.widest.min(self.most * 2);
            self.loads += 1;
            return Some(());
        }
        // What may not be read is present still.
        if self.space.budget.is_over() {
            return None;
        }
        if self.most > PAGE {
            self.most = PAGE;
            return self.load(address);
        }
        // What cannot be read is as good as absent, and is not tried again.
        self.present.remove(start);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{
        memory::Memory,
        testing::{Pieces, anonymous},
    };

    /// A region that mappings share is read in all of them; a page that cannot be read costs no more than two pages.
    #[test]
    fn unreadable_pages() {
        let (at, pages) = (0x7f00_0000_0000, 256);
        let mut memory = Pieces::default();
        for page in (0..pages).filter(|page| page % 2 == 0) {
            memory.pieces.push((at + page * PAGE, vec![1; PAGE as usize]));
        }
        let ranges = (0..4).map(|part| anonymous(at + part * 64 * PAGE, 64 * PAGE));
        let space = Space::new(ranges.collect(), &memory);
        let mut region = Region::new(&space, at, at + pages * PAGE);
        let words = (at..at + pages * PAGE).step_by(16).filter_map(|at| region.word(at)).count();
        assert_eq!(words as u64, pages / 2 * PAGE / 16);
        assert!(
            space.read_bytes() <= 4 * pages * PAGE + 4 * WINDOW_BYTES,
            "{}",
            space.read_bytes()
        );
    }

    /// Memory whose pages are present when they are asked for a second time.
    struct Moved(Pieces, Cell<u32>);

    impl Memory for Moved {
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            self.0.read(address, bytes)
        }

        fn present(&self, start: u64, end: u64) -> Present {
            self.1.set(self.1.get() + 1);
            if self.1.get() == 1 { Present::default() } else { self.0.present(start, end) }
        }
    }

    /// A page that was on the move is read when it is asked for again; one that is absent stays so.
    #[test]
    fn moved_pages() {
        let at = 0x7f00_0000_0000;
        let mut memory = Pieces::default();
        memory.pieces.push((at, vec![1; 2 * PAGE as usize]));
        memory.absent.push(at + PAGE);
        let memory = Moved(memory, Cell::new(0));
        let space = Space::new(vec![anonymous(at, 2 * PAGE)], &memory);
        let mut region = Region::new(&space, at, at + 2 * PAGE);
        assert_eq!(region.word(at), None);
        for page in [at, at + PAGE, at + 2 * PAGE] {
            region.ask_again(page);
        }
        assert_eq!(region.word(at), Some(0x0101_0101_0101_0101));
        assert_eq!((region.word(at + PAGE), region.present_bytes(at, at + 2 * PAGE)), (None, PAGE));
    }
}

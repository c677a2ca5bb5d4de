//! Reading the links of a page's blocks. Lists go to and fro, so what was read of a page is kept until the next page: no part
//! of it is read twice.

use crate::space::{PAGE, Space, word_of};

/// Bytes of a page that are kept, at most: all pages but those of single blocks have fewer.
const MAX_KEPT: u64 = 4 << 20;
/// Links of a larger page that are read.
const MAX_ALONE: u32 = 64;
/// Bytes that are read at once, where many links are wanted.
const BYTES_AT_ONCE: u64 = 64 << 10;
const MANY_LINKS: u64 = 8;

/// What is known of a page of the processor in a page of the allocator.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Unread,
    /// To be read without its neighbours.
    Alone,
    Read,
    Absent,
}

/// The links of one page after the other.
pub(super) struct Links<'a> {
    space: &'a Space<'a>,
    start: u64,
    end: u64,
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Links that may be read of a page that is not kept.
    alone: u32,
}

impl<'a> Links<'a> {
    pub(super) fn new(space: &'a Space<'a>) -> Self {
        Self { space, start: 0, end: 0, bytes: Vec::new(), parts: Vec::new(), alone: 0 }
    }

    /// Goes to the page between two addresses, of which so many links may be wanted. All is read anew.
    pub(super) fn of(&mut self, (start, end): (u64, u64), wanted: u64) {
        (self.start, self.end, self.alone) = (start / PAGE * PAGE, end, MAX_ALONE);
        self.parts.clear();
        let bytes = end.saturating_sub(self.start);
        if bytes <= MAX_KEPT {
            let first = if wanted < MANY_LINKS { Part::Alone } else { Part::Unread };
            self.parts.resize(bytes.div_ceil(PAGE) as usize, first);
            if self.bytes.len() < self.parts.len() * PAGE as usize {
                self.bytes.resize(self.parts.len() * PAGE as usize, 0);
            }
        }
    }

    /// The word at an address of the page that is a multiple of eight; `None` where it is not present.
    pub(super) fn word(&mut self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        if self.parts.is_empty() {
            self.alone = self.alone.checked_sub(1)?;
            return self.space.word(address);
        }
        let part = usize::try_from(offset / PAGE).ok()?;
        if *self.parts.get(part)? == Part::Unread {
            let first = offset / BYTES_AT_ONCE * BYTES_AT_ONCE;
            let parts = (BYTES_AT_ONCE / PAGE) as usize;
            let is_read = self.read(first, self.start + first, BYTES_AT_ONCE);
            let now = if is_read { Part::Read } else { Part::Alone };
            let from = (first / PAGE) as usize;
            self.parts.iter_mut().skip(from).take(parts).for_each(|part| *part = now);
        }
        if self.parts[part] == Part::Alone {
            let first = offset / PAGE * PAGE;
            let is_read = self.read(first, self.start + first, PAGE);
            self.parts[part] = if is_read { Part::Read } else { Part::Absent };
        }
        if self.parts[part] == Part::Absent {
            return None;
        }
        word_of(&self.bytes, usize::try_from(offset).ok()?)
    }

    fn read(&mut self, offset: u64, address: u64, most: u64) -> bool {
        let bytes = self.end.saturating_sub(address).min(most);
        let (from, to) = (offset as usize, (offset + bytes) as usize);
        self.bytes.get_mut(from..to).is_some_and(|part| self.space.read(address, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pieces, anonymous};

    const START: u64 = 0x7f00_0000_0000;

    /// Each part is read once, however often lists go to and fro; what is not present is passed over.
    #[test]
    fn once() {
        let bytes = 1 << 20;
        let mut memory = Pieces::default();
        memory.pieces.push((START, vec![7; bytes as usize]));
        memory.absent.push(START + 5 * PAGE);
        let space = Space::new(vec![anonymous(START, bytes)], &memory);
        let mut links = Links::new(&space);
        for wanted in [1, 1000] {
            let before = space.read_bytes();
            links.of((START, START + bytes), wanted);
            for at in (0..bytes).step_by(64) {
                let at = if at / 64 % 2 == 0 { at } else { bytes - at };
                let is_absent = at / PAGE == 5;
                assert_eq!(links.word(START + at).is_none(), is_absent, "{at:x}");
            }
            assert_eq!(space.read_bytes() - before, bytes - PAGE);
            assert_eq!(links.word(START - 8), None);
            assert_eq!(links.word(START + bytes), None);
        }
    }

    /// Of what is too large to be kept, few links are read.
    #[test]
    fn large() {
        let bytes = MAX_KEPT + PAGE;
        let mut memory = Pieces::default();
        memory.pieces.push((START, vec![7; bytes as usize]));
        let space = Space::new(vec![anonymous(START, bytes)], &memory);
        let mut links = Links::new(&space);
        links.of((START, START + bytes), 1000);
        let read = (0..1000).filter(|at| links.word(START + at * PAGE).is_some()).count();
        assert_eq!(read, MAX_ALONE as usize);
    }
}

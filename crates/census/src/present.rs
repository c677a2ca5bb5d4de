//! Which pages of a stretch of memory are present: bits, kept only where there is any. What they take grows with memory
//! that is present, not with what is reserved.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Pages of a block: as many as a huge page has.
const BLOCK: u64 = 512;
/// Bits of a word.
const BITS: u64 = 64;

/// Pages with consecutive numbers, of which at least one was present.
#[derive(Clone)]
struct Block {
    /// Its number: that of its first page, divided by [`BLOCK`].
    number: u64,
    bits: [u64; (BLOCK / BITS) as usize],
}

impl Block {
    /// The bits of its pages from the first to the one before the last, word by word.
    fn words(&self, first: u64, last: u64) -> impl Iterator<Item = u64> {
        let start = self.number * BLOCK;
        let within = |page: u64| page.saturating_sub(start).min(BLOCK);
        let mask = mask(within(first), within(last));
        self.bits.iter().zip(mask).map(|(word, mask)| word & mask)
    }

    fn count(&self, first: u64, last: u64) -> u64 {
        self.words(first, last).map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The bits from `first` to before `last`.
fn mask(first: u64, last: u64) -> [u64; (BLOCK / BITS) as usize] {
    let below = |bit: u64| if bit >= BITS { u64::MAX } else { (1 << bit) - 1 };
    std::array::from_fn(|index| {
        let base = index as u64 * BITS;
        below(last.saturating_sub(base)) & !below(first.saturating_sub(base))
    })
}

/// The pages that are present, in ascending order.
#[derive(Clone, Default)]
pub(crate) struct Present(Vec<Block>);

impl Present {
    /// Adds pages behind all others; what does not lie there is passed over.
    pub(crate) fn push(&mut self, start: u64, end: u64) {
        let (mut first, last) = (start / PAGE, end / PAGE);
        while first < last {
            let number = first / BLOCK;
            match self.0.last() {
                Some(block) if block.number > number => return,
                Some(block) if block.number == number => {}
                _ => self.0.push(Block { number, bits: [0; _] }),
            }
            let Some(block) = self.0.last_mut() else { return };
            let next = (number + 1) * BLOCK;
            let added = mask(first - number * BLOCK, last.min(next) - number * BLOCK);
            block.bits.iter_mut().zip(added).for_each(|(word, added)| *word |= added);
            first = next;
        }
    }

    /// Adds pages that lie behind all others; of a block that both have, those of both.
    pub(crate) fn append(&mut self, other: Self) {
        for block in other.0 {
            match self.0.last_mut() {
                Some(last) if last.number > block.number => {}
                Some(last) if last.number == block.number => {
                    last.bits.iter_mut().zip(block.bits).for_each(|(word, added)| *word |= added);
                }
                _ => self.0.push(block),
            }
        }
    }

    /// Memory that it takes.
    pub(crate) fn kept_bytes(&self) -> u64 {
        (self.0.len() * size_of::<Block>()) as u64
    }

    /// Whether the page of an address is present.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let page = address / PAGE;
        let block = self.0.get(self.index(page)).filter(|block| block.number == page / BLOCK);
        let (word, bit) = ((page % BLOCK / BITS) as usize, page % BITS);
        block.is_some_and(|block| block.bits[word] >> bit & 1 != 0)
    }

    /// Bytes of the pages from one page boundary to another.
    pub(crate) fn bytes(&self, start: u64, end: u64) -> u64 {
        let (first, last) = (start / PAGE, end.div_ceil(PAGE));
        let blocks = self.0[self.index(first)..].iter();
        let blocks = blocks.take_while(|block| block.number * BLOCK < last);
        blocks.map(|block| block.count(first, last)).sum::<u64>() * PAGE
    }

    /// The first page from that of an address on.
    pub(crate) fn next(&self, address: u64) -> Option<u64> {
        let first = address / PAGE;
        self.0[self.index(first)..].iter().find_map(|block| {
            let mut words = block.words(first, u64::MAX).zip((block.number * BLOCK..).step_by(64));
            let (word, base) = words.find(|(word, _)| *word != 0)?;
            Some((base + u64::from(word.trailing_zeros())) * PAGE)
        })
    }

    /// Puts the page of an address in.
    pub(crate) fn insert(&mut self, address: u64) {
        let (page, index) = (address / PAGE, self.index(address / PAGE));
        let number = page / BLOCK;
        if self.0.get(index).is_none_or(|block| block.number != number) {
            self.0.insert(index, Block { number, bits: [0; _] });
        }
        self.0[index].bits[(page % BLOCK / BITS) as usize] |= 1 << (page % BITS);
    }

    /// Takes the page of an address out.
    pub(crate) fn remove(&mut self, address: u64) {
        let (page, index) = (address / PAGE, self.index(address / PAGE));
        if let Some(block) = self.0.get_mut(index).filter(|block| block.number == page / BLOCK) {
            block.bits[(page % BLOCK / BITS) as usize] &= !(1 << (page % BITS));
        }
    }

    /// The first block that has a page from this one on, or a later one.
    fn index(&self, page: u64) -> usize {
        self.0.partition_point(|block| block.number < page / BLOCK)
    }
}

/// Pages that are present, each with its number among them.
pub(crate) struct Numbered {
    present: Present,
    /// The number of the first page of each block.
    firsts: Vec<usize>,
    len: usize,
}

impl Numbered {
    pub(crate) fn new(present: Present) -> Self {
        let mut len = 0;
        let first = |block: &Block| {
            let first = len;
            len += block.count(0, u64::MAX) as usize;
            first
        };
        let firsts = present.0.iter().map(first).collect();
        Self { present, firsts, len }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many lie below the page of an address.
    pub(crate) fn below(&self, address: u64) -> usize {
        let (page, index) = (address / PAGE, self.present.index(address / PAGE));
        let block = self.present.0.get(index).zip(self.firsts.get(index));
        block.map_or(self.len, |(block, first)| first + block.count(0, page) as usize)
    }

    /// Whether the page of an address is among them.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.present.contains(address)
    }

    /// Their addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        let next = |address: &u64| self.present.next(address.checked_add(PAGE)?);
        std::iter::successors(self.present.next(0), next)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a list of pages answers.
        #[test]
        fn as_a_list(
            steps in prop::collection::vec((0..1200u64, 1..700u64), 0..8),
            asked in prop::collection::vec(0..9000u64, 20),
        ) {
            let (mut present, mut pages, mut at) = (Present::default(), Vec::new(), 1000);
            for (gap, count) in steps {
                at += gap;
                present.push(at * PAGE, (at + count) * PAGE);
                pages.extend(at..at + count);
                at += count;
            }
            let gone: Vec<u64> = asked[15..].to_vec();
            for page in &gone {
                present.remove(page * PAGE);
            }
            pages.retain(|page| !gone.contains(page));
            let numbered = Numbered::new(present.clone());
            prop_assert_eq!(numbered.len(), pages.len());
            let addresses: Vec<u64> = pages.iter().map(|page| page * PAGE).collect();
            prop_assert_eq!(numbered.addresses().collect::<Vec<_>>(), addresses);
            for (one, other) in asked.iter().zip(&asked[1..]) {
                let from = pages.partition_point(|page| page < one);
                prop_assert_eq!(present.contains(one * PAGE + 7), pages.contains(one));
                prop_assert_eq!(present.next(one * PAGE + 7), pages.get(from).map(|page| page * PAGE));
                prop_assert_eq!(numbered.below(one * PAGE), from);
                let to = pages.partition_point(|page| page < other);
                let bytes = to.saturating_sub(from) as u64 * PAGE;
                prop_assert_eq!(present.bytes(one * PAGE, other * PAGE), bytes);
            }
        }
    }
}

//! Transparent huge pages: what is resident only because a huge page fills holes between live objects.

use crate::present::{PAGE, Present};

/// Bytes of a huge page.
pub(crate) const HUGE: u64 = 2 << 20;

/// Which pages of a process are parts of huge pages, and which of these hold a live object.
#[derive(Default)]
pub(crate) struct Huge {
    pub(crate) pages: Present,
    holding: Present,
}

impl Huge {
    pub(crate) fn of(pages: Present) -> Self {
        Self { pages, holding: Present::default() }
    }

    /// Notes that an object lies between two addresses.
    pub(crate) fn hold(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let mut at = start / PAGE * PAGE;
        while let Some(page) = self.pages.next(at).filter(|page| *page < end) {
            self.holding.insert(page);
            at = page + PAGE;
        }
    }

    /// Bytes of pages between two addresses that hold nothing, and are in one huge page with some that do.
    pub(crate) fn idle(&self, start: u64, end: u64) -> u64 {
        let (mut at, mut idle) = (start.next_multiple_of(PAGE), 0u64);
        while let Some(page) = self.pages.next(at).filter(|page| *page < end) {
            let block = page / HUGE * HUGE;
            let next = block + HUGE;
            if self.holding.bytes(block, next) > 0 {
                let until = next.min(end / PAGE * PAGE);
                let held = self.holding.bytes(page, until);
                idle = idle.saturating_add(self.pages.bytes(page, until).saturating_sub(held));
            }
            at = next;
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of three huge pages the first is full, one holds a page in its middle, and nothing lives in the last.
    #[test]
    fn holes() {
        let mut pages = Present::default();
        pages.push(HUGE, 4 * HUGE);
        let mut huge = Huge::of(pages);
        huge.hold(HUGE, HUGE);
        huge.hold(2 * HUGE + 5 * PAGE + 8, 16);
        // What is not in a huge page is no matter.
        huge.hold(5 * HUGE, HUGE);
        assert_eq!(huge.idle(0, 8 * HUGE), HUGE - PAGE);
        assert_eq!(huge.idle(2 * HUGE + 8, 3 * HUGE), HUGE - 2 * PAGE);
        assert_eq!(huge.idle(3 * HUGE, 8 * HUGE), 0);
    }

    proptest! {
        /// As page by page.
        #[test]
        fn as_pages(
            objects in prop::collection::vec((0..2048u64, 1..9000u64), 0..20),
            (start, bytes) in (0..2048u64, 0..2048u64),
            first in 0..512u64,
        ) {
            let mut pages = Present::default();
            pages.push(HUGE + first * PAGE, 4 * HUGE);
            let mut huge = Huge::of(pages.clone());
            for (at, bytes) in &objects {
                huge.hold(at * PAGE, *bytes);
            }
            let holds = |page: u64| {
                pages.contains(page)
                    && objects.iter().any(|(at, bytes)| at * PAGE < page + PAGE && page < at * PAGE + bytes)
            };
            let in_huge = |page: u64| {
                let first = page / HUGE * HUGE;
                (first..first + HUGE).step_by(PAGE as usize).any(holds)
            };
            let range = (start * PAGE..(start + bytes) * PAGE).step_by(PAGE as usize);
            let idle = range.filter(|page| pages.contains(*page) && !holds(*page) && in_huge(*page));
            prop_assert_eq!(huge.idle(start * PAGE, (start + bytes) * PAGE), idle.count() as u64 * PAGE);
        }
    }
}

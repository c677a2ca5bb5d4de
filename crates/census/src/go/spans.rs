//! Spans that were read, side by side.

use super::layout::Span;
use crate::space::{RangeKind, Space};

/// Spans of a heap, with what is known of the rest.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// The heap's addresses, in ascending order.
    pub(super) ranges: Vec<(u64, u64)>,
    /// Spans in ascending order, which do not overlap.
    pub(super) known: Vec<Span>,
    /// Bytes of spans that are listed, or must be there, and could not be read or made no sense.
    pub(super) unknown_bytes: u64,
    /// Whether nothing is known but the addresses.
    pub(super) is_unreadable: bool,
    /// Whether pages of no span are unknown: not all spans need to have been found.
    pub(super) is_partial: bool,
    /// Spans that the collector has not swept yet, and of which it is not known what it marked.
    pub(super) unswept: u64,
}

impl Spans {
    /// Takes spans; bytes of those that were left out because they overlap others.
    pub(super) fn take(&mut self, mut spans: Vec<Span>) -> u64 {
        spans.sort_unstable_by_key(|span| (span.start, span.bytes));
        let (mut left_out, mut free_from) = (0u64, 0);
        spans.retain(|span| {
            let is_free = free_from <= span.start;
            if is_free {
                free_from = span.start + span.bytes;
            } else {
                left_out = left_out.saturating_add(span.bytes);
            }
            is_free
        });
        self.known = spans;
        left_out
    }

    /// Whether any of these addresses are the heap's.
    pub(super) fn overlaps(&self, ranges: &[(u64, u64)]) -> bool {
        let meets =
            |(start, end): &(u64, u64)| ranges.iter().any(|(other, to)| start < to && other < end);
        self.ranges.iter().any(meets)
    }
}

/// Whether bytes that cannot be read were never written: Go has descriptions and bitmaps in store. What is swapped out
/// was.
pub(super) fn is_untouched(space: &Space<'_>, address: u64, bytes: u64) -> bool {
    space.range_at(address).is_some_and(|range| {
        let is_inside = address.saturating_add(bytes) <= range.end;
        range.kind == RangeKind::Anonymous && range.swap == 0 && is_inside
    })
}

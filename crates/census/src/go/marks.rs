//! What the collector has marked in spans that it has not swept yet.
//!
//! When marking ends, each span is two generations behind the heap's, until it is swept: then it gets the number of its
//! marked objects. Marks are a bitmap of their own; Green Tea (1.25 and later) keeps those of small objects at the end
//! of the span's page, and moves them to the bitmap when it sweeps, so they are read first. An object with a finalizer
//! that is not marked counts as dead: sweeping keeps it for one more cycle. Source: `runtime/mgcsweep.go`,
//! `mgcmark_greenteagc.go`.

use super::{
    layout::{GO_PAGE, Layout, MARKS, Span, Use},
    spans::is_untouched,
};
use crate::space::Space;

/// Bytes of the largest bitmap, which is that of objects of 8 bytes.
const BITMAP: usize = 128;
/// Spans whose marks are read at once.
const SPANS_AT_ONCE: usize = 4096;
/// Where in the mark bits of a span the marks begin, and where its class stands.
const INLINE: usize = 64;
const CLASS: usize = 127;

/// Marks of a span, 64 to a word.
type Bits = [u8; BITMAP];

/// Counts the marked objects of spans that are not swept yet as those in use; of how many spans they could not be read.
pub(super) fn sweep(
    space: &Space<'_>,
    layout: &Layout,
    generation: u32,
    spans: &mut [Span],
) -> u64 {
    let is_green = is_green(layout, spans);
    let mut unswept: Vec<&mut Span> =
        spans.iter_mut().filter(|span| is_unswept(span, generation)).collect();
    let some = unswept.chunks_mut(SPANS_AT_ONCE);
    some.map(|some| sweep_some(space, layout, (generation, is_green), some)).sum()
}

fn sweep_some(
    space: &Space<'_>,
    layout: &Layout,
    (generation, is_green): (u32, Option<bool>),
    unswept: &mut [&mut Span],
) -> u64 {
    let inline: Vec<u64> = unswept
        .iter()
        .filter(|span| is_green == Some(true) && layout.may_have_marks(span.size))
        .map(|span| span.start + GO_PAGE - MARKS)
        .collect();
    let mut inline = space.read_each::<{ MARKS as usize }>(&inline).into_iter();
    let places: Vec<u64> = unswept.iter().map(|span| span.marks).collect();
    let bitmaps = space.read_each::<BITMAP>(&places);
    let mut unknown = 0;
    for (span, bitmap) in unswept.iter_mut().zip(bitmaps) {
        let may_be_inline = layout.may_have_marks(span.size);
        let bits = bitmap.or_else(|| exactly(space, span));
        let bits = match is_green {
            _ if !may_be_inline => bits,
            Some(true) => {
                let inline = inline.next().flatten();
                bits.zip(inline).and_then(|(bits, inline)| with_inline(bits, &inline, span.class))
            }
            Some(false) => bits,
            None => None,
        };
        let marked = bits.map(|bits| marked(&bits, span.fit));
        match marked.filter(|marked| is_sane(span, *marked, generation)) {
            Some(marked) => span.used = marked,
            None => unknown += 1,
        }
    }
    unknown
}

/// Whether mark bits lie in spans; `None` where that cannot be seen.
fn is_green(layout: &Layout, spans: &[Span]) -> Option<bool> {
    if !layout.inline {
        return Some(false);
    }
    let mut seen = spans.iter().filter_map(|span| layout.has_marks(span));
    let first = seen.next()?;
    seen.all(|other| other == first).then_some(first)
}

/// Whether a span has objects and is not swept: neither yet, nor by the processor that has it, nor to the end.
fn is_unswept(span: &Span, generation: u32) -> bool {
    let ahead = span.sweep.wrapping_sub(generation).cast_signed();
    span.kind == Use::Objects && span.used > 0 && matches!(ahead, -2 | -1 | 1)
}

/// Whether so many objects can be marked. Where a span is being swept and none is, it may have got new marks already.
fn is_sane(span: &Span, marked: u64, generation: u32) -> bool {
    let is_swept_now = span.sweep == generation.wrapping_sub(1);
    span.marks.is_multiple_of(8) && marked <= span.used && (marked > 0 || !is_swept_now)
}

/// A bitmap word by word, and no more than there is: the last one in memory, or one in store, that has no mark yet and
/// whose page was never touched.
fn exactly(space: &Space<'_>, span: &Span) -> Option<Bits> {
    let mut bits = [0; BITMAP];
    let words = usize::try_from(span.fit.div_ceil(64)).ok()?;
    let words = bits.as_chunks_mut::<8>().0.get_mut(..words)?;
    for (word, at) in words.iter_mut().zip((0..).step_by(8)) {
        let at = span.marks.checked_add(at)?;
        if !space.read(at, word) && !is_untouched(space, at, 8) {
            return None;
        }
    }
    Some(bits)
}

/// A bitmap, with the marks in the span, if these are the span's.
fn with_inline(mut bits: Bits, inline: &[u8; MARKS as usize], class: u8) -> Option<Bits> {
    if inline[CLASS] != class {
        return None;
    }
    for (to, from) in bits.iter_mut().zip(&inline[INLINE..CLASS]) {
        *to |= from;
    }
    Some(bits)
}

/// How many of so many objects are marked.
fn marked(bits: &Bits, objects: u64) -> u64 {
    let words = bits.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    words
        .zip((0..).step_by(64))
        .map(|(word, first)| {
            let of_word = objects.saturating_sub(first).min(64);
            let mask = if of_word == 64 { u64::MAX } else { (1 << of_word) - 1 };
            u64::from((word & mask).count_ones())
        })
        .sum()
}

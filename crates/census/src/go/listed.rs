//! Go's own description of its heap, found by what it says, without symbols.
//!
//! `runtime.mheap_` lies in the data of the program. In it follow each other: the collector's generation, the slice of
//! all spans (their addresses, in memory of its own that grows by half), and the number of pages in use. Little before
//! them are the address ranges that the heap has: slice, and sum of their bytes. So every span is known, and whether
//! one is missing. Source: `runtime/mheap.go`, `mpagealloc.go`, `mranges.go`.

use super::{
    layout::{Described, GO_PAGE, LAYOUTS, Layout, SPAN_BYTES, Span, Use, is_heap},
    marks,
    spans::{Spans, is_untouched},
};
use crate::{
    found::{Taken, data_pieces},
    space::{PAGE, RangeKind, Space, word_of},
};

/// Most data that is searched.
const MAX_SEARCHED: u64 = 512 << 20;
/// Most data of one mapping where nothing says that Go has made the program.
const MAX_UNSIGNED: u64 = 64 << 20;
/// Heaps of one process (each of its libraries can have one), and slices that are tried.
const MAX_HEAPS: usize = 8;
const MAX_TRIED: usize = 64;
/// Room in the slice of spans when it is made; it grows by half. Most spans that are read.
const FIRST_ROOM: u64 = 8192;
const MAX_SPANS: u64 = 1 << 25;
const MAX_ROOM: u64 = MAX_SPANS * 3 / 2;
/// Words from the slice of spans, where it begins, to the end of the number of pages in use.
const WORDS: usize = 4;
/// Bytes before the slice of spans in which the slice of address ranges begins.
const BYTES_BEFORE: u64 = 1 << 10;
/// Most address ranges, and the multiple that they are.
const MAX_RANGES: u64 = 1 << 12;
const RANGE_UNIT: u64 = 4 << 20;
/// How many of so many spans may be invalid in a layout that is the right one: they change while they are read.
const ONE_INVALID_IN: usize = 8;
/// How often a heap is read whose spans do not add up.
const LIST_ATTEMPTS: usize = 3;
/// Where Go's build information begins, and where it has the version, as a string behind its length.
const BUILD_INFO: &[u8] = b"\xff Go buildinf:";
const VERSION: usize = 32;
const MAX_VERSION: usize = 64;

/// What the data of a process has of Go.
#[derive(Default)]
pub(super) struct Data {
    /// Addresses of slices of spans.
    slices: Vec<u64>,
    /// The version of the program that has been built.
    pub(super) version: Option<String>,
}

impl Data {
    fn is_new(&self, slice: u64) -> bool {
        self.slices.len() < MAX_TRIED && !self.slices.contains(&slice)
    }
}

/// Looks through the data of all mapped files, and what follows it in memory.
/// `has_base` says whether a heap begins where Go's do.
pub(super) fn data(space: &Space<'_>, has_base: bool) -> Data {
    let (mut data, rooms) = (Data::default(), rooms());
    let (mut left, mut end) = (MAX_SEARCHED, 0);
    for range in &space.ranges {
        let is_bss = range.kind == RangeKind::Anonymous && range.start == end;
        if range.kind != RangeKind::File && !is_bss {
            continue;
        }
        end = range.end;
        // Only Go's own programs have so much data that it is worth the time.
        let is_large = range.end - range.start > MAX_UNSIGNED;
        if !range.writable || is_large && data.version.is_none() && !has_base {
            continue;
        }
        left -= data_pieces(space, (range.start, range.end), left, |at, piece| {
            for (offset, at) in (0..piece.len()).step_by(8).zip((at..).step_by(8)) {
                let rest = &piece[offset..];
                let Some(room) = word_of(rest, 16) else { break };
                let is_room = (FIRST_ROOM..=MAX_ROOM).contains(&room) && rooms.contains(&room);
                if is_room && is_slice(rest, room) && data.is_new(at) {
                    data.slices.push(at);
                }
                if data.version.is_none() && rest.starts_with(BUILD_INFO) {
                    data.version = version(rest);
                }
            }
        });
    }
    data
}

/// Rooms that the slice of spans can have.
fn rooms() -> Vec<u64> {
    let next = |room: &u64| (*room < MAX_SPANS).then(|| room * 3 / 2);
    std::iter::successors(Some(FIRST_ROOM), next).collect()
}

fn is_slice(words: &[u8], room: u64) -> bool {
    let [list, len] = [0, 8].map(|at| word_of(words, at).unwrap_or_default());
    list != 0 && list.is_multiple_of(PAGE) && (1..=room).contains(&len)
}

fn version(info: &[u8]) -> Option<String> {
    let bytes = info.get(VERSION + 1..)?.get(..usize::from(*info.get(VERSION)?))?;
    let is_sane = bytes.len() <= MAX_VERSION
        && bytes.starts_with(b"go")
        && bytes.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
    is_sane.then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// A heap's spans, or why they are not known.
pub(super) fn heaps(space: &Space<'_>, taken: &Taken, data: &Data) -> Vec<Spans> {
    let mut found: Vec<Spans> = Vec::new();
    for at in &data.slices {
        let Some(ranges) = ranges(space, *at) else { continue };
        let is_other = |heap: &Spans| !heap.overlaps(&ranges);
        if found.len() < MAX_HEAPS && found.iter().all(is_other) {
            found.extend(heap(space, taken, *at, &ranges));
        }
    }
    found
}

/// The address ranges that stand before a slice of spans.
fn ranges(space: &Space<'_>, slice: u64) -> Option<Vec<(u64, u64)>> {
    // The page before may be one that was never touched.
    let begins = [slice.checked_sub(BYTES_BEFORE)?, slice / PAGE * PAGE];
    let words = begins.into_iter().filter(|first| *first < slice).find_map(|first| {
        let mut words = vec![0; usize::try_from(slice - first).ok()?];
        space.read(first, &mut words).then_some(words)
    })?;
    // Where two validate, the first has all, and the other those that may be given back (before 1.19).
    (0..words.len()).step_by(8).find_map(|at| ranges_of(space, &words[at..]))
}

fn ranges_of(space: &Space<'_>, words: &[u8]) -> Option<Vec<(u64, u64)>> {
    let [list, len, room, sum] =
        [word_of(words, 0)?, word_of(words, 8)?, word_of(words, 16)?, word_of(words, 24)?];
    let is_slice =
        list != 0 && list.is_multiple_of(8) && len > 0 && (len..=MAX_RANGES).contains(&room);
    if !is_slice || sum == 0 || !sum.is_multiple_of(RANGE_UNIT) {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()? * 16];
    if !space.read(list, &mut bytes) {
        return None;
    }
    let (mut ranges, mut all, mut before) = (Vec::new(), 0u64, 0);
    for range in bytes.chunks_exact(16) {
        let (start, end) = (word_of(range, 0)?, word_of(range, 8)?);
        let is_range = start.is_multiple_of(RANGE_UNIT) && end.is_multiple_of(RANGE_UNIT);
        if !is_range || start < before || start >= end || end > 1 << 47 {
            return None;
        }
        (all, before) = (all.checked_add(end - start)?, end);
        ranges.push((start, end));
    }
    (all == sum).then_some(ranges)
}

/// What is read of a heap with one layout.
#[derive(Default)]
struct Reading {
    spans: Vec<Span>,
    invalid: usize,
    invalid_bytes: u64,
}

/// Reads all spans; `None` where the slice is none of spans.
fn heap(space: &Space<'_>, taken: &Taken, slice: u64, ranges: &[(u64, u64)]) -> Option<Spans> {
    let mut best: Option<Spans> = None;
    for _ in 0..LIST_ATTEMPTS {
        let Some(spans) = attempt(space, taken, slice, ranges) else { break };
        let is_better = best.as_ref().is_none_or(|best| spans.unknown_bytes < best.unknown_bytes);
        if is_better {
            best = Some(spans);
        }
        if best.as_ref().is_some_and(|best| best.unknown_bytes == 0) {
            break;
        }
    }
    best
}

fn attempt(space: &Space<'_>, taken: &Taken, slice: u64, ranges: &[(u64, u64)]) -> Option<Spans> {
    let [generation, list, len, room, _] = space.words::<{ 1 + WORDS }>(slice.checked_sub(8)?)?;
    let generation = u32::try_from(generation).ok()?;
    if !generation.is_multiple_of(2) || len > room || len > MAX_SPANS {
        return None;
    }
    let is_heap = |span: &Span| {
        is_in(ranges, span) && is_heap(space, taken, span.start, span.start + span.bytes)
    };
    let mut readings = LAYOUTS.map(|_| Reading::default());
    let (mut at, end) = (list, list.checked_add(len.checked_mul(8)?)?);
    let mut unread = 0u64;
    while at < end {
        let mut bytes = vec![0; usize::try_from((end - at).min(PAGE * 2)).ok()?];
        if !space.read(at, &mut bytes) {
            return None;
        }
        at += bytes.len() as u64;
        let addresses: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let descriptions = space.read_each::<SPAN_BYTES>(&addresses);
        let count =
            |readings: &[Reading]| readings.iter().map(|one| one.spans.len()).sum::<usize>();
        let before = count(&readings);
        for (address, description) in addresses.iter().zip(descriptions) {
            let Some(description) = description else {
                unread += u64::from(!is_untouched(space, *address, SPAN_BYTES as u64));
                continue;
            };
            for (layout, reading) in LAYOUTS.iter().zip(&mut readings) {
                reading.add(layout, &description, generation, is_heap);
            }
        }
        if !space.budget.keeps::<Span>(count(&readings) - before) {
            return None;
        }
    }
    let [.., pages] = space.words::<WORDS>(slice)?;
    let mut valid = LAYOUTS.iter().zip(readings).filter(|(_, reading)| reading.is_valid());
    let (one, other) = (valid.next(), valid.next());
    let mut spans = Spans { ranges: ranges.to_vec(), ..Spans::default() };
    let (Some((layout, reading)), None) = (one, other) else {
        (spans.is_unreadable, spans.unknown_bytes) = (true, u64::MAX);
        return Some(spans);
    };
    let mut invalid_bytes = reading.invalid_bytes.saturating_add(unread.saturating_mul(GO_PAGE));
    invalid_bytes = invalid_bytes.saturating_add(spans.take(reading.spans));
    let in_use = |span: &&Span| span.kind == Use::Objects;
    let in_use: u64 = spans.known.iter().filter(in_use).map(|span| span.bytes).sum();
    let missing = pages.saturating_mul(GO_PAGE).abs_diff(in_use);
    spans.unknown_bytes = invalid_bytes.max(missing);
    spans.unswept = marks::sweep(space, layout, generation, &mut spans.known);
    Some(spans)
}

/// Whether a span lies in one of the ranges, which are in ascending order.
fn is_in(ranges: &[(u64, u64)], span: &Span) -> bool {
    let next = ranges.partition_point(|(start, _)| *start <= span.start);
    let range = next.checked_sub(1).and_then(|last| ranges.get(last));
    range.is_some_and(|(_, end)| span.start + span.bytes <= *end)
}

impl Reading {
    fn add(
        &mut self,
        layout: &Layout,
        description: &[u8],
        generation: u32,
        is_heap: impl Fn(&Span) -> bool,
    ) {
        match layout.read(description) {
            Described::Dead => {}
            Described::Span(span) if is_heap(&span) && is_recent(&span, generation) => {
                self.spans.push(span);
            }
            Described::Span(_) | Described::Invalid => {
                self.invalid += 1;
                let bytes = layout.bytes(description).unwrap_or(GO_PAGE);
                self.invalid_bytes = self.invalid_bytes.saturating_add(bytes);
            }
        }
    }

    /// Spans by hand look the same in several layouts.
    fn is_valid(&self) -> bool {
        let valid = self.spans.iter().filter(|span| span.kind == Use::Objects).count();
        valid > 0 && self.invalid <= valid / ONE_INVALID_IN
    }
}

/// Whether a span's generation is one that it can have: two before the heap's, if it is not swept, to three after, if a
/// processor has it; and two more where the collector went on since.
fn is_recent(span: &Span, generation: u32) -> bool {
    let ahead = span.sweep.wrapping_sub(generation).cast_signed();
    span.kind != Use::Objects || (-2..=5).contains(&ahead)
}

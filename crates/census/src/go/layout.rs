//! Spans and their descriptions: the known layouts, and what makes a description valid.

use crate::{
    found::Taken,
    space::{Space, word_of},
};

/// Bytes of a page of Go.
pub(super) const GO_PAGE: u64 = 8 << 10;
/// Bytes of a description that any layout reads.
pub(super) const SPAN_BYTES: usize = 128;
/// A span's most pages.
const MAX_PAGES: u64 = 1 << 27;
/// Objects up to this size have their bitmap, and inline mark bits, at the end of the span.
const MAX_INLINE: u64 = 512;
/// Bytes of inline mark bits, at the end of the first page, and the smallest object that they are for.
pub(super) const MARKS: u64 = 128;
const MIN_MARKED: u64 = 16;
/// States of a span.
const DEAD: u64 = 0;
const IN_USE: u64 = 1;
const BY_HAND: u64 = 2;
/// Bytes of an object, and pages of a span, by size class: the same from 1.16 to 1.27.
const CLASSES: [(u64, u64); 68] = [
    (0, 0),
    (8, 1),
    (16, 1),
    (24, 1),
    (32, 1),
    (48, 1),
    (64, 1),
    (80, 1),
    (96, 1),
    (112, 1),
    (128, 1),
    (144, 1),
    (160, 1),
    (176, 1),
    (192, 1),
    (208, 1),
    (224, 1),
    (240, 1),
    (256, 1),
    (288, 1),
    (320, 1),
    (352, 1),
    (384, 1),
    (416, 1),
    (448, 1),
    (480, 1),
    (512, 1),
    (576, 1),
    (640, 1),
    (704, 1),
    (768, 1),
    (896, 1),
    (1024, 1),
    (1152, 1),
    (1280, 1),
    (1408, 2),
    (1536, 1),
    (1792, 2),
    (2048, 1),
    (2304, 2),
    (2688, 1),
    (3072, 3),
    (3200, 2),
    (3456, 3),
    (4096, 1),
    (4864, 3),
    (5376, 2),
    (6144, 3),
    (6528, 4),
    (6784, 5),
    (6912, 6),
    (8192, 1),
    (9472, 7),
    (9728, 6),
    (10240, 5),
    (10880, 4),
    (12288, 3),
    (13568, 5),
    (14336, 7),
    (16384, 2),
    (18432, 9),
    (19072, 7),
    (20480, 5),
    (21760, 8),
    (24576, 3),
    (27264, 10),
    (28672, 7),
    (32768, 4),
];

/// Where a description has what is read of it. The first address is at `start`, the number of pages at `pages`; the
/// number of objects has `elements_bytes` bytes at `elements`. At `tail` are the objects in use (16 bits), the class
/// (8 bits, twice the size class, 1 more without pointers) and the state (8 bits); then the size of an object, and the
/// end of the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// The versions that have it.
    #[cfg_attr(not(test), allow(dead_code, reason = "the table's own documentation"))]
    pub(super) versions: &'static str,
    pub(super) start: usize,
    pub(super) pages: usize,
    pub(super) elements: usize,
    pub(super) elements_bytes: usize,
    /// Address of the objects' marks, 64 to a word.
    pub(super) marks: usize,
    pub(super) sweep: usize,
    pub(super) tail: usize,
    /// Whether bitmaps, and since 1.25 mark bits, lie in the span.
    pub(super) inline: bool,
}

/// The known layouts, all for 64 bits. Source: `runtime/mheap.go`.
pub(super) const LAYOUTS: [Layout; 3] = [
    Layout {
        versions: "1.16 to 1.20",
        start: 24,
        pages: 32,
        elements: 56,
        elements_bytes: 8,
        marks: 80,
        sweep: 88,
        tail: 96,
        inline: false,
    },
    Layout {
        versions: "1.21",
        start: 24,
        pages: 32,
        elements: 56,
        elements_bytes: 8,
        marks: 80,
        sweep: 96,
        tail: 104,
        inline: false,
    },
    Layout {
        versions: "1.22 to 1.27",
        start: 24,
        pages: 32,
        elements: 50,
        elements_bytes: 2,
        marks: 72,
        sweep: 88,
        tail: 96,
        inline: true,
    },
];

/// What a span is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Objects that the collector frees.
    Objects,
    /// Stacks of goroutines.
    Stacks,
    /// Work of the runtime itself.
    Runtime,
}

/// A span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) kind: Use,
    /// Bytes of an object: all of them where the span is by hand.
    pub(super) size: u64,
    /// Objects that fit, and those in use.
    pub(super) fit: u64,
    pub(super) used: u64,
    /// The collector's generation in which it was swept.
    pub(super) sweep: u32,
    /// Twice the size class, 1 more without pointers.
    pub(super) class: u8,
    /// Where its marks are.
    pub(super) marks: u64,
}

/// What a description says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Described {
    /// Of no memory.
    Dead,
    Span(Span),
    /// It makes no sense.
    Invalid,
}

impl Layout {
    /// Reads a description.
    pub(super) fn read(&self, description: &[u8]) -> Described {
        let Some(counts) = word_of(description, self.tail) else { return Described::Invalid };
        match counts >> 24 & 0xff {
            DEAD => Described::Dead,
            IN_USE | BY_HAND => {
                self.span(description, counts).map_or(Described::Invalid, Described::Span)
            }
            _ => Described::Invalid,
        }
    }

    /// Number of pages that a description has, in bytes.
    pub(super) fn bytes(&self, description: &[u8]) -> Option<u64> {
        let pages = word_of(description, self.pages)?;
        (1..MAX_PAGES).contains(&pages).then(|| pages * GO_PAGE)
    }

    fn span(&self, description: &[u8], counts: u64) -> Option<Span> {
        let word = |at| word_of(description, at);
        let (start, bytes) = (word(self.start)?, self.bytes(description)?);
        let (size, limit) = (word(self.tail + 8)?, word(self.tail + 16)?);
        let end = start.checked_add(bytes)?;
        if start == 0 || !start.is_multiple_of(GO_PAGE) || limit <= start || limit > end {
            return None;
        }
        let narrow = |word: u64| if self.elements_bytes == 2 { word & 0xffff } else { word };
        let elements = narrow(word(self.elements)?);
        let sweep = (word(self.sweep)? & u64::from(u32::MAX)) as u32;
        let (used, class, state) = (counts & 0xffff, counts >> 16 & 0xff, counts >> 24 & 0xff);
        let marks = word(self.marks)?;
        let class_byte = class as u8;
        let span = |kind, size, fit, used| Span {
            start,
            bytes,
            kind,
            size,
            fit,
            used,
            sweep,
            class: class_byte,
            marks,
        };
        if state == BY_HAND {
            // Stacks have a size: of one of them, or of the large one that the span is.
            let kind = if size == 0 { Use::Runtime } else { Use::Stacks };
            let is_valid = class == 0 && elements == 0 && limit == end && size <= bytes;
            return is_valid.then(|| span(kind, bytes, 1, 1));
        }
        if class >> 1 == 0 {
            let is_valid = size == bytes && elements == 1 && used <= 1 && end - limit < GO_PAGE;
            return is_valid.then(|| span(Use::Objects, size, 1, used));
        }
        let (of_class, pages) = *CLASSES.get(usize::try_from(class >> 1).ok()?)?;
        let is_valid = size == of_class
            && bytes == pages * GO_PAGE
            && self.fits(size, bytes, class & 1 == 0, elements)
            && used <= elements;
        // In 1.22 and 1.23 the last object ends where it would without a bitmap.
        let ends = [elements.saturating_mul(size), bytes / size.max(1) * size];
        (is_valid && ends.contains(&(limit - start)))
            .then(|| span(Use::Objects, size, elements, used))
    }

    /// Whether so many objects fit into a span of so many bytes: before or behind a bitmap and mark bits.
    fn fits(&self, size: u64, bytes: u64, has_pointers: bool, elements: u64) -> bool {
        self.room(size, bytes, has_pointers).contains(&elements)
    }

    /// Objects that fit into a span without mark bits, and with them where it can have them.
    fn room(&self, size: u64, bytes: u64, has_pointers: bool) -> [u64; 2] {
        let is_inline = self.inline && size <= MAX_INLINE;
        let bitmap = if is_inline && has_pointers { bytes / 64 } else { 0 };
        let marks = if self.may_have_marks(size) { MARKS } else { 0 };
        [bitmap, bitmap + marks].map(|more| (bytes - more) / size)
    }

    /// Whether spans with objects of this size have their mark bits in them, if any have.
    pub(super) fn may_have_marks(&self, size: u64) -> bool {
        self.inline && (MIN_MARKED..=MAX_INLINE).contains(&size)
    }

    /// Whether a span has mark bits in it; `None` where as many objects fit without.
    pub(super) fn has_marks(&self, span: &Span) -> Option<bool> {
        if span.kind != Use::Objects || !self.may_have_marks(span.size) {
            return None;
        }
        let [without, with] = self.room(span.size, span.bytes, span.class & 1 == 0);
        (with != without).then_some(span.fit == with)
    }
}

/// Whether anonymous memory that no other heap has lies there. Untouched memory counts.
pub(super) fn is_heap(space: &Space<'_>, taken: &Taken, start: u64, end: u64) -> bool {
    space.is_anonymous(start, end) && !taken.meets(start, end)
}

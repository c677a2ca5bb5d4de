//! Spans by their descriptions: runs of pages, with objects of one size, one object, or free.

use crate::{
    found::Taken,
    space::{Space, word_of},
};

/// Bits of an address within a page of tcmalloc.
pub(super) const PAGE_BITS: u32 = 13;
/// Bytes of a description.
pub(super) const SPAN: usize = 48;

/// Where a description has what.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// The first page's number, and how many there are.
    pub(super) page: usize,
    pub(super) pages: usize,
    /// Two neighbours in a list.
    pub(super) links: usize,
    /// The list of free objects.
    pub(super) objects: usize,
    pub(super) bits: usize,
    /// Of the bits, the first one of the objects in use, the class, and where the span is.
    pub(super) used: u32,
    pub(super) class: u32,
    pub(super) location: u32,
}

/// 2.10 to 2.18.
pub(super) const LAYOUT: Layout = Layout {
    page: 0,
    pages: 8,
    links: 16,
    objects: 32,
    bits: 40,
    used: 0,
    class: 16,
    location: 24,
};

/// What a span is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Objects of a class.
    Class,
    /// One object.
    One,
    Free,
}

/// A span, in as few bytes as it takes: there may be millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pages: u32,
    /// Bytes of an object of its class.
    size: u32,
    fit: u32,
    used: u16,
    pub(super) kind: Use,
}

impl Span {
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.pages) << PAGE_BITS
    }

    /// Bytes of an object.
    pub(super) fn size(&self) -> u64 {
        match self.kind {
            Use::Class => self.size.into(),
            Use::One => self.bytes(),
            Use::Free => 0,
        }
    }

    /// Objects that fit.
    pub(super) fn fit(&self) -> u64 {
        self.fit.into()
    }

    /// Objects in use.
    pub(super) fn used(&self) -> u64 {
        self.used.into()
    }
}

/// The span that a description is of; `None` where it makes no sense.
pub(super) fn span(
    space: &Space<'_>,
    taken: &Taken,
    description: &[u8],
    sizes: &[u64],
) -> Option<(u64, Span)> {
    let word = |at| word_of(description, at);
    let layout = &LAYOUT;
    let (page, pages) = (word(layout.page)?, word(layout.pages)?);
    if page == 0 || page >> (48 - PAGE_BITS) != 0 || pages == 0 || pages >> (48 - PAGE_BITS) != 0 {
        return None;
    }
    let (start, bytes) = (page << PAGE_BITS, pages << PAGE_BITS);
    let range = space.range_at(start)?;
    if !range.kind.may_be_heap() || start + bytes > range.end || taken.end_of(start).is_some() {
        return None;
    }
    let links = [word(layout.links)?, word(layout.links + 8)?];
    let (objects, bits) = (word(layout.objects)?, word(layout.bits)?);
    let bits_from = |from: u32, mask: u64| bits >> from & mask;
    let used = bits_from(layout.used, 0xffff);
    let (class, location) = (bits_from(layout.class, 0xff), bits_from(layout.location, 3));
    let is_link =
        |link: &u64| *link == 0 || (link.is_multiple_of(8) && space.range_at(*link).is_some());
    if !links.iter().all(is_link) {
        return None;
    }
    let pages = u32::try_from(pages).ok()?;
    let all = Span { pages, size: 0, fit: 1, used: 1, kind: Use::One };
    let span = match (location, class) {
        (0, 0) => (links == [0, 0] && used == 0).then_some(all)?,
        (0, class) => {
            let size = *sizes.get(usize::try_from(class).ok()?)?;
            let fit = bytes.checked_div(size)?;
            let is_inside =
                (start..start + bytes).contains(&objects) && (objects - start) % size == 0;
            // What has no object in use is given back at once.
            let is_sane =
                (1..=fit).contains(&used) && if used < fit { is_inside } else { objects == 0 };
            let (size, fit) = (u32::try_from(size).ok()?, u32::try_from(fit).ok()?);
            let used = u16::try_from(used).ok()?;
            is_sane.then_some(Span { size, fit, used, kind: Use::Class, ..all })?
        }
        (1 | 2, 0) => (used == 0).then_some(Span { used: 0, kind: Use::Free, ..all })?,
        _ => return None,
    };
    Some((start, span))
}

/// Spans in ascending order; of those that begin at one address, the last one that was found. Where two overlap, one is out
/// of date: what is in use counts.
pub(super) fn without_overlaps(mut spans: Vec<(u64, Span)>) -> Vec<(u64, Span)> {
    spans.sort_by_key(|(start, _)| *start);
    spans.dedup_by(|(next, span), (start, before)| {
        let is_same = next == start;
        if is_same {
            *before = *span;
        }
        is_same
    });
    spans.dedup_by(|(start, span), (before, other)| {
        let is_same = *before + other.bytes() > *start;
        if is_same && other.kind == Use::Free && span.kind != Use::Free {
            (*before, *other) = (*start, *span);
        }
        is_same
    });
    spans
}

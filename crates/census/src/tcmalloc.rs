//! The spans of gperftools' tcmalloc (2.10 to 2.18), without symbols.
//!
//! A span is a run of pages of 8 KiB with a description (`span`): its first page's number, the number of pages, its
//! neighbours in a list, free objects, objects in use, size class, and where it is (0 in use, 1 free, 2 free and given
//! back). Sizes of classes are in a table in the library's data, which is found by what it begins with (`sizes`). What
//! validates: fewer objects are in use than fit just where there are free ones, which lie in the span, and the spans of a
//! class and their free objects are as many as the class says (`caches`). A span without a class is one object; what it
//! says of free objects is out of date. The map of pages says which spans there are, and completeness is proven from it
//! (`map`): an entry that no valid span accounts for is unknown. Without a map, descriptions are searched for in all
//! memory. Objects in caches of threads and of classes are apart. Source: `src/span.h`, `src/common.h`, `src/pagemap.h`,
//! `src/thread_cache.h`, `src/central_freelist.h`.

mod caches;
mod map;
mod sizes;
mod span;
mod sum;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use caches::Class;
use span::{Span, Use};

use crate::{
    found::{Found, Taken},
    space::Space,
};

/// Looks for spans; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let sizes = sizes::sizes(space)?;
    let place = caches::find(space, &sizes);
    let classes = || {
        let (first, layout) = place?;
        caches::read(space, first, &layout, sizes.len())
    };
    let before = classes();
    let mut notes = Vec::new();
    let (mut spans, mut unknown) = match map::mapped(space, taken, &sizes, &mut notes) {
        Some(found) => found,
        None => map::searched(space, taken, &sizes, &mut notes)?,
    };
    let after = classes();
    let mut cached = BTreeMap::new();
    if let (Some(before), Some(after)) = (before, after) {
        let wrong = wrong(&sizes, &spans, &before, &after);
        unknown.extend(
            spans
                .extract_if(.., |(_, span)| span.kind == Use::Class && wrong.contains(&span.size()))
                .map(|(start, span)| (start, start + span.bytes())),
        );
        unknown.sort_unstable();
        if !caches::slots(space, &after, &sizes, &spans, &mut cached) {
            let note = "tcmalloc: some objects in the caches of size classes count as live";
            notes.push(note.to_owned());
        }
    } else {
        let note =
            "tcmalloc: its size classes were not found: objects in their caches count as live";
        notes.push(note.to_owned());
    }
    let mut taken = taken.clone();
    taken.add(spans.iter().map(|(start, span)| (*start, start + span.bytes())));
    taken.add(unknown.iter().copied());
    caches::threads(space, &taken, &sizes, &mut cached);
    let mut found = sum::sum(space, &spans, &unknown, &cached);
    found.notes.append(&mut notes);
    Some(found)
}

/// The sizes of classes that have more or fewer spans or free objects than were read, and did not change meanwhile.
fn wrong(sizes: &[u64], spans: &[(u64, Span)], before: &[Class], after: &[Class]) -> Vec<u64> {
    let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (_, span) in spans.iter().filter(|(_, span)| span.kind == Use::Class) {
        let (spans, free) = sums.entry(span.size()).or_default();
        (*spans, *free) = (*spans + 1, *free + span.fit() - span.used());
    }
    let classes = sizes.iter().zip(before.iter().zip(after)).skip(1);
    let wrong = classes.filter(|(size, (before, after))| {
        let is_same = before.spans == after.spans && before.free == after.free;
        is_same && (after.spans, after.free) != sums.get(size).copied().unwrap_or_default()
    });
    wrong.map(|(size, _)| *size).collect()
}

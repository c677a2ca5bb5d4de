//! The groups of musl's malloc-ng (1.2.1 and later), without symbols.
//!
//! A context in writable data has a secret and the first and the last of a list of areas. Each area is a page that begins
//! with the secret and holds descriptions of groups: where a group is, which of its slots are free, the class of their
//! size, and the pages that are mapped for it. A group leads back to its description. A group without pages of its own
//! lies in a slot of another one, or was given by the dynamic loader. The slots of all groups of a class add up to what
//! the context says. Sources: `src/malloc/mallocng/meta.h`, `malloc.c`, `donate.c`.

mod context;
mod group;

use std::collections::HashMap;

use self::{
    context::{AREA, Context},
    group::{CLASSES, Group, Groups},
};
use crate::{
    classes::class_of,
    cxx::NO_CLASS,
    found::{Found, Taken},
    granules::{Label, PageSums, Pages},
    model::Heap,
    region::Region,
    space::{PAGE, Space},
};

/// Bytes of a slot that are the allocator's.
const OVERHEAD: u64 = 4;

/// Looks for musl's context; `None` where there is none.
pub(crate) fn find(space: &Space<'_>, _taken: &Taken) -> Option<Found> {
    let context = context::find(space)?;
    let groups = group::read(space, &context);
    // The process may have changed it meanwhile.
    let after = context.again(space).unwrap_or_else(|| context.clone());
    let mut heap = Heap { allocator: "musl".to_owned(), ..Heap::default() };
    let mut taken: Vec<(u64, u64)> =
        context.areas.iter().map(|area| (*area, area.saturating_add(AREA))).collect();
    for (start, end) in &taken {
        heap.mapped_bytes += end - start;
        heap.resident_bytes += Region::new(space, *start, *end).present_bytes(*start, *end);
    }
    let mut sum = Sum { space, heap, sums: PageSums::default() };
    taken.extend(sum.groups(&groups));
    let notes = sum.differences(&groups, [&context, &after]);
    let Sum { mut heap, sums, .. } = sum;
    heap.granules = sums.granules();
    heap.classes = sums.classes(OVERHEAD);
    Some(Found { heap, held_bytes: sums.held_bytes(), taken, notes })
}

struct Sum<'a> {
    space: &'a Space<'a>,
    heap: Heap,
    sums: PageSums,
}

/// Groups side by side.
struct Stretch<'a> {
    start: u64,
    end: u64,
    region: Region<'a>,
    pages: Pages,
}

impl Sum<'_> {
    /// Counts the slots of all groups, and the pages that they lie in; the memory of the groups.
    fn groups(&mut self, groups: &Groups) -> Vec<(u64, u64)> {
        let mut stretches = stretches(self.space, &groups.all);
        for group in &groups.all {
            let label = Label { class: class_of(group.stride), kind: NO_CLASS };
            let own = stretches.partition_point(|one| one.end <= group.address);
            let mut pages = stretches
                .get_mut(own)
                .filter(|one| one.start <= group.address)
                .map(|one| &mut one.pages);
            for slot in group.live_slots().filter(|slot| !groups.holds_group(*slot, group.stride)) {
                self.heap.live_objects += 1;
                self.heap.live_bytes = self.heap.live_bytes.saturating_add(group.stride);
                self.heap.mapped_alone_bytes += if group.is_alone() { group.bytes() } else { 0 };
                self.sums.count(label.class, group.stride, true);
                if let Some(pages) = &mut pages {
                    pages.add(slot, group.stride, label);
                }
            }
            let free = u64::from(group.free_mask().count_ones()).saturating_mul(group.stride);
            self.heap.free_bytes = self.heap.free_bytes.saturating_add(free);
        }
        for stretch in &stretches {
            let Stretch { start, end, region, pages } = stretch;
            self.heap.mapped_bytes += end - start;
            self.heap.resident_bytes += region.present_bytes(*start, *end);
            let (space, map) = (self.space, &mut self.heap.map);
            let note = |address, live| space.note_granule(map, address, PAGE, live);
            self.sums.add(pages, |address| region.is_present(address), note);
        }
        stretches.iter().map(|one| (one.start, one.end)).collect()
    }

    /// What the descriptions and the context's counts do not agree about, in sentences. Its bytes are unknown.
    fn differences(&mut self, groups: &Groups, contexts: [&Context; 2]) -> Vec<String> {
        let mut notes = Vec::new();
        if groups.refused > 0 {
            self.heap.unknown_bytes = self.heap.unknown_bytes.saturating_add(groups.refused_bytes);
            notes.push(format!(
                "musl: {} descriptions of groups make no sense or changed while they were read: {} bytes are unknown",
                groups.refused, groups.refused_bytes
            ));
        }
        let mut slots: HashMap<usize, u64> = HashMap::new();
        for group in groups.all.iter().filter(|one| one.is_freeable && one.class < CLASSES.len()) {
            *slots.entry(group.class).or_default() += group.slots();
        }
        let mut different = 0u64;
        for (class, units) in CLASSES.iter().enumerate() {
            let found = slots.get(&class).copied().unwrap_or_default();
            let least = contexts.iter().map(|one| one.usage(class).abs_diff(found)).min();
            let bytes = least.unwrap_or_default().saturating_mul(u64::from(*units) * 16);
            different = different.saturating_add(bytes);
        }
        // Groups that were refused are missing in the sum.
        let different = different.saturating_sub(groups.refused_bytes);
        if different > 0 {
            self.heap.unknown_bytes = self.heap.unknown_bytes.saturating_add(different);
            notes.push(format!(
                "musl: its groups and what it counts of them differ by {different} bytes: they are unknown"
            ));
        }
        notes
    }
}

/// The pages of groups that have some of their own, side by side as they lie.
fn stretches<'a>(space: &'a Space<'a>, groups: &[Group]) -> Vec<Stretch<'a>> {
    let mut bounds: Vec<(u64, u64)> = Vec::new();
    for group in groups.iter().filter(|group| group.has_pages()) {
        let (start, end) = (group.address, group.address + group.bytes());
        match bounds.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            _ => bounds.push((start, end)),
        }
    }
    let stretch = |(start, end)| {
        let region = Region::new(space, start, end);
        let pages = Pages::new(region.pages());
        Stretch { start, end, region, pages }
    };
    bounds.into_iter().map(stretch).collect()
}

#[cfg(test)]
mod tests;

//! Granules by how many live objects each has, and which size classes hold them: pages with any mix of objects, and
//! pools and slabs of one size.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    classes::largest,
    model::{Class, Granules, HeldBy},
    present::Numbered,
    space::PAGE,
};

/// Upper ends of the ranges of objects per granule that are distinguished; more are one range.
const RANGES: [u64; 6] = [1, 2, 4, 8, 16, 64];

/// Granules by how many objects hold them.
pub(crate) fn held(granules: impl Iterator<Item = (u64, u64)>) -> Vec<HeldBy> {
    let mut counts = [(0, 0); RANGES.len() + 1];
    for (objects, bytes) in granules.filter(|(objects, _)| *objects > 0) {
        let (count, sum) = &mut counts[RANGES.partition_point(|most| *most < objects)];
        (*count, *sum) = (*count + 1, *sum + bytes);
    }
    let ranges = counts.iter().enumerate().filter(|(_, (count, _))| *count > 0);
    ranges
        .map(|(index, (granules, bytes))| HeldBy {
            objects_min: if index == 0 { 1 } else { RANGES[index - 1] + 1 },
            objects_max: RANGES.get(index).copied(),
            granules: *granules,
            bytes: *bytes,
        })
        .collect()
}

/// The objects of granules that hold objects of one size each, by size.
#[derive(Default)]
pub(crate) struct BySize(BTreeMap<u64, Class>);

impl BySize {
    /// A granule of `bytes` with so many live objects.
    pub(crate) fn add(&mut self, size: u64, objects: u64, bytes: u64) {
        let class = self.0.entry(size).or_default();
        class.size = size;
        class.objects += objects;
        class.bytes += objects * size;
        class.granules = Some(class.granules.unwrap_or_default() + 1);
        if objects > 0 {
            class.alone += 1;
            class.alone_bytes += bytes;
        }
    }

    /// The classes, by bytes that they hold and do not use.
    pub(crate) fn finish(self) -> Vec<Class> {
        let mut classes: Vec<Class> = self.0.into_values().collect();
        let unused = |class: &Class| class.alone_bytes.saturating_sub(class.bytes);
        classes.sort_by_key(|class| Reverse((unused(class), class.bytes)));
        classes
    }
}

/// A page that objects of several classes hold.
const MIXED: u16 = u16::MAX;

/// What lies in one page.
#[derive(Clone, Copy, Default)]
struct Page {
    objects: u16,
    class: u16,
    /// One object fills it.
    is_full: bool,
}

/// The pages of one stretch of a heap, as far as they are present.
pub(crate) struct Pages {
    present: Numbered,
    pages: Vec<Page>,
}

impl Pages {
    pub(crate) fn new(present: Numbered) -> Self {
        let pages = vec![Page::default(); present.len()];
        Self { present, pages }
    }

    /// A live object: it holds all the pages that it touches.
    pub(crate) fn add(&mut self, start: u64, bytes: u64, class: u16) {
        for page in self.touched(start, bytes) {
            page.class = if page.objects == 0 || page.class == class { class } else { MIXED };
            page.objects = page.objects.saturating_add(1);
            page.is_full = false;
        }
        let (first, end) =
            (start.next_multiple_of(PAGE), start.saturating_add(bytes) / PAGE * PAGE);
        for page in self.touched(first, end.saturating_sub(first)) {
            page.is_full = true;
        }
    }

    /// An object that was added is not live.
    pub(crate) fn remove(&mut self, start: u64, bytes: u64) {
        for page in self.touched(start, bytes) {
            page.objects = page.objects.saturating_sub(1);
        }
    }

    fn touched(&mut self, start: u64, bytes: u64) -> &mut [Page] {
        let first = self.present.below(start);
        let end = self.present.below(start.saturating_add(bytes).saturating_add(PAGE - 1));
        self.pages.get_mut(first..end).unwrap_or_default()
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, Page)> {
        self.present.addresses().zip(self.pages.iter().copied())
    }
}

/// Adds stretches up, of which `present` says whether a page is resident.
#[derive(Default)]
pub(crate) struct PageSums {
    /// Objects that hold a page, for each resident page.
    held: Vec<(u64, u64)>,
    empty: u64,
    full: u64,
    alone: BTreeMap<u16, u64>,
    classes: BTreeMap<u16, (u64, u64)>,
}

impl PageSums {
    pub(crate) fn add(&mut self, pages: &Pages, present: impl Fn(u64) -> bool) {
        for (_, page) in pages.numbered().filter(|(address, _)| present(*address)) {
            match page {
                Page { objects: 0, .. } => self.empty += 1,
                Page { is_full: true, .. } => self.full += 1,
                Page { objects, .. } => self.held.push((u64::from(objects), PAGE)),
            }
            if page.objects > 0 && page.class != MIXED {
                *self.alone.entry(page.class).or_default() += 1;
            }
        }
    }

    /// An object with pages of its own, of which so many bytes are resident.
    pub(crate) fn add_large(&mut self, class: u16, bytes: u64, resident: u64) {
        self.count(class, bytes, true);
        self.full += resident / PAGE;
        *self.alone.entry(class).or_default() += resident / PAGE;
    }

    /// A live object of a class; a negative number takes it back.
    pub(crate) fn count(&mut self, class: u16, bytes: u64, is_live: bool) {
        let (objects, sum) = self.classes.entry(class).or_default();
        if is_live {
            (*objects, *sum) = (*objects + 1, sum.saturating_add(bytes));
        } else {
            (*objects, *sum) = (objects.saturating_sub(1), sum.saturating_sub(bytes));
        }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        (self.held.len() as u64 + self.full) * PAGE
    }

    pub(crate) fn granules(&self) -> Granules {
        Granules {
            unit: "page".to_owned(),
            empty: self.empty,
            empty_bytes: self.empty * PAGE,
            full: self.full,
            full_bytes: self.full * PAGE,
            held: held(self.held.iter().copied()),
        }
    }

    /// The classes, by bytes that they alone hold; `overhead` bytes of each chunk are the allocator's.
    pub(crate) fn classes(&self, overhead: u64) -> Vec<Class> {
        let live = self.classes.iter().filter(|(_, (objects, _))| *objects > 0);
        let mut classes: Vec<Class> = live
            .map(|(class, (objects, bytes))| {
                let alone = self.alone.get(class).copied().unwrap_or_default();
                Class {
                    size: largest(*class).saturating_sub(overhead),
                    objects: *objects,
                    bytes: *bytes,
                    alone,
                    alone_bytes: alone * PAGE,
                    granules: None,
                }
            })
            .collect();
        classes.sort_by_key(|class| Reverse((class.alone_bytes, class.bytes)));
        classes
    }
}

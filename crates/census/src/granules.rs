//! Granules by how many live objects each has, and which size classes hold them: pages with any mix of objects, and
//! pools and slabs of one size.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    classes::largest,
    model::{Class, Granules, Heap, HeldBy, MapCell},
    present::Numbered,
    space::PAGE,
};

/// Upper ends of the ranges of objects per granule that are distinguished; more are one range.
const OBJECT_RANGES: [u64; 6] = [1, 2, 4, 8, 16, 64];

/// Bytes of ours for each page.
pub(crate) const OF_PAGE: u64 = size_of::<Page>() as u64;

/// Cells of a map, at most.
const MAX_CELLS: usize = 4096;

/// A map of granules: in the order of addresses, neighbours together where there are many.
pub(crate) fn cells(mut map: Vec<MapCell>) -> Vec<MapCell> {
    map.sort_unstable_by_key(|cell| cell.address);
    let joined = |cells: &[MapCell]| {
        let sum = |of: fn(&MapCell) -> u64| cells.iter().map(of).fold(0, u64::saturating_add);
        MapCell {
            address: cells.first().map_or(0, |cell| cell.address),
            granules: sum(|cell| cell.granules),
            bytes: sum(|cell| cell.bytes),
            objects: sum(|cell| cell.objects),
            live_bytes: sum(|cell| cell.live_bytes),
        }
    };
    map.chunks(map.len().div_ceil(MAX_CELLS).max(1)).map(joined).collect()
}

/// Granules by how many objects hold them.
#[derive(Default)]
pub(crate) struct HeldBySum([(u64, u64); OBJECT_RANGES.len() + 1]);

impl HeldBySum {
    /// A granule with its live objects.
    pub(crate) fn add(&mut self, objects: u64, bytes: u64) {
        if objects > 0 {
            let (count, sum) = &mut self.0[OBJECT_RANGES.partition_point(|most| *most < objects)];
            (*count, *sum) = (*count + 1, sum.saturating_add(bytes));
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(count, _)| count).sum()
    }

    pub(crate) fn finish(&self) -> Vec<HeldBy> {
        let ranges = self.0.iter().enumerate().filter(|(_, (count, _))| *count > 0);
        ranges
            .map(|(index, (granules, bytes))| HeldBy {
                objects_min: if index == 0 { 1 } else { OBJECT_RANGES[index - 1] + 1 },
                objects_max: OBJECT_RANGES.get(index).copied(),
                granules: *granules,
                bytes: *bytes,
            })
            .collect()
    }
}

/// Granules, each with its live objects and bytes, by how many objects hold them.
pub(crate) fn held(granules: impl Iterator<Item = (u64, u64)>) -> Vec<HeldBy> {
    let mut sum = HeldBySum::default();
    granules.for_each(|(objects, bytes)| sum.add(objects, bytes));
    sum.finish()
}

impl Granules {
    /// Adds a granule that so many objects hold, of as many as fit; what is neither empty nor one object's goes to `partly`.
    pub(crate) fn add(&mut self, partly: &mut HeldBySum, (used, fit): (u64, u64), bytes: u64) {
        match (used, fit) {
            (0, _) => {
                self.empty += 1;
                self.empty_bytes += bytes;
            }
            (_, 1) => {
                self.full += 1;
                self.full_bytes += bytes;
            }
            _ => partly.add(used, bytes),
        }
    }
}

impl Heap {
    /// A heap of granules, each with its bytes, its live objects and the bytes of these.
    #[must_use]
    pub fn of_granules(allocator: &str, unit: &str, all: &[(u64, u64, u64)]) -> Self {
        let sum = |of: fn(&(u64, u64, u64)) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        let empty = || all.iter().filter(|(_, live, _)| *live == 0);
        let (mapped_bytes, live_bytes) = (sum(|one| one.0), sum(|one| one.2));
        Self {
            allocator: allocator.to_owned(),
            mapped_bytes,
            live_objects: sum(|one| one.1),
            live_bytes,
            free_bytes: mapped_bytes.saturating_sub(live_bytes),
            granules: Granules {
                unit: unit.to_owned(),
                empty: empty().count() as u64,
                empty_bytes: empty().fold(0, |sum, one| sum.saturating_add(one.0)),
                held: held(all.iter().map(|(bytes, live, _)| (*live, *bytes))),
                ..Granules::default()
            },
            ..Self::default()
        }
    }
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

/// A page that objects of several classes or kinds hold.
const MIXED: u16 = u16::MAX;

/// What an object is, as far as pages are concerned: its size class, and its C++ class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) class: u16,
    pub(crate) kind: u16,
}

/// What lies in one page.
#[derive(Clone, Copy, Default)]
struct Page {
    objects: u16,
    label: Label,
    /// Bytes of objects in it.
    bytes: u16,
}

impl Page {
    /// Whether one object fills it.
    fn is_full(self) -> bool {
        self.objects == 1 && u64::from(self.bytes) == PAGE
    }
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
    pub(crate) fn add(&mut self, start: u64, bytes: u64, label: Label) {
        for (page, own) in self.touched(start, bytes) {
            let is_first = page.objects == 0;
            let joined = |one, other| if is_first || one == other { other } else { MIXED };
            let Label { class, kind } = page.label;
            page.label =
                Label { class: joined(class, label.class), kind: joined(kind, label.kind) };
            page.objects = page.objects.saturating_add(1);
            page.bytes = page.bytes.saturating_add(own);
        }
    }

    /// An object that was added is not live.
    pub(crate) fn remove(&mut self, start: u64, bytes: u64) {
        for (page, own) in self.touched(start, bytes) {
            page.objects = page.objects.saturating_sub(1);
            page.bytes = page.bytes.saturating_sub(own);
        }
    }

    /// The pages that an object lies in, each with the bytes that are in it. All but the first and the last are full of it.
    fn touched(&mut self, start: u64, bytes: u64) -> impl Iterator<Item = (&mut Page, u16)> {
        let end = start.saturating_add(bytes);
        let first = self.present.below(start);
        let next = self.present.below(end.saturating_add(PAGE - 1));
        let last_byte = end.saturating_sub(1);
        let [starts, ends] = [start, last_byte].map(|at| self.present.contains(at));
        let pages = self.pages.get_mut(first..next).unwrap_or_default();
        let last = pages.len().saturating_sub(1);
        pages.iter_mut().enumerate().map(move |(index, page)| {
            let before = if index == 0 && starts { start % PAGE } else { 0 };
            let behind = if index == last && ends { PAGE - 1 - last_byte % PAGE } else { 0 };
            (page, (PAGE - before).saturating_sub(behind) as u16)
        })
    }

    fn numbered(&self) -> impl Iterator<Item = (u64, Page)> {
        self.present.addresses().zip(self.pages.iter().copied())
    }
}

/// Adds stretches up, of which `present` says whether a page is resident.
#[derive(Default)]
pub(crate) struct PageSums {
    /// Resident pages by objects that hold them.
    held: HeldBySum,
    empty: u64,
    full: u64,
    alone: BTreeMap<u16, u64>,
    alone_kinds: BTreeMap<u16, (u64, u64)>,
    classes: BTreeMap<u16, (u64, u64)>,
}

impl PageSums {
    pub(crate) fn add(
        &mut self,
        pages: &Pages,
        present: impl Fn(u64) -> bool,
        mut note: impl FnMut(u64, (u64, u64)),
    ) {
        for (address, page) in pages.numbered().filter(|(address, _)| present(*address)) {
            note(address, (page.objects.into(), page.bytes.into()));
            match page {
                Page { objects: 0, .. } => self.empty += 1,
                page if page.is_full() => self.full += 1,
                Page { objects, .. } => self.held.add(u64::from(objects), PAGE),
            }
            if page.objects > 0 {
                self.held_alone(page.label, 1);
            }
        }
    }

    /// An object with pages of its own, of which so many bytes are resident.
    pub(crate) fn add_large(&mut self, label: Label, bytes: u64, resident: u64) {
        self.count(label.class, bytes, true);
        self.full += resident / PAGE;
        self.held_alone(label, resident / PAGE);
    }

    fn held_alone(&mut self, Label { class, kind }: Label, pages: u64) {
        if class != MIXED {
            *self.alone.entry(class).or_default() += pages;
        }
        if kind != MIXED {
            let (count, bytes) = self.alone_kinds.entry(kind).or_default();
            (*count, *bytes) = (*count + pages, *bytes + pages * PAGE);
        }
    }

    /// Pages that objects of one kind alone hold, and their bytes.
    pub(crate) fn alone_kinds(&self) -> &BTreeMap<u16, (u64, u64)> {
        &self.alone_kinds
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
        (self.held.count() + self.full) * PAGE
    }

    pub(crate) fn granules(&self) -> Granules {
        Granules {
            unit: "page".to_owned(),
            empty: self.empty,
            empty_bytes: self.empty * PAGE,
            full: self.full,
            full_bytes: self.full * PAGE,
            held: self.held.finish(),
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

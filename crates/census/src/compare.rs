//! Two censuses of one process: what became more between them, by size class and type.

use std::{cmp::Reverse, collections::BTreeMap};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    model::{Census, Heap},
    summary::Summary,
};

/// Rows of each list.
const MAX_ROWS: usize = 20;

/// The heaps of a process at the begin and at the end of an observation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Before the first probe was placed; null where the process was followed from its begin on.
    pub begin: Option<Summary>,
    /// After the last event was counted; null where it could not be taken.
    pub end: Option<Summary>,
    /// What changed between the two, per allocator; empty without both.
    pub growth: Vec<HeapGrowth>,
    /// Why one is missing; null where none is.
    pub failure: Option<String>,
}

/// How a heap changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeapGrowth {
    /// `glibc`, `cpython`, `jemalloc`.
    pub allocator: String,
    /// Live objects, more or less.
    pub live_objects: i64,
    /// Their bytes.
    pub live_bytes: i64,
    /// Free bytes.
    pub free_bytes: i64,
    /// Resident bytes.
    pub resident_bytes: i64,
    /// Size classes whose live objects changed, the most bytes first; at most 20.
    pub classes: Vec<ClassGrowth>,
    /// Types whose live objects changed, where types are known; at most 20.
    pub types: Vec<TypeGrowth>,
}

/// How a size class changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClassGrowth {
    /// The largest object of the class, bytes.
    pub size: u64,
    /// Live objects, more or less.
    pub objects: i64,
    /// Their bytes.
    pub bytes: i64,
}

/// How the objects of a type changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TypeGrowth {
    /// Its name.
    pub name: String,
    /// Live objects, more or less.
    pub objects: i64,
    /// Their bytes.
    pub bytes: i64,
}

impl Comparison {
    /// Compares the census at the begin, where there was one, with that at the end.
    #[must_use]
    pub fn of(begin: Option<&Census>, end: &Census) -> Self {
        let growth = begin.map(|begin| growth(begin, end)).unwrap_or_default();
        Self { begin: begin.map(Summary::of), end: Some(Summary::of(end)), growth, failure: None }
    }
}

/// The heaps of either census.
fn growth(begin: &Census, end: &Census) -> Vec<HeapGrowth> {
    let none = Heap::default();
    let find = |census: &'_ Census, name: &str| {
        census.heaps.iter().position(|heap| heap.allocator == name)
    };
    let gone = begin.heaps.iter().filter(|heap| find(end, &heap.allocator).is_none());
    let gone = gone.map(|heap| heap_growth(heap, &none, &heap.allocator));
    let others = end.heaps.iter().map(|heap| {
        let before = find(begin, &heap.allocator).map_or(&none, |at| &begin.heaps[at]);
        heap_growth(before, heap, &heap.allocator)
    });
    others.chain(gone).collect()
}

fn heap_growth(before: &Heap, after: &Heap, allocator: &str) -> HeapGrowth {
    let classes = |heap: &Heap| {
        let rows = heap.classes.iter().map(|one| (one.size, [one.objects, one.bytes]));
        rows.collect::<BTreeMap<_, _>>()
    };
    let types = |heap: &Heap| {
        let rows = heap.types.iter().map(|one| (one.name.clone(), [one.objects, one.bytes]));
        rows.collect::<BTreeMap<_, _>>()
    };
    let classes = changed(classes(before), classes(after));
    let types = changed(types(before), types(after));
    HeapGrowth {
        allocator: allocator.to_owned(),
        live_objects: change(before.live_objects, after.live_objects),
        live_bytes: change(before.live_bytes, after.live_bytes),
        free_bytes: change(before.free_bytes, after.free_bytes),
        resident_bytes: change(before.resident_bytes, after.resident_bytes),
        classes: classes
            .into_iter()
            .map(|(size, [objects, bytes])| ClassGrowth { size, objects, bytes })
            .collect(),
        types: types
            .into_iter()
            .map(|(name, [objects, bytes])| TypeGrowth { name, objects, bytes })
            .collect(),
    }
}

/// The rows that differ, the largest change of bytes first.
fn changed<K: Ord + Clone>(
    before: BTreeMap<K, [u64; 2]>,
    mut after: BTreeMap<K, [u64; 2]>,
) -> Vec<(K, [i64; 2])> {
    let mut rows = Vec::new();
    for (key, was) in before {
        let is = after.remove(&key).unwrap_or_default();
        rows.push((key, [change(was[0], is[0]), change(was[1], is[1])]));
    }
    rows.extend(after.into_iter().map(|(key, is)| (key, is.map(|is| change(0, is)))));
    rows.retain(|(_, change)| *change != [0, 0]);
    rows.sort_by_key(|(_, change)| Reverse(change[1].unsigned_abs()));
    rows.truncate(MAX_ROWS);
    rows
}

fn change(before: u64, after: u64) -> i64 {
    let most = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    if after >= before { most(after - before) } else { -most(before - after) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Class, Type};

    fn heap(live: u64, classes: &[(u64, u64)], types: &[(&str, u64)]) -> Census {
        let class = |(size, objects): &(u64, u64)| Class {
            size: *size,
            objects: *objects,
            bytes: size * objects,
            ..Class::default()
        };
        let of_type = |(name, objects): &(&str, u64)| Type {
            name: (*name).to_owned(),
            objects: *objects,
            bytes: 64 * objects,
            ..Type::default()
        };
        let heap = Heap {
            allocator: "cpython".to_owned(),
            live_objects: live,
            classes: classes.iter().map(class).collect(),
            types: types.iter().map(of_type).collect(),
            ..Heap::default()
        };
        Census { heaps: vec![heap], ..Census::default() }
    }

    /// Classes and types that came, went, grew and shrank; what stayed is not reported. The largest change comes first.
    #[test]
    fn changes() {
        let before = heap(30, &[(16, 10), (32, 10), (48, 10)], &[("dict", 10), ("str", 20)]);
        let after = heap(25, &[(16, 10), (32, 2), (64, 13)], &[("str", 15), ("Session", 1)]);
        let told = Comparison::of(Some(&before), &after);
        assert_eq!((told.growth.len(), told.growth[0].live_objects), (1, -5));
        let classes: Vec<_> =
            told.growth[0].classes.iter().map(|one| (one.size, one.objects, one.bytes)).collect();
        assert_eq!(classes, [(64, 13, 832), (48, -10, -480), (32, -8, -256)]);
        let types: Vec<_> =
            told.growth[0].types.iter().map(|one| (one.name.as_str(), one.objects)).collect();
        assert_eq!(types, [("dict", -10), ("str", -5), ("Session", 1)]);
    }

    /// Without a census at the begin there is no growth; a heap that is gone is named; lists are short.
    #[test]
    fn edges() {
        let many: Vec<(u64, u64)> = (1..100).map(|size| (16 * size, 1)).collect();
        let census = heap(99, &many, &[]);
        assert_eq!(Comparison::of(None, &census).growth, []);
        let told = Comparison::of(Some(&census), &Census::default());
        assert_eq!((told.growth[0].live_objects, told.growth[0].classes.len()), (-99, MAX_ROWS));
        assert_eq!(told.growth[0].classes[0].size, 16 * 99);
    }
}

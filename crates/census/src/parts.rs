//! Resident memory by what it is used for: parts that add up, and why some of it is unknown.

use std::cmp::Reverse;

use crate::{
    heaps::{Heaps, Note},
    model::{KnownBy, Part, PartKind, Unknown},
    space::{RangeKind, Space},
};

/// Up to this part of anonymous memory, and up to so many bytes, what no heap has gets no name.
const LITTLE: u64 = 4;
const FEW: u64 = 512 << 10;

/// Names the memory that no heap has after heaps without a reader, if it is much: `ask` finds these.
pub(crate) fn name(parts: &mut [Part], heaps: &mut Heaps, ask: impl FnOnce() -> Vec<&'static str>) {
    let is_private =
        |part: &&Part| !matches!(part.known_by, KnownBy::Kernel) && part.kind != PartKind::Stack;
    let private = parts.iter().filter(is_private).fold(0u64, |sum, part| sum + part.bytes);
    let Some(part) = parts.iter_mut().find(|part| part.kind == PartKind::Anonymous) else { return };
    if part.bytes <= (private / LITTLE).max(FEW) {
        return;
    }
    let names = ask();
    if names.is_empty() {
        return;
    }
    let name = names.join(" and ");
    let text = format!("not measurable: {name}; memory of no other heap counts as its");
    part.kind = PartKind::HeapUnknown;
    part.allocator = Some(name);
    for note in heaps.notes.iter_mut().filter(|note| note.allocator.is_none()) {
        note.allocator.clone_from(&part.allocator);
    }
    heaps.notes.insert(0, Note { allocator: part.allocator.clone(), text });
}

/// The parts of a process's resident memory.
pub(crate) fn parts(space: &Space<'_>, heaps: &Heaps) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |kind: PartKind, allocator: Option<&str>, bytes: u64| {
        if bytes > 0 {
            let (known_by, allocator) = (kind.known_by(), allocator.map(str::to_owned));
            parts.push(Part { kind, known_by, allocator, bytes });
        }
    };
    let sum = |kinds: &[RangeKind]| {
        let ranges = space.ranges.iter().filter(|range| kinds.contains(&range.kind));
        ranges.fold(0u64, |sum, range| sum.saturating_add(range.rss))
    };
    let mut anonymous = sum(&[RangeKind::Heap, RangeKind::Anonymous]);
    for (heap, held) in &heaps.found {
        let name = Some(heap.allocator.as_str());
        // What came since the mappings were read is not in their figures.
        let resident = heap.resident_bytes.min(anonymous);
        let held = (*held).min(resident);
        let unknown = heap.unknown_bytes.min(resident - held);
        add(PartKind::HeapHeld, name, held);
        add(PartKind::HeapFree, name, resident - held - unknown);
        add(PartKind::HeapUnknown, name, unknown);
        anonymous -= resident;
    }
    let stacks = heaps.stack_bytes.min(anonymous);
    add(PartKind::Anonymous, None, anonymous - stacks);
    add(PartKind::Stack, None, stacks.saturating_add(sum(&[RangeKind::Stack])));
    add(PartKind::File, None, sum(&[RangeKind::File]));
    add(PartKind::Shared, None, sum(&[RangeKind::Shared]));
    parts
}

/// Bytes whose use is known.
pub(crate) fn validated(parts: &[Part]) -> u64 {
    let known = parts.iter().filter(|part| part.known_by != KnownBy::Nothing);
    known.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

/// The parts whose use is not known, with what the readers say of them, the most bytes first.
pub(crate) fn unknown(parts: &[Part], heaps: &Heaps) -> Vec<Unknown> {
    let of = |part: &Part| {
        let notes = heaps.notes.iter().filter(|note| note.allocator == part.allocator);
        Unknown {
            allocator: part.allocator.clone(),
            bytes: part.bytes,
            reasons: notes.map(|note| note.text.clone()).collect(),
        }
    };
    let parts = parts.iter().filter(|part| part.known_by == KnownBy::Nothing);
    let mut unknown: Vec<Unknown> = parts.map(of).collect();
    unknown.sort_by_key(|one| Reverse(one.bytes));
    unknown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        model::Heap,
        testing::{Pieces, anonymous},
    };

    /// What is unknown has the notes of its reader, and what no heap has those of readers that found none.
    #[test]
    fn reasons() {
        let memory = Pieces::default();
        let space = Space::new(vec![anonymous(1 << 20, 100 << 20)], &memory);
        let heap = Heap {
            allocator: "glibc".to_owned(),
            resident_bytes: 90 << 20,
            unknown_bytes: 60 << 20,
            ..Heap::default()
        };
        let note = |allocator: Option<&str>, text: &str| Note {
            allocator: allocator.map(str::to_owned),
            text: text.to_owned(),
        };
        let heaps = Heaps {
            found: vec![(heap, 20 << 20)],
            notes: vec![note(Some("glibc"), "a ring"), note(None, "go: not found")],
            stack_bytes: 1 << 20,
            huge_idle_bytes: None,
        };
        let parts = parts(&space, &heaps);
        assert_eq!(validated(&parts), 31 << 20);
        let unknown = unknown(&parts, &heaps);
        let found: Vec<(Option<&str>, u64, &str)> = unknown
            .iter()
            .map(|one| (one.allocator.as_deref(), one.bytes >> 20, one.reasons[0].as_str()))
            .collect();
        assert_eq!(found, [(Some("glibc"), 60, "a ring"), (None, 9, "go: not found")]);
    }

    /// Memory that no heap has gets the name of a heap without a reader where it is much.
    #[test]
    fn named() {
        let memory = Pieces::default();
        let space = Space::new(vec![anonymous(1 << 20, 100 << 20)], &memory);
        for (held, names, expected) in [
            (70, vec!["V8"], Some("V8")),
            (70, vec!["V8", "OpenJDK"], Some("V8 and OpenJDK")),
            (70, vec![], None),
            (80, vec!["V8"], None),
        ] {
            let heap = Heap {
                allocator: "glibc".to_owned(),
                resident_bytes: held << 20,
                ..Heap::default()
            };
            let mut heaps = Heaps { found: vec![(heap, held << 20)], ..Heaps::default() };
            let mut parts = parts(&space, &heaps);
            name(&mut parts, &mut heaps, || names);
            let [one] = unknown(&parts, &heaps).try_into().expect("one part is unknown");
            assert_eq!((one.allocator.as_deref(), one.bytes >> 20), (expected, 100 - held));
            assert_eq!(one.reasons.len(), usize::from(expected.is_some()), "{one:?}");
            assert!(one.reasons.iter().all(|text| text.contains("not measurable: V8")));
            assert_eq!(validated(&parts), held << 20);
        }
    }

    /// Programs that do little have nothing but data of libraries: their files are not searched.
    #[test]
    fn few() {
        let memory = Pieces::default();
        for (kib, asks) in [(100, false), (512, false), (516, true)] {
            let space = Space::new(vec![anonymous(1 << 20, kib << 10)], &memory);
            let mut heaps = Heaps::default();
            let (mut parts, mut is_asked) = (parts(&space, &heaps), false);
            name(&mut parts, &mut heaps, || {
                is_asked = true;
                Vec::new()
            });
            assert_eq!(is_asked, asks, "{kib} KiB");
        }
    }

    proptest! {
        /// Whatever readers say, parts add up to what is resident, and what is validated is neither unknown nor of no heap.
        #[test]
        fn add_up(
            ranges in prop::collection::vec((0..5usize, 0..9000u64), 0..8),
            found in prop::collection::vec((0..20_000u64, 0..20_000u64, any::<u64>()), 0..4),
            stack_bytes: u64,
        ) {
            const KINDS: [RangeKind; 5] = [
                RangeKind::Heap, RangeKind::Anonymous, RangeKind::Stack, RangeKind::File, RangeKind::Shared,
            ];
            let memory = Pieces::default();
            let ranges = ranges.iter().zip(1..).map(|((kind, rss), at)| crate::space::Range {
                kind: KINDS[*kind], rss: *rss, ..anonymous(at << 30, 1 << 20)
            });
            let space = Space::new(ranges.collect(), &memory);
            let heaps = found.iter().map(|(resident_bytes, held, unknown_bytes)| {
                let (resident_bytes, unknown_bytes) = (*resident_bytes, *unknown_bytes);
                (Heap { resident_bytes, unknown_bytes, ..Heap::default() }, *held)
            });
            let heaps = Heaps { found: heaps.collect(), notes: Vec::new(), stack_bytes, huge_idle_bytes: None };
            let parts = parts(&space, &heaps);
            let sum = |known: bool| -> u64 {
                let of = parts.iter().filter(|part| (part.known_by != KnownBy::Nothing) == known);
                of.map(|part| part.bytes).sum()
            };
            let rss: u64 = space.ranges.iter().map(|range| range.rss).sum();
            prop_assert_eq!(sum(true) + sum(false), rss);
            prop_assert_eq!(validated(&parts), sum(true));
            let unknown: u64 = unknown(&parts, &heaps).iter().map(|one| one.bytes).sum();
            prop_assert_eq!(unknown, sum(false));
        }
    }
}

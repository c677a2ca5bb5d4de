//! When memory is called healthy, idle or pinned, by how much of it was read and validated.

use drainprof_census::{Census, Heap, Part as CensusPart, PartKind, Unknown};
use proptest::prelude::*;

use super::{
    tests::{MIB, growth, part, text, why, why_of_all},
    *,
};

/// A heap, in MiB: of an allocator, with so much that holds live objects, is free, and unknown, and what could be given back.
#[derive(Clone, Copy, Debug)]
struct Of(&'static str, u64, u64, u64, Option<u64>);

/// A census of such heaps, and of other memory in MiB.
fn census(heaps: &[Of], others: &[(PartKind, u64)]) -> Census {
    let (mut parts, mut unknown): (Vec<CensusPart>, Vec<Unknown>) = Default::default();
    for Of(name, held, free, none, _) in heaps {
        parts.push(part(PartKind::HeapHeld, Some(name), held * MIB));
        parts.push(part(PartKind::HeapFree, Some(name), free * MIB));
        parts.push(part(PartKind::HeapUnknown, Some(name), none * MIB));
        if *none > 0 {
            unknown.push(Unknown {
                allocator: Some((*name).to_owned()),
                bytes: none * MIB,
                reasons: vec![format!("{name}: the ring of arenas does not lead back")],
            });
        }
    }
    for (kind, bytes) in others {
        parts.push(part(*kind, None, bytes * MIB));
    }
    let heap = |Of(name, held, free, none, trimmable): &Of| Heap {
        allocator: (*name).to_owned(),
        mapped_bytes: (held + free + none) * MIB,
        resident_bytes: (held + free + none) * MIB,
        live_bytes: held * MIB,
        free_bytes: free * MIB,
        unknown_bytes: none * MIB,
        trimmable_bytes: trimmable.map(|bytes| bytes * MIB),
        ..Heap::default()
    };
    Census {
        rss_bytes: parts.iter().map(|part| part.bytes).sum(),
        parts,
        unknown,
        heaps: heaps.iter().map(heap).collect(),
        ..Census::default()
    }
}

/// What is said of a census of a process that does not grow.
fn of(heaps: &[Of], others: &[(PartKind, u64)]) -> Why {
    let census = census(heaps, others);
    why(&growth(MemoryVerdict::Steady, census.rss_bytes), &[], Some(census))
}

/// Enough was read and validated, or it was not.
#[test]
fn healthy() {
    use PartKind::{Anonymous, File, Shared, Stack};
    let glibc = |held, unknown| Of("glibc", held, 0, unknown, Some(0));
    for (heaps, others, answer) in [
        // All of it; three quarters; not quite.
        (vec![glibc(100, 0)], vec![], Answer::Healthy),
        (vec![glibc(75, 0)], vec![(Anonymous, 25)], Answer::Healthy),
        (vec![glibc(74, 0)], vec![(Anonymous, 26)], Answer::Unknown),
        (vec![Of("go", 75, 0, 25, None)], vec![], Answer::Healthy),
        (vec![Of("go", 70, 0, 30, None)], vec![], Answer::Unknown),
        (vec![Of("go", 86, 0, 14, None)], vec![(Anonymous, 14)], Answer::Healthy),
        (vec![Of("go", 70, 0, 14, None)], vec![(Anonymous, 14)], Answer::Unknown),
        // Stacks are proven, files and shared memory are the kernel's.
        (vec![glibc(10, 0)], vec![(Stack, 40), (File, 30), (Anonymous, 15)], Answer::Healthy),
        (vec![], vec![(Shared, 120), (File, 10), (Stack, 1)], Answer::Healthy),
        (vec![], vec![(Shared, 120), (File, 10), (Anonymous, 5)], Answer::Unknown),
        // A process's own memory is not known because it has mapped large files.
        (vec![glibc(20, 0)], vec![(File, 300), (Anonymous, 60)], Answer::Unknown),
        (vec![glibc(20, 0)], vec![(File, 300), (Anonymous, 15)], Answer::Healthy),
        // Little, but most of what it has: the heap of a runtime that just began.
        (vec![glibc(2, 0)], vec![(File, 40), (Anonymous, 4)], Answer::Unknown),
        (vec![glibc(4, 0)], vec![(File, 40), (Anonymous, 2)], Answer::Healthy),
        // The same of a heap that was not read at all.
        (vec![glibc(6, 0)], vec![(File, 40), (Anonymous, 4)], Answer::Healthy),
        (vec![glibc(6, 0), Of("V8", 0, 0, 4, None)], vec![(File, 40)], Answer::Unknown),
        (vec![glibc(15, 0), Of("V8", 0, 0, 4, None)], vec![(File, 40)], Answer::Healthy),
        // No heap at all.
        (vec![], vec![(Anonymous, 100)], Answer::Unknown),
        (vec![], vec![], Answer::Unknown),
    ] {
        let found = of(&heaps, &others);
        assert_eq!(found.answer, answer, "{heaps:?} {others:?}");
        let sum = found.validated_bytes + found.unknown_bytes;
        assert_eq!(sum, found.growing.rss_bytes, "{heaps:?} {others:?}");
    }
}

/// Where the reading ended before all was read, nothing is healthy, and that is said.
#[test]
fn ran_out() {
    let mut census = census(&[Of("glibc", 100, 0, 0, Some(0))], &[]);
    let growth = growth(MemoryVerdict::Steady, census.rss_bytes);
    assert_eq!(why(&growth, &[], Some(census.clone())).answer, Answer::Healthy);
    census.ran_out = Some("time, of which there is 10.0 s".to_owned());
    let found = why(&growth, &[], Some(census));
    assert_eq!(found.answer, Answer::Unknown);
    assert!(found.unseen.iter().any(|text| text.contains("used up the time")), "{found:?}");
}

/// Nothing is said of what a heap could give back, and of what few objects keep, where too much of it is unknown; nor is
/// that healthy.
#[test]
fn partial() {
    // The same with and without 30 % that is unknown.
    assert_eq!(of(&[Of("glibc", 40, 60, 0, Some(50))], &[]).answer, Answer::Idle);
    assert_eq!(of(&[Of("glibc", 40, 60, 0, Some(0))], &[]).answer, Answer::Pinned);
    for trimmable in [Some(25), Some(0), None] {
        let found = of(&[Of("glibc", 40, 30, 30, trimmable)], &[]);
        assert_eq!(found.answer, Answer::Unknown);
        assert!(found.holders.iter().all(|holder| holder.kind != HolderKind::Free), "{found:?}");
        assert!(!found.holders[0].certain && found.holders[0].text.contains("30.0 MiB more"));
        assert!(found.next[0].command.as_ref().unwrap().contains("--freeze"), "{:?}", found.next);
    }
    // A ring that breaks off: nothing is unknown in what was read, but what goes back is.
    let found = of(&[Of("glibc", 60, 30, 0, None)], &[(PartKind::Anonymous, 10)]);
    assert_eq!(found.answer, Answer::Unknown);
    // Others have nothing like it: what lies beside live objects and is not unknown is kept.
    assert_eq!(of(&[Of("go", 40, 50, 10, None)], &[]).answer, Answer::Pinned);
    // A whole heap beside a partial one.
    let found = of(&[Of("cpython", 10, 80, 0, None), Of("glibc", 1, 0, 9, None)], &[]);
    assert_eq!(found.answer, Answer::Pinned);
}

/// What is sure of some processes is said, although it is not of others.
#[test]
fn several() {
    let steady = growth(MemoryVerdict::Steady, 200 * MIB);
    let of = |one: Of, other: Of| {
        why_of_all(&steady, &[], &[census(&[one], &[]), census(&[other], &[])])
    };
    let partial = Of("glibc", 90, 5, 5, Some(5));
    let found = of(Of("glibc", 40, 60, 0, Some(0)), partial);
    assert_eq!(found.answer, Answer::Pinned);
    assert_eq!(found.holders.iter().map(|one| one.certain).collect::<Vec<_>>(), [true, false]);
    assert_eq!(of(Of("glibc", 40, 60, 0, Some(60)), partial).answer, Answer::Idle);
    let whole = Of("glibc", 100, 0, 0, Some(0));
    assert_eq!(of(whole, partial).answer, Answer::Healthy);
    assert_eq!(of(whole, Of("glibc", 40, 40, 20, None)).answer, Answer::Unknown);
}

/// Processes whose heaps could not be read are unknown, although nothing lists them.
#[test]
fn unread() {
    let census = census(&[Of("glibc", 100, 0, 0, Some(0))], &[]);
    let found = |rss| why(&growth(MemoryVerdict::Steady, rss * MIB), &[], Some(census.clone()));
    assert_eq!(found(100).answer, Answer::Healthy);
    assert_eq!(found(101).unknown, []);
    let most = found(400);
    assert_eq!((most.answer, most.unknown[0].bytes), (Answer::Unknown, 300 * MIB));
}

/// A heap of which nothing was read is named, and no profile is asked for it. Where files hide how much is unknown, the
/// share is of the rest.
#[test]
fn unread_heap() {
    let found = of(&[Of("glibc", 10, 0, 0, Some(0)), Of("V8", 0, 0, 90, None)], &[]);
    assert_eq!(found.unseen[0], "90.0 % of resident memory was not read, or did not validate");
    assert!(found.next[0].text.starts_with("Nothing of V8's heap was read."), "{:?}", found.next);
    assert!(found.next[0].command.as_ref().unwrap().starts_with("drainprof growth -p "));
    let found =
        of(&[Of("glibc", 3, 0, 0, Some(0)), Of("V8", 0, 0, 3, None)], &[(PartKind::File, 34)]);
    let share = "50.0 % of resident memory that is neither file nor shared was not read, or did not validate";
    assert_eq!((found.answer, found.unseen[0].as_str()), (Answer::Unknown, share));
    let found = of(&[Of("glibc", 10, 0, 0, Some(0))], &[(PartKind::Anonymous, 90)]);
    assert!(found.next[0].text.contains("of no known allocator"), "{:?}", found.next);
}

/// What is unknown is in the first lines, with what the reader says of it.
#[test]
fn first_lines() {
    let page = text(&of(&[Of("glibc", 40, 30, 30, None)], &[]));
    let mut lines = page.lines();
    assert!(lines.next().unwrap().starts_with("CANNOT TELL: "), "{page}");
    let second =
        "Unknown  30.0 % of resident memory: 30.0 MiB of glibc's heap: the ring of arenas does not";
    assert!(lines.next().unwrap().starts_with(second), "{page}");
    let known = text(&of(&[Of("glibc", 99, 0, 0, Some(0))], &[(PartKind::Anonymous, 1)]));
    assert!(known.starts_with("HEALTHY: ") && !known.contains("\nUnknown"), "{known}");
}

proptest! {
    /// Whatever parts there are: healthy only where three quarters of resident memory were validated, or are the kernel's;
    /// idle, and what could be given back, only of heaps that were read.
    #[test]
    fn never_healthy_unread(
        heaps in prop::collection::vec(
            (0..4usize, 0..400u64, 0..400u64, 0..400u64, prop::option::of(0..400u64)), 0..4,
        ),
        others in prop::collection::vec((0..4usize, 0..400u64), 0..5),
        more in prop_oneof![Just(0), 0..1000u64],
    ) {
        const NAMES: [&str; 4] = ["glibc", "go", "cpython", "jemalloc"];
        const KINDS: [PartKind; 4] =
            [PartKind::Anonymous, PartKind::Stack, PartKind::File, PartKind::Shared];
        let heaps: Vec<Of> = heaps
            .into_iter()
            .map(|(name, held, free, none, trimmable)| {
                Of(NAMES[name], held, free, none, trimmable.filter(|_| name == 0).map(|of| of.min(free)))
            })
            .collect();
        let others: Vec<(PartKind, u64)> =
            others.into_iter().map(|(kind, bytes)| (KINDS[kind], bytes)).collect();
        let census = census(&heaps, &others);
        let bytes = |is: &dyn Fn(&CensusPart) -> bool| -> u64 {
            census.parts.iter().filter(|part| is(part)).map(|part| part.bytes).sum()
        };
        let unread = bytes(&|part| matches!(part.kind, PartKind::Anonymous | PartKind::HeapUnknown));
        let rss = census.rss_bytes + more * MIB;
        let found = why(&growth(MemoryVerdict::Steady, rss), &[], Some(census.clone()));
        prop_assert_eq!(found.unknown_bytes, unread + more * MIB);
        prop_assert_eq!(found.validated_bytes + found.unknown_bytes, rss);
        if found.answer == Answer::Healthy {
            prop_assert!(found.validated_bytes >= 3 * found.unknown_bytes, "{found:?}");
            prop_assert!(found.holders.iter().all(|one| (one.excess_bytes as f64) < much(rss)));
        }
        let whole = |heap: &&Of| heap.3 * 32 <= heap.1 + heap.2 + heap.3;
        let free: u64 = heaps.iter().filter(whole).filter_map(|heap| heap.4).sum();
        let said = found.holders.iter().filter(|holder| holder.kind == HolderKind::Free);
        prop_assert_eq!(said.map(|holder| holder.held_bytes).sum::<u64>(), free * MIB);
        if found.answer == Answer::Idle {
            prop_assert!((free * MIB) as f64 >= much(rss));
        }
    }
}

//! Damaged and malicious tables: no panic, no hang, no memory without limit.

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

use drainprof_common::unwind::{Rule, SavedBp, kind};
use proptest::prelude::*;

use super::*;
use crate::{
    testing::cc,
    unwind::cfi::{Context, Tables},
};

/// The tables of a small library.
fn sample() -> &'static FrameSections {
    static SAMPLE: OnceLock<FrameSections> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let source = format!("{CAPTURE} int f(int n) {{ return n ? f(n - 1) + 1 : capture(); }}");
        let path = cc(dir.path(), "libsample.so", &source, &["-shared", "-fPIC", "-O2", "-w"]);
        FrameSections::read(fs::File::open(path).unwrap(), "sample", 1 << 20).unwrap()
    })
}

/// Asks for rules all over; the answers do not matter.
fn exercise(sections: FrameSections) -> Duration {
    let started = Instant::now();
    let mut places: Vec<u64> = (0..64).map(|index| 0x1000 + index * 11).collect();
    places.extend([0, 1, u64::MAX, 1 << 47, u64::MAX / 2]);
    let tables = Tables::new(sections);
    let mut context = Context::default();
    for place in places {
        let _ = tables.rule(&mut context, place, place.wrapping_add(1));
        let _ = tables.code_at(place);
    }
    let _ = tables.size();
    started.elapsed()
}

fn damage(bytes: &mut Vec<u8>, changes: &[(usize, u8)], cut: usize) {
    for (at, value) in changes {
        let length = bytes.len();
        if length > 0 {
            bytes[at % length] = *value;
        }
    }
    bytes.truncate(bytes.len() - cut % (bytes.len() + 1));
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let value = prop_oneof![Just(0xff_u8), Just(0), Just(0x7f), Just(0x80), any::<u8>()];
    prop::collection::vec((any::<usize>(), value), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Changed and truncated tables give some answer, quickly, whichever way they are searched.
    #[test]
    fn damaged_tables(
        frame_changes in changes(),
        header_changes in changes(),
        cuts in prop::option::of((any::<usize>(), any::<usize>())),
        with_header in any::<bool>(),
        as_debug in any::<bool>(),
    ) {
        let mut sections = sample().clone();
        let (frame_cut, header_cut) = cuts.unwrap_or_default();
        let mut frames = sections.eh_frame.take().unwrap();
        let mut header = sections.eh_frame_hdr.take().unwrap();
        damage(&mut frames.bytes, &frame_changes, frame_cut);
        damage(&mut header.bytes, &header_changes, header_cut);
        if as_debug {
            sections.debug_frame = frames.bytes;
        } else {
            sections.eh_frame = Some(frames);
            sections.eh_frame_hdr = with_header.then_some(header);
        }
        prop_assert!(exercise(sections) < Duration::from_secs(5));
    }

    /// So does garbage.
    #[test]
    fn garbage(bytes in prop::collection::vec(any::<u8>(), 0..600), vaddr in any::<u64>()) {
        let placed = PlacedBytes { vaddr, bytes: bytes.clone() };
        let header = PlacedBytes { vaddr: vaddr.wrapping_sub(64), bytes: bytes.clone() };
        let sections = FrameSections {
            segments: sample().segments.clone(),
            eh_frame: Some(placed),
            eh_frame_hdr: Some(header),
            debug_frame: bytes,
        };
        prop_assert!(exercise(sections) < Duration::from_secs(5));
    }
}

fn with_frames(bytes: Vec<u8>) -> FrameSections {
    let segments = sample().segments.clone();
    let eh_frame = Some(PlacedBytes { vaddr: 0x2000, bytes });
    FrameSections { segments, eh_frame, ..FrameSections::default() }
}

/// A search table that claims more entries than it has is searched as far as it goes.
#[test]
fn huge_counts() {
    for claimed in [u32::MAX, 1 << 31, 1000] {
        let mut sections = sample().clone();
        let header = &mut sections.eh_frame_hdr.as_mut().unwrap().bytes;
        header[8..12].copy_from_slice(&claimed.to_le_bytes());
        let functions = Tables::new(sample().clone()).functions();
        let tables = Tables::new(sections);
        let mut context = Context::default();
        let found = functions.iter().filter(|at| tables.rule(&mut context, **at, **at).is_some());
        assert_eq!(found.count(), functions.len(), "{claimed}");
    }
}

/// Entries that refer to themselves, to each other, or to shared entries of their own each, end.
#[test]
fn cyclic_entries() {
    // A function's entry whose shared entry is itself; one that points before the section.
    for pointer in [4_u32, 8, 0x7fff_ffff, u32::MAX] {
        let entry: Vec<u8> =
            [16, pointer, 0x1000, 0x1000, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        exercise(with_frames(entry.repeat(1000)));
    }
    // Lengths of nothing, of all there is, and in the long form.
    for head in [&[0_u8; 4][..], &[0xff; 4], &[0xff; 12], &[0xf0, 0xff, 0xff, 0xff]] {
        exercise(with_frames(head.repeat(1000)));
    }
}

/// A function of millions of rows, and shared entries of megabytes, are not decoded: the first has no rule, the
/// others are not there.
#[test]
fn enormous_entries() {
    let entry = |id: u32, contents: &[u8]| {
        let length = (contents.len() + 4) as u32;
        [&length.to_le_bytes()[..], &id.to_le_bytes(), contents].concat()
    };
    // version 1, no augmentation, factors 1 and -8, return address 16, CFA rsp + 8, it is at CFA - 8.
    let shared = [1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0];
    let first = entry(0, &shared);
    let function = |from: usize, rows: usize| {
        let range = [0x1000_u64.to_le_bytes(), 0x100_0000_u64.to_le_bytes()].concat();
        // Remember and restore, over and over.
        entry(from as u32 + 4, &[&range[..], &[0x0a, 0x0b].repeat(rows)].concat())
    };
    let at = |rows: usize| {
        let frames = [first.clone(), function(first.len(), rows)].concat();
        let started = Instant::now();
        let rule = Tables::new(with_frames(frames)).rule(&mut Context::default(), 0x1800, 0x1800);
        assert!(started.elapsed() < Duration::from_secs(2), "{rows}");
        rule
    };
    assert_eq!(at(1), Some(Rule::new(kind::SP, 8, SavedBp::Kept)));
    assert_eq!(at(50_000), Some(Rule::new(kind::SP, 8, SavedBp::Kept)));
    assert_eq!(at(4_000_000), Some(Rule::STOP));

    // A long name of the augmentation, which is searched for its end, for each of many functions.
    let long = entry(0, &[&[1][..], &vec![b'a'; 8 << 20]].concat());
    let mut frames = long.clone();
    for _ in 0..100_000 {
        let from = frames.len();
        frames.extend(function(from, 0));
    }
    let started = Instant::now();
    assert!(Tables::new(with_frames(frames)).functions().is_empty());
    assert!(started.elapsed() < Duration::from_secs(20));
}

/// Tables that take more memory than they may are dropped, the longest unused first, and read again when they
/// are needed: paths stay the same.
#[test]
fn bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(int n, char **v) { return capture() + n; }";
    let stopped = Stopped::compiled(dir.path(), "cc", source, &["-O2"]);
    let whole = stopped.walk();
    let libc = mapped_objects(stopped.pid()).unwrap();
    let libc =
        libc.iter().find(|object| object.path.to_string_lossy().contains("libc.so")).unwrap();
    let sections = FrameSections::read(fs::File::open(&libc.open_path).unwrap(), "libc", 1 << 30);
    let size = Tables::new(sections.unwrap()).size();
    // Room for libc's tables and nothing beside them.
    let tight = UnwinderOptions { table_bytes: size + 100, debug_dirs: Vec::new() };
    let mut unwinder = Unwinder::new(tight);
    unwinder.meet(1, stopped.pid()).unwrap();
    for _ in 0..3 {
        assert_eq!(unwinder.unwind(1, &stopped.snapshot()), whole);
        assert!(unwinder.table_bytes() <= size + 100);
    }
    // Not even for libc's: its code counts as code without tables.
    let small = UnwinderOptions { table_bytes: size - 1, debug_dirs: Vec::new() };
    let mut unwinder = Unwinder::new(small);
    unwinder.meet(1, stopped.pid()).unwrap();
    let walk = unwinder.unwind(1, &stopped.snapshot());
    assert!(whole.addresses.starts_with(&walk.addresses) && !walk.end.is_whole());
    assert!(unwinder.table_bytes() < size);
}

//! Structures of versions that there are not: one field moved, or one word written over. What is said is right, or it is
//! said that something is unknown.

use super::*;

/// A structure: where it begins, and where its fields do.
type Structure = (u64, Vec<u64>, u64);

/// The structures of a version.
fn structures(version: Version) -> Vec<Structure> {
    let layout = version.layout;
    let mut state = vec![0];
    state.extend(layout.fastbins.into_iter().flat_map(|(used, first)| [used, first]));
    state.extend([layout.top, layout.last_remainder, layout.bins, layout.next - 16, layout.next]);
    state.extend([
        layout.next_free,
        layout.attached_threads,
        layout.system_mem,
        layout.max_system_mem,
    ]);
    let cache = version.cache;
    let entries = cache.lists * cache.width;
    vec![
        (STATE, state.clone(), layout.bytes),
        (FIRST + version.heap_info, state, layout.bytes),
        (FIRST, vec![0, 8, 16, 24], version.heap_info),
        (SECOND, vec![0, 8, 16, 24], 32),
        (HEAP + 16, vec![0, entries], entries + cache.lists * 8),
        (BASE - 56, vec![0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80], 88),
    ]
}

/// Moves what stands from `field` on by 8 bytes, up or down; bins lead to themselves where they are then.
fn shift(world: &mut World, (start, _, bytes): &Structure, field: u64, up: bool) {
    let all: Vec<u64> = (0..*bytes).step_by(8).map(|at| world.word(start + at)).collect();
    let field = (field / 8) as usize;
    let (kept, moved) = all.split_at(field.min(all.len()));
    let kept = if up { kept } else { &kept[..kept.len().saturating_sub(1)] };
    let gap = if up { &[0][..] } else { &[][..] };
    let by: u64 = if up { 8 } else { 8u64.wrapping_neg() };
    let is_bin = |word: u64| (*start..start + bytes).contains(&word) && word != *start;
    let moved = moved.iter().map(|word| if is_bin(*word) { word.wrapping_add(by) } else { *word });
    let mut words: Vec<u64> = kept.iter().chain(gap).copied().chain(moved).collect();
    words.truncate(all.len());
    words.resize(all.len(), 0);
    world.memory.put(*start, &words);
}

impl World {
    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        assert!(crate::space::Memory::read(&self.memory, at, &mut word));
        u64::from_le_bytes(word)
    }
}

/// Whether nothing wrong is said as if it were all.
fn is_honest(found: Option<Found>, truth: &Heap) -> bool {
    let Some(Found { heap, notes, .. }) = found else { return true };
    let is_true = heap.live_bytes == truth.live_bytes
        && heap.cached_bytes == truth.cached_bytes
        && heap.free_bytes == truth.free_bytes
        && heap.trimmable_bytes == truth.trimmable_bytes;
    is_true || !notes.is_empty()
}

/// Each field of each structure of each version, 8 bytes up and 8 bytes down.
#[test]
fn each_field() {
    for version in versions() {
        let truth = census(&whole(version));
        for structure in structures(version) {
            for field in &structure.1 {
                for up in [true, false] {
                    let mut world = whole(version);
                    shift(&mut world, &structure, *field, up);
                    let found = found(&world);
                    let heap =
                        found.as_ref().map(|found| (found.heap.clone(), found.notes.clone()));
                    assert!(
                        is_honest(found, &truth),
                        "{} {:x} {field} {up}: {heap:?} {truth:?}",
                        version.name,
                        structure.0
                    );
                }
            }
        }
    }
}

/// The words of one structure moved do not make another version of it: the layouts exclude each other.
#[test]
fn one_layout_only() {
    for version in versions() {
        for other in versions() {
            let mut world = whole(version);
            world.version = Version { layout: other.layout, ..version };
            let is_same = version.layout.bytes == other.layout.bytes;
            let heap = |world: &World| found(world).map(|found| found.heap.live_bytes);
            if !is_same {
                // The structure of the other at the same place, beside what is left of the first.
                world.state(STATE, HEAP + 4096, STATE, PAGES * PAGE);
                assert!(heap(&world).is_none(), "{} {}", version.name, other.name);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(128), ..ProptestConfig::default() })]

    /// Structures with a few words written over, or a field moved: what is said is right, or it is said that it is not
    /// all, within bounds.
    #[test]
    fn hostile_structures(
        version in 0..6usize,
        shifts in prop::collection::vec((0..6usize, 0..16usize, any::<bool>()), 0..3),
        words in prop::collection::vec((0..6usize, 0..300u64, any::<u64>(), 0..5u8), 0..6),
    ) {
        let version = versions()[version];
        let mut world = whole(version);
        let truth = census(&world);
        let structures = structures(version);
        for (index, field, up) in shifts {
            let structure = &structures[index];
            let field = structure.1[field % structure.1.len()];
            shift(&mut world, structure, field, up);
        }
        for (index, at, word, kind) in words {
            let (start, _, bytes) = structures[index];
            let word = match kind {
                0 => word,
                1 => word % 4096,
                2 => HEAP + word % (PAGES * PAGE),
                3 => FIRST + word % HEAP_BYTES / 16 * 16,
                _ => [STATE, FIRST, SECOND, FIRST + version.heap_info, MAPPED][(word % 5) as usize],
            };
            world.memory.put(start + at * 8 % bytes / 8 * 8, &[word]);
        }
        let all = PAGES * PAGE + 2 * HEAP_BYTES + MAPPED_BYTES + PAGE;
        let space = Space::new(world.ranges, &world.memory);
        let found = find(&space, &Taken::default());
        if let Some(Found { heap, .. }) = &found {
            prop_assert!(heap.live_bytes + heap.free_bytes + heap.cached_bytes <= all, "{heap:?}");
            prop_assert!(heap.resident_bytes <= all, "{heap:?}");
            prop_assert!(heap.trimmable_bytes.unwrap_or(0) <= all);
            prop_assert!(space.read_bytes() < 1 << 30);
        }
        let heap = found.as_ref().map(|found| found.heap.clone());
        prop_assert!(is_honest(found, &truth), "{heap:?} {truth:?}");
    }
}

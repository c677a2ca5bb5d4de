use proptest::prelude::*;

use super::*;
use crate::testing::{Pieces, anonymous, seeds};

const BASE: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 64 << 10;
/// Where the pointer to the root is, and names are.
const TOP: u64 = BASE;
const NAMES: u64 = BASE + 64;
/// Each context with its blocks has so many bytes.
const PART: u64 = 4096;

fn at(index: u64) -> u64 {
    BASE + PART * (index + 1)
}

fn text(memory: &mut Pieces, at: u64, text: &str) {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(text.len() / 8 * 8 + 8, 0);
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    memory.put(at, &words);
}

/// What a context begins with: its tag and bytes, its relatives, its name and ident.
fn context(
    memory: &mut Pieces,
    index: u64,
    tag: u64,
    bytes: u64,
    [parent, child, before, next]: [u64; 4],
) {
    let name = NAMES + 32 * (index % 4);
    memory.put(at(index), &[tag, bytes, BASE, parent, child, before, next, name, NAMES + 128, 0]);
}

/// A root of 2 KiB with two free chunks, and three children below it: a set, a set of two blocks, and one of `tag`.
fn memory(tag: u64) -> Pieces {
    let mut memory = Pieces::default();
    memory.pieces.push((BASE, vec![0; BYTES as usize]));
    memory.put(TOP, &[at(0)]);
    for (index, name) in ["TopMemoryContext", "Cache", "dynahash", "Tuples"].into_iter().enumerate()
    {
        text(&mut memory, NAMES + 32 * index as u64, name);
    }
    text(&mut memory, NAMES + 128, "select\n1");
    context(&mut memory, 0, 7, 2048, [0, at(1), 0, 0]);
    context(&mut memory, 1, 7, 1024, [at(0), 0, 0, at(2)]);
    context(&mut memory, 2, 7, 1536, [at(0), 0, at(1), at(3)]);
    context(&mut memory, 3, tag, 0, [at(0), 0, at(2), 0]);
    for (index, bytes) in [(0, 2048), (1, 1024), (2, 1024)] {
        // Its first block follows its header.
        let (set, first) = (at(index), at(index) + 224);
        memory.put(set + 80, &[first]);
        memory.put(first, &[set, 0, 0, set + bytes - 200, set + bytes]);
    }
    let second = at(2) + 2048;
    memory.put(at(2) + 224 + 16, &[second]);
    memory.put(second, &[at(2), at(2) + 224, 0, second + 512, second + 512]);
    // Two free chunks of 64 bytes, each behind a header of 16.
    let (one, other) = (at(0) + 320, at(0) + 512);
    memory.put(at(0) + 88 + 3 * 8, &[one]);
    memory.put(one, &[64, other]);
    memory.put(other, &[64, 0]);
    memory
}

fn read_all(memory: &Pieces) -> Contexts {
    read(&Space::new(vec![anonymous(BASE, BYTES)], memory), TOP, true)
}

fn numbers(contexts: &Contexts) -> Vec<(&str, u64, Option<u64>, Option<u64>)> {
    let numbers = contexts.contexts.iter();
    numbers.map(|one| (one.name.as_str(), one.total_bytes, one.blocks, one.free_bytes)).collect()
}

/// Blocks, what is free behind them and in lists; the ident of a hash table is its name.
#[test]
fn sets() {
    let found = read_all(&memory(8));
    assert_eq!(
        numbers(&found),
        [
            ("TopMemoryContext", 2048, Some(1), Some(200 + 2 * 80)),
            ("Cache", 1024, Some(1), Some(200)),
            ("select 1", 1536, Some(2), Some(200)),
            ("Tuples", 0, None, None),
        ]
    );
    let places: Vec<_> = found.contexts.iter().map(|one| (one.level, one.parent)).collect();
    assert_eq!(places, [(0, None), (1, Some(0)), (1, Some(0)), (1, Some(0))]);
    assert_eq!(found.contexts[0].ident.as_deref(), Some("select 1"));
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
}

/// Puts a list of nodes, each of which `rest` follows.
fn ring(memory: &mut Pieces, head: u64, nodes: &[u64]) {
    let all: Vec<u64> = [head].into_iter().chain(nodes.iter().copied()).collect();
    for (index, node) in all.iter().enumerate() {
        let (before, next) = ((index + all.len() - 1) % all.len(), (index + 1) % all.len());
        memory.put(*node, &[all[before], all[next]]);
    }
}

/// Every other kind, in each layout.
#[test]
fn other_kinds() {
    let (set, far) = (at(3), at(3) + 2048);
    // Header, list, offset of the fields of a block, whether its first block follows the header.
    for (header, list, fields, has_keeper) in
        [(112, 96, 16, false), (152, 136, 16, true), (152, 136, 24, true), (128, 112, 24, true)]
    {
        let mut memory = memory(8);
        let first = if has_keeper { set + header } else { set + 512 };
        ring(&mut memory, set + list, &[first, far]);
        for (block, bytes) in [(first, 1024), (far, 512)] {
            memory.put(block + 16, &[set]);
            memory.put(block + fields, &[bytes, 9 | 3 << 32, block + bytes - 100, block + bytes]);
        }
        memory.put(set + 8, &[1536]);
        let found = read_all(&memory);
        assert_eq!(numbers(&found)[3], ("Tuples", 1536 + header, Some(2), Some(200)), "{header}");
        assert_eq!(found.contexts[3].kind, ContextKind::Generation);
    }
    let mut bump = memory(8);
    ring(&mut bump, set + 96, &[set + 112, far]);
    for (block, bytes) in [(set + 112, 1024), (far, 512)] {
        bump.put(block + 16, &[block + bytes - 100, block + bytes]);
    }
    bump.put(set + 8, &[112 + 1536]);
    let found = read_all(&bump);
    assert_eq!(numbers(&found)[3], ("Tuples", 1536, Some(2), Some(200)));
    assert_eq!(found.contexts[3].kind, ContextKind::Bump);
    // Chunks of 100 bytes, 5 to a block of 512; two blocks, with one and with three free chunks.
    let mut slab = memory(8);
    slab.put(set + 80, &[96, 100, 512, 128 + 6 * 16, 5 | 1 << 32, 2]);
    for free in 0..6 {
        let block = match free {
            1 => vec![set + 1024],
            3 => vec![far],
            _ => vec![],
        };
        ring(&mut slab, set + 128 + free * 16, &block);
        for block in block {
            slab.put(block + 16, &[free]);
        }
    }
    slab.put(set + 8, &[1024]);
    let found = read_all(&slab);
    assert_eq!(numbers(&found)[3], ("Tuples", 1024 + 224, Some(2), Some(400)));
    // The same, with an empty block and two that are not; with sizes of 32 bits, and of 64.
    for (fields, empty) in
        [(vec![0x60 | 100 << 32, 0x200 | 5 << 32], 104), (vec![96, 100, 512, 5], 120)]
    {
        let mut slab = memory(8);
        slab.put(set + 80, &fields);
        slab.put(set + empty + 16, &[1]);
        let lists = [(0, vec![set + 1024]), (24, vec![]), (40, vec![far, far + 512]), (56, vec![])];
        for (offset, blocks) in lists {
            let nodes: Vec<u64> = blocks.iter().map(|block| block + 32).collect();
            ring(&mut slab, set + empty + offset, &nodes);
            for block in blocks {
                slab.put(block, &[set, if offset == 0 { 5 } else { 2 }]);
            }
        }
        slab.put(set + 8, &[3 * 512]);
        let found = read_all(&slab);
        assert_eq!(numbers(&found)[3], ("Tuples", 3 * 512 + empty + 72, Some(3), Some(900)));
        assert_eq!(found.contexts[3].kind, ContextKind::Slab);
    }
}

/// Chunks whose header is a word, as later versions have them.
#[test]
fn packed_chunks() {
    for (header, shift) in [(224, 4), (200, 5)] {
        let mut memory = memory(8);
        for index in 0..3 {
            let (set, first) = (at(index), at(index) + header);
            memory.put(set + 80, &[first]);
            let end = set + [2048, 1024, 1536][index as usize];
            memory.put(first, &[set, 0, 0, end - 200, end]);
        }
        let (one, other) = (at(0) + 320, at(0) + 512);
        let word = |chunk: u64| 3 | 3 << shift | (chunk - at(0) - header) << 34;
        memory.put(one, &[word(one), other]);
        memory.put(other, &[word(other), 0]);
        assert_eq!(numbers(&read_all(&memory))[0].3, Some(200 + 2 * 72), "{header}");
    }
}

/// A page that is not present is not read: its context's free bytes are not known.
#[test]
fn absent() {
    let mut memory = memory(8);
    memory.absent.push(at(2));
    let found = read_all(&memory);
    // Neither is what is behind it in its list.
    assert_eq!(found.contexts.len(), 2, "{:?}", found.notes);
    assert_eq!(found.notes.len(), 1, "{:?}", found.notes);
}

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    for tag in [7, 8] {
        let ranges = [anonymous(BASE, BYTES)];
        let name = format!("postgres-{tag}");
        seeds::check(&name, &memory(tag), &ranges, &format!("root {TOP:x} postgres\n"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever stands in contexts and blocks, links in circles included, the reading ends.
    #[test]
    fn hostile(words in prop::collection::vec((0..BYTES / 8, any::<u64>(), 0..3u8), 0..80)) {
        let mut memory = memory(7);
        for (place, word, kind) in words {
            let word = match kind { 0 => word, 1 => BASE + word % BYTES, _ => at(word % 4) };
            memory.put(BASE + place * 8, &[word]);
        }
        let found = read_all(&memory);
        prop_assert!(found.contexts.len() as u64 <= BYTES / 8);
        for (index, context) in found.contexts.iter().enumerate() {
            prop_assert!(context.parent.is_none_or(|parent| parent < index as u64));
            prop_assert!(context.free_bytes.is_none_or(|free| free <= context.total_bytes));
        }
    }

    /// Links of the tree itself lead anywhere.
    #[test]
    fn hostile_tree(links in prop::collection::vec((0..4u64, 0..7u64, 0..5u64), 0..12)) {
        let mut memory = memory(7);
        for (context, field, to) in links {
            memory.put(at(context) + field * 8, &[if to == 4 { 0 } else { at(to) }]);
        }
        prop_assert!(read_all(&memory).contexts.len() <= 4);
    }
}

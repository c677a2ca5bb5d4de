//! Seeds of the fuzz target `heaps`: each version, and attacks.

use super::*;
use crate::testing::seeds;

/// A few pages of zeros, at the beginning of a mapping.
const FAR: u64 = 0x1000_0000_0000;

fn check(name: &str, world: &World, more: &str) {
    seeds::check(name, &world.memory, &world.ranges, more);
}

/// Each version with a thread's arena, caches, and chunks with mappings of their own; what comes of a main arena that
/// `brk` does not move; stacks.
#[test]
fn of_versions() {
    for version in versions() {
        check(&format!("glibc-{}", version.name), &whole(version), "");
    }
    check("glibc-moving", &moving_world(new()), "");
}

/// Lists and arenas that lead in circles: heaps of a thread's arena, the ring of arenas, a cache and a fastbin, a bin.
#[test]
fn circles() {
    let version = new();
    let (state, chunk) = (FIRST + version.heap_info, HEAP + version.cache.chunk);
    // The chunk in the cache leads to itself, and there are seven.
    let entry = chunk + 176 + 16;
    let changes: [(&str, &[(u64, u64)]); 4] = [
        ("circle-heaps", &[(SECOND + 8, SECOND)]),
        ("circle-arenas", &[(state + version.layout.next, state)]),
        ("circle-lists", &[(entry, entry ^ entry >> 12), (HEAP + 16, 7 << 32)]),
        (
            "circle-bin",
            &[(STATE + version.layout.bins + 16, chunk), (chunk + 16, chunk), (chunk + 24, chunk)],
        ),
    ];
    for (name, words) in changes {
        let mut world = whole(version);
        for (at, word) in words {
            world.memory.put(*at, &[*word]);
        }
        check(name, &world, "");
    }
}

/// Mappings that are larger than memory: of a file, a reservation that is looked at, one that is not; all of them hold
/// little.
#[test]
fn large_mappings() {
    for (name, kind, bytes, rss) in [
        ("large-file", RangeKind::File, 0x4000_0000_0000, 8 * PAGE),
        ("reservation", RangeKind::Anonymous, 160 << 30, 8 * PAGE),
        ("huge", RangeKind::Anonymous, 0x2800_0000_0000, 8 * PAGE),
    ] {
        let mut world = whole(new());
        world.memory.pieces.push((FAR, vec![0; 8 * PAGE as usize]));
        world.ranges.push(Range { kind, rss, ..anonymous(FAR, bytes) });
        check(name, &world, "");
        check(&format!("{name}-slow"), &world, "slow\n");
    }
}

/// Words that change while they are read, and pages that are gone.
#[test]
fn torn() {
    let mut world = whole(new());
    let cache = new().cache.chunk;
    // The size of a chunk of the other arena, and two of the cache.
    for at in [FIRST + 0x918, HEAP + cache + 8, HEAP + cache + 40] {
        world.memory.torn.push((at, u64::MAX));
    }
    world.memory.absent.extend([HEAP + 3 * PAGE, FIRST + PAGE]);
    check("torn", &world, "");
}

/// Where a chain breaks all the time, it begins again all the time: nothing that is a size, sizes that lead to none, chains
/// beside each other to an end that is none, in small steps and in such as need another read each.
#[test]
fn broken_chains() {
    let bytes = 3 << 20;
    let patterns: [(&str, &[u64]); 4] = [
        ("broken-none", &[7, 7]),
        ("broken-short", &[0, 0x21, 0, 0, 0, 5]),
        ("broken-long", &[0, 0x31]),
        ("broken-far", &[0, 0x40_001]),
    ];
    for (name, words) in patterns {
        // What proves a heap; then a chunk which is written over.
        let mut chunks = vec![(64, true); 2 * PROOF as usize];
        let start = 64 * chunks.len() as u64;
        chunks.push((bytes - start - 3 * PAGE, true));
        let world = World::large(new(), bytes, &chunks);
        let step = words.len() as u64 * 8;
        let count = (bytes - start - 4 * PAGE) / step;
        let words = words.iter().map(|word| format!(" {word:x} 0")).collect::<Vec<_>>().concat();
        let fill = format!("fill {:x} {count:x} {step:x}{words}\n", HEAP + start);
        check(name, &world, &fill);
        // Where `top` makes no sense either, regions are looked for, and chains begin at each page.
        let top = format!("put {:x} {:x}\n", HEAP + bytes - 3 * PAGE + 8, (1u64 << 39) | 1);
        check(&format!("refused-{name}"), &world, &(fill + &top));
    }
}

use proptest::prelude::*;

use super::*;
use crate::testing::{Pieces, anonymous, seeds};

const BASE: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 256 << 10;
/// Where the pointer to the root is.
const TOP: u64 = BASE;
const CONNECTION: u64 = 232;
const EVENT: u64 = 96;

fn at(page: u64) -> u64 {
    BASE + (page << 12)
}

fn memory() -> Pieces {
    let mut memory = Pieces::default();
    memory.pieces.push((BASE, vec![0; BYTES as usize]));
    memory
}

/// Name, level, bytes, free bytes and blocks of each.
fn read(memory: &Pieces, read: fn(&Space<'_>, u64) -> Contexts) -> (Vec<Row>, Vec<String>) {
    let space = Space::new(vec![anonymous(BASE, BYTES)], memory);
    let Contexts { contexts, notes } = read(&space, TOP);
    let row = |own: Context| (own.name, own.level, own.total_bytes, own.free_bytes, own.blocks);
    (contexts.into_iter().map(row).collect(), notes)
}

type Row = (String, u64, u64, Option<u64>, Option<u64>);

fn row(name: &str, level: u64, total: u64, free: u64, blocks: u64) -> Row {
    (name.to_owned(), level, total, Some(free), Some(blocks))
}

/// One of nginx, of one block.
fn nginx_pool(memory: &mut Pieces, at: u64, size: u64, used: u64, next: u64, large: u64) {
    let max = (size - 80).min(4095);
    memory.put(at, &[at + used, at + size, next, 0, max, at, 0, large, 0, 0]);
}

/// A cycle with 16 connections: the first listens, the second has a pool, the third one of its own and one of its
/// request, with two blocks and two large objects, of which one was freed, and the fourth that of the cycle.
fn nginx() -> Pieces {
    let mut memory = memory();
    let (cycle, connections, reads, writes) = (at(1), at(2), at(4), at(6));
    memory.put(TOP, &[cycle]);
    memory.put(cycle, &[0, at(8)]);
    memory.put(cycle + 480, &[16, 16, connections, reads, writes]);
    nginx_pool(&mut memory, at(8), 16384, 9000, 0, 0);
    for index in 0..16 {
        let used = if index < 4 { 3 + index } else { 0xffff_ffff };
        let events = [reads + index * EVENT, writes + index * EVENT];
        let own = connections + index * CONNECTION;
        memory.put(own, &[0, events[0], events[1], used]);
    }
    let pool = |index: u64| connections + index * CONNECTION + 88;
    memory.put(pool(1), &[at(12)]);
    nginx_pool(&mut memory, at(12), 512, 300, 0, 0);
    memory.put(pool(2), &[at(13)]);
    nginx_pool(&mut memory, at(13), 512, 80, 0, 0);
    memory.put(pool(3), &[at(8)]);
    // Its request.
    let (request, own, third) = (at(15), at(16), connections + 2 * CONNECTION);
    memory.put(third, &[request]);
    memory.put(request, &[0xdead_0000_5054_5448, third]);
    memory.put(request + 80, &[at(13), own]);
    nginx_pool(&mut memory, own, 4096, 4000, at(18), own + 200);
    memory.put(own + 200, &[own + 216, at(20) + 16]);
    memory.put(own + 216, &[0, 0]);
    memory.put(at(20), &[0, 0x2011]);
    memory.put(at(18), &[at(18) + 96, at(18) + 4096, 0, 0]);
    memory
}

#[test]
fn of_nginx() {
    let (rows, notes) = read(&nginx(), NGINX.1);
    let expected = [
        row("configuration", 0, 16384, 16384 - 9000, 1),
        row("connection", 1, 512, 212, 1),
        row("connection", 1, 512, 432, 1),
        row("request", 2, 2 * 4096 + 8200, 96 + 4000, 3),
    ];
    assert_eq!(rows, expected);
    assert_eq!(notes, [""; 0]);
}

/// A master has no connections; one that changes all the time is missed.
#[test]
fn of_nginx_in_part() {
    let mut memory = nginx();
    memory.put(at(2) + CONNECTION + 8, &[0]);
    let (rows, notes) = read(&memory, NGINX.1);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(notes, [""; 0]);
    let mut memory = nginx();
    memory.put(at(2) + 2 * CONNECTION + 8, &[0]);
    let (rows, notes) = read(&memory, NGINX.1);
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert!(notes[0].contains("1 connections are missing"), "{notes:?}");
}

/// Where a large object is not what malloc has given, there is no pool.
#[test]
fn of_nginx_without_a_chunk() {
    let mut memory = nginx();
    memory.put(at(20), &[0, 0]);
    let (rows, _) = read(&memory, NGINX.1);
    assert_eq!(rows.len(), 3, "{rows:?}");
}

/// One of APR, with a node of its own.
fn apr_pool(memory: &mut Pieces, at: u64, [parent, child, sibling, back]: [u64; 4], used: u64) {
    let pool = at + 40;
    memory.put(pool, &[parent, child, sibling, back, 0, 0, 0, 0, 0, 0, 0, at, at, pool + 112]);
    memory.put(at, &[at, at, 1, at + used, at + 8192]);
}

/// A root with two children; the first has one more node, and a child. The pointer leads to the second.
fn apr() -> Pieces {
    let mut memory = memory();
    let pool = |page: u64| at(page) + 40;
    memory.put(TOP, &[pool(4)]);
    apr_pool(&mut memory, at(1), [0, pool(6), 0, 0], 4000);
    apr_pool(&mut memory, at(6), [pool(1), pool(8), pool(4), pool(1) + 8], 200);
    apr_pool(&mut memory, at(4), [pool(1), 0, 0, pool(6) + 16], 300);
    apr_pool(&mut memory, at(8), [pool(6), 0, 0, pool(6) + 8], 400);
    let second = at(10);
    memory.put(second, &[at(6), at(6), 1, second + 5000, second + 12288]);
    memory.put(at(6), &[second, second]);
    memory
}

#[test]
fn of_apr() {
    let (rows, notes) = read(&apr(), APR.1);
    let name = "(no tag)";
    let expected = [
        row(name, 0, 8192, 4192, 1),
        row(name, 1, 8192 + 12288, 7992 + 7288, 2),
        row(name, 1, 8192, 7892, 1),
        row(name, 2, 8192, 7792, 1),
    ];
    assert_eq!(rows, expected);
    assert_eq!(notes, [""; 0]);
}

/// A pool that does not point back ends its list, which is said.
#[test]
fn of_apr_in_part() {
    let mut memory = apr();
    memory.put(at(4) + 40 + 24, &[TOP + 8]);
    let (rows, notes) = read(&memory, APR.1);
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert!(notes[0].contains("1 lists of pools are cut"), "{notes:?}");
    memory.put(TOP, &[0]);
    let (rows, notes) = read(&memory, APR.1);
    assert!(rows.is_empty() && notes[0].contains("no known layout"), "{rows:?} {notes:?}");
}

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    for (name, memory) in [("nginx", nginx()), ("apr", apr())] {
        seeds::check(name, &memory, &[anonymous(BASE, BYTES)], &format!("root {TOP:x} {name}\n"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is written over them, reading ends, and nothing is larger than can be.
    #[test]
    fn hostile(writes in prop::collection::vec((0..BYTES / 8, 0..BYTES / 8, any::<bool>()), 1..64)) {
        for (mut memory, own) in [(nginx(), NGINX.1), (apr(), APR.1)] {
            for (to, value, is_pointer) in &writes {
                let value = if *is_pointer { BASE + value * 8 } else { *value };
                memory.put(BASE + to * 8, &[value]);
            }
            let (rows, _) = read(&memory, own);
            prop_assert!(rows.len() <= MAX_POOLS);
            prop_assert!(rows.iter().all(|(_, _, total, free, _)| free.is_some_and(|free| free <= *total)));
        }
    }
}

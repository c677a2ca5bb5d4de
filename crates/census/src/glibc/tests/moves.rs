//! A heap that is filled, emptied, and filled again while it is read: no object is seen that there never was.

use std::cell::Cell;

use super::*;
use crate::{
    classes::{class_of, largest},
    present::Present,
    space::Memory,
    testing::Pieces,
};

/// Bytes of the heap, of its largest object, and of the chunk behind all others.
const BYTES: u64 = 1 << 20;
const LARGEST: u64 = 2048;
const LAST: u64 = 96;

/// Memory that is another from a certain reading on. What is read at once is one or the other.
struct Moves<'a> {
    before: &'a Pieces,
    after: &'a Pieces,
    reads: Cell<u64>,
    at: u64,
}

impl Moves<'_> {
    fn now(&self) -> &Pieces {
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() > self.at { self.after } else { self.before }
    }
}

impl Memory for Moves<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.now().read(address, bytes)
    }

    fn read_each(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        self.now().read_each(addresses, bytes)
    }

    fn present(&self, start: u64, end: u64) -> Present {
        self.before.present(start, end)
    }
}

/// The chunks of the heap in their order, with their sizes, and whether they are in use. What the allocator does not write
/// stays.
struct Chunks {
    world: World,
    all: Vec<(u64, u64, bool)>,
}

impl Chunks {
    /// One that is free, one in use behind it, and `top`.
    fn new() -> Self {
        let free = BYTES - LAST - PAGE;
        let world = World::large(new(), BYTES, &[(free, false), (LAST, true)]);
        Self { world, all: vec![(HEAP, free, false), (HEAP + free, LAST, true)] }
    }

    fn write(&mut self, index: usize) {
        let (at, bytes, in_use) = self.all[index];
        let is_behind_used = index == 0 || self.all[index - 1].2;
        self.world.memory.put(at + 8, &[bytes | u64::from(is_behind_used)]);
        if !in_use {
            self.world.memory.put(at + bytes, &[bytes]);
        }
    }

    /// Takes chunks from the begin of the last free one, as long as they fit.
    fn fill(&mut self, sizes: impl Iterator<Item = u64>) {
        for size in sizes {
            let index = self.all.len() - 2;
            let (at, bytes, _) = self.all[index];
            if bytes < size + SMALLEST {
                self.all[index].2 = true;
                self.write(index);
                self.write(index + 1);
                return;
            }
            self.all[index] = (at, size, true);
            self.all.insert(index + 1, (at + size, bytes - size, false));
            self.write(index);
            self.write(index + 1);
        }
    }

    /// Gives a chunk back, which joins those beside it that are free.
    fn free(&mut self, index: usize) {
        self.all[index].2 = false;
        let first = if index > 0 && !self.all[index - 1].2 { index - 1 } else { index };
        let last = if self.all[index + 1].2 { index } else { index + 1 };
        let bytes = self.all[first..=last].iter().map(|(_, bytes, _)| bytes).sum();
        self.all.splice(first..=last, [(self.all[first].0, bytes, false)]);
        self.write(first);
        self.write(first + 1);
    }

    /// Gives the first chunk back that is in use.
    fn free_first(&mut self) {
        let first = self.all.iter().position(|(.., in_use)| *in_use);
        self.free(first.expect("the last one is in use"));
    }

    fn memory(&self) -> Pieces {
        Pieces { pieces: self.world.memory.pieces.clone(), ..Pieces::default() }
    }
}

/// Sizes of chunks by a seed.
fn sizes(mut seed: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        SMALLEST + (seed >> 33) % (LARGEST - SMALLEST) / 16 * 16
    })
}

/// Reads while the one becomes the other, at a certain reading; how often it has read.
fn read(ranges: &[Range], (before, after): (&Pieces, &Pieces), at: u64) -> u64 {
    let moves = Moves { before, after, reads: Cell::new(0), at };
    let found = find(&Space::new(ranges.to_vec(), &moves), &Taken::default());
    if let Some(Found { heap, .. }) = found {
        let most = largest(class_of(LARGEST)) - OVERHEAD;
        assert!(heap.classes.iter().all(|class| class.size <= most), "{at} {:?}", heap.classes);
        assert!(heap.live_bytes + heap.free_bytes + heap.unknown_bytes <= BYTES, "{at} {heap:?}");
    }
    moves.reads.get()
}

/// The heap is filled in part; emptied from its end or from its begin, or half of it; and filled with other objects.
#[test]
fn filled_and_emptied() {
    let mut chunks = Chunks::new();
    let ranges = chunks.world.ranges.clone();
    for round in 0..3usize {
        let empty = chunks.memory();
        chunks.fill(sizes(round as u64).take(300 + round * 100));
        let part = chunks.memory();
        let count = chunks.all.len() - 2;
        match round {
            0 => (0..count).rev().for_each(|index| chunks.free(index)),
            1 => (0..count).for_each(|_| chunks.free_first()),
            _ => (0..count / 2).for_each(|index| chunks.free(index)),
        }
        let emptied = chunks.memory();
        chunks.fill(sizes(7 + round as u64));
        let full = chunks.memory();
        let pairs =
            [(&empty, &full), (&part, &emptied), (&part, &full), (&full, &part), (&emptied, &full)];
        for pair in pairs {
            let reads = read(&ranges, pair, u64::MAX);
            for at in 0..reads {
                read(&ranges, pair, at);
            }
        }
        while chunks.all.len() > 2 {
            chunks.free_first();
        }
    }
}

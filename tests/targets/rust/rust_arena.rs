//! An arena with methods that are mangled as Rust mangles them: the profile finds them by pattern.

use std::hint::black_box;

use drainprof_tests::truth::{Granule, Truth, ready};

/// Granules by number, objects by address.
pub struct Arena {
    opened: u64,
}

impl Arena {
    /// Opens a granule and returns its id.
    #[inline(never)]
    pub fn open(&mut self, bytes: u64) -> u64 {
        self.opened += 1;
        black_box(bytes);
        self.opened
    }

    /// Closes granule `id`.
    #[inline(never)]
    pub fn close(&mut self, id: u64) {
        black_box((self, id));
    }

    /// Allocates in granule `id`; the object is never 0.
    #[inline(never)]
    pub fn take(&mut self, id: u64, size: u64) -> u64 {
        black_box((self, id));
        Box::into_raw(Box::new(size)) as u64
    }

    /// Frees an object.
    #[inline(never)]
    pub fn give(&mut self, object: u64) {
        // SAFETY: the driver passes each object that `take` made once.
        drop(unsafe { Box::from_raw(black_box(object) as *mut u64) });
    }
}

fn main() {
    let mut arena = Arena { opened: 0 };
    let mut truth = Truth::new("drain", &raw const arena as u64);
    ready();
    let mut kept: Vec<(u64, Granule)> = Vec::new();
    for n in 0..2000u64 {
        let id = arena.open(8192);
        let mut granule = truth.open(8192);
        let objects: Vec<u64> = (0..n % 5).map(|i| arena.take(id, 8 + i)).collect();
        for i in 0..n % 5 {
            truth.alloc(&mut granule, 8 + i);
        }
        let pinned = n % 7 == 3 && !objects.is_empty();
        for (i, &object) in objects.iter().enumerate().skip(usize::from(pinned)) {
            arena.give(object);
            truth.free(&mut granule, 8 + i as u64);
        }
        arena.close(id);
        truth.close(&mut granule);
        if pinned {
            kept.push((objects[0], granule));
        }
        if kept.len() > 100 {
            let (object, mut old) = kept.remove(0);
            arena.give(object);
            truth.free(&mut old, 8);
        }
    }
    truth.print();
}

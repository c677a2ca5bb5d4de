//! A slab allocator: a slab is unmapped only once it is empty; objects are found by their address.

use std::hint::black_box;

use drainprof_tests::truth::{Granule, Truth, ready};

const CELLS: u64 = 32;

/// Maps a slab; addresses are made up, nothing reads them.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn rslab_map(number: u64) -> u64 {
    black_box(0x10_0000 + (number << 12))
}

/// Takes cell `index` of `slab`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn rslab_take(slab: u64, index: u64) -> u64 {
    black_box(slab + index * 64)
}

/// Gives a cell back.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn rslab_give(cell: u64) {
    black_box(cell);
}

/// Unmaps an empty slab.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn rslab_unmap(slab: u64) {
    black_box(slab);
}

fn main() {
    let mut truth = Truth::new("slab", 0);
    ready();
    for n in 0..200u64 {
        let slab = rslab_map(n);
        let mut granule: Granule = truth.open(4096);
        for i in 0..CELLS {
            rslab_take(slab, i);
            truth.alloc(&mut granule, 64);
        }
        // Every tenth slab is held by one cell.
        for i in u64::from(n % 10 == 0)..CELLS {
            rslab_give(slab + i * 64);
            truth.free(&mut granule, 64);
        }
        if n % 10 != 0 {
            rslab_unmap(slab);
            truth.close(&mut granule);
        }
    }
    truth.print();
}

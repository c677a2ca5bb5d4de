//! A ring of eight epochs: handles come back through a pointer, frees carry the handle alone.

use std::hint::black_box;

use drainprof_tests::truth::{Granule, Truth, ready};

const EPOCHS: u64 = 8;

/// What the profile reads: the current epoch stands at offset 8.
#[repr(C)]
pub struct Ring {
    next_handle: u64,
    current: u32,
    reserved: u32,
}

/// Advances to the next epoch; it has no id argument.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn repoch_advance(ring: &mut Ring) {
    ring.current = (ring.current + 1) % EPOCHS as u32;
    black_box(ring.reserved);
}

/// Closes an epoch.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn repoch_close(ring: &mut Ring, epoch: u64) {
    black_box((ring, epoch));
}

/// Allocates; fails for sizes above 1000.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn repoch_alloc(ring: &mut Ring, size: u64, epoch: u64, handle: &mut u64) -> u64 {
    black_box(epoch);
    if size > 1000 {
        return 0;
    }
    ring.next_handle += 1;
    *handle = ring.next_handle;
    1
}

/// Frees by handle; rejects handle 0.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn repoch_free(ring: &mut Ring, handle: u64) -> u64 {
    black_box(ring);
    u64::from(black_box(handle) != 0)
}

fn main() {
    let mut ring = Ring { next_handle: 0, current: 0, reserved: 0 };
    let mut truth = Truth::new("drain", &raw const ring as u64);
    ready();
    let mut held: Vec<(u64, Granule)> = Vec::new();
    let mut granule = truth.lazy();
    for n in 0..3000u64 {
        let epoch = u64::from(ring.current);
        let mut handles = Vec::new();
        for _ in 0..=n % 3 {
            let mut handle = 0;
            assert_eq!(repoch_alloc(&mut ring, 40, epoch, &mut handle), 1);
            truth.alloc(&mut granule, 40);
            handles.push(handle);
        }
        let mut none = 0;
        assert_eq!(repoch_alloc(&mut ring, 2000, epoch, &mut none), 0);
        assert_eq!(repoch_free(&mut ring, 0), 0);
        let pinned = n % 11 == 5;
        for &handle in handles.iter().skip(usize::from(pinned)) {
            repoch_free(&mut ring, handle);
            truth.free(&mut granule, 40);
        }
        repoch_close(&mut ring, epoch);
        truth.close(&mut granule);
        if pinned {
            held.push((handles[0], granule));
        }
        // Freed long after the id was taken by other lives.
        if held.len() > 10 {
            let (handle, mut old) = held.remove(0);
            repoch_free(&mut ring, handle);
            truth.free(&mut old, 40);
        }
        repoch_advance(&mut ring);
        granule = truth.open(0);
    }
    truth.print();
}

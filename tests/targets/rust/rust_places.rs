//! Granules opened by a function that is always inlined into a method, which has the frame.

use std::hint::black_box;

use drainprof_tests::truth::ready;

/// Opens granule `id`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn place_open(id: u64) -> u64 {
    black_box(id)
}

/// Closes granule `id`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn place_close(id: u64) {
    black_box(id);
}

/// Has the frame.
struct Server {
    served: u64,
}

impl Server {
    #[inline(never)]
    fn serve(&mut self) {
        let id = open_batch(self.served); // mark: around
        self.served = black_box(id) + 1;
        place_close(id);
    }
}

/// Has none of its own.
#[inline(always)]
#[allow(clippy::inline_always, reason = "that it is inlined is what the test is about")]
fn open_batch(id: u64) -> u64 {
    let opened = place_open(black_box(id)); // mark: inlined
    black_box(opened)
}

fn main() {
    let mut server = Server { served: 0 };
    ready();
    for _ in 0..3 {
        server.serve();
    }
    println!("{{\"truth\":1,\"role\":\"main\",\"pid\":{},\"allocators\":[]}}", std::process::id());
}

//! Requests that allocate from arenas of the crate bumpalo: one that is dropped with its request, one that is
//! reset after each, and one with another alignment, which makes every method of it another instance.
//!
//! Compiled by `build.rs` in several ways: with the functions out of line, in both manglings, and optimised
//! across crates until there is hardly a function left. Arenas stay where they were made: in local variables.
//! The objects of the truth are the chunks that arenas take from the heap.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use bumpalo::Bump;

/// Counts what is taken from the heap: between the handshake and the end, chunks of arenas and nothing else.
struct Counting;

static TAKEN: AtomicU64 = AtomicU64::new(0);

// SAFETY: it is the system's allocator, with a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Relaxed);
        // SAFETY: what the caller promises is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: what the caller promises is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

/// What is known of the arenas.
#[derive(Default)]
struct Truth {
    opened: u64,
    closed: u64,
    resets: u64,
}

struct Header {
    _name: [u8; 24],
    _length: u64,
}

/// Four objects of four types. bumpalo has its fast path inlined even into programs that are not optimised.
fn parse<const ALIGN: usize>(bump: &Bump<ALIGN>, n: u64) {
    black_box(bump.alloc(n));
    black_box(bump.alloc(Header { _name: [0; 24], _length: n }));
    black_box(bump.alloc_str("a path of some length"));
    black_box(bump.alloc_slice_copy(&[n as u32; 5]));
}

#[inline(never)]
fn request(n: u64, session: &mut Bump, truth: &mut Truth) {
    let own = Bump::new();
    truth.opened += 1;
    parse(&own, n);
    if n % 3 == 0 {
        let aligned = Bump::<8>::with_min_align();
        truth.opened += 1;
        parse(&aligned, n);
        truth.closed += 1;
    }
    parse(session, n);
    if n % 2 == 0 {
        session.reset();
        truth.resets += 1;
    }
    truth.closed += 1;
}

fn main() {
    if std::env::var_os("DRAINPROF_GO").is_none() {
        println!("READY {}", std::process::id());
        let mut line = String::new();
        let got = std::io::stdin().read_line(&mut line);
        assert!(matches!(got, Ok(1..)), "stdin ended while the target waited");
    }
    let (mut truth, before) = (Truth::default(), TAKEN.load(Relaxed));
    let mut session = Bump::new();
    truth.opened += 1;
    for n in 0..1000 {
        request(n, &mut session, &mut truth);
    }
    let chunks = TAKEN.load(Relaxed) - before;
    let Truth { opened, closed, resets } = truth;
    println!(
        "{{\"truth\":1,\"role\":\"main\",\"pid\":{},\"losses\":{{}},\"allocators\":[{{\"kind\":\"bulk\",\
         \"granules\":{{\"opened\":{opened},\"opened_before\":0,\"closed\":{closed},\"open_now\":{},\
         \"open_peak\":3,\"resets\":{resets}}},\"objects\":{{\"allocated\":{chunks}}}}}]}}",
        std::process::id(),
        opened - closed,
    );
    // Still open at the end.
    std::mem::forget(session);
}

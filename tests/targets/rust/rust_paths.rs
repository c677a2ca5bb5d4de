//! Allocates through call paths of Rust, optimised: functions that are always inlined, generics, closures, trait
//! objects, and a drop while a panic passes. Its truth is like that of `paths.h`, for one round per granule.
//!
//! Compiled by `build.rs`, by itself: the tests' own programs are not optimised.

use std::hint::black_box;
use std::io::BufRead as _;
use std::panic;

/// Opens a granule.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn path_open(granule: u64, bytes: u64) {
    black_box((granule, bytes));
}

/// Closes it. (Two functions that do the same would be made one.)
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn path_close(granule: u64) {
    black_box((granule, 1_u64));
}

/// Allocates in it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn path_alloc(granule: u64, object: u64, size: u64) -> u64 {
    black_box((granule, size));
    object
}

/// Frees.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn path_free(object: u64) {
    black_box(object);
}

const SIZE: u64 = 48;

/// Which path, and its call path: see `paths.h`.
const PATHS: [(&str, &str); 5] = [
    (
        "inlined",
        "rust_paths::State::make@rust_made < rust_paths::innermost@innermost < rust_paths::middle@middle \
         < rust_paths::through_layers@layers < rust_paths::drive@drive_layers",
    ),
    (
        "generic",
        "rust_paths::State::make@rust_made < ~rust_paths::with@with < rust_paths::through_generic@generic \
         < rust_paths::drive@drive_generic",
    ),
    (
        "closure",
        "rust_paths::State::make@rust_made < ~through_closure::{@closure < rust_paths::call@call \
         < rust_paths::through_closure@closes < rust_paths::drive@drive_closure",
    ),
    (
        "object",
        "rust_paths::State::make@rust_made < ~rust_paths::Dog@dog < rust_paths::through_object@object \
         < rust_paths::drive@drive_object",
    ),
    (
        "dropped",
        "rust_paths::State::make@rust_made < ~rust_paths::Guard@guard_rust < * < rust_paths::panics < ~through_panic::{ < * \
         < rust_paths::through_panic < * < rust_paths::drive@drive_panic",
    ),
];

/// What happened so far.
#[derive(Default)]
pub struct State {
    granule: u64,
    objects: u64,
    allocated: [u64; PATHS.len()],
    open: Vec<(usize, u64)>,
}

impl State {
    #[inline(never)]
    fn make(&mut self, path: usize) {
        self.objects += 1;
        let object = path_alloc(self.granule, self.objects, SIZE); // mark: rust_made
        self.allocated[path] += 1;
        self.open.push((path, object));
    }
}

#[inline(always)]
fn innermost(state: &mut State) {
    state.make(0); // mark: innermost
    black_box(&state.objects);
}

#[inline(always)]
fn middle(state: &mut State) {
    innermost(state); // mark: middle
    black_box(&state.granule);
}

#[inline(never)]
fn through_layers(state: &mut State) {
    middle(state); // mark: layers
    black_box(&state.objects);
}

#[inline(never)]
fn with<T: Into<u64> + Copy>(state: &mut State, number: T) {
    state.make(1); // mark: with
    black_box(number.into());
}

#[inline(never)]
fn through_generic(state: &mut State) {
    with(state, black_box(7_u32)); // mark: generic
    black_box(&state.objects);
}

#[inline(never)]
fn call(what: &mut dyn FnMut()) {
    what(); // mark: call
    black_box(());
}

#[inline(never)]
fn through_closure(state: &mut State) {
    let mut calls = 0;
    let mut what = || {
        state.make(2); // mark: closure
        calls += 1;
        black_box(calls);
    };
    call(&mut what); // mark: closes
    black_box(&state.objects);
}

trait Animal {
    fn speak(&self, state: &mut State);
}

struct Dog;

impl Animal for Dog {
    #[inline(never)]
    fn speak(&self, state: &mut State) {
        state.make(3); // mark: dog
        black_box(self);
    }
}

#[inline(never)]
fn through_object(state: &mut State, animal: &dyn Animal) {
    animal.speak(state); // mark: object
    black_box(&state.objects);
}

struct Guard<'a>(&'a mut State);

impl Drop for Guard<'_> {
    #[inline(never)]
    fn drop(&mut self) {
        self.0.make(4); // mark: guard_rust
        black_box(&self.0.objects);
    }
}

#[inline(never)]
fn panics(state: &mut State) {
    let guard = Guard(state);
    if black_box(true) {
        panic::panic_any(1_u32);
    }
    black_box(&guard.0.objects);
}

#[inline(never)]
fn through_panic(state: &mut State) {
    let caught = panic::catch_unwind(panic::AssertUnwindSafe(|| panics(state)));
    assert!(black_box(caught).is_err());
}

#[inline(never)]
fn drive(state: &mut State) {
    through_layers(state); // mark: drive_layers
    through_generic(state); // mark: drive_generic
    through_closure(state); // mark: drive_closure
    through_object(state, black_box(&Dog)); // mark: drive_object
    through_panic(state); // mark: drive_panic
    black_box(&state.objects);
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let mut state = State::default();
    if std::env::var_os("DRAINPROF_GO").is_none() {
        println!("READY {}", std::process::id());
        let mut line = String::new();
        let got = std::io::stdin().lock().read_line(&mut line);
        assert!(matches!(got, Ok(1..)), "stdin ended while the target waited");
    }
    let mut pins = [0_u64; PATHS.len()];
    const ROUNDS: u64 = 60;
    for round in 0..ROUNDS {
        state.granule = round + 1;
        path_open(state.granule, 4096);
        drive(&mut state); // mark: driving_rust
        for (path, object) in std::mem::take(&mut state.open) {
            // Path n pins every n + 1st granule, for ever.
            if round % (path as u64 + 1) == 0 {
                pins[path] += 1;
            } else {
                path_free(object);
            }
        }
        path_close(state.granule);
    }
    let allocated: u64 = state.allocated.iter().sum();
    let live: u64 = pins.iter().sum();
    let mut paths = Vec::new();
    for (number, (name, chain)) in PATHS.iter().enumerate() {
        let (allocated, pins) = (state.allocated[number], pins[number]);
        paths.push(format!(
            "{{\"name\":\"{name}\",\"chain\":\"{chain} < rust_paths::main@driving_rust < * < _start\",\"site\":{{\
             \"allocated\":{allocated},\"allocated_bytes\":{},\"objects\":{pins},\"objects_live\":{pins},\"live\":{pins},\
             \"granules_pinned\":{pins},\"granules_retained\":{pins},\"path_end\":\"start\"}}}}",
            allocated * SIZE
        ));
    }
    println!(
        "{{\"truth\":1,\"role\":\"main\",\"pid\":{},\"allocators\":[{{\"kind\":\"drain\",\
         \"granules\":{{\"opened\":{ROUNDS},\"opened_before\":0,\"closed\":{ROUNDS},\"drainable\":0,\
         \"pinned\":{ROUNDS},\"unknown\":0,\"open_now\":0}},\
         \"objects\":{{\"allocated\":{allocated},\"live\":{live}}}}}],\"losses\":{{}},\"paths\":[{}]}}",
        std::process::id(),
        paths.join(",")
    );
}

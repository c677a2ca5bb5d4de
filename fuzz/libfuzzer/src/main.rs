//! A fuzz target under libFuzzer, which looks for inputs that reach what none has reached. `DRAINPROF_FUZZ_TARGET` names
//! it; how to build this: docs/development.md, "Fuzzing".

#![no_main]

use std::sync::LazyLock;

use drainprof_fuzz::{
    Mutator, feed,
    targets::{Target, target},
};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("DRAINPROF_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("DRAINPROF_FUZZ_TARGET is no target: `{name}`"))
});

fuzz_target!(|bytes: &[u8]| feed(&TARGET, bytes));

// Every other input is changed as the target's format allows.
fuzz_mutator!(|bytes: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 2 == 0 || TARGET.change.is_none() {
        return fuzzer_mutate(bytes, size, max_size);
    }
    let seeds = [bytes[..size].to_vec()];
    let changed = Mutator::new(&seeds, seed.into()).with(TARGET.change).next_input();
    let size = changed.len().min(max_size);
    bytes[..size].copy_from_slice(&changed[..size]);
    size
});

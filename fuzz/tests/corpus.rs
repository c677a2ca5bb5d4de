//! Every parser on its corpus, and on a hundred inputs that are made of it.
//!
//! `DRAINPROF_FUZZ_SECONDS`, `DRAINPROF_FUZZ_INPUTS` and `DRAINPROF_FUZZ_NUMBER` say for how long, up to how many inputs,
//! and which ones; `DRAINPROF_FUZZ_READER` names the reader of heaps whose seeds they are made of; `cargo xtask fuzz` sets them. With `DRAINPROF_FUZZ_KEEP` the input that runs is in `target/fuzz/NAME-last`.

use std::time::Duration;

use drainprof_fuzz::{
    Wanted, run,
    targets::{TARGETS, heaps, target},
};

/// Inputs that each run of the tests makes of the seeds: always the same.
const USUAL: u64 = 100;

/// A variable of the environment, or what is usual.
fn variable<T: std::str::FromStr>(name: &str, usual: T) -> T {
    let text = std::env::var(format!("DRAINPROF_FUZZ_{name}"));
    text.map_or(usual, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name} is {text}: no number"))
    })
}

fn feed(name: &str) {
    let wanted = Wanted {
        time: Duration::from_secs_f64(variable("SECONDS", 60.0)),
        inputs: variable("INPUTS", USUAL),
        number: variable("NUMBER", 1),
        seeds: if name == "heaps" { seeds() } else { Vec::new() },
    };
    let ran = run(target(name).unwrap_or_else(|| panic!("{name} is no target")), &wanted);
    let ran = ran.unwrap_or_else(|error| panic!("{error:#}"));
    println!("{name}: {ran}, from number {}", wanted.number);
    if name == "heaps" {
        println!("{name}: {}", heaps::worst());
    }
    assert!(ran.taken > 0, "{name}: no input is what it reads");
}

/// How the names of the seeds begin of the reader of heaps that is wanted; none: of all.
fn seeds() -> Vec<String> {
    let Ok(reader) = std::env::var("DRAINPROF_FUZZ_READER") else { return Vec::new() };
    let known = heaps::SEEDS.iter().find(|(name, _)| *name == reader);
    let (_, seeds) = known.unwrap_or_else(|| panic!("{reader} is no reader: {:?}", heaps::SEEDS));
    seeds.iter().map(|seed| (*seed).to_owned()).collect()
}

macro_rules! targets {
    ($($name:ident: $what:literal;)*) => {
        $(#[doc = $what] #[test] fn $name() { feed(stringify!($name)); })*
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    elf: "Symbols, types, notes of ELF files.";
    lines: "Lines of addresses in ELF files.";
    unwind_tables: "Tables of exceptions and of debuggers.";
    mappings: "`maps` and `smaps`.";
    process_texts: "Other texts of `/proc/PID`.";
    perf_map: "Maps of JIT compilers.";
    demangle: "Mangled names, and patterns.";
    usdt: "Arguments of USDT probes.";
    profile: "Profiles.";
    expression: "Expressions of profiles.";
    configuration: "The daemon's configuration.";
    report: "Saved reports.";
    records: "Recordings, and records of the ring.";
    request: "HTTP and the control socket.";
    heaps: "Heaps of processes.";
}

/// Each target has a test.
#[test]
fn all_are_tested() {
    assert!(TARGETS.iter().map(|target| target.name).eq(TESTED.iter().copied()));
}

//! What is fed: a row per parser.

mod files;
pub mod heaps;
mod node;
mod profiles;
mod reports;
mod texts;

use std::time::Duration;

use anyhow::Result;

use crate::{Bound, Change, Cost, change};

/// A parser, and where its inputs come from besides `corpus/NAME/`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Parses bytes, and uses what comes of them; whether they are what it reads.
    pub run: fn(&[u8]) -> bool,
    /// Good inputs that are made, not committed.
    pub seeds: fn() -> Result<Vec<Vec<u8>>>,
    /// Changes that its format allows, besides those of any bytes.
    pub change: Option<Change>,
    /// What an input may cost by its size; `None`: it sees to that itself, or there is no such bound.
    pub bound: Option<Bound>,
}

const fn target_of(
    name: &'static str,
    run: fn(&[u8]) -> bool,
    seeds: fn() -> Result<Vec<Vec<u8>>>,
) -> Target {
    Target { name, run, seeds, change: None, bound: None }
}

/// So many milliseconds, KiB and allocations for nothing, and nanoseconds, bytes and allocations for each KiB.
const fn bound([ms, kib, calls]: [u64; 3], [nanos, bytes, more]: [u64; 3]) -> Bound {
    Bound {
        base: Cost { time: Duration::from_millis(ms), memory: kib << 10, allocations: calls },
        each_kib: Cost { time: Duration::from_nanos(nanos), memory: bytes, allocations: more },
    }
}

/// Tables of exceptions and of debuggers are as large as the rules that are made of them.
const UNWIND_TABLES: Bound = bound([100, 4 << 10, 50_000], [10_000_000, 1 << 20, 4096]);
/// Lines of 256 addresses, by blazesym: it may read all tables for each.
const LINES: Bound = bound([300, 16 << 10, 200_000], [10_000_000, 1 << 20, 4096]);
/// What is shown of a name is bounded, and so is the work.
const DEMANGLE: Bound = bound([200, 4 << 10, 100_000], [10_000_000, 1 << 20, 4096]);

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { change: Some(change::sections), ..target_of("elf", files::elf, files::elf_seeds) },
    Target {
        change: Some(change::sections),
        bound: Some(LINES),
        ..target_of("lines", files::lines, files::line_seeds)
    },
    Target {
        bound: Some(UNWIND_TABLES),
        ..target_of("unwind_tables", files::unwind_tables, files::table_seeds)
    },
    target_of("mappings", texts::mappings, none),
    target_of("process_texts", texts::process_texts, none),
    target_of("perf_map", texts::perf_map, none),
    Target { bound: Some(DEMANGLE), ..target_of("demangle", texts::demangle, none) },
    target_of("usdt", texts::usdt, none),
    target_of("profile", profiles::profile, profiles::built_in),
    target_of("expression", profiles::expression, none),
    target_of("configuration", node::configuration, node::default_file),
    target_of("report", reports::report, reports::samples),
    target_of("records", reports::records, reports::events),
    target_of("request", node::request, none),
    Target { change: Some(change::lines), ..target_of("heaps", heaps::heaps, none) },
];

#[allow(clippy::unnecessary_wraps, reason = "as other seeds")]
const fn none() -> Result<Vec<Vec<u8>>> {
    Ok(Vec::new())
}

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

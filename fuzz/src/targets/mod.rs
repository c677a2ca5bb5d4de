//! What is fed: a row per parser.

mod files;
mod heaps;
mod node;
mod profiles;
mod reports;
mod texts;

use anyhow::Result;

/// A parser, and where its inputs come from besides `corpus/NAME/`.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Parses bytes, and uses what comes of them; whether they are what it reads.
    pub run: fn(&[u8]) -> bool,
    /// Good inputs that are made, not committed.
    pub seeds: fn() -> Result<Vec<Vec<u8>>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "elf", run: files::elf, seeds: files::elf_seeds },
    Target { name: "unwind_tables", run: files::unwind_tables, seeds: files::table_seeds },
    Target { name: "mappings", run: texts::mappings, seeds: none },
    Target { name: "process_texts", run: texts::process_texts, seeds: none },
    Target { name: "perf_map", run: texts::perf_map, seeds: none },
    Target { name: "demangle", run: texts::demangle, seeds: none },
    Target { name: "usdt", run: texts::usdt, seeds: none },
    Target { name: "profile", run: profiles::profile, seeds: profiles::built_in },
    Target { name: "expression", run: profiles::expression, seeds: none },
    Target { name: "configuration", run: node::configuration, seeds: node::default_file },
    Target { name: "report", run: reports::report, seeds: reports::samples },
    Target { name: "records", run: reports::records, seeds: reports::events },
    Target { name: "request", run: node::request, seeds: none },
    Target { name: "heaps", run: heaps::heaps, seeds: none },
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

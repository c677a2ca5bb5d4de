//! The places that are chosen in stock binaries, as Debian ships them.
//!
//! Needs no privileges: it reads files. What is not installed fails; `cargo xtask setup` installs it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use drainprof::{
    plan::{
        Chooser,
        cost::{Costs, InstructionKind},
        site::{Choice, Needs},
    },
    target::{DebugSearch, Elf},
};

const GLIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const NGINX: &str = "/usr/sbin/nginx";
const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";
const APR: &str = "/usr/lib/x86_64-linux-gnu/libapr-1.so.0";
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";

fn open(path: &str) -> Result<Elf> {
    let path = PathBuf::from(path);
    let search = DebugSearch { object_path: Some(path.clone()), ..DebugSearch::default() };
    Elf::open(&path, &path.display().to_string(), search)
        .with_context(|| format!("{} (`cargo xtask setup` installs it)", path.display()))
}

/// The first `arguments` arguments and the return address.
fn first(arguments: u32) -> Needs {
    Needs { args: (1 << arguments) - 1, caller: true }
}

fn chosen(elf: &Elf, chooser: &Chooser<'_>, name: &str, arguments: u32) -> Result<Choice> {
    let hits = elf.resolve(name);
    let offset = hits.first().and_then(|hit| hit.file_offset);
    let offset = offset.with_context(|| format!("{} has no {name}", elf.shown_path()))?;
    Ok(chooser.choose(offset, first(arguments), &Costs::assumed(), None))
}

/// One line per function: what was chosen and what it saves.
fn table(path: &str, functions: &[(&str, u32)]) -> Result<Vec<(String, Choice)>> {
    let elf = open(path)?;
    let chooser = Chooser::new(&elf);
    let mut rows = Vec::new();
    for &(name, arguments) in functions {
        let choice = chosen(&elf, &chooser, name, arguments)?;
        let (here, entry) =
            choice.here.as_ref().zip(choice.entry.as_ref()).context("the file can be read")?;
        println!(
            "{:<24} {name:<28} +{:#04x} {:<34} {:>6.0} ns, at +0 {:>6.0} ns ({}; {})",
            Path::new(path).file_name().unwrap_or_default().to_string_lossy(),
            choice.offset,
            here.instruction,
            here.cost_ns,
            entry.cost_ns,
            choice.moved_text().join(" "),
            choice.stop
        );
        ensure!(here.cost_ns <= entry.cost_ns, "{name} got dearer");
        ensure!(
            here.kind != InstructionKind::Other || choice.offset == 0,
            "{name}: only kinds with a measured price are chosen"
        );
        rows.push((name.to_owned(), choice));
    }
    Ok(rows)
}

#[test]
fn all() -> Result<()> {
    table(
        GLIBC,
        &[
            ("malloc", 1),
            ("free", 1),
            ("calloc", 2),
            ("realloc", 2),
            ("memalign", 2),
            ("aligned_alloc", 2),
            ("posix_memalign", 3),
            ("malloc_usable_size", 1),
            ("reallocarray", 3),
            ("valloc", 1),
            ("pvalloc", 1),
        ],
    )?;
    table(
        NGINX,
        &[
            ("ngx_create_pool", 2),
            ("ngx_destroy_pool", 1),
            ("ngx_reset_pool", 1),
            ("ngx_palloc", 2),
            ("ngx_pnalloc", 2),
            ("ngx_pmemalign", 3),
            ("ngx_pfree", 2),
        ],
    )?;
    table(
        POSTGRES,
        &[
            ("MemoryContextCreate", 5),
            ("MemoryContextDelete", 1),
            ("MemoryContextReset", 1),
            ("palloc", 1),
            ("palloc0", 1),
            ("palloc_extended", 2),
            ("MemoryContextAlloc", 2),
            ("MemoryContextAllocZero", 2),
            ("MemoryContextAllocZeroAligned", 2),
            ("MemoryContextAllocExtended", 3),
            ("MemoryContextAllocHuge", 2),
            ("pfree", 1),
            ("repalloc", 2),
        ],
    )?;
    table(
        APR,
        &[
            ("apr_pool_create_ex", 4),
            ("apr_palloc", 2),
            ("apr_pool_clear", 1),
            ("apr_pool_destroy", 1),
        ],
    )?;
    if Path::new(JEMALLOC).exists() {
        table(
            JEMALLOC,
            &[
                ("mallocx", 2),
                ("malloc", 1),
                ("free", 1),
                ("calloc", 2),
                ("realloc", 2),
                ("dallocx", 2),
                ("sdallocx", 3),
                ("rallocx", 3),
                ("aligned_alloc", 2),
            ],
        )?;
    }
    Ok(())
}

//! The places that are chosen in allocators as Debian ships them, for the functions that profiles name.
//!
//! Needs no privileges: it reads files. What is not installed fails; `cargo xtask setup` installs it.
//! `-- --nocapture` prints the table.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use drainprof_probe::plan::{
    Chooser,
    cost::Costs,
    site::{Choice, Needs, Stop},
};
use drainprof_process::{DebugSearch, Elf};
use drainprof_profile::{Address, Library, Phase};

const GLIBC: &str = "/usr/lib/x86_64-linux-gnu/libc.so.6";
const NGINX: &str = "/usr/sbin/nginx";
const POSTGRES: &str = "/usr/lib/postgresql/15/bin/postgres";
const APR: &str = "/usr/lib/x86_64-linux-gnu/libapr-1.so.0";
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
/// Nanoseconds of a hit that the kernel does not single-step, by the assumed costs.
const CHEAP: f64 = 600.0;

/// An object and its functions, each with the number of its arguments.
type Row = (&'static str, &'static [(&'static str, u32)]);

const TABLE: [Row; 5] = [
    (
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
            ("valloc", 1),
            ("pvalloc", 1),
        ],
    ),
    (
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
    ),
    (
        POSTGRES,
        &[
            ("MemoryContextCreate", 5),
            ("MemoryContextDelete", 1),
            ("MemoryContextReset", 1),
            ("MemoryContextSetParent", 2),
            ("palloc", 1),
            ("palloc0", 1),
            ("palloc_extended", 2),
            ("MemoryContextAlloc", 2),
            ("MemoryContextAllocZero", 2),
            ("MemoryContextAllocZeroAligned", 2),
            ("MemoryContextAllocExtended", 3),
            ("MemoryContextAllocHuge", 2),
            ("pfree", 1),
        ],
    ),
    (
        APR,
        &[
            ("apr_pool_create_ex", 4),
            ("apr_palloc", 2),
            ("apr_pool_clear", 1),
            ("apr_pool_destroy", 1),
        ],
    ),
    (
        JEMALLOC,
        &[
            ("malloc", 1),
            ("free", 1),
            ("calloc", 2),
            ("realloc", 2),
            ("aligned_alloc", 2),
            ("posix_memalign", 3),
            ("mallocx", 2),
            ("rallocx", 3),
            ("dallocx", 2),
            ("sdallocx", 3),
        ],
    ),
];

fn open(path: &str) -> Result<Elf> {
    let path = PathBuf::from(path);
    let search = DebugSearch { object_path: Some(path.clone()), ..DebugSearch::default() };
    Elf::open(&path, &path.display().to_string(), search)
        .with_context(|| format!("{} (`cargo xtask setup` installs it)", path.display()))
}

/// Where a probe that needs the first `arguments` arguments goes.
fn chosen(elf: &Elf, chooser: &Chooser<'_>, name: &str, arguments: u32) -> Result<Choice> {
    let offset = elf.resolve(name).first().and_then(|hit| hit.file_offset);
    let offset = offset.with_context(|| format!("{} has no {name}", elf.shown_path()))?;
    let needs = Needs { args: (1 << arguments) - 1, caller: true, ..Needs::default() };
    Ok(chooser.choose(offset, needs, &Costs::assumed(), None))
}

fn price(choice: &Choice) -> Result<(f64, f64)> {
    let prices = choice.here.as_ref().zip(choice.entry.as_ref()).context("the file can be read")?;
    Ok((prices.0.cost_ns, prices.1.cost_ns))
}

/// Every function that profiles of these allocators name has a place, no place is more expensive than the first
/// instruction, all but the named few are cheap, and some only because another place was chosen.
#[test]
fn stock_allocators() -> Result<()> {
    let (mut expensive, mut gained) = (Vec::new(), 0);
    for (path, functions) in TABLE {
        let elf = open(path)?;
        let chooser = Chooser::new(&elf);
        for &(name, arguments) in functions {
            let choice = chosen(&elf, &chooser, name, arguments)?;
            let (here, entry) = price(&choice)?;
            println!(
                "{:<18} {name:<30} +{:#04x} {:<30} {here:>6.0} ns, at +0 {entry:>6.0} ns {} ({})",
                Path::new(path).file_name().unwrap_or_default().to_string_lossy(),
                choice.offset,
                choice.here.as_ref().map_or("", |here| here.instruction.as_str()),
                choice.moved_text().join(" "),
                choice.stop
            );
            ensure!(here <= entry, "{name} got more expensive");
            if here > CHEAP {
                expensive.push(name);
            }
            gained += usize::from(here * 10.0 < entry);
        }
    }
    assert_eq!(expensive, ["MemoryContextCreate", "pfree"]);
    assert!(gained >= 8, "{gained}");
    Ok(())
}

/// The functions that made this worth doing: `free` of glibc at its first jump, nginx's two allocs at
/// theirs. PostgreSQL's `pfree` is four moves and a jump through memory, none of which is cheap.
#[test]
fn known_places() -> Result<()> {
    for (path, name, arguments, offset) in
        [(GLIBC, "free", 1, 3), (NGINX, "ngx_palloc", 2, 4), (NGINX, "ngx_pnalloc", 2, 4)]
    {
        let elf = open(path)?;
        let choice = chosen(&elf, &Chooser::new(&elf), name, arguments)?;
        assert_eq!((choice.offset, choice.moved()), (offset, 0), "{name}: {choice:?}");
        assert!(price(&choice)?.0 < CHEAP && price(&choice)?.1 > 10.0 * CHEAP, "{name}");
    }
    let postgres = open(POSTGRES)?;
    let choice = chosen(&postgres, &Chooser::new(&postgres), "pfree", 1)?;
    assert_eq!((choice.offset, choice.stop), (0, Stop::Branch), "{choice:?}");
    Ok(())
}

/// The built-in profiles of nginx and PostgreSQL name no function that the table leaves out, but for other versions than
/// the table is of.
#[test]
fn profiles_are_covered() -> Result<()> {
    let library = Library::load(&[], &[])?;
    let mut at_entry = 0;
    for name in ["nginx", "postgresql"] {
        let profile = library.get(name).context("it is built in")?;
        for probe in &profile.probes {
            let Address::Symbol(symbol) = &probe.at else { continue };
            if !probe.versions.is_empty() && !probe.versions.iter().any(|name| name == "v15") {
                continue;
            }
            let known = TABLE.iter().flat_map(|row| row.1).any(|(name, _)| name == symbol);
            assert!(known, "{symbol} of {name} is not in the table");
            at_entry += usize::from(probe.phase == Phase::Entry);
        }
    }
    assert!(at_entry > 4, "{at_entry}");
    Ok(())
}

//! ELF files that any user can map into a process: reading them takes little memory, and what is not read is said.

use std::{fs::File, path::Path};

use anyhow::Result;
use drainprof_process::{
    DebugSearch, Elf, FrameSections,
    elf::{OwnCalls, SymbolHit},
};
use drainprof_tests::{
    environment::{requires_root, target as program},
    hostile::{self, FILES},
    node::{Daemon, alone, sum},
    target::Target,
};

/// What one file may take, the reader's own memory included.
const MOST: u64 = 192 << 20;
/// The test that reads for the others.
const READER: &str = "reader";

/// Asks everything that the daemon and `attach` ask of an object; what was said of errors.
fn ask(path: &Path) -> Vec<String> {
    let mut said = Vec::new();
    if let Ok(file) = File::open(path) {
        said.extend(
            FrameSections::read(file, "hostile", 64 << 20).err().map(|why| why.to_string()),
        );
    }
    let elf = match Elf::open(path, "hostile", DebugSearch::default()) {
        Ok(elf) => elf,
        Err(why) => {
            said.push(why.to_string());
            return said;
        }
    };
    let hits: Vec<SymbolHit> = elf.functions(|_| true);
    let mut own = elf.own_calls(&hits);
    for hit in hits.iter().take(10) {
        let _ = elf.calls(hit, &mut own);
    }
    drop((hits, own, OwnCalls::default()));
    let _ = elf.resolve("aaaa");
    said.extend(elf.resolve_demangled("*").err().map(|why| why.to_string()));
    let _ = elf.code_symbols().len();
    said.extend(elf.slots(&[b"aaaa".to_vec()], Some(1)).err().map(|why| why.to_string()));
    match elf.types() {
        Ok(types) => said.extend(types.offset_of("x", "y").err()),
        Err(why) => said.push(why),
    }
    said
}

/// Reads a file for another test, in a process of its own.
#[test]
fn reader() -> Result<()> {
    hostile::read_if_asked(ask)
}

/// Whatever a file says, reading it takes less than 192 MiB, and what is not read is said with its limit.
#[test]
fn memory_is_bounded() -> Result<()> {
    let directory = tempfile::tempdir()?;
    for (name, _, wanted) in FILES {
        let path = hostile::make(directory.path(), name)?;
        let found = hostile::read(&path, READER)?;
        println!("{name}: {} MiB: {}", found.peak >> 20, found.said);
        assert!(found.peak < MOST, "{name}: {} MiB", found.peak >> 20);
        assert!(found.said.contains(wanted), "{name}: {}", found.said);
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A process that maps all hostile files at once is counted to the last close, and the daemon's memory stays small.
#[test]
fn daemon_stays_small() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let paths: Result<Vec<_>> =
        FILES.iter().map(|(name, ..)| hostile::make(directory.path(), name)).collect();
    let daemon = Daemon::start(&["arena"], "")?;
    let mut command = std::process::Command::new(program("psweep")?);
    command.arg("closes=500").env("DRAINPROF_TEST_MAP", std::env::join_paths(paths?)?);
    let mut sweep = Target::start_command("psweep", command)?;
    daemon.attached(&[sweep.pid()])?;
    sweep.go()?;
    sweep.finish()?;
    let closed = |state: &serde_json::Value| {
        ["drainable", "pinned", "unknown"]
            .iter()
            .map(|one| sum(state, "test-arena", one))
            .sum::<u64>()
    };
    let state = daemon.until("it is counted", |state| closed(state) >= 500)?;
    assert_eq!((closed(&state), &state["complete"]), (500, &serde_json::Value::Bool(true)));
    let peak = hostile::peak(daemon.pid())?;
    println!("the daemon: {} MiB", peak >> 20);
    assert!(peak < 2 * MOST, "{} MiB", peak >> 20);
    daemon.finish()?;
    Ok(())
}

//! Names of a real process, without the helper: what our own reader knows, and when it is asked.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use drainprof_process::{
    mapped_objects,
    testing::{Waiting, cc, open},
};
use drainprof_report::{
    facts::{Began, CallPath, Ended},
    samples,
};

use super::*;

const ECHO: &str = "#include <unistd.h>
__attribute__((noinline)) int opens(int x) { __asm__ volatile(\"\" ::: \"memory\"); return x + 1; }
int main(void) {
    char b[64];
    for (;;) { long n = read(0, b, sizeof b); if (n <= 0) return opens(-1); write(1, b, n); }
}
";

fn symbols() -> Symbols {
    let program = PathBuf::from("/nowhere/drainprof");
    Symbols::new(SymbolOptions { debug_dirs: Vec::new(), program }).unwrap()
}

/// A snapshot of one process with granules opened at `places`.
fn snapshot(pid: u32, places: &[u64]) -> Snapshot {
    let mut snapshot = samples::drain_snapshot();
    snapshot.symbols = None;
    let target = &mut snapshot.targets[0];
    target.pid = pid;
    target.start_time = 0;
    target.frames.clear();
    target.allocators[0].granules.clear();
    target.allocators[0].lifetimes =
        places.iter().map(|&place| (place, drainprof_common::hist::Hist::new())).collect();
    snapshot
}

/// Waits for all answers, and returns the frames of the process and how far it has come.
fn named(symbols: &mut Symbols, snapshot: &mut Snapshot) -> SymbolFacts {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        symbols.learn(snapshot);
        symbols.collect();
        if symbols.pending() == 0 && !symbols.postponed() {
            break;
        }
        assert!(Instant::now() < until, "answers come");
        thread::yield_now();
    }
    symbols.fill(snapshot);
    snapshot.symbols.clone().unwrap()
}

/// An address two bytes into `opens` of a running `echo`.
fn inside_opens(pid: u32, path: &Path) -> u64 {
    let elf = open(path, &[]);
    let hit = &elf.resolve("opens")[0];
    loaded(pid, path, hit.file_offset.unwrap() + 2)
}

/// Where the code at `offset` of a running program's file lies.
fn loaded(pid: u32, path: &Path, offset: u64) -> u64 {
    let objects = mapped_objects(pid).unwrap();
    let mapping = objects
        .iter()
        .filter(|object| object.path == path)
        .flat_map(|object| &object.mappings)
        .find(|mapping| mapping.executable)
        .unwrap();
    mapping.start + (offset - mapping.file_offset)
}

/// Without a helper, functions are named by our own reader, the reason is reported, and what lies nowhere has
/// no name.
#[test]
fn without_a_helper() {
    let directory = tempfile::tempdir().unwrap();
    let path = cc(directory.path(), "echo", ECHO, &["-O1"]);
    let process = Waiting::start(&path);
    let place = inside_opens(process.pid(), &path);
    let mut symbols = symbols();
    let mut snapshot = snapshot(process.pid(), &[place, 7]);
    let facts = named(&mut symbols, &mut snapshot);
    let frame = &snapshot.targets[0].frames[&place];
    assert_eq!((frame.function.as_deref(), frame.offset), (Some("opens"), Some(2)));
    assert_eq!(frame.module.as_deref(), Some("echo"));
    assert_eq!(snapshot.targets[0].frames[&7], Frame::default());
    assert_eq!((facts.places, facts.named, facts.pending, facts.given_up), (2, 1, 0, 1));
    assert!(facts.errors[0].contains("/nowhere/drainprof"), "{:?}", facts.errors);
}

/// A process that was met while it lived has names after its end; one that was not has none, and neither
/// has one whose file was replaced meanwhile, which is reported.
#[test]
fn ended_processes() {
    let directory = tempfile::tempdir().unwrap();
    let path = cc(directory.path(), "echo", ECHO, &["-O1"]);
    let process = Waiting::start(&path);
    let pid = process.pid();
    let place = inside_opens(pid, &path);
    let (mut met, mut replaced, mut late) = (symbols(), symbols(), symbols());
    met.meet(&snapshot(pid, &[]).targets);
    replaced.meet(&snapshot(pid, &[]).targets);
    drop(process);

    let mut after = snapshot(pid, &[place]);
    after.targets[0].ended = Some(Ended::exit(None));
    assert_eq!(named(&mut met, &mut after.clone()).named, 1);
    assert_eq!(named(&mut late, &mut after.clone()).named, 0);

    // Beside it and moved there, so that it has another inode.
    let other = cc(directory.path(), "other", ECHO, &["-O2"]);
    fs::rename(other, &path).unwrap();
    let facts = named(&mut replaced, &mut after);
    assert_eq!((facts.named, facts.given_up), (0, 1));
    assert!(facts.errors[0].contains("another file"), "{:?}", facts.errors);
    assert_eq!(after.targets[0].frames[&place].module.as_deref(), Some("echo"));
}

/// A path that was found while the process lived is named after its end, though its file was deleted before anybody
/// asked; one that was not is missing. A child has what was found in its parent.
#[test]
fn paths_are_placed_when_they_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = cc(directory.path(), "echo", ECHO, &["-O1"]);
    let process = Waiting::start(&path);
    let pid = process.pid();
    let place = inside_opens(pid, &path);
    let found = Arc::new(CallPath { addresses: vec![0, place, 7, place], ..CallPath::default() });
    let (mut early, mut late) = (symbols(), symbols());
    // Found before the target was met, as that of a child may be.
    early.place(&[(0, found)]);
    early.meet(&snapshot(pid, &[]).targets);
    early.place(&[]);
    late.meet(&snapshot(pid, &[]).targets);
    fs::remove_file(&path).unwrap();
    drop(process);

    let mut after = snapshot(pid, &[place]);
    after.targets[0].ended = Some(Ended::exit(None));
    assert_eq!(named(&mut late, &mut after.clone()).named, 0);
    let mut child = snapshot(u32::MAX, &[place]).targets.remove(0);
    (child.target, child.ended) = (1, Some(Ended::exit(None)));
    child.began = Began::Forked { from_target: 0 };
    after.targets.push(child);
    let facts = named(&mut early, &mut after);
    assert_eq!((facts.named, facts.pending), (2, 0), "{:?}", facts.errors);
    for target in &after.targets {
        assert_eq!(target.frames[&place].function.as_deref(), Some("opens"));
    }
}

/// However many paths are found, and of whomever, a bounded number of addresses is kept.
#[test]
fn many_paths() {
    let mut symbols = symbols();
    symbols.meet(&snapshot(std::process::id(), &[]).targets);
    for target in [0, 1] {
        for first in (1..=MAX_PLACES as u64).step_by(128) {
            let addresses = (first..first + 128).collect();
            symbols.place(&[(target, Arc::new(CallPath { addresses, ..CallPath::default() }))]);
        }
    }
    assert!(symbols.early.queued <= MAX_PLACES);
    assert_eq!(symbols.early.placed, 0);
}

/// A child has its parent's names; a stranger does not.
#[test]
fn forked_children() {
    let directory = tempfile::tempdir().unwrap();
    let path = cc(directory.path(), "echo", ECHO, &["-O1"]);
    let process = Waiting::start(&path);
    let place = inside_opens(process.pid(), &path);
    let mut both = snapshot(process.pid(), &[]);
    let mut child = snapshot(u32::MAX, &[place]).targets.remove(0);
    (child.target, child.ended) = (1, Some(Ended::exit(None)));
    child.began = Began::Forked { from_target: 0 };
    both.targets.push(child);
    assert_eq!(named(&mut symbols(), &mut both.clone()).named, 1);
    both.targets[1].began = Began::Attached;
    assert_eq!(named(&mut symbols(), &mut both).named, 0);
}

/// However many places there are, a bounded number is kept, and the rest is counted.
#[test]
fn many_places() {
    let places: Vec<u64> = (1..=MAX_PLACES as u64 + 10).map(|index| index * 16).collect();
    let facts = named(&mut symbols(), &mut snapshot(u32::MAX, &places));
    assert_eq!((facts.places, facts.left_out), (places.len() as u64, 10));
    assert_eq!((facts.named, facts.pending), (0, 0));
}

/// What a signal handler returns to is no call's place: it is named by its own first byte, and by its code where it has
/// no symbol; what only begins like it is not.
#[test]
#[cfg(target_arch = "x86_64")]
fn signal_returns() {
    const CODE: &str = "__asm__(\".text\\n nop\\n .type back, @function\\n back: mov $15, %rax\\n syscall\\n\"
        \".size back, .-back\\n nop\\n .type other, @function\\n other: mov $16, %rax\\n syscall\\n .size other, .-other\");";
    let directory = tempfile::tempdir().unwrap();
    let source = format!("{CODE}\n{ECHO}");
    let whole = cc(directory.path(), "whole", &source, &["-O1"]);
    let bare = cc(directory.path(), "bare", &source, &["-O1", "-s"]);
    let elf = open(&whole, &[]);
    let offsets = ["back", "other"].map(|name| elf.resolve(name)[0].file_offset.unwrap());
    for (path, name) in [(&whole, "back"), (&bare, "__restore_rt")] {
        let process = Waiting::start(path);
        let [back, other] = offsets.map(|offset| loaded(process.pid(), path, offset));
        let mut snapshot = snapshot(process.pid(), &[back, other]);
        assert_eq!(named(&mut symbols(), &mut snapshot).named, 1);
        let frame = &snapshot.targets[0].frames[&back];
        assert_eq!((frame.function.as_deref(), frame.offset), (Some(name), Some(0)));
        assert!(frame.module_offset.is_some());
        assert_eq!(snapshot.targets[0].frames[&other].function, None);
    }
}

/// An address in the vDSO is named by the kernel's own symbols.
#[test]
#[cfg(target_arch = "x86_64")]
fn vdso() {
    let directory = tempfile::tempdir().unwrap();
    let process = Waiting::start(&cc(directory.path(), "echo", ECHO, &["-O1"]));
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.pid())).unwrap();
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap();
    let start = u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap();
    let image = drainprof_process::vdso_image().unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&image));
    let at = open(Path::new(&path), &[]).resolve("__vdso_clock_gettime")[0].vaddr;
    let mut snapshot = snapshot(process.pid(), &[start + at + 5]);
    assert_eq!(named(&mut symbols(), &mut snapshot).named, 1);
    let frame = &snapshot.targets[0].frames[&(start + at + 5)];
    assert!(frame.function.as_deref().is_some_and(|name| name.contains("clock_gettime")));
    assert_eq!((frame.module.as_deref(), frame.offset), (Some("[vdso]"), Some(5)));
    assert_eq!(frame.module_offset, Some(format!("{:#x}", at + 5)));
}

//! Real stacks: of compiled programs that stop and print where, and of this very process.

mod bounds;
mod guessed;
mod libraries;
mod programs;

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use drainprof_common::unwind::Cursor;
use framehop::{
    ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _,
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};

use super::*;
use crate::{
    Elf, FrameSections, MappedObject, PlacedBytes, mapped_objects,
    testing::{open, tool},
};

/// Before each C program: `capture` prints its frame, and waits until its input ends.
const CAPTURE: &str = r#"
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
#define ALIGNED alignas(64)
#else
#define ALIGNED _Alignas(64)
#endif
#define KEEP __asm__ volatile("" ::: "memory")
#define NOINLINE __attribute__((noinline, noclone))
NOINLINE int capture(void) {
    unsigned long pc, sp, bp;
    __asm__ volatile("lea 0(%%rip), %0; mov %%rsp, %1; mov %%rbp, %2"
                     : "=&r"(pc), "=&r"(sp), "=&r"(bp) :: "memory");
    printf("%lx %lx %lx\n", pc, sp, bp);
    fflush(stdout);
    char c;
#ifdef UNTIL_LINE
    read(0, &c, 1);
#else
    while (read(0, &c, 1) > 0) {}
#endif
    return 1;
}
"#;

/// A program that stands in `capture`, and its stack.
struct Stopped {
    child: Child,
    path: PathBuf,
    start: Cursor,
    bytes: Vec<u8>,
}

impl Stopped {
    /// Compiles `source` with `compiler` and `flags`, and runs it up to `capture`.
    fn compiled(dir: &Path, compiler: &str, source: &str, flags: &[&str]) -> Self {
        let suffix = if compiler == "c++" { "cc" } else { "c" };
        let (input, path) = (dir.join(format!("program.{suffix}")), dir.join("program"));
        fs::write(&input, format!("{CAPTURE}{source}")).unwrap();
        let mut all = vec![input.to_str().unwrap(), "-pthread", "-o", path.to_str().unwrap(), "-w"];
        all.extend(flags);
        tool(compiler, &all);
        Self::run(&path)
    }

    fn run(path: &Path) -> Self {
        let mut child =
            Command::new(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (start, bytes) = reported(&mut child);
        Self { child, path: path.to_owned(), start, bytes }
    }

    /// Lets a program that was compiled with `UNTIL_LINE` run to its next `capture`.
    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        (self.start, self.bytes) = reported(&mut self.child);
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn snapshot(&self) -> Snapshot<'_> {
        Snapshot { start: self.start, base: self.start.sp, bytes: &self.bytes, returns: &[] }
    }

    fn walk(&self) -> Walk {
        let mut unwinder = Unwinder::new(UnwinderOptions::default());
        unwinder.meet(1, self.pid()).unwrap();
        unwinder.unwind(1, &self.snapshot())
    }

    /// The functions of the program's own file on the way; `interrupted` says which addresses are no return
    /// addresses.
    fn names(&self, walk: &Walk) -> Vec<String> {
        let elf = open(&self.path, &[]);
        let objects = mapped_objects(self.pid()).unwrap();
        let own = objects.iter().find(|object| object.path == self.path).unwrap();
        let interrupted = |pc: u64| {
            let at = Cursor { pc, sp: 0, bp: 0, interrupted: 1 };
            walk.rules.iter().any(|(key, _)| *key == drainprof_common::unwind::rule_key(1, &at))
        };
        walk.addresses
            .iter()
            .filter_map(|&pc| name(&elf, own, if interrupted(pc) { pc } else { pc - 1 }))
            .collect()
    }
}

/// Where a program says that it stands, and its stack from there on.
fn reported(child: &mut Child) -> (Cursor, Vec<u8>) {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let mut words = line.split_whitespace().map(|word| u64::from_str_radix(word, 16).unwrap());
    let (pc, sp, bp) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    (Cursor { pc, sp, bp, interrupted: 1 }, stack(child.id(), sp, 256 << 10))
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The function at an address of a process, if `object` has it.
fn name(elf: &Elf, object: &MappedObject, address: u64) -> Option<String> {
    let mapping = object
        .mappings
        .iter()
        .find(|mapping| mapping.executable && (mapping.start..mapping.end).contains(&address))?;
    let vaddr = elf.code_at(mapping.file_offset + (address - mapping.start)).unwrap();
    let name = elf.symbol_at(vaddr)?.name;
    Some(name.split('.').next().unwrap().to_owned())
}

/// At most `most` bytes of the stack from `sp` on.
fn stack(pid: u32, sp: u64, most: u64) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let end = maps
        .lines()
        .find_map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let range =
                u64::from_str_radix(start, 16).unwrap()..u64::from_str_radix(end, 16).unwrap();
            range.contains(&sp).then_some(range.end)
        })
        .unwrap();
    let mut bytes = vec![0; (end - sp).min(most) as usize];
    fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, sp).unwrap();
    bytes
}

/// What another unwinder finds in the same snapshot.
fn framehop(pid: u32, snapshot: &Snapshot<'_>) -> Vec<u64> {
    let mut unwinder: UnwinderX86_64<Vec<u8>> = UnwinderX86_64::new();
    for object in mapped_objects(pid).unwrap() {
        let file = fs::File::open(&object.open_path).unwrap();
        let Ok(sections) = FrameSections::read(file, "object", 1 << 30) else { continue };
        let base = object.mappings[0].start;
        let range = |placed: &PlacedBytes| placed.vaddr..placed.vaddr + placed.bytes.len() as u64;
        let info = ExplicitModuleSectionInfo {
            base_svma: sections.segments[0].vaddr,
            eh_frame_svma: sections.eh_frame.as_ref().map(range),
            eh_frame: sections.eh_frame.map(|placed| placed.bytes),
            eh_frame_hdr_svma: sections.eh_frame_hdr.as_ref().map(range),
            eh_frame_hdr: sections.eh_frame_hdr.map(|placed| placed.bytes),
            debug_frame: Some(sections.debug_frame).filter(|bytes| !bytes.is_empty()),
            ..Default::default()
        };
        let end = object.mappings.last().unwrap().end;
        unwinder.add_module(Module::new("object".into(), base..end, base, info));
    }
    let mut cache = CacheX86_64::<_>::new();
    let start = snapshot.start;
    let registers = UnwindRegsX86_64::new(start.pc, start.sp, start.bp);
    let mut read =
        |address: u64| drainprof_common::unwind::Stack::word(&mut { *snapshot }, address).ok_or(());
    let mut frames = unwinder.iter_frames(start.pc, registers, &mut cache, &mut read);
    let mut found = Vec::new();
    while let Ok(Some(frame)) = frames.next() {
        if let FrameAddress::ReturnAddress(address) = frame {
            found.push(address.get());
        }
    }
    found
}

use std::{path::Path, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::{
    ElfCache, ImageOptions,
    testing::{Waiting, cc, tool},
};

/// `work` stands for `plain`, which is no name that other objects know.
const IFUNC: &str = "__attribute__((noinline, used)) static int plain(int x) { return x + 1; }\n\
     static int (*choose(void))(int) { return plain; }\n\
     int work(int) __attribute__((ifunc(\"choose\")));\n";

/// Echoes a line, after [`CALL`] if that is part of it, and waits for the end.
const ECHO: &str = "#include <stdio.h>\nint work(int);\nint (*volatile kept)(int);\n\
     int main(void) { char line[64]; BEFORE;\n\
     if (fgets(line, 64, stdin)) { fputs(line, stdout); fflush(stdout); }\n\
     fgets(line, 64, stdin); return work(1) - 2; }\n";

const CALL: &str = "-DBEFORE=work(1)";
const NO_CALL: &str = "-DBEFORE=";

/// A process, and what it has mapped.
fn start(program: &Path) -> (Waiting, Process, Image) {
    let child = Waiting::start(program);
    let process = Process::open(child.pid()).unwrap();
    let image = Image::load(&process, &ImageOptions::default(), &mut ElfCache::new()).unwrap();
    (child, process, image)
}

/// The IFUNC `work` of the object called `file`.
fn key(image: &Image, file: &str) -> IfuncKey {
    let object = image
        .objects
        .iter()
        .find(|object| object.mapped.path.file_name().is_some_and(|name| name == file))
        .unwrap();
    let hits = object.elf.as_ref().unwrap().resolve("work");
    let hit = hits.iter().find(|hit| hit.kind == SymbolKind::Ifunc).unwrap();
    IfuncKey { inode: object.mapped.inode, resolver: hit.vaddr }
}

/// What `work` of `file` stands for in a running `program`.
fn followed(program: &Path, file: &str) -> Result<Vec<Implementation>, String> {
    let (_child, process, image) = start(program);
    let key = key(&image, file);
    let mut all = follow_ifuncs(&process, &image, &[key]);
    assert_eq!((all.len(), all[0].key), (1, key));
    all.remove(0).outcome
}

fn symbols(outcome: &Result<Vec<Implementation>, String>) -> Vec<&str> {
    outcome.as_ref().unwrap().iter().map(|found| found.symbol.as_str()).collect()
}

/// A library with [`IFUNC`], and `program` linked to it.
fn with_library(dir: &Path, library: &str, program: &str, args: &[&str]) -> std::path::PathBuf {
    let lib = cc(dir, "libwork.so", library, &["-shared", "-fPIC"]);
    let rpath = format!("-Wl,-rpath,{}", dir.display());
    let mut all = vec!["-x", "none", lib.to_str().unwrap(), rpath.as_str()];
    all.extend(args);
    cc(dir, "user", program, &all)
}

/// In programs of every way of linking the implementation is found, and is where its symbol says.
#[test]
fn in_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{IFUNC}{ECHO}");
    for (number, args) in [
        &["-pie", "-fPIE"][..],
        &["-pie", "-fPIE", "-Wl,-z,now"],
        &["-pie", "-fPIE", "-rdynamic", "-fno-plt"],
        &["-no-pie"],
        &["-static"],
        &["-static-pie", "-fPIE"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("own{number}");
        let program = cc(dir.path(), &name, &source, &[args, &[NO_CALL][..]].concat());
        let outcome = followed(&program, &name);
        assert_eq!(symbols(&outcome), ["plain"], "{args:?}");
        let elf = crate::testing::open(&program, &[]);
        assert_eq!(elf.resolve("plain")[0].file_offset, Some(outcome.unwrap()[0].file_offset));
    }
}

/// A stripped program has no name for it, and it is found all the same.
#[test]
fn in_a_stripped_program() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!("{IFUNC}{ECHO}");
    let program = cc(dir.path(), "own", &source, &["-rdynamic", NO_CALL]);
    let offset = crate::testing::open(&program, &[]).resolve("plain")[0].file_offset;
    tool("strip", &[program.to_str().unwrap()]);
    let found = followed(&program, "own").unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(Some(found[0].file_offset), offset);
    assert_eq!(found[0].symbol, format!("offset:{:#x}", found[0].file_offset));
}

/// The IFUNC of a library is followed through the slots of the program that calls it.
#[test]
fn called_from_another_object() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["-Wl,-z,now", NO_CALL][..],
        &["-Wl,-z,lazy", CALL],
        &["-fno-plt", NO_CALL],
        // A program at a fixed address leads all others to its own linkage table.
        &["-no-pie", "-fno-pie", "-Wl,-z,now", "-DBEFORE=kept=work"],
    ] {
        let program = with_library(dir.path(), IFUNC, ECHO, args);
        let outcome = followed(&program, "libwork.so");
        assert_eq!(symbols(&outcome), ["plain"], "{args:?}");
    }
}

/// As long as a lazily bound caller has not called, nothing is known, and nothing is made up.
#[test]
fn not_called_yet() {
    let dir = tempfile::tempdir().unwrap();
    let program = with_library(dir.path(), IFUNC, ECHO, &["-Wl,-z,lazy", NO_CALL]);
    let why = followed(&program, "libwork.so").unwrap_err();
    assert!(why.contains("no slot"), "{why}");
}

/// Where the program's own function of that name is called, the library's IFUNC stands for nothing.
#[test]
fn interposed() {
    let dir = tempfile::tempdir().unwrap();
    let library = format!("{IFUNC}int use(int x) {{ return work(x); }}\n");
    let own = format!(
        "{ECHO}int use(int);\nint (*used)(int) = use;\nint work(int x) {{ return x + 1; }}\n"
    );
    let args = ["-rdynamic", "-Wl,-z,now", NO_CALL];
    let program = with_library(dir.path(), &library, &own, &args);
    assert!(followed(&program, "libwork.so").is_err());
}

/// Memory that may not be read, or is not there, is reported with the reason.
#[test]
fn unreadable_memory() {
    let why = read_word(std::process::id(), 8).unwrap_err();
    assert!(why.contains("cannot be read"), "{why}");
    let word = 0x1234_5678_9abc_def0_u64;
    assert_eq!(read_word(std::process::id(), std::ptr::from_ref(&word) as u64), Ok(word));
    assert!(read_word(std::process::id(), u64::MAX).is_err());
}

/// Whatever a process has in its slots, only code of its own objects is taken, and never the resolver.
#[test]
fn hostile_slots() {
    let dir = tempfile::tempdir().unwrap();
    let program = cc(dir.path(), "own", &format!("{IFUNC}{ECHO}"), &[NO_CALL]);
    let (_child, _, image) = start(&program);
    let key = key(&image, "own");
    let bias = image.objects.iter().find(|object| object.is_main).unwrap().biases()[0];
    let near = any::<u16>().prop_map(move |at| bias.wrapping_add(u64::from(at)));
    let image = Arc::new(image);
    proptest!(|(value in prop_oneof![any::<u64>(), near, Just(bias + key.resolver), Just(bias)])| {
        let mut asked = 0;
        let mut read = |_| { asked += 1; Ok(value) };
        for found in follow(&image, key, &mut read).unwrap_or_default() {
            let object = image.objects.iter().find(|object| object.mapped.inode == found.inode).unwrap();
            let vaddr = object.elf.as_ref().unwrap().code_at(found.file_offset).unwrap();
            prop_assert_ne!((found.inode, vaddr), (key.inode, key.resolver));
        }
        prop_assert!(asked > 0, "a slot was read");
    });
}

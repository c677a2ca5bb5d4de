//! Notes of objects that a compiler made, and of damaged ones.

use std::{fs, path::Path};

use crate::{
    DebugSearch, Elf,
    testing::{cc, open},
};

/// Two places of one probe, the second without arguments, and a probe whose semaphore has no bytes in the file.
const SOURCE: &str = r#"
#define NOTE(name, semaphore, arguments) "990: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b\n" \
    ".8byte _.stapsdt.base\n.8byte " semaphore "\n.asciz \"pool\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n" \
    "994: .balign 4\n.popsection\n"
__asm__(".pushsection .stapsdt.base,\"a\"\n_.stapsdt.base: .space 1\n.popsection\n");
__attribute__((section(".probes"))) unsigned short pool_open_semaphore = 0;
static unsigned short nowhere[64];
unsigned short *known(void) { return nowhere; }
int first(int a) { __asm__ volatile(NOTE("open", "pool_open_semaphore", "-4@%%edi") : : "D"(a)); return a; }
int second(int a) { __asm__ volatile(NOTE("open", "pool_open_semaphore", "")); return a + 1; }
void third(void) { __asm__ volatile(NOTE("gone", "nowhere", "8@$1")); }
"#;

const MAIN: &str = "int main(void) { return first(1) + second(2) + !known(); }\n";

fn check(elf: &Elf) {
    let notes = elf.usdt("pool", "open").unwrap();
    assert_eq!(notes.iter().map(|note| &*note.arguments).collect::<Vec<_>>(), ["-4@%edi", ""]);
    for (note, function) in notes.iter().zip(["first", "second"]) {
        assert_eq!(elf.symbol_at(note.vaddr).unwrap().name, function);
        let offset = elf.file_offset(note.vaddr).unwrap();
        assert_eq!(elf.code_at(offset).unwrap(), note.vaddr);
        assert_eq!(elf.code().unwrap().read(note.vaddr, 1).unwrap(), [0x90], "a nop");
        let semaphore = note.semaphore.unwrap();
        assert_eq!(semaphore, elf.resolve("pool_open_semaphore")[0].vaddr);
        let at = elf.semaphore_offset(semaphore).unwrap();
        assert_eq!(elf.file_offset(semaphore), Some(at.into()));
    }
    // In `.bss`: the kernel finds semaphores by their place in the file.
    let gone = elf.usdt("pool", "gone").unwrap()[0].semaphore.unwrap();
    assert_eq!(elf.semaphore_offset(gone), None);
    assert_eq!(elf.semaphore_offset(elf.usdt_all()[0].vaddr), None, "code is no semaphore");
    assert!(
        elf.usdt("pool", "shut").unwrap().is_empty() && elf.usdt("x", "open").unwrap().is_empty()
    );
    assert_eq!(elf.usdt_all().len(), 3);
}

/// Places, semaphores and arguments of libraries and of programs of all kinds.
#[test]
fn of_a_compiler() {
    let directory = tempfile::tempdir().unwrap();
    let program = SOURCE.to_owned() + MAIN;
    let shared = ["-shared", "-fPIC", "-O1"];
    check(&open(&cc(directory.path(), "lib.so", SOURCE, &shared), &[]));
    for (name, args) in [("pie", ["-O1", "-pie"]), ("fixed", ["-O1", "-no-pie"])] {
        check(&open(&cc(directory.path(), name, &program, &args), &[]));
    }
}

fn opened(path: &Path) -> Option<Elf> {
    let search = DebugSearch { process_root: None, object_path: None, debug_dirs: Vec::new() };
    Elf::open(path, "damaged", search).ok()
}

/// An object whose notes are damaged is still an object, and its notes are refused or read, never believed blindly.
#[test]
fn damaged() {
    let directory = tempfile::tempdir().unwrap();
    let path = cc(directory.path(), "lib.so", SOURCE, &["-shared", "-fPIC", "-O1"]);
    let whole = fs::read(&path).unwrap();
    let at = whole.windows(8).position(|bytes| bytes == b"stapsdt\0").unwrap() - 12;
    let damaged = directory.path().join("damaged");
    let mut refused = 0;
    for byte in at..at + 160 {
        for value in [0, 0x7f, 0xff, whole[byte] ^ 1] {
            let mut bytes = whole.clone();
            bytes[byte] = value;
            fs::write(&damaged, &bytes).unwrap();
            let elf = opened(&damaged).unwrap();
            refused += u32::from(elf.usdt("pool", "open").is_err());
            for note in elf.usdt_all() {
                let _ = note.semaphore.map(|at| elf.semaphore_offset(at));
                let _ = elf.file_offset(note.vaddr).map(|offset| elf.code_at(offset));
            }
            assert!(!elf.resolve("first").is_empty());
        }
    }
    assert!(refused > 20, "{refused} of these make notes that end nowhere");
}

//! Functions whose tables were written by hand, in assembly: the rule of each place is known.

use std::path::Path;

use drainprof_common::unwind::{SavedBp, kind};

use super::*;
use crate::{
    FrameSections,
    testing::{cc, open},
};

/// Each `place_N` is an address whose rule is known. The nop behind it lets a return address be looked up.
const FUNCTIONS: &str = r#"
__asm__(
    ".text\n"
    ".macro place name\n .globl place_\\name\n place_\\name: nop\n .endm\n"
    ".macro begin name\n .globl \\name\n .type \\name, @function\n \\name:\n .cfi_startproc\n .endm\n"
    ".macro end name\n .cfi_endproc\n .size \\name, . - \\name\n int3\n .endm\n"
    "begin plain\n place entry\n"
    " .cfi_def_cfa_offset 16\n .cfi_offset rbp, -16\n place pushed\n"
    " .cfi_def_cfa_register rbp\n place framed\n"
    " .cfi_remember_state\n .cfi_def_cfa rsp, 8\n .cfi_restore rbp\n place left\n"
    " .cfi_restore_state\n place again\n"
    " .cfi_def_cfa_offset 0x1000010\n place large\n"
    " .cfi_same_value rbp\n place same\n"
    "end plain\n"
    "begin outermost\n .cfi_undefined rip\n place outermost\nend outermost\n"
    "begin odd\n"
    " .cfi_def_cfa r10, 0\n place drap\n"
    " .cfi_def_cfa rsp, 8\n .cfi_register rbp, rbx\n place bp_in_rbx\n"
    " .cfi_same_value rbp\n .cfi_register rip, rdx\n place pc_in_rdx\n"
    " .cfi_offset rip, -16\n place pc_elsewhere\n"
    " .cfi_offset rip, -8\n .cfi_offset rbp, -80000\n place bp_far\n"
    /* rbp at breg6 0: DW_CFA_expression 6, 2 bytes */
    " .cfi_escape 0x10, 6, 2, 0x76, 0\n"
    /* CFA = *(rbp - 8): DW_CFA_def_cfa_expression, 3 bytes: breg6 -8; deref */
    " .cfi_escape 0x0f, 3, 0x76, 0x78, 6\n place aligned\n"
    /* rbp at CFA - 24: lit24; minus */
    " .cfi_escape 0x10, 6, 2, 0x48, 0x1c\n place bp_minus\n"
    /* rbp is (not: is saved at) breg6 8: DW_CFA_val_expression */
    " .cfi_escape 0x16, 6, 2, 0x76, 8\n place bp_value\n"
    /* CFA = rbx: DW_CFA_def_cfa_expression breg3 0 */
    " .cfi_same_value rbp\n .cfi_escape 0x0f, 2, 0x73, 0\n place rbx\n"
    "end odd\n"
    ".globl trampoline\n .type trampoline, @function\n trampoline:\n"
    " .cfi_startproc simple\n .cfi_signal_frame\n"
    /* CFA = *(rsp + 160) */
    " .cfi_escape 0x0f, 4, 0x77, 0xa0, 1, 6\n place signal\n"
    " .cfi_def_cfa rsp, 8\n .cfi_offset rip, -8\n place other_signal\n"
    "end trampoline\n"
    ".p2align 4\n .globl uncovered\n .type uncovered, @function\n uncovered: place uncovered\n .size uncovered, 1\n");
"#;

fn tables(path: &Path) -> Tables {
    Tables::new(FrameSections::read(std::fs::File::open(path).unwrap(), "object", 1 << 20).unwrap())
}

/// Checks the rule at each place.
fn check(dir: &Path, flags: &[&str]) {
    let all = [&["-shared", "-fPIC", "-nostdlib"], flags].concat();
    let path = cc(dir, "libhand.so", FUNCTIONS, &all);
    let (tables, elf) = (tables(&path), open(&path, &[]));
    let mut context = Context::default();
    let saved = SavedBp::AtCfa(-16);
    for (place, expected) in [
        ("entry", Rule::new(kind::SP, 8, SavedBp::Kept)),
        ("pushed", Rule::new(kind::SP, 16, saved)),
        ("framed", Rule::FRAME_POINTER),
        ("left", Rule::new(kind::SP, 8, SavedBp::Kept)),
        ("again", Rule::FRAME_POINTER),
        ("large", Rule::new(kind::BP, 0x100_0010, saved)),
        ("same", Rule::new(kind::BP, 0x100_0010, SavedBp::Kept)),
        ("outermost", Rule::START),
        ("drap", Rule::STOP),
        ("bp_in_rbx", Rule::STOP),
        ("pc_in_rdx", Rule::STOP),
        ("pc_elsewhere", Rule::STOP),
        ("bp_far", Rule::STOP),
        ("aligned", Rule::new(kind::BP_WORD, -8, SavedBp::AtBp(0))),
        ("bp_minus", Rule::new(kind::BP_WORD, -8, SavedBp::AtCfa(-24))),
        ("bp_value", Rule::STOP),
        ("rbx", Rule::STOP),
        ("signal", Rule::SIGNAL),
        ("other_signal", Rule::STOP),
    ] {
        let vaddr = elf.resolve(&format!("place_{place}"))[0].vaddr;
        assert_eq!(tables.rule(&mut context, vaddr, vaddr), Some(expected), "{place} {flags:?}");
        // As a return address: the byte before it counts.
        let found = tables.rule(&mut context, vaddr, vaddr + 1);
        assert_eq!(found, Some(expected), "{place} {flags:?}");
    }
    for place in ["place_uncovered", "trampoline", "plain", "outermost"] {
        let vaddr = elf.resolve(place)[0].vaddr;
        let before = if place == "place_uncovered" { vaddr } else { vaddr - 1 };
        assert_eq!(tables.rule(&mut context, before, vaddr), None, "before {place}");
    }
    for nowhere in [0, 1, u64::MAX, 1 << 40] {
        assert_eq!(tables.rule(&mut context, nowhere, nowhere), None);
    }
    assert_eq!(tables.functions().len(), 4);
    assert!(tables.size() > 500 && tables.size() < 4000, "{}", tables.size());
}

/// Each kind of row becomes the rule that it means, or none: by the linker's search table, by an index of
/// `.eh_frame`, without section headers, and by `.debug_frame`.
#[test]
fn rules_of_known_places() {
    let dir = tempfile::tempdir().unwrap();
    check(dir.path(), &[]);
    check(dir.path(), &["-Wl,--no-eh-frame-hdr"]);
    let debug = FUNCTIONS.replacen(".text\\n", ".text\\n.cfi_sections .debug_frame\\n", 1);
    let path = cc(dir.path(), "libdebug.so", &debug, &["-shared", "-fPIC", "-nostdlib"]);
    let found = tables(&path);
    assert!(found.eh.is_none());
    let vaddr = open(&path, &[]).resolve("place_framed")[0].vaddr;
    let mut context = Context::default();
    assert_eq!(found.rule(&mut context, vaddr, vaddr), Some(Rule::FRAME_POINTER));
    assert_eq!(found.functions().len(), 4);
}

/// An object whose section headers were removed has its tables by its segments.
#[test]
fn without_section_headers() {
    let dir = tempfile::tempdir().unwrap();
    let path = cc(dir.path(), "libhand.so", FUNCTIONS, &["-shared", "-fPIC", "-nostdlib"]);
    let vaddr = open(&path, &[]).resolve("place_pushed")[0].vaddr;
    let mut bytes = std::fs::read(&path).unwrap();
    // Where section headers are, how many, and which has their names.
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let bare = dir.path().join("bare.so");
    std::fs::write(&bare, bytes).unwrap();
    let found = tables(&bare);
    assert!(matches!(found.eh, Some(Eh { search: Search::Header(..), .. })));
    let rule = found.rule(&mut Context::default(), vaddr, vaddr);
    assert_eq!(rule, Some(Rule::new(kind::SP, 16, SavedBp::AtCfa(-16))));
}

/// Offsets of a file become addresses only within its code.
#[test]
fn offsets_of_code() {
    let dir = tempfile::tempdir().unwrap();
    let path = cc(dir.path(), "libhand.so", FUNCTIONS, &["-shared", "-fPIC", "-nostdlib"]);
    let (tables, elf) = (tables(&path), open(&path, &[]));
    let hit = &elf.resolve("place_pushed")[0];
    assert_eq!(tables.code_at(hit.file_offset.unwrap()), Some(hit.vaddr));
    for offset in [0, 1 << 40, u64::MAX] {
        assert_eq!(tables.code_at(offset), None);
    }
}

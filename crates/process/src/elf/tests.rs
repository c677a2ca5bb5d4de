use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use super::*;
use crate::testing::{ALLOCATOR, MAIN, cc, library, open, tool};

fn names(hits: &[SymbolHit]) -> Vec<&str> {
    hits.iter().map(|hit| hit.name.as_str()).collect()
}

/// A shared library gives its soname, build id, functions, data and aliases.
#[test]
fn shared_library() {
    let dir = tempfile::tempdir().unwrap();
    let elf = open(&library(dir.path(), "libpool.so.1", &[]), &[]);
    assert!(!elf.is_stripped());
    assert_eq!(elf.soname(), Some("libpool.so.1"));
    assert_eq!(elf.build_id().unwrap().len(), 40);

    let opened = &elf.resolve("pool_open")[0];
    assert_eq!((opened.kind, opened.global), (SymbolKind::Func, true));
    assert!(opened.size > 0);
    let offset = opened.file_offset.unwrap();
    assert_eq!(elf.code_at(offset).unwrap(), opened.vaddr);
    assert_eq!(elf.symbol_at(opened.vaddr + opened.size - 1).unwrap().vaddr, opened.vaddr);
    assert_eq!(elf.resolve("pool_make")[0].vaddr, opened.vaddr, "an alias");

    let helper = &elf.resolve("helper")[0];
    assert_eq!((helper.kind, helper.global), (SymbolKind::Func, false));
    let pool = &elf.resolve("the_pool")[0];
    assert_eq!(pool.kind, SymbolKind::Object);
    assert!(pool.file_offset.is_some());
    assert_eq!(elf.resolve("in_bss")[0].file_offset, None, "no bytes in the file");
    assert!(elf.resolve("pool").is_empty() && elf.resolve("").is_empty());
    assert!(elf.code_at(pool.file_offset.unwrap()).is_err(), "data is no code");
    assert!(elf.code_at(u64::MAX).unwrap_err().to_string().contains("no executable segment"));
}

/// The words that the dynamic linker sets to an address are found by name, with what the file has there.
#[test]
fn slots() {
    let dir = tempfile::tempdir().unwrap();
    let elf = open(&library(dir.path(), "libpool.so", &[]), &[]);
    let found = elf.slots(&[b"the_pool".to_vec(), b"nothing".to_vec()], None).unwrap();
    assert_eq!(found.len(), 1, "the library reaches its own variable through one slot");
    assert_eq!((found[0].initial, found[0].by_resolver), (Some(0), false));
    assert!(!elf.is_code(found[0].vaddr) && elf.file_offset(found[0].vaddr).is_some());
    assert!(elf.slots(&[b"the_poo".to_vec(), b"the_pool2".to_vec()], Some(0)).unwrap().is_empty());
    assert!(!elf.has_ifuncs());
}

/// Imported names are not taken for definitions.
#[test]
fn imports_do_not_resolve() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int puts(const char *);\nint main(void) { return puts(\"x\"); }";
    for args in [&["-no-pie"][..], &["-pie", "-fPIE"]] {
        let elf = open(&cc(dir.path(), "import", source, args), &[]);
        assert_eq!(elf.resolve("main").len(), 1);
        assert!(elf.resolve("puts").is_empty());
    }
}

/// An instruction that is nowhere else in a file marks a function.
const MARK: u64 = 0x1122_3344_5566_7788;

/// Where a program is linked to a fixed address, file offsets still come out right.
#[test]
fn fixed_address_and_static() {
    let dir = tempfile::tempdir().unwrap();
    let source = format!(
        "{ALLOCATOR}{MAIN}__attribute__((used)) void marked(void) \
         {{ __asm__ volatile(\".quad {MARK:#x}\"); }}\n"
    );
    for args in [
        &["-no-pie", "-nostdlib", "-O1"][..],
        &["-static", "-nostdlib", "-O1"],
        &["-static-pie", "-fPIE", "-nostdlib", "-O1"],
    ] {
        let path = cc(dir.path(), "program", &source, args);
        let elf = open(&path, &[]);
        let hit = &elf.resolve("marked")[0];
        let offset = hit.file_offset.unwrap();
        if args[0] != "-static-pie" {
            assert!(hit.vaddr >= 0x40_0000, "linked to an address");
            assert_ne!(hit.vaddr, offset);
        }
        let bytes = fs::read(&path).unwrap();
        let mark = bytes.windows(8).position(|window| window == MARK.to_le_bytes()).unwrap() as u64;
        assert!((offset..offset + hit.size).contains(&mark), "{mark:#x} in {hit:?}");
    }
}

/// A stripped object keeps its exported names; its debug file gives back the others, found by build
/// id or by debug link, and only if it proves itself.
#[test]
fn stripped_and_debug_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libpool.so", &["-g"]);
    let text = path.to_str().unwrap();
    let id = open(&path, &[]).build_id().unwrap().to_owned();
    let original = open(&path, &[]).resolve("helper")[0].vaddr;

    let debug = dir.path().join("libpool.so.debug");
    let debug_text = debug.to_str().unwrap();
    tool("objcopy", &["--only-keep-debug", text, debug_text]);
    tool("strip", &["--strip-unneeded", text]);

    let bare = open(&path, &[]);
    assert!(bare.is_stripped());
    assert_eq!(bare.resolve("pool_open").len(), 1, "it is exported");
    assert!(bare.resolve("helper").is_empty());
    assert!(
        bare.debug_tried().iter().any(|tried| tried.contains(&id[2..])),
        "says where it looked"
    );
    assert!(bare.offset_of("pool_t", "live").unwrap_err().contains("no debug information"));

    // By build id, in a directory that was named.
    let extra = dir.path().join("extra");
    let by_id = extra.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::create_dir_all(by_id.parent().unwrap()).unwrap();
    fs::copy(&debug, &by_id).unwrap();
    let found = open(&path, std::slice::from_ref(&extra));
    let helper = &found.resolve("helper")[0];
    assert_eq!(helper.vaddr, original);
    assert_eq!(helper.file_offset, bare.file_offset(original), "by the object's own segments");
    assert_eq!(found.debug_file(), Some(by_id.as_path()));
    assert!(found.offset_of("pool_t", "live").is_ok());

    // Another object's debug file under this build id is not taken.
    let other = library(dir.path(), "libother.so", &["-DX=1", "-O2"]);
    fs::copy(&other, &by_id).unwrap();
    let refused = open(&path, &[extra]);
    assert!(refused.resolve("helper").is_empty());
    assert!(
        refused.debug_tried().iter().any(|tried| tried.contains("build id")),
        "{:?}",
        refused.debug_tried()
    );

    // By debug link: beside the object, and below .debug.
    tool("objcopy", &[&format!("--add-gnu-debuglink={debug_text}"), text]);
    assert_eq!(open(&path, &[]).resolve("helper")[0].vaddr, original);
    fs::create_dir(dir.path().join(".debug")).unwrap();
    let below = dir.path().join(".debug/libpool.so.debug");
    fs::rename(&debug, &below).unwrap();
    assert_eq!(open(&path, &[]).debug_file(), Some(below.as_path()));

    // A file with another checksum is not taken.
    let mut bytes = fs::read(&below).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&below, bytes).unwrap();
    let refused = open(&path, &[]);
    assert!(refused.resolve("helper").is_empty());
    assert!(refused.debug_tried().iter().any(|tried| tried.contains("checksum")));
}

/// A debug file of another user, beside the object or in a directory that any user may write to, is not used: its symbols
/// would choose where probes go.
#[test]
fn debug_files_of_others() {
    const STRANGER: Option<u32> = Some(4242);
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libpool.so", &["-g", "-O2"]);
    let text = path.to_str().unwrap();
    let id = open(&path, &[]).build_id().unwrap().to_owned();
    let extra = dir.path().join("extra");
    let by_id = extra.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::create_dir_all(by_id.parent().unwrap()).unwrap();
    tool("objcopy", &["--only-keep-debug", text, by_id.to_str().unwrap()]);
    tool("strip", &["--strip-unneeded", text]);
    let named = std::slice::from_ref(&extra);
    let refused = |why: &str| {
        let found = open(&path, named);
        assert!(found.resolve("helper").is_empty() && found.offset_of("pool_t", "live").is_err());
        let tried = found.debug_tried().join(", ");
        assert!(tried.contains(why), "{why}: {tried}");
    };
    let is_taken = || !open(&path, named).resolve("helper").is_empty();
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    assert!(is_taken());
    chown(&by_id, STRANGER, None).unwrap();
    refused("belongs to user 4242");
    // The directory's owner has named it; a directory that any user may write to names no owner.
    chown(&extra, STRANGER, None).unwrap();
    assert!(is_taken());
    mode(&extra, 0o1777);
    refused("belongs to user 4242");
    mode(&extra, 0o755);
    chown(&extra, Some(0), None).unwrap();
    // Who owns the object may say what is in it.
    chown(&path, STRANGER, None).unwrap();
    assert!(is_taken());
    mode(&by_id, 0o666);
    refused("every user can write");
}

/// Versioned names resolve by their plain name, all versions of them.
#[test]
fn symbol_versions() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map");
    fs::write(&map, "V1 { global: grow; local: *; };\nV2 { global: grow; } V1;\n").unwrap();
    let source = "int old_grow(int x) { return x; }\nint new_grow(int x) { return x + 1; }\n\
                  __asm__(\".symver old_grow,grow@V1\");\n__asm__(\".symver new_grow,grow@@V2\");\n";
    let script = format!("-Wl,--version-script={}", map.display());
    let path = cc(dir.path(), "libv.so", source, &["-shared", "-fPIC", "-nostdlib", &script]);
    let hits = open(&path, &[]).resolve("grow");
    assert_eq!(names(&hits), ["grow", "grow"], "both versions");
    assert_ne!(hits[0].vaddr, hits[1].vaddr);
}

/// Functions that are chosen when loading are reported from functions.
#[test]
fn ifuncs() {
    let dir = tempfile::tempdir().unwrap();
    let source = "static int fast(int x) { return x; }\n\
                  static int (*choose(void))(int) { return fast; }\n\
                  int work(int) __attribute__((ifunc(\"choose\")));\n";
    let path = cc(dir.path(), "libi.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let elf = open(&path, &[]);
    assert_eq!(elf.resolve("work")[0].kind, SymbolKind::Ifunc);
    assert_eq!(elf.resolve("fast")[0].kind, SymbolKind::Func);
}

/// Copies of a function that the compiler made are found by the function's name, and only these.
#[test]
fn clones() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int a(void) __asm__(\"work.part.0\"); int a(void) { return 1; }\n\
                  int b(void) __asm__(\"work.constprop.0.isra.1\"); int b(void) { return 2; }\n\
                  int c(void) __asm__(\"work.other\"); int c(void) { return 3; }\n\
                  int d(void) __asm__(\"works.part.0\"); int d(void) { return 4; }\n";
    let path =
        cc(dir.path(), "libc.so", source, &["-shared", "-fPIC", "-nostdlib", "-fno-ipa-icf"]);
    let elf = open(&path, &[]);
    let mut found: Vec<String> = elf.clones("work").into_iter().map(|(hit, _)| hit.name).collect();
    found.sort();
    assert_eq!(found, ["work.constprop.0.isra.1", "work.part.0"]);
}

/// A `static` function of the same name does not hide the global one, nor is it taken for it.
#[test]
fn globals_hide_locals() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.c");
    fs::write(&other, "static __attribute__((used, noinline)) int work(void) { return 1; }\n")
        .unwrap();
    let source = "int work(void) { return 2; }\n";
    let args = ["-shared", "-fPIC", "-nostdlib", other.to_str().unwrap()];
    let elf = open(&cc(dir.path(), "libw.so", source, &args), &[]);
    let hits = elf.resolve("work");
    assert_eq!(hits.len(), 1);
    assert!(hits[0].global);
}

/// Demangled patterns find functions of both languages, with parameters or without, and no data.
#[test]
fn demangled() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int a(void) __asm__(\"_ZN4pool4openEi\"); int a(void) { return 1; }\n\
                  int b(void) __asm__(\"_ZN4pool5closeEv\"); int b(void) { return 2; }\n\
                  int c(void) __asm__(\"_ZN5arena4Pool5reset17h0123456789abcdefE\"); int c(void) { return 3; }\n\
                  int d __asm__(\"_ZN4pool4dataE\") = 4;\n";
    let path = cc(dir.path(), "libd.so", source, &["-shared", "-fPIC", "-nostdlib"]);
    let elf = open(&path, &[]);
    let find = |glob: &str| names(&elf.resolve_demangled(glob).unwrap()).join(" ");
    assert_eq!(find("pool::open"), "_ZN4pool4openEi");
    assert_eq!(find("pool::open(int)"), "_ZN4pool4openEi");
    assert_eq!(elf.resolve_demangled("pool::*").unwrap().len(), 2);
    assert_eq!(find("arena::Pool::reset*"), "_ZN5arena4Pool5reset17h0123456789abcdefE");
    assert_eq!(find("pool::drop"), "");
    assert!(elf.resolve_demangled("x{").is_err());
}

/// Member offsets agree with the compiler's, through unions, anonymous members, arrays and typedefs,
/// with every kind of section compression and version of DWARF.
#[test]
fn member_offsets() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["-gdwarf-5"][..],
        &["-gdwarf-4"],
        &["-gdwarf-5", "-gz=zlib"],
        &["-gdwarf-4", "-fdebug-types-section"],
        &["-gdwarf-5", "-fdebug-types-section"],
    ] {
        let elf = open(&library(dir.path(), "libg.so", args), &[]);
        let types = elf.types().unwrap();
        let offset = |name: &str, field: &str| types.offset_of(name, field);
        for name in ["struct pool", "pool_t", "pool", "pool_alias"] {
            assert_eq!(offset(name, "live"), Ok(0x44), "{args:?} {name}");
            assert_eq!(offset(name, "next"), Ok(0x48), "{args:?} {name}");
        }
        assert_eq!(offset("pool_t", "d"), Ok(8));
        assert_eq!(offset("pool_t", "d.nested"), Ok(0x10));
        assert_eq!(
            offset("pool_t", "d.nested.high"),
            Ok(0x1c),
            "through an array and an anonymous union"
        );
        assert_eq!(offset("struct inner", "whole"), Ok(8));
        assert!(offset("pool_t", "bits").unwrap_err().contains("bit field"));
        assert!(offset("pool_t", "gone").unwrap_err().contains("no member `gone`"));
        assert!(offset("pool_t", "live.x").unwrap_err().contains("no member `x`"));
        assert!(offset("union pool", "live").unwrap_err().contains("no type"));
        assert!(offset("nothing", "live").unwrap_err().contains("no type `nothing`"));
        let integers = types.integers_of("pool_t").unwrap();
        let live = integers.iter().find(|member| member.name == "live");
        assert_eq!(live.map(|member| member.bytes), Some(4), "{args:?}: {integers:?}");
        assert!(integers.iter().all(|member| !["bits", "next", "d"].contains(&&*member.name)));
        assert!(types.integers_of("nothing").unwrap_err().contains("no type `nothing`"));
        assert!(offset("pool_t", "").is_err() && offset("pool_t", "d..x").is_err());
    }
}

/// Types of one name that differ are not guessed between.
#[test]
fn ambiguous_types() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.c");
    fs::write(&other, "struct s { long x; int y; int both; }; struct s two;\n").unwrap();
    let source =
        "struct s { int y; int z; long both; }; struct s one; struct fwd; struct fwd *p;\n";
    let args = ["-shared", "-fPIC", "-nostdlib", "-g", other.to_str().unwrap()];
    let elf = open(&cc(dir.path(), "liba.so", source, &args), &[]);
    assert!(elf.offset_of("struct s", "y").unwrap_err().contains("disagree"));
    assert_eq!(elf.offset_of("struct s", "z"), Ok(4), "only one has it");
    assert!(elf.offset_of("struct fwd", "x").unwrap_err().contains("not defined"));
}

/// C++ namespaces, classes and base classes are looked through.
#[test]
fn cpp_types() {
    let dir = tempfile::tempdir().unwrap();
    let source = "namespace ns { struct Base { long b; }; class Derived : public Base { public: int own; \
                  struct Inner { char c; short s; } in; }; struct Virt : virtual Base { int v; };\n\
                  template <class T, unsigned long N> struct Arena { T head; struct Slot { int a, b; } slots[N]; \
                  long refs; }; }\n\
                  ns::Derived d; ns::Virt v; ns::Arena<ns::Base, 16> a; ns::Arena<ns::Arena<ns::Base, 2>, 1> n;\n";
    let args = ["-x", "c++", "-shared", "-fPIC", "-nostdlib", "-g"];
    let input = dir.path().join("in.cpp");
    fs::write(&input, source).unwrap();
    let path = dir.path().join("libcpp.so");
    let mut all: Vec<&str> = args.to_vec();
    all.extend([input.to_str().unwrap(), "-o", path.to_str().unwrap()]);
    if std::process::Command::new("cc")
        .args(["-x", "c++", "-E", "/dev/null"])
        .output()
        .is_ok_and(|o| !o.status.success())
    {
        // A C compiler without C++.
        return;
    }
    tool("cc", &all);
    let types = open(&path, &[]).types().unwrap();
    assert_eq!(types.offset_of("ns::Derived", "own"), Ok(8));
    assert_eq!(types.offset_of("class ns::Derived", "b"), Ok(0), "of the base class");
    assert_eq!(types.offset_of("ns::Derived", "in.s"), Ok(14));
    assert_eq!(types.offset_of("ns::Derived::Inner", "s"), Ok(2));
    assert!(types.offset_of("Derived", "own").is_err(), "without its namespace it is another name");
    assert!(types.offset_of("ns::Virt", "b").unwrap_err().contains("virtual base"));
    // Template arguments have namespaces, commas and spaces of their own.
    for name in ["ns::Arena<ns::Base, 16>", "struct ns::Arena< ns::Base,16 >"] {
        assert_eq!(types.offset_of(name, "refs"), Ok(8 + 16 * 8), "{name}");
    }
    assert_eq!(types.offset_of("ns::Arena<ns::Base, 16>::Slot", "b"), Ok(4));
    let nested = "ns::Arena<ns::Arena<ns::Base, 2>, 1>";
    assert_eq!(types.offset_of(nested, "refs"), Ok(8 + 2 * 8 + 8 + 8));
    assert!(types.offset_of("ns::Arena<ns::Base, 1 6>", "refs").is_err(), "another argument");
}

/// What is no ELF file, no regular file, or not there is distinguished.
#[test]
fn unreadable_files() {
    let dir = tempfile::tempdir().unwrap();
    let try_open = |path: &Path| Elf::open(path, "it", DebugSearch::default()).unwrap_err();
    let text = dir.path().join("text");
    fs::write(&text, "#!/bin/sh\n").unwrap();
    assert!(matches!(try_open(&text), ElfError::NotElf { .. }));
    let fifo = dir.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(try_open(&fifo).to_string().contains("regular"), "and it does not wait for a writer");
    assert!(try_open(&PathBuf::from("/dev/zero")).to_string().contains("regular"));
    assert!(matches!(try_open(&dir.path().join("gone")), ElfError::Read { .. }));
    let sparse = dir.path().join("sparse");
    File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert!(try_open(&sparse).to_string().contains("larger"));
}

/// Code is read from the file, function by function and as a whole, within bounds.
#[test]
fn code() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libpool.so", &[]);
    let elf = open(&path, &[]);
    let file = fs::read(&path).unwrap();
    let hit = &elf.resolve("pool_open")[0];
    let symbols = elf.code_symbols();
    assert!(symbols.contains(&(hit.vaddr, hit.size)), "an alias is one with it");
    assert!(symbols.windows(2).all(|pair| pair[0].0 < pair[1].0));
    let at = usize::try_from(hit.file_offset.unwrap()).unwrap();
    let code = elf.code().unwrap();
    assert_eq!(code.read(hit.vaddr, 8).unwrap(), file[at..at + 8]);
    let data = elf.resolve("the_pool")[0].vaddr;
    assert!(code.read(data, 8).unwrap().is_empty(), "data is no code");
    let all = code.read_all(1 << 20).unwrap();
    let (start, bytes) = all
        .iter()
        .find(|(start, bytes)| (*start..start + bytes.len() as u64).contains(&hit.vaddr))
        .unwrap();
    let into = usize::try_from(hit.vaddr - start).unwrap();
    assert_eq!(bytes[into..into + 8], file[at..at + 8]);
    assert_eq!(code.read(hit.vaddr, usize::MAX).unwrap().len(), bytes.len() - into, "to the end");
    assert!(code.read_all(8).unwrap_err().to_string().contains("more than is searched"));
    fs::write(&path, &file[..at]).unwrap();
    assert!(elf.code().unwrap_err().to_string().contains("beyond the end"));
}

/// Executables of other machines are recognised by their first bytes.
#[test]
fn foreign_executables() {
    let mut head = [0_u8; 20];
    head.copy_from_slice(&fs::read("/proc/self/exe").unwrap()[..20]);
    assert_eq!(read::foreign(&head), None);
    let with = |at: usize, value: u8| {
        let mut changed = head;
        changed[at] = value;
        read::foreign(&changed).unwrap()
    };
    assert!(with(0, b'#').contains("no ELF"));
    assert!(with(4, 1).contains("32-bit"));
    assert!(with(5, 2).contains("big-endian"));
    assert!(with(18, 0xf3).contains("243"), "RISC-V");
}

//! Code without unwind tables in its place: frame pointers, debug files, generated code, probed returns; and
//! snapshots that end too early.

use drainprof_common::unwind::{MAX_PATH, Rule};

use super::*;
use crate::PathEnd;

const CHAIN: &str = "
    NOINLINE int deep(int n) { volatile char pad[40]; pad[0] = 1; int r = n ? deep(n - 1) : capture(); KEEP; return r + pad[0]; }
    NOINLINE int middle(int n) { int r = deep(n); KEEP; return r; }
    int main(int n, char **v) { return middle(2) + 1; }";
const NAMES: [&str; 6] = ["deep", "deep", "deep", "middle", "main", "_start"];
const NO_TABLES: [&str; 4] =
    ["-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-optimize-sibling-calls"];

fn compiled(source: &str, flags: &[&str]) -> (tempfile::TempDir, Stopped) {
    let dir = tempfile::tempdir().unwrap();
    let all = [&NO_TABLES[..], flags].concat();
    let stopped = Stopped::compiled(dir.path(), "cc", source, &all);
    (dir, stopped)
}

/// A return address in code without tables, and the frame behind it: `capture` itself cannot be unwound here,
/// since it is interrupted.
fn in_deep(stopped: &Stopped) -> Cursor {
    // `capture` has a frame pointer: its caller's frame is behind it.
    let mut at = Cursor { interrupted: 0, ..stopped.start };
    let step =
        drainprof_common::unwind::advance(Rule::FRAME_POINTER, &mut at, &mut stopped.snapshot());
    assert_eq!(step, drainprof_common::unwind::step::CALLER);
    at
}

fn walk_from(stopped: &Stopped, start: Cursor) -> Walk {
    let mut unwinder = Unwinder::new(UnwinderOptions::default());
    unwinder.meet(1, stopped.pid()).unwrap();
    unwinder.unwind(1, &Snapshot { start, ..stopped.snapshot() })
}

/// Functions with a frame pointer and no tables are unwound by it, and libc behind them by its tables.
#[test]
fn frame_pointers() {
    let (_dir, stopped) = compiled(CHAIN, &["-fno-omit-frame-pointer"]);
    let start = in_deep(&stopped);
    let walk = walk_from(&stopped, start);
    assert_eq!(walk.end, PathEnd::Start);
    assert_eq!(stopped.names(&walk), NAMES[1..]);
    let guessed = walk.rules.iter().filter(|(_, rule)| *rule == Rule::FRAME_POINTER).count();
    assert_eq!(guessed, 5, "deep three times, middle, main");
    // An interrupted frame is not judged by its frame pointer: it may not be set up yet.
    let walk = stopped.walk();
    assert_eq!((walk.end, walk.addresses.len()), (PathEnd::NoUnwindInfo, 0));
    assert_eq!(walk.rules[0].1, Rule::STOP);
}

/// Without frame pointers there is no path, and none is made up.
#[test]
fn neither_tables_nor_frame_pointers() {
    let (_dir, stopped) = compiled(CHAIN, &["-fomit-frame-pointer"]);
    let start = Cursor { interrupted: 0, ..stopped.start };
    for bp in [0, 1, start.sp - 8, start.sp + 4, start.sp + (64 << 20), u64::MAX - 7] {
        let walk = walk_from(&stopped, Cursor { bp, ..start });
        assert_eq!((walk.end, walk.addresses.len()), (PathEnd::NoUnwindInfo, 0), "{bp:x}");
        assert_eq!(walk.rules.len(), 1);
        assert_eq!(walk.rules[0].1, Rule::STOP);
    }
}

/// Tables for debuggers alone are used, in the object and in its debug file.
#[test]
fn tables_for_debuggers() {
    let (dir, stopped) = compiled(CHAIN, &["-fomit-frame-pointer", "-g"]);
    let walk = stopped.walk();
    assert_eq!(
        (stopped.names(&walk), walk.end),
        (NAMES.map(String::from).to_vec(), PathEnd::Start)
    );

    let whole = stopped.path.to_str().unwrap();
    let debug = dir.path().join("split.debug");
    let split = dir.path().join("split");
    tool("objcopy", &["--only-keep-debug", whole, debug.to_str().unwrap()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &["--strip-debug", &link, whole, split.to_str().unwrap()]);
    let stopped = Stopped::run(&split);
    let walk = stopped.walk();
    assert_eq!(
        (stopped.names(&walk), walk.end),
        (NAMES.map(String::from).to_vec(), PathEnd::Start)
    );
    drop(stopped);
    fs::remove_file(debug).unwrap();
    let walk = Stopped::run(&split).walk();
    assert_eq!((walk.addresses.len(), walk.end), (0, PathEnd::NoUnwindInfo));
}

const GENERATED: &str = "
    #include <sys/mman.h>
    int main(int n, char **v) {
        unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(code, CODE, sizeof CODE);
        int r = ((int (*)(int (*)(void)))code)(capture); KEEP;
        return r;
    }";

/// Generated code with a frame pointer is passed, other generated code ends the path.
#[test]
fn generated_code() {
    let dir = tempfile::tempdir().unwrap();
    // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
    let with = "#define CODE \"\\x55\\x48\\x89\\xe5\\xff\\xd7\\x5d\\xc3\"\n";
    let stopped = Stopped::compiled(dir.path(), "cc", &format!("{with}{GENERATED}"), &["-O2"]);
    let walk = stopped.walk();
    assert_eq!(
        (stopped.names(&walk), walk.end),
        (vec!["main".into(), "_start".into()], PathEnd::Start)
    );
    assert_eq!(walk.rules[1].1, Rule::FRAME_POINTER);
    drop(stopped);
    // sub rsp, 8; call rdi; add rsp, 8; ret
    let without = "#define CODE \"\\x48\\x83\\xec\\x08\\xff\\xd7\\x48\\x83\\xc4\\x08\\xc3\"\n";
    let stopped = Stopped::compiled(dir.path(), "cc", &format!("{without}{GENERATED}"), &["-O2"]);
    let walk = stopped.walk();
    assert_eq!((walk.addresses.len(), walk.end), (1, PathEnd::NoUnwindInfo));
    assert_eq!(walk.rules[1].1, Rule::STOP);
}

/// The return from a signal handler is known by its instructions where no table describes it.
#[test]
fn signal_returns_without_tables() {
    let source = "
        #include <sys/syscall.h>
        __asm__(\".text\\n.p2align 4\\nnop\\nback: mov $15, %rax\\nsyscall\\n\");
        extern char back[];
        struct { void (*handler)(int); unsigned long flags; void *back; unsigned long mask; } action;
        static void handler(int s) { capture(); KEEP; }
        int main(void) {
            action.handler = handler; action.flags = 0x04000000; action.back = back;
            syscall(SYS_rt_sigaction, SIGUSR1, &action, 0, 8);
            int r = raise(SIGUSR1); KEEP;
            return r;
        }";
    let dir = tempfile::tempdir().unwrap();
    let stopped = Stopped::compiled(dir.path(), "cc", source, &["-O2", "-fomit-frame-pointer"]);
    let walk = stopped.walk();
    assert_eq!(stopped.names(&walk), ["handler", "main", "_start"]);
    assert_eq!(walk.end, PathEnd::Start);
    assert!(walk.rules.iter().any(|(_, rule)| *rule == Rule::SIGNAL));
}

fn plain_chain() -> (tempfile::TempDir, Stopped) {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let stopped = Stopped::compiled(dir.path(), "cc", CHAIN, &flags);
    (dir, stopped)
}

/// Return addresses that the kernel has replaced are put back; where they are not known, the path ends and no
/// rule is learnt.
#[test]
fn probed_returns() {
    let (_dir, mut stopped) = plain_chain();
    let whole = stopped.walk();
    let real = whole.addresses[2];
    let base = stopped.start.sp;
    let at = stopped.bytes.chunks_exact(8).position(|word| word == real.to_le_bytes());
    // `deep` returns to itself twice: the first such word is that of the second address.
    let slot = at.unwrap() * 8;
    let slots: Vec<usize> = (0..stopped.bytes.len() / 8)
        .filter(|index| stopped.bytes[index * 8..][..8] == real.to_le_bytes())
        .collect();
    assert!(slots.contains(&(slot / 8)) && slots.len() >= 2);
    let page = 0x5555_0000_0000;
    let known: Vec<(u64, u64)> =
        slots.iter().map(|index| (base + *index as u64 * 8, real)).collect();
    for index in &slots {
        stopped.bytes[index * 8..][..8].copy_from_slice(&u64::to_le_bytes(page));
    }
    let mut unwinder = Unwinder::new(UnwinderOptions::default());
    unwinder.meet(1, stopped.pid()).unwrap();
    let with = Snapshot { returns: &known, ..stopped.snapshot() };
    assert_eq!(unwinder.unwind(1, &with), whole, "the page may be younger than our look");
    unwinder.add_probe_page(1, page);
    assert_eq!(unwinder.unwind(1, &with), whole);
    let without = unwinder.unwind(1, &stopped.snapshot());
    assert_eq!(without.end, PathEnd::NoUnwindInfo);
    assert_eq!(without.addresses, whole.addresses[..1]);
    assert_eq!(without.rules, whole.rules[..2]);
}

/// A snapshot that ends too early gives the path as far as it goes, and says so; the rules hold all the same.
#[test]
fn short_snapshots() {
    let (_dir, stopped) = plain_chain();
    let whole = stopped.walk();
    for length in [0, 1, 8, 64, 200, 500] {
        let bytes = &stopped.bytes[..length];
        let mut unwinder = Unwinder::new(UnwinderOptions::default());
        unwinder.meet(1, stopped.pid()).unwrap();
        let walk = unwinder.unwind(1, &Snapshot { bytes, ..stopped.snapshot() });
        assert!(whole.addresses.starts_with(&walk.addresses), "{length}");
        assert!(whole.rules.starts_with(&walk.rules), "{length}");
        let is_whole = walk.addresses.len() == whole.addresses.len();
        assert_eq!(walk.end, if is_whole { PathEnd::Start } else { PathEnd::Unreadable });
        assert!(length > 8 || walk.addresses.is_empty());
    }
}

/// A library that is opened after the mappings were read is unwound through; one that is closed has moved.
#[test]
fn libraries_opened_later() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = "int through(int (*f)(void)) { int r = f(); __asm__(\"\"); return r + 1; }";
    let plugin = crate::testing::cc(dir.path(), "plugin.so", plugin, &["-shared", "-fPIC", "-O2"]);
    let source = "
        #include <dlfcn.h>
        NOINLINE int first(void) { int r = capture(); KEEP; return r; }
        int main(int n, char **v) {
            first();
            void *library = dlopen(PLUGIN, RTLD_NOW);
            int r = ((int (*)(int (*)(void)))dlsym(library, \"through\"))(capture);
            dlclose(library);
            return first() + r;
        }";
    // A line of input ends a `capture`.
    let source = format!("#define PLUGIN \"{}\"\n{source}", plugin.display());
    let flags = ["-O2", "-ldl", "-DUNTIL_LINE"];
    let mut stopped = Stopped::compiled(dir.path(), "cc", &source, &flags);
    let mut unwinder = Unwinder::new(UnwinderOptions::default());
    unwinder.meet(1, stopped.pid()).unwrap();
    let first = unwinder.unwind(1, &stopped.snapshot());
    assert_eq!(
        (stopped.names(&first), first.end),
        (vec!["first".into(), "main".into(), "_start".into()], PathEnd::Start)
    );

    stopped.go_on();
    // The mappings are not read again at once: in between, the path is not decided.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let second = loop {
        let walk = unwinder.unwind(1, &stopped.snapshot());
        if walk.end != PathEnd::Unreadable || std::time::Instant::now() > until {
            break walk;
        }
        assert!(walk.addresses.is_empty());
        std::thread::yield_now();
    };
    assert_eq!((second.addresses.len(), second.end), (first.addresses.len(), PathEnd::Start));
    assert_eq!(second.addresses[2..], first.addresses[2..]);
    assert!(!unwinder.take_moved(1));

    stopped.go_on();
    unwinder.meet(1, stopped.pid()).unwrap();
    assert!(unwinder.take_moved(1));
    assert_eq!(unwinder.unwind(1, &stopped.snapshot()).end, PathEnd::Start);
}

/// A deep recursion is followed as far as paths go.
#[test]
fn deep_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let source = CHAIN.replace("middle(2)", "middle(500)");
    let flags = ["-O2", "-fno-optimize-sibling-calls"];
    let walk = Stopped::compiled(dir.path(), "cc", &source, &flags).walk();
    assert_eq!((walk.addresses.len(), walk.end), (MAX_PATH, PathEnd::TooDeep));
}

/// Addresses in no memory, spaces that are not known, processes that have ended: no rule and no panic. Mappings
/// are read again once an address is not found.
#[test]
fn unknown_places() {
    let (_dir, stopped) = plain_chain();
    let mut unwinder = Unwinder::new(UnwinderOptions::default());
    let nowhere = unwinder.unwind(1, &stopped.snapshot());
    assert_eq!((nowhere.rules.len(), nowhere.end), (0, PathEnd::NoUnwindInfo));
    assert!(unwinder.meet(1, 0x7fff_fff0).is_err());
    unwinder.meet(1, stopped.pid()).unwrap();
    unwinder.meet(1, stopped.pid()).unwrap();
    assert!(!unwinder.take_moved(1));
    for pc in [1, 2, 0x1000, u64::MAX, 1 << 47, 0x5555_0000_0000] {
        let start = Cursor { pc, ..stopped.start };
        let walk = unwinder.unwind(1, &Snapshot { start, ..stopped.snapshot() });
        assert!(walk.addresses.is_empty() && !walk.starts_in_code, "{pc:x}");
        assert!(walk.rules.iter().all(|(_, rule)| *rule == Rule::NO_CODE), "{pc:x}");
        // Mappings are not read again at once: until then it is not decided.
        let decided = walk.end == PathEnd::NoUnwindInfo && (0x1000..1 << 47).contains(&pc);
        assert_eq!(walk.rules.len(), usize::from(decided), "{pc:x}");
        assert_eq!(unwinder.rule(1, &start), Rule::UNKNOWN);
    }
    // Stacks that programs make themselves begin with a return address of 0.
    let start = Cursor { pc: 0, interrupted: 0, ..stopped.start };
    let walk = unwinder.unwind(1, &Snapshot { start, ..stopped.snapshot() });
    assert_eq!((walk.end, walk.rules[0].1), (PathEnd::Start, Rule::START));
    // A call to nowhere that a signal interrupts is no such stack.
    let start = Cursor { interrupted: 1, ..start };
    let walk = unwinder.unwind(1, &Snapshot { start, ..stopped.snapshot() });
    assert_eq!((walk.end, walk.rules.len()), (PathEnd::NoUnwindInfo, 0));
    // Another process under the same number: all of it is new.
    let (_other_dir, other) = plain_chain();
    unwinder.meet(1, other.pid()).unwrap();
    unwinder.meet(1, other.pid()).unwrap();
    assert!(unwinder.take_moved(1) && !unwinder.take_moved(1));
    assert_eq!(unwinder.unwind(1, &other.snapshot()).end, PathEnd::Start);
    // A process that has ended is unwound by what is known of it.
    let snapshot_bytes = other.bytes.clone();
    let snapshot = Snapshot { bytes: &snapshot_bytes, ..other.snapshot() };
    let before = unwinder.unwind(1, &snapshot);
    let (start, base) = (snapshot.start, snapshot.base);
    drop(other);
    let after = Snapshot { start, base, bytes: &snapshot_bytes, returns: &[] };
    assert_eq!(unwinder.unwind(1, &after), before);
    unwinder.forget(1);
    assert!(unwinder.code_ranges(1).is_empty());
}

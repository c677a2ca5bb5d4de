//! Compiled programs, and this one: whole paths, compared with the source and with another unwinder.

use std::arch::asm;

use drainprof_common::unwind::{Rule, kind};

use super::*;
use crate::PathEnd;

/// No frame pointers; and calls stay calls, so that the paths are those of the source.
const PLAIN: &[&str] =
    &["-O2", "-fomit-frame-pointer", "-fasynchronous-unwind-tables", "-fno-optimize-sibling-calls"];

/// The path of a program in `capture` is whole, and has these functions of its own.
fn check_names(stopped: &Stopped, names: &[&str]) -> Walk {
    let walk = stopped.walk();
    let found: Vec<String> = stopped.names(&walk).iter().map(|name| plain_name(name)).collect();
    assert_eq!(found, names, "{:x?}", walk.addresses);
    assert_eq!(walk.end, PathEnd::Start);
    walk
}

/// The same of a program in C; and another unwinder finds the same addresses.
fn check(source: &str, flags: &[&str], names: &[&str]) -> Walk {
    let dir = tempfile::tempdir().unwrap();
    let stopped = Stopped::compiled(dir.path(), "cc", source, flags);
    let walk = check_names(&stopped, names);
    assert_eq!(framehop(stopped.pid(), &stopped.snapshot()), walk.addresses);
    walk
}

/// The same of a program whose tables the other unwinder does not know: expressions that read memory.
fn check_alone(source: &str, names: &[&str]) -> Walk {
    let dir = tempfile::tempdir().unwrap();
    check_names(&Stopped::compiled(dir.path(), "cc", source, PLAIN), names)
}

/// Frames without frame pointers, deep ones too, lead through libc to the program's start.
#[test]
fn without_frame_pointers() {
    let source = "
        NOINLINE int deep(int n) { int r = n ? deep(n - 1) : capture(); KEEP; return r + 1; }
        NOINLINE int middle(char *s) { char b[100]; strcpy(b, s); KEEP; return deep(3) + b[0]; }
        int main(int n, char **v) { return middle(v[0]); }";
    let names = ["deep", "deep", "deep", "deep", "middle", "main", "_start"];
    let walk = check(source, PLAIN, &names);
    // One of them lies in libc, between `main` and `_start`, or two.
    assert!(walk.addresses.len() > names.len());
    assert_eq!(walk.rules.len(), walk.addresses.len() + 1);
    assert_eq!(walk.rules.last().unwrap().1, Rule::START);
    check(source, &["-O0", "-no-pie", "-Wl,--no-eh-frame-hdr"], &names);

    // In a static program libc's functions are its own.
    let dir = tempfile::tempdir().unwrap();
    let stopped = Stopped::compiled(dir.path(), "cc", source, &[PLAIN, &["-static"]].concat());
    let walk = stopped.walk();
    let found = stopped.names(&walk);
    assert!(found.iter().zip(&names[..6]).all(|(one, other)| one == other), "{found:?}");
    assert_eq!((found.last().map(String::as_str), walk.end), (Some("_start"), PathEnd::Start));
    assert_eq!(found.len(), walk.addresses.len());
}

/// A call that is the last instruction of its function belongs to that function.
#[test]
fn last_call_of_a_function() {
    let source = "
        NOINLINE __attribute__((noreturn)) void last(void) { capture(); _exit(0); }
        NOINLINE __attribute__((noreturn)) void caller(int n) { if (n) last(); last(); }
        NOINLINE int behind(void) { return 7; }
        int main(int n, char **v) { caller(n - 1); }";
    check(source, PLAIN, &["last", "caller", "main", "_start"]);
}

/// A function that aligns its stack, with the callers behind it.
#[test]
fn aligned_stacks() {
    let source = "
        NOINLINE int aligned(int n) {
            ALIGNED volatile char buffer[64];
            volatile char *more = (volatile char *)alloca(n);
            buffer[0] = more[0] = 1;
            int r = capture(); KEEP;
            return r + buffer[0] + more[0];
        }
        NOINLINE int middle(int n) { int r = aligned(n * 100); KEEP; return r; }
        int main(int n, char **v) { return middle(n); }";
    let walk = check_alone(source, &["aligned", "middle", "main", "_start"]);
    // GCC describes it by memory, clang by the frame pointer.
    let kinds: Vec<u64> = walk.rules.iter().map(|(_, rule)| rule.kind()).collect();
    assert!(kinds.contains(&kind::BP_WORD) || kinds.contains(&kind::BP), "{kinds:?}");
}

/// A signal handler's frame leads to the instruction that was interrupted, and on from there.
#[test]
fn signal_handlers() {
    let source = "
        static void handler(int s) { capture(); KEEP; }
        NOINLINE int middle(void) { int r = raise(SIGUSR1); KEEP; return r; }
        int main(void) { signal(SIGUSR1, handler); return middle(); }";
    let walk = check_alone(source, &["handler", "middle", "main", "_start"]);
    assert!(walk.rules.iter().any(|(_, rule)| *rule == Rule::SIGNAL));
    // Interrupted at its first instruction, which is a function's first: the byte before is another's.
    let source = "
        static void handler(int s) { capture(); KEEP; }
        NOINLINE int middle(void) { __asm__ volatile(\"mov 0, %%eax\" ::: \"eax\"); return 1; }
        int main(void) { signal(SIGSEGV, handler); return middle() + 1; }";
    check_alone(source, &["handler", "middle", "main", "_start"]);
}

/// A callback that libc calls, and a thread, whose path ends where the thread began.
#[test]
fn through_libc() {
    let source = "
        static int compare(const void *a, const void *b) { static int once; if (!once++) capture(); KEEP; return 0; }
        NOINLINE int middle(void) { int x[9] = {3, 1, 2}; qsort(x, 9, sizeof x[0], compare); KEEP; return x[0]; }
        int main(void) { return middle() + 1; }";
    check(source, PLAIN, &["compare", "middle", "main", "_start"]);
    let source = "
        static void *body(void *p) { capture(); KEEP; return p; }
        int main(void) { pthread_t t; pthread_create(&t, 0, body, 0); pthread_join(t, 0); return 0; }";
    let walk = check(source, PLAIN, &["body"]);
    assert_eq!(walk.addresses.len(), 3, "body, then libc's start_thread and clone3");
}

/// C++: a destructor that runs while an exception passes its function, and a handler that catches it.
#[test]
fn exceptions() {
    let source = "
        struct Guard { NOINLINE ~Guard() { capture(); KEEP; } };
        NOINLINE void thrower(int n) { if (n) throw n; }
        NOINLINE int guarded(int n) { Guard guard; thrower(n); KEEP; return n; }
        NOINLINE int catches(int n) { try { return guarded(n); } catch (int caught) { KEEP; return caught; } }
        int main(int n, char **v) { return catches(n) + 1; }";
    check_cpp(source, &["~Guard", "guarded", "catches", "main", "_start"]);
    let source = "
        NOINLINE void thrower(int n) { if (n) throw n; }
        NOINLINE int catches(int n) { try { thrower(n); } catch (int caught) { n += capture(); KEEP; } return n; }
        int main(int n, char **v) { return catches(n) + 1; }";
    check_cpp(source, &["catches", "main", "_start"]);
}

fn check_cpp(source: &str, names: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let stopped = Stopped::compiled(dir.path(), "c++", source, PLAIN);
    let walk = check_names(&stopped, names);
    assert_eq!(framehop(stopped.pid(), &stopped.snapshot()), walk.addresses);
}

/// `_Z7catchesi` → `catches`.
fn plain_name(mangled: &str) -> String {
    if mangled.contains("GuardD") {
        return "~Guard".to_owned();
    }
    let Some(rest) = mangled.strip_prefix("_Z") else { return mangled.to_owned() };
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let length: usize = rest[..rest.len() - name.len()].parse().unwrap();
    name[..length].to_owned()
}

#[inline(never)]
fn own_stack() -> (Cursor, Vec<u8>) {
    let (pc, sp, bp): (u64, u64, u64);
    // SAFETY: only reads registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) bp);
    }
    (Cursor { pc, sp, bp, interrupted: 1 }, stack(std::process::id(), sp, 256 << 10))
}

#[expect(clippy::inline_always, reason = "what is shown is a function without a frame")]
#[inline(always)]
fn inlined(depth: u32) -> (Cursor, Vec<u8>) {
    // The optimiser may neither unroll the calls nor make a loop of them: each is to have its frame.
    let call: fn(u32) -> (Cursor, Vec<u8>) = std::hint::black_box(recursive);
    if depth == 0 { own_stack() } else { std::hint::black_box(call(depth - 1)) }
}

#[inline(never)]
fn recursive(depth: u32) -> (Cursor, Vec<u8>) {
    let found = [depth].iter().map(|depth| inlined(*depth)).next().unwrap();
    std::hint::black_box(found)
}

/// This test itself: Rust, with closures and inlined functions, down to the start of its thread.
#[test]
fn myself() {
    let (start, bytes) = recursive(20);
    let snapshot = Snapshot { start, base: start.sp, bytes: &bytes, returns: &[] };
    let mut unwinder = Unwinder::new(UnwinderOptions::default());
    unwinder.meet(1, std::process::id()).unwrap();
    let walk = unwinder.unwind(1, &snapshot);
    assert_eq!(walk.end, PathEnd::Start);
    assert_eq!(framehop(std::process::id(), &snapshot), walk.addresses);
    // One frame for each call at least, however much is inlined.
    assert!(walk.addresses.len() > 20, "{}", walk.addresses.len());
    assert!(unwinder.table_bytes() > 1000);
    let ranges = unwinder.code_ranges(1);
    let inside = |pc: &u64| ranges.iter().any(|(start, end)| (*start..*end).contains(pc));
    assert!(walk.addresses.iter().all(inside));
    // The rules that were collected are those that the tables have.
    let mut at = start;
    for (key, rule) in &walk.rules {
        assert_eq!(unwinder.rule(1, &at), *rule);
        assert_eq!(*key, drainprof_common::unwind::rule_key(1, &at));
        drainprof_common::unwind::advance(*rule, &mut at, &mut { snapshot });
    }
}

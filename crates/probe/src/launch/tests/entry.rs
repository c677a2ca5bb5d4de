//! Starting, and the stop at the entry point.

use super::*;

/// The command stands at its entry with its libraries mapped and their constructors run, while neither
/// a constructor of its own nor `main` has; then it runs to its end as if nothing had happened.
#[test]
fn held_before_main_with_libraries_mapped() {
    let bench = Bench::new();
    bench.compile("libown.so", LIBRARY, &["-shared", "-fPIC"]);
    for flags in [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]] {
        let flags = [&flags[..], &["-L.", "-lown", "-Wl,-rpath,$ORIGIN"]].concat();
        let mut run = Run::of(&bench.compile("program", PROGRAM, &flags));
        let pid = run.at_entry(Origin::Command);
        assert_eq!(run.so_far(), "library\n");
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        for library in ["libown.so", "libc.so"] {
            assert!(maps.contains(library), "{library} is not among\n{maps}");
        }
        run.resume(pid, Detach);
        let (status, text) = run.finish(Detach);
        assert_eq!((status.code(), text.as_str()), (Some(7), "program\nmain\n"));
    }
}

/// Programs without a dynamic loader stop at their first instruction.
#[test]
fn static_programs_are_held_too() {
    let bench = Bench::new();
    let source = PROGRAM.replace("int own_library(void);", "int own_library(void) { return 9; }");
    for flag in ["-static", "-static-pie"] {
        let mut run = Run::of(&bench.compile("program", &source, &[flag]));
        let pid = run.at_entry(Origin::Command);
        assert_eq!(run.so_far(), "", "{flag}");
        run.resume(pid, Detach);
        let (status, text) = run.finish(Detach);
        assert_eq!((status.code(), text.as_str()), (Some(9), "program\nmain\n"), "{flag}");
    }
}

/// A script stops at the entry of its interpreter, once.
#[test]
fn script_stops_in_its_interpreter() {
    let bench = Bench::new();
    let script = bench.executable("script", b"#!/bin/sh\necho from a script\n");
    let (status, text) = Run::of(&script).run_through(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "from a script\n"));
}

/// A blocked SIGTRAP, which the kernel unblocks to deliver ours, is blocked again when `main` runs.
#[test]
fn signal_mask_is_as_it_was() {
    let bench = Bench::new();
    let source = r#"
#include <signal.h>
#include <unistd.h>
int main(int argc, char **argv) {
  sigset_t set;
  sigemptyset(&set);
  if (argc == 1) {
    sigaddset(&set, SIGTRAP);
    sigprocmask(SIG_BLOCK, &set, 0);
    execl(argv[0], argv[0], "again", (char *)0);
  }
  sigprocmask(SIG_BLOCK, 0, &set);
  return sigismember(&set, SIGTRAP) ? 11 : 12;
}"#;
    let (status, _) = Run::of(&bench.compile("mask", source, &[])).run_through(KeepTracing);
    assert_eq!(status.code(), Some(11));
}

/// The smallest 32-bit program: exits with 5.
fn narrow_program() -> Vec<u8> {
    let mut elf = Vec::new();
    elf.extend(b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0");
    elf.extend([2_u16, 3].iter().flat_map(|half| half.to_le_bytes()));
    elf.extend([1_u32, 0x0804_8054, 52, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend([52_u16, 32, 1, 0, 0, 0].iter().flat_map(|half| half.to_le_bytes()));
    let segment = [1_u32, 0, 0x0804_8000, 0x0804_8000, 0x60, 0x60, 5, 0x1000];
    elf.extend(segment.iter().flat_map(|word| word.to_le_bytes()));
    // mov eax, 1; mov ebx, 5; int 0x80
    elf.extend(b"\xb8\x01\0\0\0\xbb\x05\0\0\0\xcd\x80");
    elf
}

/// A 32-bit program is reported as one that cannot be looked into, and runs undisturbed (or the kernel
/// does not run such programs at all).
#[test]
fn narrow_programs_are_told_and_run() {
    let bench = Bench::new();
    let program = bench.executable("narrow", &narrow_program());
    let mut run = match Run::start(LaunchOptions::new([&program])) {
        Ok(run) => run,
        Err(LaunchError::NotExecutable { .. }) => return,
        Err(other) => panic!("{other:?}"),
    };
    let event = run.next();
    assert!(
        matches!(event, Some(LaunchEvent::Error { error: TraceError::NotX86_64, .. })),
        "{event:?}"
    );
    assert!(
        matches!(run.next(), Some(LaunchEvent::Exited { status, .. }) if status.code() == Some(5))
    );
}

/// What cannot be started is reported with the exit code that a shell would give.
#[test]
fn start_errors_have_the_usual_exit_codes() {
    let bench = Bench::new();
    let plain = bench.path("plain");
    fs::write(&plain, "no program").unwrap();
    let of = |argv: &[&str]| Run::start(LaunchOptions::new(argv.iter().copied())).err().unwrap();
    assert!(matches!(of(&[]), LaunchError::NoCommand));
    let missing = of(&["no-such-program-anywhere"]);
    assert!(matches!(missing, LaunchError::NotFound { .. }), "{missing:?}");
    assert_eq!(missing.exit_code(), 127);
    let refused = of(&[plain.to_str().unwrap()]);
    assert!(matches!(refused, LaunchError::NotExecutable { .. }), "{refused:?}");
    assert_eq!(refused.exit_code(), 126);
}

/// Arguments reach the command.
#[test]
fn arguments_reach_the_command() {
    let options = LaunchOptions::new(["sh", "-c", "echo $0 $1", "zero", "one"]);
    let (_, text) = Run::start(options).unwrap().run_through(Detach);
    assert_eq!(text, "zero one\n");
}

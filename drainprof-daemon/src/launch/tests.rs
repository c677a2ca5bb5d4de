//! Launches of real programs, compiled here where a special one is needed. No test needs root.

use std::{
    fs,
    io::{PipeReader, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::libc;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

use super::{Disposition::*, *};

/// Far above what any step takes; reached only when something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two constructors, one in a library and one in the program, and a `main`.
const LIBRARY: &str = r#"
#include <unistd.h>
__attribute__((constructor)) static void begin(void) { write(1, "library\n", 8); }
int own_library(void) { return 7; }
"#;
const PROGRAM: &str = r#"
#include <unistd.h>
int own_library(void);
__attribute__((constructor)) static void begin(void) { write(1, "program\n", 8); }
int main(void) { write(1, "main\n", 5); return own_library(); }
"#;

struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An executable file. Another process writes it: a descriptor of ours, open for writing, could be
    /// in a child that a neighbouring test is just forking, and exec would find the text busy.
    fn executable(&self, name: &str, content: &[u8]) -> PathBuf {
        let (from, to) = (self.path(&format!("{name}.content")), self.path(name));
        fs::write(&from, content).unwrap();
        let done = Command::new("install").args(["-m", "755"]).args([&from, &to]).status();
        assert!(done.unwrap().success());
        to
    }

    /// Compiles `source` to the file `name`.
    fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let (from, to) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&from, source).unwrap();
        let done = Command::new("cc")
            .current_dir(self.dir.path())
            .args(["-O1", "-w", "-pthread", "-o"])
            .args([&to, &from])
            .args(flags)
            .output()
            .expect("cc is needed for these tests");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        to
    }
}

/// One launch with its output.
struct Run {
    handle: Handle,
    events: Receiver<LaunchEvent>,
    output: PipeReader,
}

impl Run {
    fn start(mut options: LaunchOptions) -> Result<Self, LaunchError> {
        let (output, input) = std::io::pipe().unwrap();
        options.stdout = input.into();
        let (handle, events) = Launch::spawn(options)?;
        Ok(Self { handle, events, output })
    }

    fn of(program: &Path) -> Self {
        Self::start(LaunchOptions::new([program])).unwrap()
    }

    fn following(program: &Path) -> Self {
        let mut options = LaunchOptions::new([program]);
        options.follow_forks = true;
        Self::start(options).unwrap()
    }

    fn next(&mut self) -> Option<LaunchEvent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let events = &mut self.events;
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, events.recv()).await })
            .expect("no event within the time that any step can take")
    }

    /// The pid of the next event, which must be a stop at an entry point.
    fn at_entry(&mut self, expected: Origin) -> u32 {
        match self.next() {
            Some(LaunchEvent::AtEntry { pid, origin }) if origin == expected => pid,
            other => panic!("expected a stop at the entry, got {other:?}"),
        }
    }

    fn resume(&self, pid: u32, disposition: Disposition) {
        assert!(self.handle.resume(pid, disposition));
    }

    /// Resumes the command at its entry point, and lets it run to its end.
    fn from_entry(mut self, disposition: Disposition) -> (ExitStatus, String) {
        let pid = self.at_entry(Origin::Command);
        assert_eq!(pid, self.handle.pid());
        self.resume(pid, disposition);
        self.to_end(disposition)
    }

    /// Answers everything with `disposition`, to the end of the command and of the events.
    fn to_end(mut self, disposition: Disposition) -> (ExitStatus, String) {
        let mut end = None;
        while let Some(event) = self.next() {
            match event {
                LaunchEvent::AtEntry { pid, .. } | LaunchEvent::Forked { child: pid, .. } => {
                    self.resume(pid, disposition);
                }
                LaunchEvent::Exited { pid, status } if pid == self.handle.pid() => {
                    end = Some(status);
                }
                LaunchEvent::Exited { .. } => {}
                LaunchEvent::Error { error, .. } => panic!("{error}"),
            }
        }
        assert_eq!(self.handle.lost_events(), 0);
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        (end.expect("the end of the command is told"), text)
    }

    /// What the command has written so far, without waiting for more.
    fn so_far(&self) -> String {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        fcntl(&self.output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut bytes = [0; 4096];
        let got = (&self.output).read(&mut bytes).unwrap_or(0);
        fcntl(&self.output, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        String::from_utf8_lossy(&bytes[..got]).into_owned()
    }
}

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
        let (status, text) = run.to_end(Detach);
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
        let (status, text) = run.to_end(Detach);
        assert_eq!((status.code(), text.as_str()), (Some(9), "program\nmain\n"), "{flag}");
    }
}

/// A script stops at the entry of its interpreter, once.
#[test]
fn script_stops_in_its_interpreter() {
    let bench = Bench::new();
    let script = bench.executable("script", b"#!/bin/sh\necho from a script\n");
    let (status, text) = Run::of(&script).from_entry(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "from a script\n"));
}

/// While traced, every signal arrives: handled, real-time, SIGTRAP of the program's own, and deadly.
#[test]
fn signals_pass_through() {
    let bench = Bench::new();
    let source = r#"
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static void seen(int s) { char line[16]; write(1, line, sprintf(line, "%d\n", s)); }
int main(void) {
  int all[] = {SIGTERM, SIGUSR1, SIGTRAP, SIGCHLD, 37, SIGCONT};
  for (int i = 0; i < 6; i++) { signal(all[i], seen); kill(getpid(), all[i]); }
  __asm__ volatile("int3");
  signal(SIGTERM, SIG_DFL);
  raise(SIGTERM);
  return 0;
}"#;
    let program = bench.compile("signals", source, &[]);
    for disposition in [Detach, KeepTracing] {
        let (status, text) = Run::of(&program).from_entry(disposition);
        assert_eq!(text, "15\n10\n5\n17\n37\n18\n5\n", "{disposition:?}");
        assert_eq!(status.signal(), Some(libc::SIGTERM), "{disposition:?}");
    }
}

/// Job control works on traced processes: the parent sees its child stop, stay stopped, and go on.
#[test]
fn stops_are_real_stops() {
    let bench = Bench::new();
    let source = r#"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
  int status;
  pid_t child = fork();
  if (child == 0) { raise(SIGSTOP); write(1, "on\n", 3); raise(SIGSTOP); _exit(5); }
  for (int i = 0; i < 2; i++) {
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return 1;
    write(1, "stopped\n", 8);
    kill(child, SIGCONT);
    if (waitpid(child, &status, WCONTINUED) != child || !WIFCONTINUED(status)) return 2;
  }
  if (waitpid(child, &status, 0) != child) return 3;
  return WEXITSTATUS(status);
}"#;
    let program = bench.compile("stops", source, &[]);
    let (status, text) = Run::following(&program).from_entry(KeepTracing);
    assert!(text.starts_with("stopped\non\n"), "{text}");
    assert_eq!((status.code(), status.signal()), (Some(5), None), "{text}");
}

/// `env` executes its program in its own process: with tracing kept, that stops at its entry too.
#[test]
fn exec_chain_stops_again() {
    let options = LaunchOptions::new(["env", "GREETING=hello", "sh", "-c", "echo $GREETING"]);
    let mut run = Run::start(options).unwrap();
    let pid = run.at_entry(Origin::Command);
    run.resume(pid, KeepTracing);
    assert_eq!(run.at_entry(Origin::Exec), pid);
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(exe, fs::canonicalize("/bin/sh").unwrap());
    run.resume(pid, Detach);
    let (status, text) = run.to_end(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "hello\n"));
}

/// A shell's child is held after the fork and again at the entry of what it executes; its end is told
/// apart from that of the shell.
#[test]
fn shell_children_are_followed() {
    let mut options = LaunchOptions::new(["sh", "-c", "/bin/false & wait $!; echo $?; exit 3"]);
    options.follow_forks = true;
    let mut run = Run::start(options).unwrap();
    let shell = run.at_entry(Origin::Command);
    run.resume(shell, KeepTracing);
    let Some(LaunchEvent::Forked { parent, child }) = run.next() else { panic!("no fork") };
    assert_eq!(parent, shell);
    run.resume(child, KeepTracing);
    assert_eq!(run.at_entry(Origin::Exec), child);
    run.resume(child, KeepTracing);
    let Some(LaunchEvent::Exited { pid, status }) = run.next() else { panic!("no exit") };
    assert_eq!((pid, status.code()), (child, Some(1)));
    let (status, text) = run.to_end(KeepTracing);
    assert_eq!((status.code(), text.as_str()), (Some(3), "1\n"));
}

/// Without following, children of a traced process are neither reported nor disturbed.
#[test]
fn children_are_left_alone_unless_followed() {
    let options = LaunchOptions::new(["sh", "-c", "/bin/false & wait $!; echo $?; (exit 4)"]);
    let mut run = Run::start(options).unwrap();
    let shell = run.at_entry(Origin::Command);
    run.resume(shell, KeepTracing);
    let Some(LaunchEvent::Exited { pid, status }) = run.next() else { panic!("not the exit") };
    assert_eq!((pid, status.code()), (shell, Some(4)));
    assert!(run.next().is_none());
}

const FORKING_LIBRARY: &str = r#"
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
int child;
__attribute__((constructor)) static void begin(void) {
  char *argv[] = {"true", 0};
  pid_t spawned; int status;
  if (posix_spawn(&spawned, "/bin/true", 0, 0, argv, 0) == 0) waitpid(spawned, &status, 0);
  child = fork();
}
int own_library(void) {
  int status = 0;
  if (child > 0) waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 99 : WEXITSTATUS(status) + 1;
}
"#;

/// A library may fork before the entry point, when the breakpoint is in memory already: the copy in
/// the child must kill nobody, and with following the child is held at the entry as well.
#[test]
fn forks_before_the_entry_survive() {
    let bench = Bench::new();
    bench.compile("libown.so", FORKING_LIBRARY, &["-shared", "-fPIC"]);
    let program = bench.compile("program", PROGRAM, &["-L.", "-lown", "-Wl,-rpath,$ORIGIN"]);
    let (status, text) = Run::of(&program).from_entry(Detach);
    assert_eq!((status.code(), text.matches("main").count()), (Some(2), 2), "{text}");

    let mut run = Run::following(&program);
    let (mut entries, mut codes, command) = (0, Vec::new(), run.handle.pid());
    while let Some(event) = run.next() {
        match event {
            LaunchEvent::AtEntry { pid, .. } => {
                entries += 1;
                run.resume(pid, KeepTracing);
            }
            LaunchEvent::Forked { child, .. } => run.resume(child, KeepTracing),
            LaunchEvent::Exited { pid, status } => codes.push((pid == command, status.code())),
            LaunchEvent::Error { error, .. } => panic!("{error}"),
        }
    }
    // The spawned `true`, the forked copy and the command itself.
    assert_eq!(entries, 3);
    codes.sort_unstable();
    assert_eq!(codes, [(false, Some(0)), (false, Some(1)), (true, Some(2))]);
}

/// An exec from another thread than the first is the process's exec all the same.
#[test]
fn threads_may_exec() {
    let bench = Bench::new();
    let source = r#"
#include <pthread.h>
#include <unistd.h>
static void *go(void *x) { execl("/bin/echo", "echo", "from a thread", (char *)0); return 0; }
static void *idle(void *x) { for (;;) pause(); }
int main(void) {
  pthread_t t;
  for (int i = 0; i < 4; i++) pthread_create(&t, 0, idle, 0);
  pthread_create(&t, 0, go, 0);
  for (;;) pause();
}"#;
    let mut run = Run::of(&bench.compile("threads", source, &[]));
    let pid = run.at_entry(Origin::Command);
    run.resume(pid, KeepTracing);
    assert_eq!(run.at_entry(Origin::Exec), pid);
    run.resume(pid, Detach);
    let (status, text) = run.to_end(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "from a thread\n"));
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
    let (status, _) = Run::of(&bench.compile("mask", source, &[])).from_entry(KeepTracing);
    assert_eq!(status.code(), Some(11));
}

/// What cannot be started is told with the exit code that a shell would give.
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
    let mut options = LaunchOptions::new(["true"]);
    options.cwd = Some(bench.path("nowhere"));
    let lost = Launch::spawn(options).err().unwrap();
    assert!(
        matches!(&lost, LaunchError::WorkingDirectory { path, .. } if path.ends_with("nowhere"))
    );
}

/// Environment, directory and arguments reach the command.
#[test]
fn options_reach_the_command() {
    let bench = Bench::new();
    let mut options = LaunchOptions::new(["sh", "-c", "echo $0 $WORD; pwd -P", "zero"]);
    options.env = vec![("WORD".into(), "given".into())];
    options.cwd = Some(bench.dir.path().into());
    let (_, text) = Run::start(options).unwrap().from_entry(Detach);
    let directory = fs::canonicalize(bench.dir.path()).unwrap();
    assert_eq!(text, format!("zero given\n{}\n", directory.display()));
}

/// As root, the command can be run as somebody else, and is traced all the same.
#[test]
fn identity_is_taken_on() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can take on another identity");
        return;
    }
    let mut options = LaunchOptions::new(["sh", "-c", "id -u; id -g"]);
    options.identity = Some(Identity { uid: 65534, gid: 65533 });
    let (status, text) = Run::start(options).unwrap().from_entry(KeepTracing);
    assert_eq!((status.code(), text.as_str()), (Some(0), "65534\n65533\n"));
}

/// An owner that forgets to answer holds nobody for ever.
#[test]
fn forgotten_processes_go_on() {
    let mut options = LaunchOptions::new(["true"]);
    options.hold_limit = Duration::ZERO;
    let mut run = Run::start(options).unwrap();
    run.at_entry(Origin::Command);
    let error = run.next();
    assert!(matches!(error, Some(LaunchEvent::Error { error: TraceError::HeldTooLong, .. })));
    assert!(matches!(run.next(), Some(LaunchEvent::Exited { status, .. }) if status.success()));
    assert!(run.next().is_none());
}

/// Dropping the handle lets a held command run, and its end is still told.
#[test]
fn dropped_handle_releases() {
    let mut run = Run::start(LaunchOptions::new(["sh", "-c", "exit 6"])).unwrap();
    run.at_entry(Origin::Command);
    let Run { handle, mut events, output: _output } = run;
    drop(handle);
    let Some(LaunchEvent::Exited { status, .. }) = events.blocking_recv() else { panic!() };
    assert_eq!(status.code(), Some(6));
    assert!(events.blocking_recv().is_none());
}

fn tracer_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap();
    line.trim().parse().unwrap()
}

/// A running command is released in the middle of a system call, which it does not notice; signals
/// that are passed on reach it before and after, and the end of the handle's process is an error.
#[test]
fn running_commands_are_released() {
    let (input, mut feed) = std::io::pipe().unwrap();
    let mut options = LaunchOptions::new(["cat"]);
    options.stdin = Stdio::from(input);
    let mut run = Run::start(options).unwrap();
    let pid = run.at_entry(Origin::Command);
    run.resume(pid, KeepTracing);
    feed.write_all(b"one ").unwrap();
    let mut word = [0; 4];
    run.output.read_exact(&mut word).unwrap();
    assert_ne!(tracer_of(pid), 0);
    run.handle.release();
    let deadline = Instant::now() + PATIENCE;
    while tracer_of(pid) != 0 {
        assert!(Instant::now() < deadline, "still traced");
        std::thread::yield_now();
    }
    feed.write_all(b"two ").unwrap();
    run.output.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"two ");
    run.handle.forward_signal(libc::SIGHUP).unwrap();
    let Some(LaunchEvent::Exited { status, .. }) = run.next() else { panic!("no exit") };
    assert_eq!(status.signal(), Some(libc::SIGHUP));
    assert!(run.next().is_none());
    assert_eq!(run.handle.kill(), Err(nix::errno::Errno::ESRCH));
}

/// A held command can be killed.
#[test]
fn held_commands_can_be_killed() {
    let mut run = Run::start(LaunchOptions::new(["cat"])).unwrap();
    run.at_entry(Origin::Command);
    run.handle.kill().unwrap();
    let Some(LaunchEvent::Exited { status, .. }) = run.next() else { panic!("no exit") };
    assert_eq!(status.signal(), Some(libc::SIGKILL));
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

/// A 32-bit program is told as one that cannot be looked into, and runs undisturbed (or the kernel
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

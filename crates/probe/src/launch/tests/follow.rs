//! What later images and children do.

use super::*;

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
    let (status, text) = run.finish(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "hello\n"));
}

/// A shell's child is held after the fork and again at the entry of what it executes; its end is reported
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
    let (status, text) = run.finish(KeepTracing);
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
/// the child must kill no process, and with following the child is held at the entry as well.
#[test]
fn forks_before_the_entry_survive() {
    let bench = Bench::new();
    bench.compile("libown.so", FORKING_LIBRARY, &["-shared", "-fPIC"]);
    let program = bench.compile("program", PROGRAM, &["-L.", "-lown", "-Wl,-rpath,$ORIGIN"]);
    let (status, text) = Run::of(&program).run_through(Detach);
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
    let (status, text) = run.finish(Detach);
    assert_eq!((status.code(), text.as_str()), (Some(0), "from a thread\n"));
}

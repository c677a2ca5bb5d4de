//! Signals, job control, and letting go.

use super::*;

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
        let (status, text) = Run::of(&program).run_through(disposition);
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
  int status, gate[2];
  char byte;
  pipe(gate);
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 2; i++) { raise(SIGSTOP); write(1, "on\n", 3); read(gate[0], &byte, 1); }
    _exit(5);
  }
  for (int i = 0; i < 2; i++) {
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return 1;
    write(1, "stopped\n", 8);
    kill(child, SIGCONT);
    if (waitpid(child, &status, WCONTINUED) != child || !WIFCONTINUED(status)) return 2;
    write(gate[1], "g", 1);
  }
  if (waitpid(child, &status, 0) != child) return 3;
  return WEXITSTATUS(status);
}"#;
    let program = bench.compile("stops", source, &[]);
    let (status, text) = Run::following(&program).run_through(KeepTracing);
    assert_eq!(text, "stopped\non\nstopped\non\n");
    assert_eq!((status.code(), status.signal()), (Some(5), None));
}

/// An owner that forgets to answer holds no process for ever.
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

/// Dropping the handle lets a held command run, and its end is still reported.
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
    assert_eq!(run.handle.forward_signal(libc::SIGKILL), Err(nix::errno::Errno::ESRCH));
}

/// A held command can be killed.
#[test]
fn held_commands_can_be_killed() {
    let mut run = Run::start(LaunchOptions::new(["cat"])).unwrap();
    run.at_entry(Origin::Command);
    run.handle.forward_signal(libc::SIGKILL).unwrap();
    let Some(LaunchEvent::Exited { status, .. }) = run.next() else { panic!("no exit") };
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

/// An owner that reads no events stops no process: what does not fit is counted, its processes run on, and
/// the end of the command is reported all the same.
#[test]
fn slow_owners_hold_nobody_up() {
    let script = "i=0; while [ $i -lt 400 ]; do : & i=$((i+1)); done; wait; exit 9";
    let mut options = LaunchOptions::new(["sh", "-c", script]);
    options.follow_forks = true;
    let mut run = Run::start(options).unwrap();
    let pid = run.at_entry(Origin::Command);
    run.resume(pid, KeepTracing);
    let deadline = Instant::now() + PATIENCE;
    while run.handle.lost_events() == 0 {
        assert!(Instant::now() < deadline, "no event was lost");
        std::thread::yield_now();
    }
    let (mut forks, mut end) = (0, None);
    while let Some(event) = run.next() {
        match event {
            LaunchEvent::Forked { child, .. } => {
                forks += 1;
                run.resume(child, Detach);
            }
            LaunchEvent::Exited { pid: ended, status } if ended == pid => end = status.code(),
            LaunchEvent::Exited { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(end, Some(9));
    assert!((EVENT_CAPACITY / 2..400).contains(&forks), "{forks}");
}

const ROLE: &str = "DRAINPROF_TEST_OWNER";

/// What the owner of the next test does, in a process of its own.
fn be_an_owner(role: &str) {
    let mut options = LaunchOptions::new(["cat"]);
    options.stdout = Stdio::from(std::io::stderr());
    let (handle, mut events) = Launch::spawn(options).unwrap();
    let Some(LaunchEvent::AtEntry { pid, .. }) = events.blocking_recv() else { panic!() };
    if role == "resumes" {
        handle.resume(pid, KeepTracing);
    } else {
        eprint!("one ");
    }
    // Only the end of the command gets us out of here, or being killed.
    events.blocking_recv();
}

/// SIGKILL of the owner lets the command run on, whether it was held at its entry or merely traced.
#[test]
fn commands_outlive_their_owner() {
    if let Ok(role) = std::env::var(ROLE) {
        be_an_owner(&role);
        return;
    }
    for role in ["resumes", "holds"] {
        let (input, mut feed) = std::io::pipe().unwrap();
        let (mut output, to) = std::io::pipe().unwrap();
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "launch::tests::control::commands_outlive_their_owner"])
            .arg("--nocapture")
            .env(ROLE, role)
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(to)
            .spawn()
            .unwrap();
        if role == "resumes" {
            feed.write_all(b"one ").unwrap();
        }
        let mut word = [0; 4];
        output.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"one ", "{role}");
        owner.kill().unwrap();
        assert_eq!(owner.wait().unwrap().signal(), Some(libc::SIGKILL), "{role}");
        feed.write_all(b"two ").unwrap();
        output.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"two ", "{role}");
    }
}

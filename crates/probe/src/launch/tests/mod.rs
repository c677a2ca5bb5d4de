//! Launches of real programs, compiled here where a special one is needed. No test needs root.

use std::{
    fs,
    io::{PipeReader, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::libc;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

use super::{Disposition::*, *};

mod control;
mod entry;
mod follow;

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
        self.handle.resume(pid, disposition);
    }

    /// Resumes the command at its entry point, and lets it run to its end.
    fn run_through(mut self, disposition: Disposition) -> (ExitStatus, String) {
        let pid = self.at_entry(Origin::Command);
        assert_eq!(pid, self.handle.pid());
        self.resume(pid, disposition);
        self.finish(disposition)
    }

    /// Answers everything with `disposition`, to the end of the command and of the events.
    fn finish(mut self, disposition: Disposition) -> (ExitStatus, String) {
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
        (end.expect("the end of the command is reported"), text)
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

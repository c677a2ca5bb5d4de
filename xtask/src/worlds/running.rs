//! Programs that run while a census is taken: what they print, line by line, and their end.
//!
//! A program is ended by closing its stdin, then by signals to its process id; nothing outlives the value. Called by
//! `programs` and `servers`.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde_json::Value;

use crate::work;

/// A program may take this long to its next line.
const LINE_TIMEOUT: Duration = Duration::from_secs(90);

/// A program may take this long to end after each of the ways to ask for it.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two checks of what no event announces.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Without a context switch for so many polls a process counts as asleep.
const ASLEEP_POLLS: usize = 4;

/// A program, and its pipes.
pub(super) struct Talk {
    line: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Talk {
    /// Starts a program; stdout and stderr are one.
    pub(super) fn start(mut command: Command) -> Result<Self> {
        let line = work::describe(&command);
        let (read, write) = std::io::pipe().context("create a pipe")?;
        command.stdin(Stdio::piped()).stdout(write.try_clone()?).stderr(write);
        let mut child = command.spawn().with_context(|| format!("run `{line}`"))?;
        let stdin = child.stdin.take();
        let lines = work::lines(read);
        Ok(Self { line, child, stdin, lines, said: Vec::new() })
    }

    /// The process; with `unshare` and `chroot` before it, which become the program.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that is wanted.
    pub(super) fn expect(&mut self, is_wanted: impl Fn(&str) -> bool) -> Result<String> {
        loop {
            match self.lines.recv_timeout(LINE_TIMEOUT) {
                Ok(line) if is_wanted(&line) => return Ok(line),
                Ok(line) => self.said.push(line),
                Err(error) => {
                    let last = self.said.iter().rev().take(8).rev();
                    let last: Vec<_> = last.map(String::as_str).collect();
                    bail!(
                        "`{}` does not answer ({error}); it said: {}",
                        self.line,
                        last.join(" | ")
                    )
                }
            }
        }
    }

    /// Waits for a line of JSON.
    pub(super) fn json(&mut self) -> Result<Value> {
        let line = self.expect(|line| line.starts_with('{'))?;
        serde_json::from_str(&line).with_context(|| format!("`{}` printed {line}", self.line))
    }

    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        // In one piece: a program may take what it reads for the whole line.
        let text = format!("{line}\n");
        stdin.write_all(text.as_bytes()).with_context(|| format!("write to `{}`", self.line))
    }

    /// Whether it ends by itself in this time.
    pub(super) fn ends_within(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(POLL_INTERVAL);
        }
        false
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.stdin = None;
        // A server does not care for its stdin.
        let mut time = POLL_INTERVAL * 10;
        for signal in ["-TERM", "-KILL"] {
            if self.ends_within(time) {
                return;
            }
            let mut kill = work::as_root("kill", &[]);
            kill.arg(signal).arg(self.child.id().to_string()).stderr(Stdio::null());
            if let Err(error) = kill.status() {
                work::note(format!("`{}` cannot be ended: {error}", self.line));
            }
            time = END_TIMEOUT;
        }
        self.ends_within(END_TIMEOUT);
    }
}

/// A program, perhaps with others that it needs, and what it says of itself.
pub(super) struct Running {
    pub(super) truth: Value,
    /// Ended in this order.
    pub(super) talks: Vec<Talk>,
    /// Connections that stay open.
    #[expect(dead_code, reason = "they are held, not used")]
    pub(super) streams: Vec<UnixStream>,
}

impl Running {
    /// One program, which prints the truth.
    pub(super) fn of(mut talk: Talk) -> Result<Self> {
        Ok(Self { truth: talk.json()?, talks: vec![talk], streams: Vec::new() })
    }

    /// The process to read, which the truth names.
    pub(super) fn pid(&self) -> Result<u32> {
        let pid = self.truth["pid"].as_u64().context("the truth names no process")?;
        u32::try_from(pid).context("no process has such an id")
    }

    /// Waits until all of the process's threads sleep; one that never does is read as it runs.
    pub(super) fn settle(&self) -> Result<()> {
        let pid = self.pid()?;
        let until = Instant::now() + END_TIMEOUT;
        let (mut before, mut same) = (None, 0);
        while same < ASLEEP_POLLS && Instant::now() < until {
            let now = switches(pid);
            same = if now.is_some() && now == before { same + 1 } else { 0 };
            before = now;
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// How the first program has ended, if it has.
    pub(super) fn end(&mut self) -> Option<String> {
        let status = self.talks.first_mut()?.child.try_wait().ok()??;
        Some(format!("the program has ended with {status}"))
    }

    /// Lets the program trim; the bytes by which its resident memory falls.
    pub(super) fn trim(&mut self) -> Result<u64> {
        let pid = self.pid()?;
        let before = resident(pid)?;
        let talk = self.talks.first_mut().context("no program to ask")?;
        talk.send("t")?;
        talk.json()?;
        Ok(before.saturating_sub(resident(pid)?))
    }
}

/// Context switches of all threads.
fn switches(pid: u32) -> Option<u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut sum = 0;
    for task in tasks.flatten() {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let lines = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
        sum += lines.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).sum::<u64>();
    }
    Some(sum)
}

/// Resident bytes, exactly: what `/proc/PID/statm` says can lag behind.
fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let mut cat = work::as_root("cat", &[]);
    let text = work::read("read resident memory", "has it ended?", cat.arg(&path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).context("no Rss")?;
    let kib = line.trim().trim_end_matches(" kB");
    Ok(kib.parse::<u64>().with_context(|| format!("read {line}"))? * 1024)
}

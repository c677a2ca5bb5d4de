//! A child process whose lines are read as they come, waited for with a deadline, and never left behind.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::environment::deadline;

/// The lines of one stream; a thread reads them, so that the child never blocks on a full pipe.
#[derive(Debug)]
struct Lines {
    incoming: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, incoming) = mpsc::channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                if sender.send(text).is_err() {
                    break;
                }
            }
        });
        Self { incoming, seen: Vec::new() }
    }

    fn until(&mut self, until: Instant) -> Result<String, RecvTimeoutError> {
        let line = self.incoming.recv_timeout(until.saturating_duration_since(Instant::now()))?;
        self.seen.push(line.clone());
        Ok(line)
    }
}

/// A child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    ended: Option<ExitStatus>,
    out: Option<Lines>,
    err: Lines,
}

/// How a process ended and what it said.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// All lines of its stdout.
    pub stdout: Vec<String>,
    /// All lines of its stderr.
    pub stderr: Vec<String>,
}

impl Process {
    /// Starts `command` with piped streams.
    pub fn start(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        let out = child.stdout.take().map(Lines::of);
        let err = Lines::of(child.stderr.take().context("the child's stderr is piped")?);
        Ok(Self { name: name.to_owned(), child, ended: None, out, err })
    }

    /// Like [`Process::start`], with stdout a pipe without a reader.
    pub fn start_with_broken_stdout(name: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("cannot start {name}: {command:?}"))?;
        drop(child.stdout.take());
        let err = Lines::of(child.stderr.take().context("the child's stderr is piped")?);
        Ok(Self { name: name.to_owned(), child, ended: None, out: None, err })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its stdin.
    pub fn send_line(&mut self, line: &str) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("the child's stdin is piped")?;
        // In one piece: a program that ends at the first byte closes its end before a second one comes.
        let sent = stdin.write_all(format!("{line}\n").as_bytes()).and_then(|()| stdin.flush());
        sent.with_context(|| {
            let ended = self.child.try_wait().ok().flatten();
            let ended = ended.map_or_else(|| "it runs".to_owned(), |status| status.to_string());
            format!("{} does not read its stdin any more ({ended})", self.name)
        })
    }

    /// Waits for a line on stdout that begins with `prefix`, and returns the line.
    pub fn expect_out(&mut self, prefix: &str) -> Result<String> {
        let lines = self.out.as_mut().context("the child's stdout is not read")?;
        expect(&self.name, "stdout", lines, &|line| line.starts_with(prefix), prefix)
    }

    /// Waits for the line `end` on stdout, and returns the lines before it that were not waited for yet.
    pub fn lines_until(&mut self, end: &str) -> Result<Vec<String>> {
        let lines = self.out.as_mut().context("the child's stdout is not read")?;
        let before = lines.seen.len();
        expect(&self.name, "stdout", lines, &|line| line == end, end)?;
        Ok(lines.seen[before..lines.seen.len() - 1].to_vec())
    }

    /// Waits for a line on stdout that contains `text`, and returns the line.
    pub fn expect_out_containing(&mut self, text: &str) -> Result<String> {
        let lines = self.out.as_mut().context("the child's stdout is not read")?;
        expect(&self.name, "stdout", lines, &|line| line.contains(text), text)
    }

    /// Waits for a line on stderr that begins with `prefix`, and returns the line.
    pub fn expect_err(&mut self, prefix: &str) -> Result<String> {
        expect(&self.name, "stderr", &mut self.err, &|line| line.starts_with(prefix), prefix)
    }

    /// Waits for a line on stderr that contains `text`, and returns the line.
    pub fn expect_err_containing(&mut self, text: &str) -> Result<String> {
        expect(&self.name, "stderr", &mut self.err, &|line| line.contains(text), text)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            bail!("{} has ended already", self.name);
        }
        kill(Pid::from_raw(self.child.id().cast_signed()), signal)
            .with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> Result<bool> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended.is_none())
    }

    /// What it has said on stderr so far.
    pub fn talk(&mut self) -> String {
        self.so_far()
    }

    /// Waits for its end, within the deadline.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let raw = rustix::process::Pid::from_raw(self.child.id().cast_signed());
        let pid = raw.context("a child's pid is not 0")?;
        let flags = rustix::process::PidfdFlags::empty();
        let fd = rustix::process::pidfd_open(pid, flags)
            .with_context(|| format!("cannot watch {}", self.name))?;
        let limit = deadline();
        let timeout = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))?;
        if ready == 0 {
            let said = self.so_far();
            bail!("{} did not end within {limit:?}\n{said}", self.name);
        }
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Closes its stdin, waits for its end and for the ends of its streams.
    pub fn finish(mut self) -> Result<Ended> {
        drop(self.child.stdin.take());
        let status = self.wait()?;
        let until = Instant::now() + deadline();
        for lines in self.out.iter_mut().chain([&mut self.err]) {
            loop {
                match lines.until(until) {
                    Ok(_) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        bail!("{} has ended, but a child of it keeps its output open", self.name)
                    }
                }
            }
        }
        let stdout =
            self.out.as_mut().map(|lines| std::mem::take(&mut lines.seen)).unwrap_or_default();
        Ok(Ended { status, stdout, stderr: std::mem::take(&mut self.err.seen) })
    }

    fn so_far(&mut self) -> String {
        let now = Instant::now() + Duration::from_millis(1);
        while self.err.until(now).is_ok() {}
        format!("its stderr so far:\n{}", self.err.seen.join("\n"))
    }
}

fn expect(
    name: &str,
    stream: &str,
    lines: &mut Lines,
    wanted: &dyn Fn(&str) -> bool,
    shown: &str,
) -> Result<String> {
    let limit = deadline();
    let until = Instant::now() + limit;
    loop {
        match lines.until(until) {
            Ok(line) if wanted(&line) => return Ok(line),
            Ok(_) => {}
            Err(error) => {
                let what = match error {
                    RecvTimeoutError::Timeout => format!("within {limit:?}"),
                    RecvTimeoutError::Disconnected => "before it was closed".to_owned(),
                };
                return Err(anyhow!(
                    "{name} did not say {shown:?} on {stream} {what}; it said:\n{}",
                    lines.seen.join("\n")
                ));
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // It may have ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

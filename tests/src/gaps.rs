//! For how long a daemon's loop, or each fork of the machine, stands still.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    environment::patience,
    node::{Daemon, get},
};

/// Between two readings of the state, and two forks.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Longest time without a new state, and for a fork, in milliseconds.
#[must_use]
pub fn gap() -> u64 {
    patience(Duration::from_secs(2)).as_millis() as u64
}

/// Watches for how long a daemon makes no new state.
#[derive(Debug)]
pub struct Gaps {
    stop: Arc<AtomicBool>,
    longest: JoinHandle<Result<Longest>>,
}

/// The longest times without a new state, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Longest {
    /// Without the time for which the loop and one of its readers waited for a processor: it depends on what else runs on
    /// the machine.
    pub own: u64,
    /// With it.
    pub whole: u64,
}

impl Gaps {
    /// Watches from now on.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let (stop, port, pid) = (Arc::new(AtomicBool::new(false)), daemon.port(), daemon.pid());
        let stops = Arc::clone(&stop);
        let longest = thread::spawn(move || {
            let mut longest = Longest::default();
            let mut last: Option<(u64, BTreeMap<u32, u64>)> = None;
            while !stops.load(Ordering::SeqCst) {
                let (_, body) = get(port, "/api/v1/state")?;
                let state: Value = serde_json::from_str(&body)?;
                let made = state["unix_ms"].as_u64().context("a state has a time")?;
                if last.as_ref().is_none_or(|(before, _)| *before != made) {
                    let waits = waits(pid);
                    if let Some((before, earlier)) = last.replace((made, waits.clone())) {
                        let whole = made.saturating_sub(before);
                        let own = whole.saturating_sub(waited(pid, &earlier, &waits));
                        longest.whole = longest.whole.max(whole);
                        longest.own = longest.own.max(own);
                    }
                }
                thread::sleep(CHECK_INTERVAL);
            }
            Ok(longest)
        });
        Self { stop, longest }
    }

    /// The longest time so far, in milliseconds, without waits for a processor.
    pub fn longest(self) -> Result<u64> {
        Ok(self.both()?.own)
    }

    /// The longest times so far.
    pub fn both(self) -> Result<Longest> {
        self.stop.store(true, Ordering::SeqCst);
        self.longest.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?
    }
}

/// How often the first thread of a process, which is a daemon's loop, has waited for something.
pub fn times_waited(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Ok(line.context("voluntary_ctxt_switches")?.trim().parse()?)
}

/// For how long each thread of a process has waited for a processor, nanoseconds. Empty where the kernel does not count
/// that.
fn waits(pid: u32) -> BTreeMap<u32, u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let wait = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        let waited = text.split(' ').nth(1)?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, waited))
    };
    tasks.filter_map(wait).collect()
}

/// For how long the loop of a process, and the thread that it may have waited for, waited for a processor in between,
/// milliseconds.
fn waited(pid: u32, before: &BTreeMap<u32, u64>, now: &BTreeMap<u32, u64>) -> u64 {
    let since = |thread: &u32| {
        let earlier = before.get(thread).copied().unwrap_or_default();
        now.get(thread).map_or(0, |now| now.saturating_sub(earlier))
    };
    let others = now.keys().filter(|thread| **thread != pid).map(since).max();
    (since(&pid) + others.unwrap_or_default()) / 1_000_000
}

/// Forks again and again, and notes how long the longest took.
#[derive(Debug)]
pub struct Forks {
    stop: Arc<AtomicBool>,
    longest: JoinHandle<io::Result<Duration>>,
}

impl Forks {
    /// Begins.
    #[must_use]
    pub fn begin() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = Arc::clone(&stop);
        let longest = thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stops.load(Ordering::SeqCst) {
                let began = Instant::now();
                let mut command = Command::new("/bin/true");
                command.stdin(Stdio::null());
                // SAFETY: nothing is done between fork and exec. The memory is copied, which a start without it saves.
                unsafe { command.pre_exec(|| Ok(())) };
                command.status()?;
                longest = longest.max(began.elapsed());
                thread::sleep(CHECK_INTERVAL);
            }
            Ok(longest)
        });
        Self { stop, longest }
    }

    /// The longest that one took.
    pub fn longest(self) -> Result<Duration> {
        self.stop.store(true, Ordering::SeqCst);
        Ok(self.longest.join().map_err(|_| anyhow::anyhow!("the loop panicked"))??)
    }
}

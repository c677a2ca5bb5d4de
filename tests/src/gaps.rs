//! For how long a daemon's loop, or each fork of the machine, stands still.

use std::{
    io,
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
const PAUSE: Duration = Duration::from_millis(20);

/// Longest time without a new state, and for a fork, in milliseconds.
#[must_use]
pub fn gap() -> u64 {
    patience(Duration::from_secs(2)).as_millis() as u64
}

/// Watches for how long a daemon makes no new state.
#[derive(Debug)]
pub struct Gaps {
    stop: Arc<AtomicBool>,
    longest: JoinHandle<Result<u64>>,
}

impl Gaps {
    /// Watches from now on.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let (stop, port) = (Arc::new(AtomicBool::new(false)), daemon.port());
        let stops = Arc::clone(&stop);
        let longest = thread::spawn(move || {
            let (mut last, mut longest) = (None, 0);
            while !stops.load(Ordering::SeqCst) {
                let (_, body) = get(port, "/api/v1/state")?;
                let state: Value = serde_json::from_str(&body)?;
                let made = state["unix_ms"].as_u64().context("a state has a time")?;
                longest = longest.max(made - last.replace(made).unwrap_or(made));
                thread::sleep(PAUSE);
            }
            Ok(longest)
        });
        Self { stop, longest }
    }

    /// The longest time so far, in milliseconds.
    pub fn longest(self) -> Result<u64> {
        self.stop.store(true, Ordering::SeqCst);
        self.longest.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))?
    }
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
                thread::sleep(PAUSE);
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

//! For how long a daemon's loop stands still.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::node::{Daemon, get};

/// Between two readings of the state.
const PAUSE: Duration = Duration::from_millis(20);

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

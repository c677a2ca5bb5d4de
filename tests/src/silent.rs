//! Processes that hang in the kernel with a lock of theirs, and what a machine does meanwhile: how old a daemon's state is,
//! and how long a fork takes.

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
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
use tempfile::TempDir;

use crate::{
    environment::{self, skip},
    node::{self, Daemon},
    process::Process,
};

/// Children that hang in the kernel while it holds a lock of theirs. They go on when this is dropped.
#[derive(Debug)]
pub struct Hostile {
    server: Process,
    /// The children.
    pub pids: Vec<u32>,
    _place: TempDir,
}

impl Hostile {
    /// So many, which have mapped a file for execution where one is given; `None` where the kernel has no FUSE, which the
    /// runner is told.
    pub fn start(mode: &str, count: usize, map: Option<&Path>) -> Result<Option<Self>> {
        if !fs::read_to_string("/proc/filesystems")?.contains("\tfuse\n") {
            skip("the kernel has no FUSE");
            return Ok(None);
        }
        let place =
            tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
        let at = place.path().join("at");
        fs::create_dir(&at)?;
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777))?;
        let mut command = Command::new(environment::target("silent")?);
        command.arg(format!("mode={mode}")).arg(format!("count={count}"));
        command.arg(format!("at={}", at.display()));
        if mode == "fork" {
            // Whatever other tracers there are, the machine is not stopped for long.
            command.arg("seconds=40");
        }
        if let Some(map) = map {
            command.arg(format!("map={}", map.display()));
        }
        let mut server = Process::start("silent", command)?;
        let mut pids = Vec::new();
        for _ in 0..count {
            let line = server.expect_out("SILENT ")?;
            pids.push(line["SILENT ".len()..].parse().with_context(|| line.clone())?);
        }
        server.expect_out("READY ")?;
        Ok(Some(Self { server, pids, _place: place }))
    }

    /// Ends the server, and with it all that waits.
    pub fn end(self) -> Result<()> {
        self.server.finish()?;
        Ok(())
    }
}

/// Watches for how long a daemon makes no new state.
#[derive(Debug)]
pub struct Gaps {
    stop: Arc<AtomicBool>,
    longest: JoinHandle<Result<u64>>,
}

impl Gaps {
    /// Begins.
    #[must_use]
    pub fn of(daemon: &Daemon) -> Self {
        let (stop, port) = (Arc::new(AtomicBool::new(false)), daemon.port());
        let stops = Arc::clone(&stop);
        let longest = thread::spawn(move || {
            let (mut last, mut longest) = (None, 0);
            while !stops.load(Ordering::SeqCst) {
                let (_, body) = node::get(port, "/api/v1/state")?;
                let state: Value = serde_json::from_str(&body)?;
                let made = state["unix_ms"].as_u64().context("a state has a time")?;
                longest = longest.max(made - last.replace(made).unwrap_or(made));
            }
            Ok(longest)
        });
        Self { stop, longest }
    }

    /// Milliseconds.
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
                thread::sleep(Duration::from_millis(20));
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

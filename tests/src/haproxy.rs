//! Debian's HAProxy as it is, on a loopback port, with a server of our own behind it; what it says of itself on its
//! stats socket.
//!
//! Used by `tests/real_haproxy.rs` and by the table of shipped profiles.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    environment::{deadline, which},
    http::{Backend, free_port, until},
};

/// A configuration, and what is behind it.
#[derive(Debug)]
pub struct Setup {
    /// The port on which it listens.
    pub port: u16,
    /// What is behind it.
    pub backend: Backend,
    directory: TempDir,
}

impl Setup {
    /// Writes a configuration: what begins with `/here` HAProxy answers itself; it passes the rest on.
    pub fn new() -> Result<Self> {
        let directory = TempDir::new()?;
        let (backend, port) = (Backend::start()?, free_port()?);
        let config = format!(
            "global\n stats socket {}/stats mode 600 level admin\n nbthread 1\n\
             defaults\n mode http\n timeout client 600s\n timeout connect 60s\n timeout server 600s\n\
             frontend web\n bind 127.0.0.1:{port}\n default_backend behind\n \
             http-request return status 200 content-type text/plain string \"It drains.\\n\" \
             if {{ path_beg /here }}\n\
             backend behind\n server own 127.0.0.1:{}\n",
            directory.path().display(),
            backend.port
        );
        fs::write(directory.path().join("haproxy.cfg"), config)?;
        Ok(Self { port, backend, directory })
    }

    /// An HAProxy of one process in the foreground.
    pub fn haproxy(&self) -> Result<Command> {
        let mut command = Command::new(which("haproxy").context("haproxy is installed")?);
        command.arg("-db").arg("-f").arg(self.directory.path().join("haproxy.cfg"));
        Ok(command)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("stats")
    }

    /// Waits until it serves, and connects to its stats socket.
    pub fn stats(&self) -> Result<Stats> {
        let mut stats = None;
        until("HAProxy serves", || {
            stats = Stats::connect(&self.socket()).ok();
            Ok(stats.is_some())
        })?;
        stats.context("just connected")
    }
}

/// A conversation on the stats socket, which keeps one session and one stream of HAProxy busy.
#[derive(Debug)]
pub struct Stats {
    stream: BufReader<UnixStream>,
}

/// A pool, as `show pools` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The name of its first user, which others share.
    pub name: String,
    /// Bytes of one object.
    pub size: u64,
    /// Objects that are out: those used, without those in the caches of threads.
    pub out: u64,
}

impl Stats {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(deadline()))?;
        let mut stats = Self { stream: BufReader::new(stream) };
        stats.stream.get_mut().write_all(b"prompt\n")?;
        stats.answer()?;
        Ok(stats)
    }

    /// The lines up to the next prompt.
    fn answer(&mut self) -> Result<String> {
        let mut got = Vec::new();
        while !(got == b"> " || got.ends_with(b"\n> ")) {
            let before = got.len();
            self.stream.read_until(b' ', &mut got)?;
            ensure!(got.len() > before, "HAProxy ended the conversation");
        }
        Ok(String::from_utf8_lossy(&got).into_owned())
    }

    /// What it answers to a command.
    pub fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{command}")?;
        self.answer()
    }

    /// A number of `show info`.
    pub fn number(&mut self, name: &str) -> Result<u64> {
        let text = self.ask("show info")?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        Ok(line.with_context(|| format!("no {name} in {text}"))?.trim().parse()?)
    }

    /// Its pools by their addresses, which are written as reports write them.
    pub fn pools(&mut self) -> Result<BTreeMap<String, Pool>> {
        let text = self.ask("show pools")?;
        let pool = |line: &str| {
            let (name, rest) = line.trim().strip_prefix("- Pool ")?.split_once(" (")?;
            let number_before = |mark: &str| {
                let before = rest.split(mark).next()?;
                before.rsplit([' ', '(', '~']).next()?.parse::<u64>().ok()
            };
            let address = rest.split('@').nth(1)?.split_whitespace().next()?;
            let out = number_before(" used")?.checked_sub(number_before(" by thread caches")?)?;
            let size = number_before(" bytes)")?;
            Some((address.to_owned(), Pool { name: name.to_owned(), size, out }))
        };
        let pools: BTreeMap<_, _> = text.lines().filter_map(pool).collect();
        ensure!(!pools.is_empty(), "no pools in {text}");
        Ok(pools)
    }

    /// The addresses of its streams, but for this conversation's own.
    pub fn streams(&mut self) -> Result<Vec<String>> {
        let text = self.ask("show sess")?;
        let mut streams: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with("0x") && !line.contains("proto=unix_stream"))
            .filter_map(|line| Some(line.split_once(':')?.0.to_owned()))
            .collect();
        streams.sort();
        Ok(streams)
    }
}

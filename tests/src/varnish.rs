//! Debian's Varnish as it is, on a loopback port, with a server of our own behind it; what it says of itself.
//!
//! Used by `tests/real_varnish.rs` and by the table of shipped profiles.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    environment::which,
    http::{Backend, free_port, until},
    process::Process,
};

/// A Varnish that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Varnish {
    /// The manager, which starts the child.
    pub manager: Process,
    /// The process that serves.
    pub child: u32,
    /// The port on which it listens.
    pub port: u16,
    /// What is behind it.
    pub backend: Backend,
    directory: TempDir,
}

impl Varnish {
    /// Starts it and waits until its child serves. What begins with `/here` it answers itself; it passes the rest on.
    pub fn start() -> Result<Self> {
        let backend = Backend::start()?;
        let directory = TempDir::new()?;
        let vcl = directory.path().join("test.vcl");
        let text = format!(
            "vcl 4.1; backend behind {{ .host = \"127.0.0.1\"; .port = \"{}\"; \
             .first_byte_timeout = 600s; }}\n\
             sub vcl_recv {{ if (req.url ~ \"^/here\") {{ return (synth(200)); }} return (pass); }}\n\
             sub vcl_synth {{ set resp.body = {{\"It drains.\n\"}}; return (deliver); }}\n",
            backend.port
        );
        fs::write(&vcl, text)?;
        let port = free_port()?;
        let mut command = Command::new(which("varnishd").context("varnishd is installed")?);
        command.args(["-F", "-j", "none", "-a", &format!("127.0.0.1:{port}"), "-n"]);
        command.arg(directory.path().join("work")).arg("-f").arg(&vcl);
        command.args(["-s", "malloc,8m", "-p", "thread_pools=1", "-p", "timeout_idle=600"]);
        let mut manager = Process::start("varnishd", command)?;
        let child = child(&mut manager)?;
        Ok(Self { manager, child, port, backend, directory })
    }

    fn tool(&self, program: &str, args: &[&str]) -> Result<String> {
        let mut command =
            Command::new(which(program).with_context(|| format!("{program} is installed"))?);
        let output =
            command.arg("-n").arg(self.directory.path().join("work")).args(args).output()?;
        ensure!(output.status.success(), "{program} {args:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Varnish's own counters, by name.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>> {
        let text = self.tool("varnishstat", &["-1"])?;
        let number = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
        };
        Ok(text.lines().filter_map(number).collect())
    }

    /// Waits until as many sessions, requests and fetches are alive as said, by Varnish's own counters, which it
    /// returns.
    pub fn settle(&self, alive: [u64; 3]) -> Result<BTreeMap<String, u64>> {
        let mut counters = BTreeMap::new();
        until(&format!("Varnish has {alive:?} sessions, requests, fetches"), || {
            counters = self.counters()?;
            Ok(POOLS.map(|pool| counters[&format!("MEMPOOL.{pool}.live")]) == alive)
        })?;
        Ok(counters)
    }

    /// Ends the child and starts another one; the manager stays.
    pub fn renew_child(&mut self) -> Result<()> {
        self.tool("varnishadm", &["stop"])?;
        self.tool("varnishadm", &["start"])?;
        self.child = child(&mut self.manager)?;
        Ok(())
    }

    /// Asks it to finish, and waits until it has.
    pub fn quit(mut self) -> Result<()> {
        self.manager.signal(Signal::SIGTERM)?;
        self.manager.wait().map(drop)
    }
}

/// The pools of one pool of threads: sessions, requests, fetches.
pub const POOLS: [&str; 3] = ["sess0", "req0", "busyobj"];

/// Waits for the line with the next child's process id, and for the child to serve.
fn child(manager: &mut Process) -> Result<u32> {
    let line = manager.expect_err_containing(" Started")?;
    let pid = line.split(['(', ')']).nth(1).context("the line names a process")?;
    let pid = pid.parse().with_context(|| format!("no process id in {line:?}"))?;
    manager.expect_err_containing("said Child starts")?;
    Ok(pid)
}

impl Drop for Varnish {
    fn drop(&mut self) {
        // The manager ends its child, which killing it would leave behind.
        // It may have ended already.
        if self.manager.signal(Signal::SIGTERM).is_ok() {
            let _ = self.manager.wait();
        }
    }
}

//! Debian's BIND as it is: a `named` with one zone, on a loopback port; and a library to preload into it that counts
//! from inside (`targets/isc_counts.c`).
//!
//! Used by `tests/real_bind.rs` and by the table of shipped profiles.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    environment::{deadline, which},
    http::free_port,
    preload,
};

/// What `named` says once it answers.
pub const RUNNING: &str = "all zones loaded";

/// A question for the address of `www.example.test`.
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x03www\x07example\x04test\0\0\x01\0\x01";

/// The address that the zone gives it.
const ANSWER: [u8; 4] = [127, 0, 0, 2];

/// A directory with a zone and a configuration.
#[derive(Debug)]
pub struct Zone {
    directory: TempDir,
    port: u16,
}

/// What the preloaded library counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Counts {
    /// Contexts that were made.
    pub created: u64,
    /// Calls of `isc__mem_get`, `isc__mem_allocate` and `isc__mempool_get`.
    pub taken: [u64; 3],
    /// Calls of `isc__mem_put`, `isc__mem_putanddetach`, `isc__mem_free` and `isc__mempool_put`.
    pub given_back: [u64; 4],
}

impl Zone {
    /// Writes the files.
    pub fn new() -> Result<Self> {
        let directory = TempDir::new()?;
        let (at, port) = (directory.path().display(), free_port()?);
        let config = format!(
            "options {{ directory \"{at}\"; pid-file \"{at}/pid\"; session-keyfile \"{at}/key\";\n\
             listen-on port {port} {{ 127.0.0.1; }}; listen-on-v6 {{ none; }};\n\
             recursion no; dnssec-validation no; empty-zones-enable no; notify no; }};\n\
             controls {{ }};\n\
             zone \"example.test\" {{ type primary; file \"{at}/example\"; }};\n"
        );
        fs::write(directory.path().join("named.conf"), config)?;
        let zone = "$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\n\
                    ns A 127.0.0.1\nwww A 127.0.0.2\n";
        fs::write(directory.path().join("example"), zone)?;
        Ok(Self { directory, port })
    }

    /// A `named` in the foreground, which logs to stderr.
    pub fn named(&self) -> Result<Command> {
        let mut command = Command::new(which("named").context("named is installed")?);
        command.args(["-4", "-g", "-n", "1", "-c"]).arg(self.directory.path().join("named.conf"));
        Ok(command)
    }

    /// The same with the counting library preloaded: into `named`, not into its parent.
    pub fn counting(&self) -> Result<Command> {
        preload::counting("isc", &self.named()?, &self.counts())
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("counts")
    }

    /// What was counted.
    pub fn counted(&self) -> Result<Counts> {
        let bytes = fs::read(self.counts()).context("nothing was counted")?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| word.try_into().map(u64::from_ne_bytes))
            .collect::<Result<_, _>>()?;
        let [created, get, allocate, pool_get, put, put_and_detach, free, pool_put, ..] =
            *words.as_slice()
        else {
            anyhow::bail!("{} words were counted", words.len())
        };
        Ok(Counts {
            created,
            taken: [get, allocate, pool_get],
            given_back: [put, put_and_detach, free, pool_put],
        })
    }

    /// The process that runs, by its own word.
    pub fn pid(&self) -> Result<u32> {
        let path = self.directory.path().join("pid");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(text.trim().parse()?)
    }

    /// Asks for an address as often as said, one question at a time, and checks the answers.
    pub fn ask(&self, times: usize) -> Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.connect((Ipv4Addr::LOCALHOST, self.port))?;
        socket.set_read_timeout(Some(deadline()))?;
        let mut buffer = [0; 1024];
        for _ in 0..times {
            socket.send(QUESTION)?;
            let length = socket.recv(&mut buffer).context("named does not answer")?;
            let answer = &buffer[..length];
            ensure!(answer.windows(4).any(|window| window == ANSWER), "a wrong answer: {answer:?}");
        }
        Ok(())
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        // A `named` that drainprof started, and that a test which failed has left behind.
        let Ok(pid) = self.pid() else { return };
        let ours = self.directory.path().to_string_lossy().into_owned();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&command).contains(&ours) {
            // It may end at this very moment.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

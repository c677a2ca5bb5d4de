//! Debian's PostgreSQL as it is: a cluster in a temporary directory, reached through a socket there.
//!
//! Used by the end-to-end tests and by the benchmark of PostgreSQL.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::{sys::signal::Signal, unistd::User};
use tempfile::TempDir;

use crate::process::Process;

/// The newest installed version whose chunk header the profile knows (15 and older).
#[must_use]
pub fn binaries() -> Option<PathBuf> {
    (11..=15)
        .rev()
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
        .find(|directory| directory.join("postgres").is_file())
}

/// The directories of all installed servers from 13 to 17, the newest first.
#[must_use]
pub fn servers() -> Vec<PathBuf> {
    (13..=17)
        .rev()
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
        .filter(|directory| directory.join("postgres").is_file())
        .collect()
}

/// A cluster that runs; its postmaster is our child. Dropping it shuts it down.
#[derive(Debug)]
pub struct Cluster {
    /// The postmaster.
    pub postmaster: Process,
    directory: TempDir,
}

/// A command that runs as user postgres.
fn as_postgres(program: &Path) -> Result<Command> {
    let user = User::from_name("postgres")?.context("there is a user postgres")?;
    let mut command = Command::new(program);
    command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    command.env("LC_ALL", "C");
    Ok(command)
}

impl Cluster {
    /// Makes a cluster, starts it, and waits until it takes connections.
    pub fn start() -> Result<Self> {
        Self::start_from(&binaries().context("checked before")?)
    }

    /// The same, with the programs in `binaries`.
    pub fn start_from(binaries: &Path) -> Result<Self> {
        let directory = TempDir::new()?;
        let user = User::from_name("postgres")?.context("there is a user postgres")?;
        nix::unistd::chown(directory.path(), Some(user.uid), Some(user.gid))?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700))?;
        let data = directory.path().join("data");
        let mut initdb = as_postgres(&binaries.join("initdb"))?;
        initdb.arg("-D").arg(&data).args(["-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8"]);
        let output = initdb.output()?;
        ensure!(output.status.success(), "initdb failed: {output:?}");
        let mut command = as_postgres(&binaries.join("postgres"))?;
        command.arg("-D").arg(&data).arg("-k").arg(directory.path());
        for setting in [
            "listen_addresses=",
            "fsync=off",
            "shared_buffers=16MB",
            "autovacuum=off",
            "logging_collector=off",
            "jit=off",
            "max_parallel_workers_per_gather=0",
        ] {
            command.args(["-c", setting]);
        }
        let mut postmaster = Process::start("postgres", command)?;
        postmaster.expect_err_containing("ready to accept connections")?;
        Ok(Self { postmaster, directory })
    }

    /// A client program for this cluster.
    #[must_use]
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-h").arg(self.directory.path()).args(["-U", "postgres"]);
        command
    }

    /// A `psql` that stays connected.
    pub fn session(&self) -> Result<Session> {
        let mut command = self.client("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "postgres"]);
        let mut session = Session { process: Process::start("psql", command)?, asked: 0 };
        session.backend()?;
        Ok(session)
    }

    /// A fast shutdown.
    pub fn stop(mut self) -> Result<()> {
        self.postmaster.signal(Signal::SIGINT)?;
        self.postmaster.wait().map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Immediate shutdown: the postmaster ends its children, which killing it would leave behind.
        // It may have ended already.
        if self.postmaster.signal(Signal::SIGQUIT).is_ok() {
            let _ = self.postmaster.wait();
        }
    }
}

/// A psql that stays connected.
#[derive(Debug)]
pub struct Session {
    /// The psql.
    pub process: Process,
    asked: u32,
}

impl Session {
    /// Runs statements; returns once the server has answered the last of them.
    pub fn run(&mut self, sql: &str) -> Result<()> {
        self.asked += 1;
        self.process.send_line(sql)?;
        self.process.send_line(&format!("\\echo done {}", self.asked))?;
        self.process.expect_out(&format!("done {}", self.asked)).map(drop)
    }

    /// The single number that a query yields.
    pub fn number(&mut self, query: &str) -> Result<u64> {
        self.process.send_line(&format!("select 'number ' || ({query});"))?;
        let line = self.process.expect_out("number ")?;
        line["number ".len()..].parse().with_context(|| format!("no number: {line:?}"))
    }

    /// The process that serves this session.
    pub fn backend(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.number("select pg_backend_pid()")?)?)
    }
}

//! Debian's MariaDB as it is: a server on a socket in a temporary directory, and sessions of its own client.
//!
//! Used by `tests/real_mariadb.rs` and by the table of shipped profiles.

use std::{fs, os::unix::fs::FileExt as _, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{environment::which, process::Process};

/// A server that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    /// The server: one process.
    pub process: Process,
    directory: TempDir,
}

impl Server {
    /// Makes a data directory, starts a server on it, and waits until it takes connections.
    pub fn start() -> Result<Self> {
        let directory = TempDir::new()?;
        let data = directory.path().join("data");
        let installer = which("mariadb-install-db").context("mariadb-install-db is installed")?;
        let mut install = Command::new(installer);
        install.args(["--no-defaults", "--user=root", "--skip-test-db"]);
        install.arg("--auth-root-authentication-method=normal");
        install.arg(format!("--datadir={}", data.display()));
        // Temporary tables of two installations at once would meet.
        let output = install.env("TMPDIR", directory.path()).output()?;
        ensure!(output.status.success(), "mariadb-install-db failed: {output:?}");
        let mut command = Command::new(which("mariadbd").context("mariadbd is installed")?);
        command.args(["--no-defaults", "--user=root", "--skip-networking"]);
        command.arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", directory.path().join("socket").display()));
        command.arg(format!("--pid-file={}", directory.path().join("pid").display()));
        command.arg(format!("--tmpdir={}", directory.path().display()));
        // Small, and no more durable than a test needs.
        command.args(["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"]);
        command.args(["--innodb-log-file-size=8M", "--innodb-fast-shutdown=2"]);
        let mut process = Process::start("mariadbd", command)?;
        process.expect_err_containing("ready for connections")?;
        let server = Self { process, directory };
        let mut session = server.session()?;
        session.run("create database test")?;
        session.run("create table test.t (a int primary key)")?;
        session.run("insert into test.t values (1), (2), (3)")?;
        Ok(server)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// A client that stays connected.
    pub fn session(&self) -> Result<Session> {
        let mut command = Command::new(which("mariadb").context("mariadb is installed")?);
        command.args(["--no-defaults", "--user=root", "--skip-column-names", "--batch"]);
        command.args(["--unbuffered", "--no-auto-rehash"]);
        command.arg(format!("--socket={}", self.socket().display()));
        let mut session = Session { process: Process::start("mariadb", command)?, asked: 0 };
        session.run("do 1")?;
        Ok(session)
    }

    /// The bytes of the blocks of a root, read from the server's memory; 0 if it has none.
    pub fn bytes_of_root(&self, root: u64) -> Result<u64> {
        let path = format!("/proc/{}/mem", self.process.pid());
        let memory = fs::File::open(&path).with_context(|| format!("open {path}"))?;
        let word = |address: u64| -> Result<u64> {
            let mut bytes = [0; 8];
            memory
                .read_exact_at(&mut bytes, address)
                .with_context(|| format!("read {address:#x} of {path}"))?;
            Ok(u64::from_ne_bytes(bytes))
        };
        let mut sum = 0;
        for list in [root, root + 8] {
            let mut block = word(list)?;
            while block != 0 {
                sum += word(block + 16)?;
                ensure!(sum < 1 << 40, "{root:#x} is no root");
                block = word(block)?;
            }
        }
        Ok(sum)
    }

    /// Asks it to finish, and waits until it has.
    pub fn quit(mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its data goes with the directory. It may have ended already.
        if self.process.signal(Signal::SIGKILL).is_ok() {
            let _ = self.process.wait();
        }
    }
}

/// A client that stays connected.
#[derive(Debug)]
pub struct Session {
    /// The client.
    pub process: Process,
    asked: u32,
}

impl Session {
    /// Runs a statement; returns once the server has answered it.
    pub fn run(&mut self, sql: &str) -> Result<()> {
        self.asked += 1;
        self.process.send_line(&format!("{sql};"))?;
        self.process.send_line(&format!("select 'done {}';", self.asked))?;
        self.process.expect_out(&format!("done {}", self.asked)).map(drop)
    }

    /// A number of `show global status`.
    pub fn status(&mut self, name: &str) -> Result<u64> {
        self.process.send_line(&format!("show global status like '{name}';"))?;
        let line = self.process.expect_out(&format!("{name}\t"))?;
        let number = line.split('\t').nth(1).context("a value")?;
        number.parse().with_context(|| format!("no number: {line:?}"))
    }
}

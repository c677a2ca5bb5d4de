//! Processes that hang in the kernel with a lock of theirs.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{
    environment::{self, skip},
    process::Process,
};

/// After this they end by themselves, whatever becomes of the test.
const AT_MOST: Duration = Duration::from_secs(120);

/// Children that hang in the kernel while it holds a lock of theirs. They go on when this is dropped.
#[derive(Debug)]
pub struct Silent {
    server: Process,
    /// The children.
    pub pids: Vec<u32>,
    _place: TempDir,
}

impl Silent {
    /// So many; `None` where the kernel has no FUSE: then the test is skipped.
    pub fn start(mode: &str, count: usize) -> Result<Option<Self>> {
        Self::start_with(mode, count, &[])
    }

    /// As [`Silent::start`], with more arguments: `seconds=` after which they end by themselves, unless they are to stay,
    /// `map=` a file that they map for execution.
    pub fn start_with(mode: &str, count: usize, arguments: &[String]) -> Result<Option<Self>> {
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
        let seconds = environment::patience(AT_MOST).as_secs();
        command.args([format!("mode={mode}"), format!("count={count}")]);
        command.arg(format!("at_most={seconds}"));
        command.arg(format!("at={}", at.display()));
        command.args(arguments);
        let mut server = Process::start("silent", command)?;
        let mut pids = Vec::new();
        for _ in 0..count {
            let line = server.expect_out("SILENT ")?;
            pids.push(line["SILENT ".len()..].parse().with_context(|| line.clone())?);
        }
        server.expect_out("READY ")?;
        Ok(Some(Self { server, pids, _place: place }))
    }

    /// They go on hanging for as long again.
    ///
    /// # Errors
    ///
    /// They have ended by themselves.
    pub fn stay(&mut self) -> Result<()> {
        self.server.send_line("stay")
    }

    /// Ends the server, and with it all that waits.
    pub fn end(self) -> Result<()> {
        self.server.finish()?;
        Ok(())
    }
}

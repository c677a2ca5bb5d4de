//! Debian's Subversion as it is: a repository and a home directory of its own in a temporary directory.
//!
//! The same few commands, step by step: once with a library preloaded that counts pools from inside
//! (`targets/apr_counts.c`), which is the truth; and once as they are, for drainprof to look at.

use std::{ffi::OsStr, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    environment::{targets, which},
    process::Process,
};

/// Lines of the file that is imported. The counts depend on it.
const ITEMS: usize = 300;

/// A directory with a file to import, in which a repository will be.
#[derive(Debug)]
pub struct Workspace {
    directory: TempDir,
}

impl Workspace {
    /// An empty home directory and the file.
    pub fn new() -> Result<Self> {
        use std::fmt::Write as _;

        let directory = TempDir::new()?;
        fs::create_dir(directory.path().join("home"))?;
        let mut text = "<items>\n".to_owned();
        for n in 0..ITEMS {
            writeln!(text, "<item id=\"{n}\">text {n}</item>")?;
        }
        text.push_str("</items>\n");
        fs::write(directory.path().join("items.xml"), text)?;
        Ok(Self { directory })
    }

    /// What is done, one process each and in this order: create a repository, import the file, show the
    /// log, verify.
    pub fn steps(&self) -> Result<Vec<Command>> {
        let (at, imported) = (self.directory.path(), self.directory.path().join("items.xml"));
        let repository = at.join("repository");
        let url = format!("file://{}", repository.display());
        let target = format!("{url}/items.xml");
        let words: [(&str, Vec<&OsStr>); 4] = [
            ("svnadmin", vec!["create".as_ref(), repository.as_ref()]),
            (
                "svn",
                vec![
                    "import".as_ref(),
                    "-q".as_ref(),
                    "-m".as_ref(),
                    "items".as_ref(),
                    imported.as_ref(),
                    target.as_ref(),
                ],
            ),
            ("svn", vec!["log".as_ref(), "-q".as_ref(), url.as_ref()]),
            ("svnadmin", vec!["verify".as_ref(), "-q".as_ref(), repository.as_ref()]),
        ];
        let mut steps = Vec::new();
        for (program, args) in words {
            let mut command =
                Command::new(which(program).with_context(|| format!("{program} is installed"))?);
            // Nothing of the user's own: its settings would have pools, too.
            command.args(args).env("HOME", at.join("home")).env("LC_ALL", "C");
            steps.push(command);
        }
        Ok(steps)
    }

    /// Runs the steps with the counting library, and returns what it counted in each.
    pub fn counted(&self) -> Result<Vec<Value>> {
        let counts = self.directory.path().join("counts");
        for mut step in self.steps()? {
            let shown = format!("{step:?}");
            step.env("LD_PRELOAD", targets().join("apr_counts")).env("APR_COUNTS", &counts);
            let ended = Process::start("counted step", step)?.finish()?;
            ensure!(ended.status.success(), "{shown} failed: {ended:?}");
        }
        let text = fs::read_to_string(&counts).context("nothing was counted")?;
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
            .collect()
    }
}

/// The version of Subversion, such as `1.14.2`.
pub fn version() -> Result<String> {
    let svn = which("svn").context("svn is installed")?;
    let home = TempDir::new()?;
    let output = Command::new(svn).args(["--version", "-q"]).env("HOME", home.path()).output()?;
    ensure!(output.status.success(), "svn --version failed: {output:?}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

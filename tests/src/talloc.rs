//! Debian's ldb tools as they are: a database of their own in a temporary directory.
//!
//! Each command as it is, or with a library preloaded that counts talloc's chunks from inside
//! (`targets/talloc_counts.c`), which is the truth.

use std::{fmt::Write as _, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::{environment::which, preload};

/// Entries that are added. The counts depend on it.
const ENTRIES: usize = 50;

/// A directory with a file of entries, in which a database will be.
#[derive(Debug)]
pub struct Directory {
    directory: TempDir,
}

impl Directory {
    /// The file of entries.
    pub fn new() -> Result<Self> {
        let directory = TempDir::new()?;
        let mut text = String::new();
        for n in 1..=ENTRIES {
            writeln!(text, "dn: cn=user{n},dc=example\nobjectClass: person\ncn: user{n}")?;
            writeln!(text, "sn: name {n}\ndescription: some text\n")?;
        }
        fs::write(directory.path().join("entries.ldif"), text)?;
        Ok(Self { directory })
    }

    /// What is done, one process each and in this order: add the entries, look some of them up.
    pub fn steps(&self) -> Result<Vec<Command>> {
        let at = self.directory.path();
        let database = format!("tdb://{}", at.join("entries.ldb").display());
        let entries = at.join("entries.ldif").display().to_string();
        [
            ("ldbadd", vec![entries.as_str()]),
            ("ldbsearch", vec!["(cn=user7*)"]),
            ("ldbsearch", vec!["(cn=*)"]),
        ]
        .into_iter()
        .map(|(program, args)| {
            let program = which(program).with_context(|| format!("{program} is installed"))?;
            let mut command = Command::new(program);
            command.args(["-H", &database]).args(args).env("HOME", at).env("LC_ALL", "C");
            // Else modules of ldb would call libtalloc past a library that is preloaded.
            command.env("LDB_MODULES_DISABLE_DEEPBIND", "1");
            Ok(command)
        })
        .collect()
    }

    /// A step with the counting library preloaded: into its program, not into its parent.
    pub fn counting(&self, step: &Command) -> Result<Command> {
        preload::counting("talloc", step, &self.counts())
    }

    /// What was counted, a line for each process.
    pub fn counted(&self) -> Result<Vec<Value>> {
        preload::counted(&self.counts())
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("counts")
    }
}

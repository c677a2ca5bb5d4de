//! Where the programs of cases are made: directories, a compiler, and files for a world.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use fs_err as fs;

use super::roots::Root;
use crate::artifacts;

/// Where the sources are.
const SOURCES: &str = "tests/targets/worlds";

/// A place to build.
pub(super) struct Workshop<'a> {
    /// The workspace.
    pub(super) root: &'a Path,
    /// Below the target directory.
    pub(super) directory: &'a Path,
    /// Kept for later runs, and other clones.
    pub(super) cache: &'a Path,
    /// Two cases may want the same program.
    compiler: Mutex<()>,
}

impl<'a> Workshop<'a> {
    pub(super) fn new(root: &'a Path, directory: &'a Path, cache: &'a Path) -> Self {
        Self { root, directory, cache, compiler: Mutex::new(()) }
    }

    /// Compiles a source of this workspace on this machine, whose glibc is the oldest; the program or library.
    pub(super) fn compile(&self, source: &str, name: &str, flags: &[&str]) -> Result<PathBuf> {
        let _alone = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        let made = self.directory.join(name);
        artifacts::compile(&self.root.join(source), &made, flags)?;
        Ok(made)
    }

    /// A source of these cases.
    pub(super) fn source(&self, name: &str) -> PathBuf {
        self.root.join(SOURCES).join(name)
    }

    /// A path below the target directory that no other case has.
    pub(super) fn own(&self, root: &Root, name: &str) -> Result<PathBuf> {
        let case = root.inside.file_name().context("a case has a directory")?;
        let directory = self.directory.join(root.world.name()).join(case);
        fs::create_dir_all(&directory)?;
        Ok(directory.join(name))
    }

    /// Writes a text into the world; its path there.
    pub(super) fn file(&self, root: &Root, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.own(root, name)?;
        fs::write(&file, text)?;
        root.put(&file)
    }
}

//! What a row of the table says.

use anyhow::Result;

use super::live::Live;

/// What must be installed for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: the program is one of our own targets.
    Nothing,
    /// Debian packages that all tests may use.
    Usual(&'static [&'static str]),
    /// Debian packages that only `cargo xtask test --real` installs.
    Real(&'static [&'static str]),
}

/// An exception, and why it is one. One that has become untrue fails, so that the reasons stay true.
#[derive(Clone, Copy, Debug)]
pub struct Except {
    /// What it is about: `at` as the profile writes it, or role and symbol as `profile check` shows them.
    pub what: &'static str,
    /// Why.
    pub why: &'static str,
}

/// A shipped profile.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name.
    pub profile: &'static str,
    /// What must be installed.
    pub needs: Needs,
    /// The files that it is about: absolute patterns (`*` and `?` within names), or names of our own targets.
    pub files: &'static [&'static str],
    /// Names that are in none of the files.
    pub absent: &'static [Except],
    /// Probes that do not fire in the workload.
    pub silent: &'static [Except],
    /// Starts the program, ready to work.
    pub start: fn() -> Result<Box<dyn Live>>,
}

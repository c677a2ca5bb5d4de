//! Selects the processes to watch, among those that a profile matches.

use std::fmt::{self, Display, Formatter};

use super::{
    model::Select,
    rule::{Action, Facts, Rule},
};

/// Why a process is not watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It runs the daemon's own executable.
    Own,
    /// A rule excludes it.
    Excluded {
        /// The rule's number, from 1.
        number: usize,
        /// The rule as it is written.
        rule: String,
    },
    /// Some rules include, and none of them matches it.
    NotIncluded,
}

impl Display for Why {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => out.write_str("it runs drainprof itself"),
            Self::Excluded { number, rule } => {
                write!(out, "rule {number} of select.rules excludes it: {rule}")
            }
            Self::NotIncluded => out.write_str("no rule of select.rules includes it"),
        }
    }
}

/// Decides which processes are watched; knows nothing of profiles.
#[derive(Clone, Debug)]
pub struct Selector {
    rules: Vec<Rule>,
    own_exe: Option<String>,
    includes: bool,
}

impl Selector {
    /// By these rules; `own_exe` is the daemon's own executable.
    #[must_use]
    pub fn new(select: &Select, own_exe: Option<String>) -> Self {
        let includes = select.rules.iter().any(|rule| rule.action() == Action::Include);
        Self { rules: select.rules.clone(), own_exe, includes }
    }

    /// By these rules; never what runs this process's own executable.
    #[must_use]
    pub fn of_this_process(select: &Select) -> Self {
        let own = std::fs::read_link("/proc/self/exe").ok();
        Self::new(select, own.map(|own| own.to_string_lossy().into_owned()))
    }

    /// Whether the process is watched, and if not, why.
    pub fn selects(&self, facts: &Facts<'_>) -> Result<(), Why> {
        if self.own_exe.as_deref() == Some(facts.exe) {
            return Err(Why::Own);
        }
        let first = self.rules.iter().enumerate().find(|(_, rule)| rule.matches(facts));
        match first {
            Some((_, rule)) if rule.action() == Action::Include => Ok(()),
            Some((at, rule)) => Err(Why::Excluded { number: at + 1, rule: rule.to_string() }),
            None if self.includes => Err(Why::NotIncluded),
            None => Ok(()),
        }
    }
}

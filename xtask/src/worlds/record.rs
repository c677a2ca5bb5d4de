//! What came of a case in a world: a line of text, a part of the sum, a part of the kept results.

use std::time::Duration;

use serde_json::{Value, json};

use super::compare::Outcome;
use super::page;
use super::roots::World;
use crate::tally::Tally;

/// How a case ended.
pub(super) enum End {
    Compared(Vec<Outcome>),
    Skipped(String),
    Broken(String),
}

/// A case in a world, and what came of it.
pub(super) struct Record {
    pub(super) case: &'static str,
    pub(super) world: World,
    /// Where the library is from.
    pub(super) origin: String,
    pub(super) truth: Value,
    pub(super) notes: Value,
    pub(super) end: End,
    pub(super) time: Duration,
}

impl Record {
    pub(super) fn is_skipped(&self) -> bool {
        matches!(self.end, End::Skipped(_))
    }

    pub(super) fn passed(&self) -> bool {
        matches!(&self.end, End::Compared(outcomes) if outcomes.iter().all(|outcome| outcome.holds))
    }

    /// The library, its version, and where it is from.
    pub(super) fn version(&self) -> page::Version {
        let text = |key: &str| self.truth[key].as_str().unwrap_or_default().to_owned();
        (text("library"), text("version"), self.origin.clone())
    }

    pub(super) fn name(&self) -> String {
        format!("{}: {}", self.world.name(), self.case)
    }

    /// One line with all numbers.
    pub(super) fn text(&self) -> String {
        let (library, version, _) = self.version();
        let (name, seconds) = (self.name(), self.time.as_secs_f64());
        match &self.end {
            End::Skipped(lack) => format!("{name}: SKIP: {lack}"),
            End::Broken(error) => format!("{name}: FAILED: {error}"),
            End::Compared(outcomes) => {
                let word = if self.passed() { "ok" } else { "FAILED" };
                let all: Vec<_> = outcomes.iter().map(Outcome::text).collect();
                format!("{name}: {word}: {library} {version} in {seconds:.1} s: {}", all.join("; "))
            }
        }
    }

    pub(super) fn tally(&self) -> Tally {
        let times = vec![(self.name(), self.time)];
        let why = match &self.end {
            End::Skipped(_) => return Tally { skipped: 1, times, ..Tally::default() },
            _ if self.passed() => return Tally { passed: 1, times, ..Tally::default() },
            End::Broken(error) => error.clone(),
            End::Compared(outcomes) => {
                let wrong = outcomes.iter().filter(|outcome| !outcome.holds);
                wrong.map(Outcome::text).collect::<Vec<_>>().join("; ")
            }
        };
        Tally { times, ..Tally::failure(format!("{}: {why}", self.name())) }
    }

    pub(super) fn json(&self) -> Value {
        let (library, version, origin) = self.version();
        let (word, checks) = match &self.end {
            End::Skipped(lack) => (format!("skipped: {lack}"), Vec::new()),
            End::Broken(error) => (format!("failed: {error}"), Vec::new()),
            End::Compared(outcomes) => (
                if self.passed() { "passed" } else { "failed" }.to_owned(),
                outcomes.iter().map(Outcome::json).collect(),
            ),
        };
        json!({
            "case": self.case, "world": self.world.name(), "origin": origin, "library": library,
            "version": version, "result": word, "checks": checks, "notes": self.notes,
            "seconds": self.time.as_secs_f64(), "truth": self.truth,
        })
    }
}

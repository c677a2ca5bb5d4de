//! What came of a case in a world: a line of text, a part of the sum, a part of the kept results.

use std::time::Duration;

use serde_json::{Value, json};

use super::{compare::Outcome, page, world::World};
use crate::tally::Tally;

/// How a case ended.
pub(super) enum End {
    Compared(Vec<Outcome>),
    Skipped(String),
    Broken(String),
}

/// What drainprof has said beside the numbers.
#[derive(Default)]
pub(super) struct Said {
    /// Notes of the census.
    pub(super) notes: Value,
    /// What `why` answers; empty if it was not asked.
    pub(super) answer: String,
    /// How much of resident memory the census has read.
    pub(super) read_percent: u64,
    /// Whether the answer is healthy, and too little was read.
    pub(super) is_blind: bool,
}

/// A case in a world, and what came of it.
pub(super) struct Record {
    pub(super) case: &'static str,
    pub(super) world: World,
    /// Where the library is from.
    pub(super) origin: String,
    pub(super) truth: Value,
    pub(super) said: Said,
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
            End::Broken(error) => format!("{name}: NOT COMPARED: {error}"),
            End::Compared(outcomes) => {
                let word = if self.passed() { "ok" } else { "FAILED" };
                let all: Vec<_> = outcomes.iter().map(Outcome::text).collect();
                let notes = if self.passed() { String::new() } else { self.notes() };
                format!(
                    "{name}: {word}: {library} {version} in {seconds:.1} s: {}{notes}",
                    all.join("; ")
                )
            }
        }
    }

    /// What the census has noted of heaps that it could not read, such as their versions.
    fn notes(&self) -> String {
        let notes = self.said.notes.as_array().into_iter().flatten();
        notes.filter_map(Value::as_str).flat_map(|note| ["; note: ", note]).collect()
    }

    pub(super) fn tally(&self) -> Tally {
        let times = vec![(self.name(), self.time)];
        let why = match &self.end {
            End::Skipped(_) => return Tally { skipped: 1, times, ..Tally::default() },
            _ if self.passed() => return Tally { passed: 1, times, ..Tally::default() },
            End::Broken(error) => format!("not compared: {error}"),
            End::Compared(outcomes) => {
                let wrong = outcomes.iter().filter(|outcome| !outcome.holds);
                let wrong: Vec<_> = wrong.map(Outcome::text).collect();
                let (library, version, _) = self.version();
                format!("{library} {version}: {}{}", wrong.join("; "), self.notes())
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
            "version": version, "result": word, "checks": checks, "notes": self.said.notes,
            "answer": self.said.answer, "read_percent": self.said.read_percent,
            "seconds": self.time.as_secs_f64(), "truth": self.truth,
        })
    }
}

//! A rule of `[select]`: the processes that it matches, and whether they are watched.

use std::fmt;

use globset::{GlobBuilder, GlobSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Labels;

/// What the rules match.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its executable, as it sees it.
    pub exe: &'a str,
    /// Its name.
    pub comm: &'a str,
    /// Where it belongs.
    pub labels: &'a Labels,
}

/// Selects the text that a line of a rule matches.
type Text = for<'a> fn(&Facts<'a>) -> Option<&'a str>;

/// Patterns in one line of a rule.
const MAX_PATTERNS: usize = 64;
/// Bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 1024;

/// What a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The processes are watched.
    Include,
    /// They are not.
    Exclude,
}

/// A rule as it is written. It matches a process if all of its lines do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table with `action` and patterns")]
struct Lines {
    action: Action,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exe: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    comm: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cgroup: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<Patterns>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<Patterns>,
}

/// A rule that matches something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Lines", into = "Lines")]
#[schemars(with = "Lines")]
pub struct Rule(Lines);

impl TryFrom<Lines> for Rule {
    type Error = String;

    fn try_from(lines: Lines) -> Result<Self, String> {
        let rule = Self(lines);
        if rule.patterns().iter().all(|(patterns, _)| patterns.is_none()) {
            return Err(
                "a rule without a pattern, expected exe = \"*\" to match every process".to_owned()
            );
        }
        Ok(rule)
    }
}

impl From<Rule> for Lines {
    fn from(rule: Rule) -> Self {
        rule.0
    }
}

impl Rule {
    /// What becomes of the processes that it matches.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.0.action
    }

    /// The patterns of each line, and what selects the text that they match.
    fn patterns(&self) -> [(&Option<Patterns>, Text); 7] {
        let Lines { exe, comm, cgroup, container, unit, pod, namespace, .. } = &self.0;
        [
            (exe, |facts| Some(facts.exe)),
            (comm, |facts| Some(facts.comm)),
            (cgroup, |facts| facts.labels.cgroup.as_deref()),
            (container, |facts| facts.labels.container.as_deref()),
            (unit, |facts| facts.labels.unit.as_deref()),
            (pod, |facts| facts.labels.pod.as_deref()),
            (namespace, |facts| facts.labels.namespace.as_deref()),
        ]
    }

    /// Whether it matches the process. A label that the process does not have matches no pattern. A pattern of `exe`
    /// without a slash matches the file name.
    #[must_use]
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let is_match = |text: &str, patterns: &Patterns, is_path: bool| {
            patterns.0.iter().any(|pattern| {
                let name =
                    text.rsplit('/').next().filter(|_| is_path && !pattern.text.contains('/'));
                pattern.matcher.is_match(name.unwrap_or(text))
            })
        };
        self.patterns().iter().enumerate().all(|(line, (patterns, text))| {
            let Some(patterns) = patterns else { return true };
            text(facts).is_some_and(|text| is_match(text, patterns, line == 0))
        })
    }
}

/// The rule as it is written.
impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = toml::Value::try_from(self).map_err(|_| fmt::Error)?;
        write!(out, "{value}")
    }
}

/// One pattern, or a list of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "OneOrMore", into = "OneOrMore")]
#[schemars(with = "OneOrMore")]
struct Patterns(Vec<Pattern>);

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "not a pattern, expected a string, or a list of them")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl TryFrom<OneOrMore> for Patterns {
    type Error = String;

    fn try_from(all: OneOrMore) -> Result<Self, String> {
        let all = match all {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(all) => all,
        };
        match all.len() {
            0 => Err("an empty list matches nothing".to_owned()),
            1..=MAX_PATTERNS => {
                Ok(Self(all.into_iter().map(Pattern::new).collect::<Result<_, _>>()?))
            }
            count => Err(format!("{count} patterns; the limit is {MAX_PATTERNS}")),
        }
    }
}

impl From<Patterns> for OneOrMore {
    fn from(patterns: Patterns) -> Self {
        let mut all: Vec<_> = patterns.0.into_iter().map(|pattern| pattern.text).collect();
        if all.len() == 1 { Self::One(all.remove(0)) } else { Self::More(all) }
    }
}

/// A pattern in which `*` stands for anything.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    matcher: GlobSet,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    fn new(text: String) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            let bytes = text.len();
            return Err(format!("a pattern of {bytes} bytes, expected 1 to {MAX_PATTERN_BYTES}"));
        }
        // Labels hold backslashes (systemd escapes with them), so here they mean themselves.
        let glob = GlobBuilder::new(&text).literal_separator(false).backslash_escape(false).build();
        let matcher = glob.and_then(drainprof_process::compile_glob).map_err(|error| {
            format!(
                "`{}` is not a pattern ({}), expected `*` for anything, `?` for one character, `[a-z]` for one of \
                 these, `{{a,b}}` for either",
                text.escape_debug(),
                error.kind()
            )
        })?;
        Ok(Self { text, matcher })
    }
}

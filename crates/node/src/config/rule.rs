//! A rule of `[select]`: which processes it is about, and what becomes of them.

use drainprof_process::printable;
use globset::{GlobBuilder, GlobMatcher};
use toml::{Spanned, Table, Value, de::DeValue};

use super::{
    error::Fault,
    names::nearest,
    select::Facts,
    setting::{Setting, Word, wrong},
};

/// Rules that are taken.
pub(super) const MAX_RULES: usize = 256;
/// Patterns in one line of a rule.
const MAX_PATTERNS: usize = 64;
/// Bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 1024;

/// What becomes of the processes that a rule fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// They are watched.
    Include,
    /// They are not.
    Exclude,
}

impl Word for Action {
    const WORDS: &'static [(Self, &'static str)] =
        &[(Self::Include, "include"), (Self::Exclude, "exclude")];
}

/// What a line of a rule looks at.
type Look = for<'a> fn(&Facts<'a>) -> Option<&'a str>;

/// What lines a rule can have, and what each looks at. `exe` looks at the file name, or at the whole path if the
/// pattern has a slash.
const LINES: [(&str, Look); 7] = [
    ("exe", |facts| Some(facts.exe)),
    ("comm", |facts| Some(facts.comm)),
    ("cgroup", |facts| facts.labels.cgroup.as_deref()),
    ("container", |facts| facts.labels.container.as_deref()),
    ("unit", |facts| facts.labels.unit.as_deref()),
    ("pod", |facts| facts.labels.pod.as_deref()),
    ("namespace", |facts| facts.labels.namespace.as_deref()),
];

/// A pattern in which `*` stands for anything.
#[derive(Clone, Debug)]
struct Pattern {
    text: String,
    matcher: GlobMatcher,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A rule: it fits a process if all of its lines do.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What becomes of the processes that it fits.
    pub action: Action,
    /// Per line, its place in [`LINES`] and its patterns.
    lines: Vec<(usize, Vec<Pattern>)>,
}

impl Rule {
    /// Whether it fits the process. A label that the process does not have fits no pattern.
    #[must_use]
    pub fn fits(&self, facts: &Facts<'_>) -> bool {
        self.lines.iter().all(|(line, patterns)| {
            let (name, look) = LINES[*line];
            let Some(text) = look(facts) else { return false };
            patterns.iter().any(|pattern| {
                let whole = name != "exe" || pattern.text.contains('/');
                let text = if whole { text } else { text.rsplit('/').next().unwrap_or(text) };
                pattern.matcher.is_match(text)
            })
        })
    }

    /// The rule as it would be written.
    #[must_use]
    pub fn words(&self) -> String {
        self.show().map_or_else(String::new, |rule| rule.to_string())
    }
}

impl Setting for Rule {
    fn expected() -> String {
        let lines: Vec<_> = LINES.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!(
            "a table with `action` (\"include\" or \"exclude\") and patterns for one or more of {}",
            lines.join(", ")
        )
    }

    fn read(value: &Spanned<DeValue<'_>>) -> Result<Self, Vec<Fault>> {
        let Some(table) = value.get_ref().as_table() else { return Err(wrong::<Self>(value)) };
        let (mut action, mut lines, mut faults) = (None, Vec::new(), Vec::new());
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if name == "action" {
                match Action::read(value) {
                    Ok(read) => action = Some(read),
                    Err(more) => faults.extend(more),
                }
            } else if let Some(line) = LINES.iter().position(|(line, _)| *line == name) {
                match patterns(value) {
                    Ok(patterns) => lines.push((line, patterns)),
                    Err(more) => faults.extend(more),
                }
            } else {
                let known = LINES.iter().map(|(name, _)| *name).chain(["action"]);
                let fault = Fault::new(key.span(), format!("unknown key `{}`", printable(name)));
                faults.push(match nearest(name, known) {
                    Some(near) => fault.hint(format!("did you mean `{near}`?")),
                    None => fault.hint(format!("expected {}", Self::expected())),
                });
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        lines.sort_by_key(|(line, _)| *line);
        match action {
            None => {
                let fault = Fault::new(value.span(), "a rule without `action`");
                Err(vec![fault.hint("expected \"include\" or \"exclude\"")])
            }
            Some(_) if lines.is_empty() => {
                let fault = Fault::new(value.span(), "a rule that fits nothing in particular");
                Err(vec![fault.hint("to mean every process, write exe = \"*\"")])
            }
            Some(action) => Ok(Self { action, lines }),
        }
    }

    fn from_text(_: &str) -> Result<Self, Vec<Fault>> {
        Err(vec![Fault::new(0..0, "rules can only be written in a file")])
    }

    fn show(&self) -> Option<Value> {
        let mut table = Table::new();
        table.insert("action".to_owned(), self.action.show()?);
        for (line, patterns) in &self.lines {
            let patterns: Vec<_> =
                patterns.iter().map(|pattern| Value::String(pattern.text.clone())).collect();
            let value = match patterns.as_slice() {
                [one] => one.clone(),
                _ => Value::Array(patterns),
            };
            table.insert(LINES[*line].0.to_owned(), value);
        }
        Some(Value::Table(table))
    }
}

/// One pattern, or a list of them.
fn patterns(value: &Spanned<DeValue<'_>>) -> Result<Vec<Pattern>, Vec<Fault>> {
    let one = std::slice::from_ref(value);
    let all = match value.get_ref() {
        DeValue::Array(all) if all.is_empty() => {
            return Err(vec![Fault::new(value.span(), "an empty list fits nothing")]);
        }
        DeValue::Array(all) if all.len() > MAX_PATTERNS => {
            let message = format!("{} patterns; at most {MAX_PATTERNS} are taken", all.len());
            return Err(vec![Fault::new(value.span(), message)]);
        }
        DeValue::Array(all) => all.iter().collect::<Vec<_>>(),
        _ => one.iter().collect(),
    };
    let (mut patterns, mut faults) = (Vec::new(), Vec::new());
    for value in all {
        match pattern(value) {
            Ok(pattern) => patterns.push(pattern),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(patterns) } else { Err(faults) }
}

fn pattern(value: &Spanned<DeValue<'_>>) -> Result<Pattern, Fault> {
    let fault = |message: String| Fault::new(value.span(), message);
    let Some(text) = value.get_ref().as_str() else {
        let fault = fault("not a pattern".to_owned());
        return Err(fault.hint("expected a string in quotes, or a list of them"));
    };
    if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
        let message = format!("a pattern of {} bytes", text.len());
        return Err(fault(message).hint(format!("expected 1 to {MAX_PATTERN_BYTES}")));
    }
    // Labels hold backslashes (systemd escapes with them), so here they mean themselves.
    let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(false).build();
    let glob = glob.map_err(|error| {
        fault(format!("`{}` is no pattern: {}", printable(text), error.kind()))
            .hint("`*` stands for anything, `?` for one character, `[a-z]` for one of these, `{a,b}` for either")
    })?;
    Ok(Pattern { text: text.to_owned(), matcher: glob.compile_matcher() })
}

//! How large the eBPF programs are, and how much work they are for the verifier: the table that is committed
//! beside the object, and the comparison with it.
//!
//! Plain functions over text and numbers: reads no file and asks no kernel. Instruction counts follow from
//! the object, so they are compared exactly; the verifier's figures differ between kernels, so they are
//! held only against figures of the same release series, and with room. Called by `build-ebpf` and `ci`.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

/// How much a program's verified instructions may grow unnoticed: by one part in so many …
const GROWTH_PARTS: u64 = 4;
/// … or by so many, whichever is more: of small programs a share says nothing.
const GROWTH_INSTRUCTIONS: u64 = 500;

/// What the table begins with. The series is in a line of its own, so that it is easy to see in a diff.
const HEADER: &str = "# The eBPF programs and functions of drainprof.bpf.o. Written by `cargo xtask build-ebpf`;\n\
                      # docs/development.md says what the columns are.\n";
const SERIES: &str = "# verifier: ";
const NO_SERIES: &str = "none";
const COLUMNS: [&str; 4] = ["program", "instructions", "verified", "jited_bytes"];
/// A figure that there is none of.
const NONE: &str = "-";

/// What a kernel says of one program; `None` where it does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    /// Instructions that the verifier went through.
    pub(super) verified: Option<u64>,
    /// Bytes of machine code.
    pub(super) jited_bytes: Option<u64>,
}

/// What one kernel says of the programs that it loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Measured {
    /// The first two numbers of its release.
    pub(super) series: String,
    /// By program.
    pub(super) programs: BTreeMap<String, Figures>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// In the object, without those of functions that were not inlined.
    instructions: u64,
    figures: Figures,
}

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statistics {
    /// The kernel whose verifier was asked, as in [`Measured::series`].
    series: Option<String>,
    rows: BTreeMap<String, Row>,
}

/// How measured figures stand to the table's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// One line per program, and one that says what is compared with what.
    pub(super) lines: Vec<String>,
    /// Programs that got too much more to verify. Empty where the kernels differ.
    pub(super) breaches: Vec<String>,
}

impl Statistics {
    /// Of an object's programs and functions, with their numbers of instructions; no kernel asked.
    ///
    /// Several of one name, as a generic function may have them, are one row.
    pub(super) fn of(programs: Vec<(String, u64)>) -> Self {
        let mut rows = BTreeMap::new();
        for (name, instructions) in programs {
            let empty = Row { instructions: 0, figures: Figures::default() };
            rows.entry(name).or_insert(empty).instructions += instructions;
        }
        Self { series: None, rows }
    }

    /// Reads a table back.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut series = None;
        let mut rows = BTreeMap::new();
        let mut lines = text.lines().filter(|line| {
            if let Some(found) = line.strip_prefix(SERIES) {
                series = Some(found.trim().to_owned());
            }
            !line.starts_with('#') && !line.trim().is_empty()
        });
        if !lines.next().is_some_and(|line| line.split_whitespace().eq(COLUMNS)) {
            bail!("the table does not begin with the columns {}", COLUMNS.join(" "));
        }
        for line in lines {
            let (name, row) = parse_row(line).with_context(|| format!("the line `{line}`"))?;
            if rows.insert(name, row).is_some() {
                bail!("the line `{line}` is about a program that has a line already");
            }
        }
        Ok(Self { series: series.filter(|series| series != NO_SERIES), rows })
    }

    /// Takes over the verifier's figures of another table, for the programs that are in both.
    pub(super) fn keep_figures(&mut self, before: &Self) {
        self.series.clone_from(&before.series);
        for (name, row) in &mut self.rows {
            row.figures = before.rows.get(name).map_or_else(Figures::default, |row| row.figures);
        }
    }

    /// Replaces the verifier's figures. Functions have none of their own: they are verified with programs.
    pub(super) fn set_figures(&mut self, measured: &Measured) {
        self.series = Some(measured.series.clone());
        for (name, row) in &mut self.rows {
            row.figures = measured.programs.get(name).copied().unwrap_or_default();
        }
    }

    /// Where the instruction counts of an object are not those of this table.
    pub(super) fn differences(&self, object: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (name, row) in &object.rows {
            match self.rows.get(name) {
                None => found.push(format!("{name} is not in the table")),
                Some(kept) if kept.instructions != row.instructions => found.push(format!(
                    "{name} has {} instructions, {} in the table",
                    row.instructions, kept.instructions
                )),
                Some(_) => {}
            }
        }
        let gone = self.rows.keys().filter(|name| !object.rows.contains_key(*name));
        found.extend(gone.map(|name| format!("{name} is in the table, but not in the object")));
        found
    }

    /// Holds what a kernel says against the table.
    pub(super) fn compare(&self, measured: &Measured) -> Comparison {
        let binding = self.series.as_ref() == Some(&measured.series);
        let table = self.series.as_deref().unwrap_or("no kernel");
        let mut comparison = Comparison::default();
        comparison.lines.push(if binding {
            format!("verified instructions on Linux {table}, here and in the table")
        } else {
            format!(
                "verified instructions on Linux {} here, on {table} in the table: only shown",
                measured.series
            )
        });
        for (name, figures) in &measured.programs {
            let kept = self.rows.get(name).and_then(|row| row.figures.verified);
            let change = kept.zip(figures.verified).map_or_else(String::new, change);
            comparison.lines.push(format!(
                "{name:<32}{:>9}{:>9}{change}",
                shown(figures.verified),
                shown(kept)
            ));
            if let Some((kept, now)) = kept.zip(figures.verified)
                && binding
                && grew_too_much(kept, now)
            {
                comparison
                    .breaches
                    .push(format!("{name}: {now} verified instructions, {kept} in the table"));
            }
        }
        comparison
    }
}

/// Whether a program's verified instructions grew by more than both what is allowed to a share and to a number.
fn grew_too_much(kept: u64, now: u64) -> bool {
    let growth = now.saturating_sub(kept);
    growth > GROWTH_INSTRUCTIONS && growth > kept / GROWTH_PARTS
}

/// The change in percent, where there is any.
fn change((kept, now): (u64, u64)) -> String {
    if kept == now || kept == 0 {
        return String::new();
    }
    let sign = if now > kept { '+' } else { '-' };
    format!("  {sign}{} %", (now.abs_diff(kept) * 100).div_ceil(kept))
}

fn shown(figure: Option<u64>) -> String {
    figure.map_or_else(|| NONE.to_owned(), |figure| figure.to_string())
}

fn parse_row(line: &str) -> Result<(String, Row)> {
    // From the end, because a function's name may have spaces in it.
    let mut words = line.split_whitespace().rev();
    let (Some(jited_bytes), Some(verified), Some(instructions)) =
        (words.next(), words.next(), words.next())
    else {
        bail!("has fewer than {} words", COLUMNS.len());
    };
    let mut name: Vec<_> = words.collect();
    name.reverse();
    let name = name.join(" ");
    if name.is_empty() {
        bail!("has no name");
    }
    let figure = |word: &str| -> Result<Option<u64>> {
        if word == NONE {
            return Ok(None);
        }
        word.parse().map(Some).with_context(|| format!("`{word}` is neither a number nor {NONE}"))
    };
    let instructions = figure(instructions)?.context("has no number of instructions")?;
    let figures = Figures { verified: figure(verified)?, jited_bytes: figure(jited_bytes)? };
    Ok((name, Row { instructions, figures }))
}

/// The table as it is committed. Widths are fixed, so that a new program changes no other line.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let series = self.series.as_deref().unwrap_or(NO_SERIES);
        write!(f, "{HEADER}{SERIES}{series}\n\n")?;
        let [name, instructions, verified, jited_bytes] = COLUMNS;
        writeln!(f, "{name:<32} {instructions:>12} {verified:>12} {jited_bytes:>12}")?;
        for (name, row) in &self.rows {
            let (verified, jited) = (shown(row.figures.verified), shown(row.figures.jited_bytes));
            writeln!(f, "{name:<32} {:>12} {verified:>12} {jited:>12}", row.instructions)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;

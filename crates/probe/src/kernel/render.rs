//! The checks as `doctor` shows them: a table for people, JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

use super::{Check, ProgramStatistics, Status, Verdict, verdict};

/// The name and version of the JSON document.
const SCHEMA: &str = "drainprof.doctor/1";

fn mark(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok  ",
        Status::Off => "-   ",
        Status::Warn => "warn",
        Status::Fail => "FAIL",
    }
}

/// Text from files of the system, without what a terminal would obey.
fn tame(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Writes one line per check, explanations below those that need one, and the verdict.
pub fn render_text(checks: &[Check], out: &mut dyn Write) -> io::Result<()> {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in checks {
        writeln!(out, "{}  {:width$}  {}", mark(check.status), check.name, tame(&check.found))?;
        for (label, text) in [("", &check.means), ("to fix: ", &check.fix)] {
            if !text.is_empty() {
                writeln!(out, "      {:width$}  {label}{}", "", tame(text))?;
            }
        }
    }
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    writeln!(
        out,
        "\n{} ok, {} not there, {} with restrictions, {} failed",
        count(Status::Ok),
        count(Status::Off),
        count(Status::Warn),
        count(Status::Fail)
    )?;
    writeln!(out, "{}", sentence(verdict(checks)))
}

fn sentence(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ready => "drainprof can attach here.",
        Verdict::Privilege => "drainprof cannot attach here: a privilege is missing.",
        Verdict::Feature => "drainprof cannot attach here: the kernel lacks something.",
        Verdict::Resource => "drainprof cannot attach here: there is not enough of something.",
    }
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    verdict: Verdict,
    checks: &'a [Check],
    programs: &'a [ProgramStatistics],
}

/// Writes a table of the programs that the kernel took; nothing where there are none.
pub fn render_programs(programs: &[ProgramStatistics], out: &mut dyn Write) -> io::Result<()> {
    let Some(width) = programs.iter().map(|program| program.name.len()).max() else {
        return Ok(());
    };
    let width = width.max("program".len());
    writeln!(out, "\n{:width$}  {:>10}  {:>10}", "program", "verified", "JITed, B")?;
    let shown = |figure: Option<u32>| figure.map_or_else(|| "-".to_owned(), |n| n.to_string());
    for program in programs {
        let verified = shown(program.verified_instructions);
        let jited = shown(program.jited_bytes);
        writeln!(out, "{:width$}  {verified:>10}  {jited:>10}", program.name)?;
    }
    Ok(())
}

/// Writes the checks, the verdict and the programs as one JSON document.
pub fn render_json(
    checks: &[Check],
    programs: &[ProgramStatistics],
    out: &mut dyn Write,
) -> io::Result<()> {
    let document = Document { schema: SCHEMA, verdict: verdict(checks), checks, programs };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

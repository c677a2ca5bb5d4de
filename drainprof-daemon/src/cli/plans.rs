//! How plans are shown: which probes a process would get, and where.

use std::{fmt::Write as _, io::Write as _};

use anyhow::Result;
use drainprof_probe::plan::{AttachPlan, Member, PlanRow};
use drainprof_process::{Process, elf::readable, printable};
use drainprof_profile::Finding;

use super::output;

/// Which instruction is probed, what a hit costs there, and what it would at the function's first.
fn price(row: &PlanRow) -> Option<String> {
    let mut text = format!(
        "+{:#x} `{}`: {}, {:.0} ns{}",
        row.offset,
        row.instruction.as_deref()?,
        row.instruction_kind?,
        row.cost_ns?,
        if row.costs_measured { "" } else { " (assumed)" }
    );
    if row.offset > 0 {
        let _ = write!(text, "; at +0 {}, ", row.entry_kind?);
        let _ = match row.entry_cost_ns {
            Some(cost) => write!(text, "{cost:.0} ns"),
            None => write!(text, "unusable"),
        };
    }
    if !row.moved.is_empty() {
        let _ = write!(text, "; {}", row.moved.join(" "));
    }
    let _ = write!(text, "; not further: {}", row.stop);
    Some(text)
}

/// One of several probes that stand for one another.
fn one_of(member: &Member, measured: bool) -> String {
    let used = if member.used { "used" } else { "not used" };
    let mut text = format!("{used:<8} {} at {}", member.at, member.phase);
    if let Some(cost) = member.cost_ns {
        let source = if measured { "" } else { " (assumed)" };
        let _ = write!(text, ", {cost:.0} ns{source}");
    }
    if let Some(drawback) = &member.drawback {
        let _ = write!(text, ": {drawback}");
    }
    text
}

/// Where the probes of a process go, as `--dry-run -o json` shows it.
pub(super) fn plans_json(
    process: &Process,
    plans: &[AttachPlan],
    findings: &[Finding],
) -> serde_json::Value {
    let plans: Vec<_> = plans
        .iter()
        .map(|plan| {
            serde_json::json!({
                "profile": plan.profile.name,
                "level": plan.level.name(),
                "probes": plan.rows(),
                "groups": plan.groups,
            })
        })
        .collect();
    serde_json::json!({
        "pid": process.pid,
        "comm": printable(&process.comm),
        "plans": plans,
        "findings": findings,
    })
}

/// Prints where the probes of a process go.
pub(super) fn print_plans(
    process: &Process,
    plans: &[AttachPlan],
    findings: &[Finding],
) -> Result<()> {
    let mut out = output::stdout()?;
    writeln!(out, "process {} ({})", process.pid, printable(&process.comm))?;
    for plan in plans {
        writeln!(out, "  profile {} at level {}", plan.profile.name, plan.level.name())?;
        for row in plan.rows() {
            let symbol = printable(readable(&row.symbol));
            // The several symbols of a C++ constructor read the same.
            let aliases: Vec<String> =
                row.aliases.iter().map(|name| printable(readable(name))).collect();
            let aliases: Vec<String> = aliases.into_iter().filter(|name| *name != symbol).collect();
            let aliases = if aliases.is_empty() {
                String::new()
            } else {
                format!(" (also {})", aliases.join(", "))
            };
            writeln!(
                out,
                "    {:<8} {:<7} {}+{:#x} {}{aliases}",
                row.role, row.phase, row.object, row.file_offset, symbol
            )?;
            if let Some(price) = price(&row) {
                writeln!(out, "             {price}")?;
            }
        }
        for group in &plan.groups {
            writeln!(
                out,
                "    one of {}: {} probes of {} that stand for one another",
                group.group, group.role, group.object
            )?;
            for member in &group.members {
                writeln!(out, "             {}", one_of(member, plan.costs.measured))?;
            }
        }
    }
    for finding in findings {
        writeln!(out, "  {}: {}", finding.code, finding.message)?;
    }
    Ok(())
}

//! What was found, for people.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use drainprof_report::units;

use super::model::{Discovery, Fit, LevelOffer, Prices, ProcessGroup};

/// Most pids and findings that are listed of one group.
const MAX_PIDS: usize = 6;
const MAX_FINDINGS: usize = 3;

/// What is said of profiles that are used only on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line, per program and for all that nothing else fits: they fit nearly everything.
    Brief,
    /// As much as of any other: it was asked for.
    Full,
}

/// Writes what was found.
///
/// # Errors
///
/// Those of `out`.
pub fn render_text(found: &Discovery, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let (hidden, shown): (Vec<_>, Vec<_>) =
        found.groups.iter().partition(|group| detail == Detail::Brief && only_on_request(group));
    for group in &shown {
        render_group(group, detail, out)?;
    }
    render_hidden(&hidden, out)?;
    let looked = found.looked;
    writeln!(
        out,
        "{} examined: {} with a profile, {} with one that must be asked for, {} without",
        units::counted(looked.processes, "process", "processes"),
        looked.with_profile,
        looked.on_request,
        looked.without_profile
    )?;
    for passed in &found.passed_over {
        writeln!(
            out,
            "not examined: {} ({}): {}",
            units::counted(passed.processes, "process", "processes"),
            list(&passed.pids, passed.processes),
            passed.message
        )?;
    }
    if shown.iter().any(|group| !group.fits.is_empty()) {
        let source = match found.prices {
            Prices::Remembered => "as measured on this machine",
            Prices::Assumed => "assumed from another machine: `drainprof calibrate` measures them",
        };
        writeln!(out, "costs are the kernel's part of each hit, {source}")?;
    }
    Ok(())
}

/// There is nothing to report of it that was asked for.
fn only_on_request(group: &ProcessGroup) -> bool {
    !group.fits.is_empty() && group.hints.is_empty() && group.fits.iter().all(|fit| fit.on_request)
}

/// Programs that only profiles fit that must be named, in one line.
fn render_hidden(hidden: &[&ProcessGroup], out: &mut dyn Write) -> io::Result<()> {
    let usable = |group: &&&ProcessGroup| group.fits.iter().any(|fit| fit.unusable.is_none());
    let hidden: Vec<_> = hidden.iter().filter(usable).collect();
    if hidden.is_empty() {
        return Ok(());
    }
    let mut processes = 0;
    let mut programs = BTreeSet::new();
    let mut profiles: BTreeMap<&str, usize> = BTreeMap::new();
    for group in hidden {
        processes += group.pids.len();
        programs.insert((&group.exe, group.other_mount_namespace));
        for fit in group.fits.iter().filter(|fit| fit.unusable.is_none()) {
            *profiles.entry(&fit.profile).or_default() += group.pids.len();
        }
    }
    let mut profiles: Vec<_> = profiles.into_iter().collect();
    profiles.sort_by_key(|&(_, processes)| Reverse(processes));
    let names: Vec<_> = profiles.into_iter().map(|(name, _)| name).collect();
    writeln!(
        out,
        "{} of {} could be examined on request: {}; `drainprof discover --all` lists them",
        units::counted(processes as u64, "process", "processes"),
        units::counted(programs.len() as u64, "program", "programs"),
        names.join(", ")
    )
}

fn render_group(group: &ProcessGroup, detail: Detail, out: &mut dyn Write) -> io::Result<()> {
    let processes = group.pids.len() as u64;
    writeln!(
        out,
        "{}  {} {}  {}{}",
        group.comm,
        if processes == 1 { "pid" } else { "pids" },
        list(&group.pids, processes),
        units::bytes(group.rss_bytes),
        if group.other_mount_namespace { "  (in a container)" } else { "" }
    )?;
    if group.fits.is_empty() && group.hints.is_empty() {
        writeln!(out, "  {}: no profile fits", group.exe)?;
    }
    let (brief, full): (Vec<_>, Vec<_>) =
        group.fits.iter().partition(|fit| detail == Detail::Brief && fit.on_request);
    for fit in &full {
        render_fit(fit, out)?;
    }
    let brief: Vec<_> =
        brief.iter().filter(|fit| fit.unusable.is_none()).map(|fit| fit.profile.as_str()).collect();
    if !brief.is_empty() {
        writeln!(out, "  on request: {} (--profile NAME)", brief.join(", "))?;
    }
    for hint in &group.hints {
        writeln!(out, "  nearly {}: {} misses {}", hint.profile, hint.object, hint.missing)?;
        if let Some(mend) = &hint.mend {
            writeln!(out, "    to mend it: {mend}")?;
        }
    }
    if let Some(command) = &group.attach {
        writeln!(out, "  {command}")?;
    }
    writeln!(out)
}

fn render_fit(fit: &Fit, out: &mut dyn Write) -> io::Result<()> {
    let request = if fit.on_request { ", on request only" } else { "" };
    writeln!(
        out,
        "  {} ({}{request}): {}, in {}",
        fit.profile,
        fit.kind,
        fit.summary,
        fit.objects.join(", ")
    )?;
    if let Some(why) = &fit.unusable {
        writeln!(out, "    cannot be used: {why}")?;
    }
    for offer in &fit.levels {
        let default = if offer.level == fit.default_level { " (default)" } else { "" };
        writeln!(out, "    {:<18} {}", format!("{}{default}", offer.level), price(offer))?;
    }
    // That a place is expensive is what its cost says.
    let reported: Vec<_> =
        fit.findings.iter().filter(|finding| finding.code != "expensive_site").collect();
    for finding in reported.iter().take(MAX_FINDINGS) {
        writeln!(out, "    note: {}", finding.message)?;
    }
    if reported.len() > MAX_FINDINGS {
        let more = reported.len() - MAX_FINDINGS;
        writeln!(out, "    note: {more} more; `attach --dry-run` lists them all")?;
    }
    Ok(())
}

fn price(offer: &LevelOffer) -> String {
    let mut parts = vec![units::counted(offer.probes as u64, "probe", "probes")];
    for (ns, what) in [(offer.granule_ns, "granule"), (offer.object_ns, "object")] {
        if let Some(ns) = ns {
            parts.push(format!("up to {} per {what}", units::duration(ns / 1e9)));
        }
    }
    if offer.object_ns.is_none() {
        parts.push("nothing per object".to_owned());
    }
    parts.join(", ")
}

fn list(pids: &[u32], all: u64) -> String {
    let shown: Vec<_> = pids.iter().take(MAX_PIDS).map(u32::to_string).collect();
    let more = all.saturating_sub(shown.len() as u64);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

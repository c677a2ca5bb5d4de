//! Many processes of one executable, as one block: sums, each finding once, and only the members that differ.
//!
//! `json` has every process.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    growth::signed,
    page::{PATH, Page, SYMBOL, cost},
};
use crate::{
    Allocator, Cost, Finding, Kind, Report, Retention, Severity, Target,
    export::{Error, escape},
    units,
};

/// More processes of one executable than this are shown as one.
const MAX_SHOWN_ALONE: usize = 3;
/// Members that are shown in full.
const IN_FULL: usize = 3;
/// Members of the rest that are named.
const MAX_NAMED_MEMBERS: usize = 40;

/// Processes in the order of a page.
pub(super) enum Part<'a> {
    /// One process.
    One(&'a Target),
    /// All of one executable.
    Family(Vec<&'a Target>),
}

/// The processes of a report, families at the place of their first members.
pub(super) fn parts(targets: &[Target]) -> Vec<Part<'_>> {
    let mut by_exe: BTreeMap<&str, Vec<&Target>> = BTreeMap::new();
    for target in targets {
        by_exe.entry(&target.exe).or_default().push(target);
    }
    let mut parts = Vec::new();
    for target in targets {
        match by_exe.get(target.exe.as_str()) {
            Some(members) if members.len() > MAX_SHOWN_ALONE => {
                parts.extend(by_exe.remove(target.exe.as_str()).map(Part::Family));
            }
            Some(_) => parts.push(Part::One(target)),
            // Shown with its family.
            None => {}
        }
    }
    parts
}

/// What one profile has counted in all members.
struct Sum<'a> {
    profile: &'a str,
    kind: Kind,
    level: &'static str,
    processes: BTreeSet<u32>,
    measurable: bool,
    counts: [u64; 6],
    retained: Option<u64>,
    retained_bytes: Option<u64>,
}

impl<'a> Sum<'a> {
    fn of(first: &'a Allocator) -> Self {
        Self {
            profile: &first.profile,
            kind: first.kind,
            level: first.level.name(),
            processes: BTreeSet::new(),
            measurable: true,
            counts: [0; 6],
            retained: Some(0),
            retained_bytes: Some(0),
        }
    }

    fn is_of(&self, one: &Allocator) -> bool {
        self.profile == one.profile && self.kind == one.kind && self.level == one.level.name()
    }

    fn add(&mut self, target: u32, one: &Allocator) {
        self.processes.insert(target);
        self.measurable &= one.not_measurable.is_none();
        let of = &one.granules;
        let more = [of.drainable, of.pinned, of.unknown, of.opened, of.closed, of.open_now];
        for (sum, more) in self.counts.iter_mut().zip(more) {
            *sum = sum.saturating_add(more);
        }
        let plus = |sum: Option<u64>, more: Option<u64>| Some(sum?.saturating_add(more?));
        self.retained = plus(self.retained, one.retention.granules);
        self.retained_bytes = plus(self.retained_bytes, one.retention.bytes);
    }
}

/// A finding, and the processes that have it.
type Shared<'a> = Vec<(&'a Finding, BTreeSet<u32>)>;

/// The findings of all members: those that differ in numbers only are one.
fn shared<'a>(members: &[&'a Target]) -> Shared<'a> {
    let mut found: Shared<'a> = Vec::new();
    for target in members {
        for finding in &target.findings {
            match found.iter_mut().find(|(other, _)| is_alike(other, finding)) {
                Some((_, processes)) => drop(processes.insert(target.target)),
                None => found.push((finding, BTreeSet::from([target.target]))),
            }
        }
    }
    found
}

/// Whether two findings are the same but for their numbers.
fn is_alike(one: &Finding, other: &Finding) -> bool {
    (&one.code, one.severity, &one.profile) == (&other.code, other.severity, &other.profile)
}

fn grown(target: &Target) -> i64 {
    target.growth.as_ref().map_or(0, |growth| growth.rss.change.resident())
}

fn retained(target: &Target) -> (u64, u64) {
    let sum = |of: fn(&Retention) -> Option<u64>| {
        let known = target.allocators.iter().filter_map(|one| of(&one.retention));
        known.fold(0_u64, u64::saturating_add)
    };
    (sum(|one| one.bytes), sum(|one| one.granules))
}

/// The members that differ: the one that grew most, the one that retains most, and those with findings of their own.
fn outstanding<'a>(members: &[&'a Target], found: &Shared<'_>) -> Vec<&'a Target> {
    let most_grown = members.iter().max_by_key(|one| grown(one)).filter(|one| grown(one) > 0);
    let most_held =
        members.iter().max_by_key(|one| retained(one)).filter(|one| retained(one) > (0, 0));
    let own = found
        .iter()
        .filter(|(finding, processes)| processes.len() == 1 && finding.severity != Severity::Info);
    let own = own
        .flat_map(|(_, processes)| processes.iter())
        .filter_map(|number| members.iter().find(|target| target.target == *number));
    let mut chosen: Vec<&Target> = Vec::new();
    for target in most_grown.into_iter().chain(most_held).chain(own) {
        if chosen.len() < IN_FULL && !chosen.iter().any(|one| one.target == target.target) {
            chosen.push(target);
        }
    }
    chosen
}

impl Page<'_> {
    /// The block of a family, then the members that differ, then the others' numbers.
    pub(super) fn family(&mut self, report: &Report, members: &[&Target]) -> Result<(), Error> {
        let Some(first) = members.first() else { return Ok(()) };
        let comms: BTreeSet<&str> = members.iter().map(|one| one.comm.as_str()).collect();
        let comm = if comms.len() == 1 {
            escape::shown(&first.comm, SYMBOL)
        } else {
            "various names".to_owned()
        };
        let exe = escape::shown(&first.exe, PATH);
        self.title(&format!("\n{comm} ({} processes) {exe}", members.len()))?;
        self.sums(members)?;
        let found = shared(members);
        for (finding, processes) in &found {
            self.findings(std::slice::from_ref(*finding))?;
            if processes.len() > 1 {
                self.line(&format!(
                    "    (in {} processes; the numbers are of one)",
                    processes.len()
                ))?;
            }
        }
        for sum in sums(members) {
            self.sum(&sum)?;
        }
        // Members that are not shown in full may be the only ones that list them.
        if let Some(target) = members.iter().find(|target| !target.probes.is_empty()) {
            self.probes(report, target)?;
        }
        let chosen = outstanding(members, &found);
        for target in &chosen {
            // What others have too is reported above.
            let is_own = |finding: &&Finding| {
                !found
                    .iter()
                    .any(|(known, processes)| processes.len() > 1 && is_alike(known, finding))
            };
            let findings = target.findings.iter().filter(is_own).cloned().collect();
            self.target(report, &Target { findings, ..(*target).clone() })?;
        }
        let rest = members.iter().filter(|one| !chosen.iter().any(|own| own.target == one.target));
        let pids: Vec<String> = rest.map(|target| target.pid.to_string()).collect();
        let more = if pids.len() > MAX_NAMED_MEMBERS { ", …" } else { "" };
        let named =
            pids.iter().take(MAX_NAMED_MEMBERS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let others = if chosen.is_empty() { "processes" } else { "others" };
        self.line("")?;
        self.wrapped(
            "  ",
            &format!(
                "{} {others} of this program, shown one by one with -o json: {named}{more}",
                pids.len()
            ),
        )
    }

    /// What the processes use and have cost, together.
    fn sums(&mut self, members: &[&Target]) -> Result<(), Error> {
        let rss = members.iter().filter_map(|one| one.rss_bytes).fold(0, u64::saturating_add);
        let ended = members.iter().filter(|one| one.ended.is_some()).count();
        let mut text = format!("{} run, RSS {} in all", members.len() - ended, units::bytes(rss));
        if ended > 0 {
            text = format!("{text}; {ended} have ended");
        }
        if members.iter().any(|one| one.growth.is_some()) {
            let all = members.iter().fold(0_i64, |sum, one| sum.saturating_add(grown(one)));
            text = format!("{text}; resident memory {}", signed(all));
        }
        self.wrapped("  ", &text)?;
        let first = Cost { hits: 0, cpu_seconds: 0.0, cpu_ratio: Some(0.0), measured: true };
        let all = members.iter().fold(first, |sum, one| Cost {
            hits: sum.hits.saturating_add(one.cost.hits),
            cpu_seconds: sum.cpu_seconds + one.cost.cpu_seconds,
            cpu_ratio: sum.cpu_ratio.zip(one.cost.cpu_ratio).map(|(sum, more)| sum + more),
            measured: sum.measured && one.cost.measured,
        });
        let text = cost(&all).replacen("its time", "their time", 1);
        if all.hits > 0 { self.line(&format!("  {text}")) } else { Ok(()) }
    }

    fn sum(&mut self, sum: &Sum<'_>) -> Result<(), Error> {
        let profile = escape::shown(sum.profile, SYMBOL);
        let (kind, level) = (sum.kind.name(), sum.level);
        let processes = units::counted(sum.processes.len() as u64, "process", "processes");
        self.line(&format!("\n  {profile}  (kind {kind}, level {level}, in {processes})"))?;
        let [drainable, pinned, unknown, opened, closed, open] = sum.counts;
        if sum.kind == Kind::Drain {
            let value = if sum.measurable {
                units::dsr(crate::dsr(sum.kind, drainable, pinned))
            } else {
                "not measurable".to_owned()
            };
            self.fact(
                "DSR",
                &format!("{value}  {drainable} drainable, {pinned} pinned, {unknown} unknown"),
            )?;
        }
        self.fact("granules", &format!("{opened} opened, {closed} closed, {open} open now"))?;
        let Some(retained) = sum.retained.filter(|_| sum.kind == Kind::Drain) else {
            return Ok(());
        };
        let bytes = sum.retained_bytes.map(|bytes| format!(", {}", units::bytes(bytes)));
        self.fact("retained", &format!("{retained} granules{}", bytes.unwrap_or_default()))
    }
}

fn sums<'a>(members: &[&'a Target]) -> Vec<Sum<'a>> {
    let mut sums: Vec<Sum<'a>> = Vec::new();
    for target in members {
        for one in &target.allocators {
            let at = sums.iter().position(|sum| sum.is_of(one)).unwrap_or_else(|| {
                sums.push(Sum::of(one));
                sums.len() - 1
            });
            if let Some(sum) = sums.get_mut(at) {
                sum.add(target.target, one);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use crate::{
        Options, Report, Target,
        export::{Exporter as _, Style, text::Text},
        samples,
    };

    /// Nine processes of one program, between two of others.
    fn report() -> Report {
        let mut report = Report::build(&samples::drain_snapshot(), &Options::default());
        report.tool.version = "1.2.3".to_owned();
        let one = report.targets.remove(0);
        let other = |exe: &str, number: u32| Target {
            exe: exe.to_owned(),
            pid: number,
            target: number,
            findings: Vec::new(),
            allocators: Vec::new(),
            ..one.clone()
        };
        let members = (100..109).map(|number| {
            let mut member = Target { target: number, pid: number, ..one.clone() };
            member.allocators[0].retention.bytes = Some(u64::from(number));
            member
        });
        let members: Vec<Target> = members.collect();
        report.targets = vec![other("/usr/bin/first", 1)];
        report.targets.extend(members);
        report.targets.push(other("/usr/bin/last", 2));
        report
    }

    fn page(report: &Report) -> String {
        let mut out = Vec::new();
        Text.report(report, &Style::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// The sums once, the finding once, the member that retains most in full, and the others in a line.
    #[test]
    fn a_family_is_one_block() {
        let page = page(&report());
        insta::assert_snapshot!("family", page);
        assert!(page.contains("(9 processes)") && page.contains("\nsvc[108]"), "{page}");
        assert!(!page.contains("svc[100]"), "{page}");
    }

    /// A finding that one member alone has brings that member up; three processes are shown one by one.
    #[test]
    fn members_that_differ() {
        let mut report = report();
        let mut own = report.targets[3].findings[0].clone();
        own.code = "own".to_owned();
        report.targets[3].findings.push(own);
        let found = page(&report);
        assert!(found.contains("\nsvc[102]") && found.contains("\nsvc[108]"), "{found}");
        report.targets.truncate(4);
        let few = page(&report);
        assert!(!few.contains("processes)") && few.contains("\nsvc[100]"), "{few}");
    }
}

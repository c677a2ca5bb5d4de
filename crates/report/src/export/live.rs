//! The live view: what the last interval was like.
//!
//! [`lines`] for logs and pipes, one line per allocator; [`screen`] for a terminal, whose caller clears
//! it and knows its size.

use std::io;

use super::{
    Error, Interval, Style, escape,
    rate::{self, Change},
    table::Rows,
};
use crate::{Kind, Spread, health::Health, units};

/// Characters shown of a process's name (the kernel keeps 15; escapes are longer).
const NAME: usize = 20;
/// Characters of an allocator's name in the table.
const ALLOCATOR: usize = 29;

/// One line per process and allocator:
/// `12:00:05 svc[4242] epoch-demo DSR 0.7520 closes 1000/s pinned 248/s open 16 retained 2474 (9.7 MiB)`.
pub fn lines(interval: &Interval<'_>, out: &mut dyn io::Write) -> Result<(), Error> {
    let clock = escape::shown(interval.clock, 40);
    for change in rate::changes(interval) {
        let Change { target, now, delta, .. } = change;
        let rate = |count| units::rate(change.per_second(count));
        write!(
            out,
            "{clock} {}[{}] {}",
            name(&target.comm),
            target.pid,
            allocator(&change, false)
        )?;
        if let Some(sampling) = now.sampling {
            write!(out, " (1 of {})", sampling.one_in)?;
        }
        match now.kind {
            Kind::Drain => {
                let (closes, pinned) = (rate(delta.closed), rate(delta.pinned));
                write!(
                    out,
                    " DSR {} closes {closes} pinned {pinned} open {}",
                    units::dsr(change.dsr()),
                    now.granules.open_now
                )?;
                if delta.unknown > 0 {
                    write!(out, " unknown {}", rate(delta.unknown))?;
                }
                match now.retention.granules {
                    Some(granules) => write!(out, " retained {granules}{}", held(&change))?,
                    None => write!(out, " retained not measured")?,
                }
            }
            Kind::Bulk | Kind::Slab => {
                let (opens, closes) = (rate(delta.opened), rate(delta.closed));
                let Spread { p99, .. } = now.lifetimes.seconds;
                write!(
                    out,
                    " {} opens {opens} closes {closes} open {} overdue {}{}",
                    now.kind.name(),
                    now.granules.open_now,
                    now.overdue.granules,
                    p99.map(|p99| format!(" p99 {}", units::duration(p99))).unwrap_or_default()
                )?;
                if let Some(census) = &now.census {
                    write!(out, " empty now {}", census.drainable_now)?;
                }
                if let Some(objects) = now.objects {
                    write!(out, " live {}", objects.live)?;
                }
            }
        }
        writeln!(out, "{}", if interval.now.complete { "" } else { " INCOMPLETE" })?;
    }
    Ok(())
}

/// A compact table of the allocators that matter most: by retained bytes, overdue granules, closes.
pub fn screen(
    interval: &Interval<'_>,
    style: &Style,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    let report = interval.now;
    writeln!(
        out,
        "{}  observed {}, last {}  own CPU {}, RSS {}",
        escape::shown(interval.clock, 40),
        units::duration(report.window.observed()),
        units::duration(rate::seconds(interval)),
        report.self_use.cpu_ratio.map_or_else(|| "?".to_owned(), units::percent),
        units::bytes(report.self_use.rss_bytes),
    )?;
    let mut sampling = report.targets.iter().flat_map(|target| &target.allocators);
    if let Some(sampling) = sampling.find_map(|allocator| allocator.sampling) {
        writeln!(out, "counted in 1 of {} granules", sampling.one_in)?;
    }
    for line in super::not_measurable(report) {
        writeln!(out, "{}", cut(&line, usize::from(style.width)))?;
    }
    for line in Health::from_names(&report.losses).incomplete() {
        writeln!(out, "INCOMPLETE: {} {}", escape::shown(&line.name, 60), line.count)?;
    }
    let mut changes = rate::changes(interval);
    let total = changes.len();
    changes.sort_by_key(|change| {
        let retained = change.now.retention.bytes.or(change.now.retention.granules);
        std::cmp::Reverse((retained, change.now.overdue.granules, change.delta.closed))
    });
    changes.truncate(style.top);
    let header = [
        "process",
        "allocator",
        "kind",
        "DSR",
        "DSR all",
        "closes",
        "pinned",
        "open",
        "overdue",
        "retained",
        "bytes",
    ];
    let mut rows = Rows::new(&header, 3, style.width);
    for change in &changes {
        rows.push(row(change));
    }
    for line in rows.unwrapped().lines("") {
        writeln!(out, "{}", cut(&line, usize::from(style.width)))?;
    }
    if total > changes.len() {
        writeln!(out, "and {} more", total - changes.len())?;
    }
    if total == 0 {
        writeln!(out, "no granule was seen yet")?;
    }
    Ok(())
}

fn row(change: &Change<'_>) -> Vec<String> {
    let now = change.now;
    let drain = now.kind == Kind::Drain;
    let dsr = |value| if drain { units::dsr(value) } else { "-".to_owned() };
    let unknown = || "-".to_owned();
    vec![
        format!("{}[{}]", cut(&name(&change.target.comm), NAME), change.target.pid),
        cut(&allocator(change, true), ALLOCATOR),
        now.kind.name().to_owned(),
        dsr(change.dsr()),
        dsr(now.dsr),
        units::rate(change.per_second(change.delta.closed)),
        if drain { units::rate(change.per_second(change.delta.pinned)) } else { unknown() },
        now.granules.open_now.to_string(),
        now.overdue.granules.to_string(),
        now.retention.granules.filter(|_| drain).map_or_else(unknown, |count| count.to_string()),
        now.retention.bytes.filter(|_| drain).map_or_else(unknown, units::bytes),
    ]
}

/// The first `most` characters.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

fn name(comm: &str) -> String {
    escape::shown(comm, NAME)
}

/// The profile, and the instance where the process has several; in a table the end of its address, in
/// which instances differ.
fn allocator(change: &Change<'_>, short: bool) -> String {
    let profile = &change.now.profile;
    let twins = change.target.allocators.iter().filter(|other| other.profile == *profile).count();
    let profile = escape::shown(profile, 40);
    let Some(instance) = change.now.instance.as_deref().filter(|_| twins > 1) else {
        return profile;
    };
    let instance = escape::shown(instance, 18);
    match instance.char_indices().rev().nth(5) {
        Some((start, _)) if short && start > 2 => format!("{profile}@…{}", &instance[start..]),
        _ => format!("{profile}@{instance}"),
    }
}

fn held(change: &Change<'_>) -> String {
    let bytes = change.now.retention.bytes;
    bytes.map(|bytes| format!(" ({})", units::bytes(bytes))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Options, Report, facts::Snapshot, samples};

    fn later(snapshot: &Snapshot) -> Snapshot {
        let mut later = snapshot.clone();
        later.window += Duration::from_secs(1);
        for allocator in later.targets.iter_mut().flat_map(|target| &mut target.allocators) {
            let totals = &mut allocator.totals;
            totals.opened += 1000;
            if allocator.profile.kind == Kind::Drain {
                totals.drainable += 752;
                totals.pinned += 248;
            } else {
                totals.closed_plain += 1000;
            }
        }
        later
    }

    fn write(snapshot: &Snapshot, as_screen: bool) -> String {
        let before = Report::build(snapshot, &Options::default());
        let now = Report::build(&later(snapshot), &Options::default());
        let interval = Interval { before: Some(&before), now: &now, clock: "12:00:05" };
        let mut out = Vec::new();
        if as_screen {
            screen(&interval, &Style::default(), &mut out).unwrap();
        } else {
            lines(&interval, &mut out).unwrap();
        }
        String::from_utf8(out).unwrap()
    }

    /// The line of the documentation: the DSR and the rates are the interval's.
    #[test]
    fn line_of_a_drain_allocator() {
        assert_eq!(
            write(&samples::drain_snapshot(), false),
            "12:00:05 svc[4242] epoch-demo DSR 0.7520 closes 1000/s pinned 248/s open 0 \
             retained 2474 (9.7 MiB)\n"
        );
    }

    /// Every kind and level has a line and a row, and what is not known is not a number.
    #[test]
    fn all_kinds() {
        let mut text = String::new();
        for (name, snapshot) in samples::all() {
            for as_screen in [false, true] {
                text.extend(["-- ", name, "\n", &write(&snapshot, as_screen)]);
            }
        }
        insta::assert_snapshot!(text);
    }
}

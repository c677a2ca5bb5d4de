//! A comparison for people: what each allocator was and is, and the sites that changed most.

use std::io;

use anstyle::{AnsiColor, Style as Paint};

use super::{Error, Style, escape};
use crate::{
    Growth, Kind, PinClass,
    diff::{AllocatorDiff, Change, Diff, DiffFrame, Presence, Side, SiteDiff, Status},
    export::{SENTENCE, table::Rows, text::page::Page},
    units,
};

const WORSE: Paint = AnsiColor::Red.on_default();
const BETTER: Paint = AnsiColor::Green.on_default();

/// Characters of a name, and of a path.
const NAME: usize = 60;
const PATH: usize = 80;
/// Functions of a call path that are shown.
const FRAMES: usize = 8;

/// Writes the page.
pub(super) fn write(diff: &Diff, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
    let mut page = Page { style, out };
    page.diff_side("before", &diff.before)?;
    page.diff_side("after", &diff.after)?;
    for note in &diff.notes {
        page.wrapped("  ", &format!("note: {}", escape::shown(note, SENTENCE)))?;
    }
    for allocator in &diff.allocators {
        page.diff_allocator(allocator)?;
    }
    page.diff_growth(diff)?;
    if diff.allocators.is_empty() && diff.growth.is_empty() {
        page.line("\nno allocator was observed in either")?;
    }
    Ok(())
}

impl Page<'_> {
    /// What memory grows by.
    fn diff_growth(&mut self, diff: &Diff) -> Result<(), Error> {
        if diff.growth.is_empty() {
            return Ok(());
        }
        self.line("\nmemory growth by call path, before → after")?;
        let signed = |change: Change<i64>| {
            let reported = |bytes: Option<i64>| match bytes {
                None => "?".to_owned(),
                Some(bytes) if bytes < 0 => format!("−{}", units::bytes(bytes.unsigned_abs())),
                Some(bytes) => units::bytes(bytes.unsigned_abs()),
            };
            format!("{} → {}", reported(change.before), reported(change.after))
        };
        let mut rows = Rows::new(&["resident", "heap", "mapped", "call path"], 0, self.style.width)
            .unwrapped();
        for path in diff.growth.iter().take(self.style.top) {
            let mapped = |bytes: Option<u64>| bytes.map_or("?".to_owned(), units::bytes);
            let names: Vec<_> = path
                .frames
                .iter()
                .take(4)
                .map(|frame| escape::shown(&frame_name(frame), NAME / 2))
                .collect();
            rows.push(vec![
                signed(path.rss_bytes),
                signed(path.heap_bytes),
                format!(
                    "{} → {}",
                    mapped(path.outstanding_bytes.before),
                    mapped(path.outstanding_bytes.after)
                ),
                escape::shown(&names.join(" ← "), PATH),
            ]);
        }
        self.rows(rows, "  ")
    }

    fn diff_side(&mut self, which: &str, side: &Side) -> Result<(), Error> {
        let kernel = match side.kernel.as_str() {
            "" => String::new(),
            kernel => format!(", Linux {}", escape::shown(kernel, NAME)),
        };
        let incomplete = if side.complete { "" } else { ", INCOMPLETE" };
        let text = format!(
            "{which:<7} {}: {} observed, {} {}, drainprof {}{kernel}{incomplete}",
            escape::shown(&side.file, PATH),
            units::duration(side.observed_seconds),
            side.processes,
            if side.processes == 1 { "process" } else { "processes" },
            escape::shown(&side.version, NAME)
        );
        self.wrapped("", &text)
    }

    fn diff_allocator(&mut self, allocator: &AllocatorDiff) -> Result<(), Error> {
        let title = format!(
            "\n{} {}  {}  (kind {})",
            escape::shown(&allocator.comm, NAME),
            escape::shown(&allocator.exe, PATH),
            escape::shown(&allocator.profile, NAME),
            allocator.kind.name()
        );
        self.title(&title)?;
        match allocator.presence {
            Presence::Both => {}
            Presence::OnlyBefore => self.line("  only before: nothing after matches it")?,
            Presence::OnlyAfter => self.line("  only after: nothing before matches it")?,
        }
        let mut rows =
            Rows::new(&["", "before", "after", "change"], 1, self.style.width.saturating_sub(2));
        let drain = allocator.kind == Kind::Drain;
        if drain {
            let difference = both(allocator.dsr).map(|(a, b)| format!("{:+.4}", b - a));
            rows.push(row("DSR", allocator.dsr, |dsr| units::dsr(Some(dsr)), difference));
        }
        rows.push(number("opens", allocator.opens_per_second, units::rate));
        rows.push(number("closes", allocator.closes_per_second, units::rate));
        if drain {
            rows.push(number("pinned closes", allocator.pinned_per_second, units::rate));
            rows.push(count("retained granules", allocator.retained_granules, |n| n.to_string()));
            rows.push(count("retained bytes", allocator.retained_bytes, units::bytes));
        } else {
            rows.push(count("open granules", allocator.open_granules, |n| n.to_string()));
        }
        rows.push(count("live objects", allocator.live_objects, |n| n.to_string()));
        rows.push(count("live bytes", allocator.live_bytes, units::bytes));
        rows.push(number("growth", allocator.slope_granules_per_second, granule_rate));
        rows.push(number("growth in bytes", allocator.slope_bytes_per_second, units::byte_rate));
        rows.push(row("verdict", allocator.verdict, |v| Growth::words(v).to_owned(), None));
        self.rows(rows, "  ")?;
        allocator.sites.as_ref().map_or(Ok(()), |sites| self.diff_sites(allocator, sites))
    }

    fn diff_sites(&mut self, allocator: &AllocatorDiff, sites: &[SiteDiff]) -> Result<(), Error> {
        let order = [Status::New, Status::Grown, Status::Shrunk, Status::Gone, Status::Same];
        let counts: Vec<_> = order
            .into_iter()
            .map(|status| (status, sites.iter().filter(|site| site.status == status).count()))
            .filter(|&(_, count)| count > 0)
            .map(|(status, count)| format!("{count} {}", status.words()))
            .collect();
        if counts.is_empty() {
            return self.line("\n  no sites");
        }
        self.line(&format!("\n  sites: {}", counts.join(", ")))?;
        let changed: Vec<_> = sites.iter().filter(|site| site.status != Status::Same).collect();
        let top = self.style.top;
        for site in changed.iter().take(top) {
            self.diff_site(allocator.kind, site)?;
        }
        if changed.len() > top {
            self.line(&format!("    and {} more that changed", changed.len() - top))?;
        }
        Ok(())
    }

    fn diff_site(&mut self, kind: Kind, site: &SiteDiff) -> Result<(), Error> {
        let paint = match site.status {
            Status::New | Status::Grown => WORSE,
            Status::Shrunk | Status::Gone => BETTER,
            Status::Same => Paint::new(),
        };
        let doubt = if site.certain { "" } else { " (or not listed)" };
        let mut facts = Vec::new();
        if kind == Kind::Drain {
            facts.push(reported("pinned closes", site.pinned_per_second, units::rate));
            facts.push(reported("retained", site.retained_bytes, units::bytes));
            facts.push(reported("half freed within", site.pin_delay_p50_seconds, units::duration));
            facts.push(reported("class", site.class, |class| PinClass::words(class).to_owned()));
        } else {
            facts.push(reported("live", site.live, |n| n.to_string()));
            facts.push(reported("live bytes", site.live_bytes, units::bytes));
            facts.push(reported("allocated", site.allocated_per_second, units::rate));
        }
        let facts: Vec<_> = facts.into_iter().flatten().collect();
        let status = self.style.paint(paint, site.status.words());
        self.line(&format!("  {status}{doubt}"))?;
        self.wrapped("    ", &path(&site.frames))?;
        if !site.opened_at.is_empty() {
            self.wrapped("    ", &format!("in granules opened at {}", path(&site.opened_at)))?;
        }
        self.wrapped("    ", &facts.join(", "))
    }
}

fn granule_rate(per_second: f64) -> String {
    let sign = if per_second < 0.0 { "-" } else { "" };
    format!("{sign}{}", units::rate(per_second.abs()))
}

fn both<T>(change: Change<T>) -> Option<(T, T)> {
    Some((change.before?, change.after?))
}

fn row<T: Copy>(
    name: &str,
    change: Change<T>,
    shown: impl Fn(T) -> String,
    difference: Option<String>,
) -> Vec<String> {
    let side = |value: Option<T>| value.map_or_else(|| "-".to_owned(), &shown);
    vec![name.to_owned(), side(change.before), side(change.after), difference.unwrap_or_default()]
}

fn number(name: &str, change: Change<f64>, shown: fn(f64) -> String) -> Vec<String> {
    let difference = both(change).and_then(|(before, after)| relative(before, after));
    row(name, change, shown, difference)
}

fn count(name: &str, change: Change<u64>, shown: fn(u64) -> String) -> Vec<String> {
    let difference = both(change).and_then(|(before, after)| relative(before as f64, after as f64));
    row(name, change, shown, difference)
}

/// In per cent, or as a factor where per cents would be many. Nothing where there was nothing to compare with.
fn relative(before: f64, after: f64) -> Option<String> {
    if before <= 0.0 || !before.is_finite() || !after.is_finite() {
        return None;
    }
    let ratio = after / before;
    Some(match ratio {
        r if (r - 1.0).abs() < 0.000_5 => "same".to_owned(),
        r if r >= 10.0 => format!("× {r:.0}"),
        r => format!("{:+.1} %", (r - 1.0) * 100.0),
    })
}

/// `name before → after`; nothing where neither is known.
fn reported<T: Copy>(name: &str, change: Change<T>, shown: impl Fn(T) -> String) -> Option<String> {
    if change.before.is_none() && change.after.is_none() {
        return None;
    }
    let side = |value: Option<T>| value.map_or_else(|| "-".to_owned(), &shown);
    let (before, after) = (side(change.before), side(change.after));
    Some(if before == after {
        format!("{name} {after} as before")
    } else {
        format!("{name} {before} → {after}")
    })
}

/// `make_session session.c ← handle_request server.c ← main`, the allocating function first.
fn path(frames: &[DiffFrame]) -> String {
    if frames.is_empty() {
        return "(the call path was not captured)".to_owned();
    }
    let mut names: Vec<_> = frames
        .iter()
        .take(FRAMES)
        .map(|frame| {
            let file = frame.file.as_ref().filter(|_| frame.function.is_some());
            let file = file.map(|file| format!(" {}", escape::shown(file, NAME)));
            format!("{}{}", escape::shown(&frame_name(frame), NAME), file.unwrap_or_default())
        })
        .collect();
    if frames.len() > FRAMES {
        names.push(format!("… {} more", frames.len() - FRAMES));
    }
    names.join(" ← ")
}

/// The function, or module and offset.
pub(super) fn frame_name(frame: &DiffFrame) -> String {
    match (&frame.function, &frame.module, &frame.module_offset) {
        (Some(function), ..) => function.clone(),
        (None, Some(module), Some(offset)) => format!("{module}+{offset}"),
        (None, Some(module), None) => module.clone(),
        (None, None, _) => "?".to_owned(),
    }
}

//! Who pins, and who holds: call paths with their numbers.
//!
//! One row of numbers per path, the path below it, innermost function first. What is the same for every
//! program (the way from the kernel to `main` or to a thread's function) is left out of whole paths.

use super::{
    allocator::count,
    frame,
    page::{Page, SYMBOL},
};
use crate::{
    Allocator, Growth, Kind, PathEnd, Site, SiteFrame,
    export::{
        Error, escape,
        exporter::SENTENCE,
        table::{Rows, bar},
    },
    units,
};

/// Lines that a path takes at most.
const MAX_PATH_LINES: usize = 12;
/// Threads that are named.
const THREADS: usize = 4;
/// Columns of a bar: with a number it is as wide as the first header.
const BAR: usize = 5;
/// Columns before a path's lines.
const INDENT: &str = "         ";

impl Page<'_> {
    pub(super) fn sites(&mut self, allocator: &Allocator) -> Result<(), Error> {
        let Some(sites) = &allocator.sites else { return Ok(()) };
        let total = allocator.sites_total.unwrap_or_default();
        let mut silent = "";
        let mut shown: Vec<&Site> = sites.iter().collect();
        if shown.first().is_some_and(|site| site.selected.is_some()) {
            let header = ["asked for", "objects", "bytes", "from", "to", "live now"];
            self.ranked(&header, &shown, selected, |site| {
                site.selected.map_or(0, |own| own.objects)
            })?;
        } else if allocator.kind == Kind::Drain {
            // The others come after them, so those that are not listed have none either.
            shown.retain(|site| site.pins > 0);
            if shown.is_empty() {
                return self.fact("sites", &format!("{total} call paths allocate; none has pins"));
            }
            silent = if shown.len() < sites.len() { ", which pin nothing" } else { "" };
            let header =
                ["who pins", "granules", "share", "pins", "held", "p50 late", "p99 late", "class"];
            self.ranked(&header, &shown, pins, |site| site.granules_pinned)?;
        } else if shown.first().is_some_and(|site| site.estimated.is_some()) {
            let header = ["outstanding", "bytes", "95 %", "objects", "counted", "bytes"];
            self.ranked(&header, &shown, estimated, |site| {
                site.estimated.map_or(0, |own| own.live)
            })?;
        } else if shown.first().is_some_and(|site| site.granules_held.is_some()) {
            let header = ["who holds", "granules", "alone", "live", "bytes", "allocated", "bytes"];
            self.ranked(&header, &shown, keeps, |site| site.granules_held.unwrap_or(0))?;
        } else if !shown.is_empty() {
            let header = ["who holds", "live", "bytes", "allocated", "bytes"];
            self.ranked(&header, &shown, holds, |site| site.live.unwrap_or(0))?;
        }
        let rows = shown.len().min(self.style.top);
        let silent = if rows < shown.len() { "" } else { silent };
        match total.saturating_sub(rows as u64) {
            0 => Ok(()),
            more => self.line(&format!("    and {more} more call paths{silent}")),
        }
    }

    /// The rows, each with its path below it. On a terminal, the number of a row has a bar of its weight behind it.
    fn ranked(
        &mut self,
        header: &[&str],
        sites: &[&Site],
        row: fn(&Site) -> Vec<String>,
        weight: fn(&Site) -> u64,
    ) -> Result<(), Error> {
        let mut rows = Rows::new(header, 1, self.style.width.saturating_sub(4)).unwrapped();
        let sites = &sites[..sites.len().min(self.style.top)];
        let most = sites.iter().map(|site| weight(site)).max().unwrap_or_default();
        for (rank, site) in sites.iter().enumerate() {
            let share = weight(site) as f64 / most.max(1) as f64;
            let bar = if self.style.colour { bar(share, BAR) } else { String::new() };
            let mut cells =
                vec![format!("{:<3}{bar}", format!("{}.", rank + 1)).trim_end().to_owned()];
            cells.extend(row(site));
            rows.push(cells);
        }
        let mut lines = rows.lines("    ").into_iter();
        lines.next().map_or(Ok(()), |header| self.line(&header))?;
        for (line, site) in lines.zip(sites) {
            self.line(&line)?;
            self.path(site)?;
            self.growth_of(site)?;
            self.circumstances(site)?;
        }
        Ok(())
    }

    /// What its retention looks like over time, where that says something of it.
    fn growth_of(&mut self, site: &Site) -> Result<(), Error> {
        match (site.verdict, &site.verdict_reason) {
            (None | Some(Growth::None | Growth::TooEarly), _) | (_, None) => Ok(()),
            (Some(verdict), Some(reason)) => {
                let reason = escape::shown(reason, SENTENCE);
                self.wrapped(INDENT, &format!("[{}: {reason}]", verdict.words()))
            }
        }
    }

    fn path(&mut self, site: &Site) -> Result<(), Error> {
        let mut lines: Vec<String> = reported(site).iter().flat_map(frame::lines).collect();
        if lines.len() > MAX_PATH_LINES {
            // The outermost says what kind of work it is; what lies between says least.
            let more = lines.len() - (MAX_PATH_LINES - 1);
            lines.splice(MAX_PATH_LINES - 2..lines.len() - 1, [format!("… {more} more")]);
        }
        lines.extend(end(site.path_end).map(|why| format!("({why})")));
        lines.iter().try_for_each(|line| self.wrapped(INDENT, line))
    }

    /// Where its granules are opened, by whom and when it allocates.
    fn circumstances(&mut self, site: &Site) -> Result<(), Error> {
        let opened = &site.opened_at;
        let mut parts = Vec::new();
        if let Some(place) = frame::short(Some(&opened.frame), opened.place.as_deref()) {
            parts.push(format!("granules opened by {place}"));
        }
        if !site.threads.is_empty() {
            let names = site.threads.iter().take(THREADS);
            let names: Vec<String> = names.map(|name| escape::shown(name, SYMBOL)).collect();
            let more = site.more_threads || site.threads.len() > THREADS;
            let more = if more { ", …" } else { "" };
            parts.push(format!("threads {}{more}", names.join(", ")));
        }
        parts.push(format!(
            "seen from {} to {}",
            units::duration(site.first_seen_seconds),
            units::duration(site.last_seen_seconds)
        ));
        self.wrapped(INDENT, &format!("[{}]", parts.join("; ")))
    }
}

fn pins(site: &Site) -> Vec<String> {
    let delay = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), units::duration);
    vec![
        site.granules_pinned.to_string(),
        site.share.map_or_else(|| "-".to_owned(), units::percent),
        site.pins.to_string(),
        site.retained_bytes.map_or_else(|| "-".to_owned(), units::bytes),
        delay(site.pin_delay_seconds.p50),
        delay(site.pin_delay_seconds.p99),
        site.class.map_or("-", |class| class.words()).to_owned(),
    ]
}

/// Of granules that are closed only once they are empty.
fn keeps(site: &Site) -> Vec<String> {
    let mut cells = vec![count(site.granules_held), count(site.granules_held_alone)];
    cells.extend(holds(site));
    cells
}

/// Estimates, and what they were made of.
fn estimated(site: &Site) -> Vec<String> {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), units::bytes);
    let estimated = site.estimated.unwrap_or_default();
    vec![
        bytes(estimated.live_bytes),
        estimated.live_bytes_interval.map_or_else(|| "-".to_owned(), units::byte_interval),
        estimated.live.to_string(),
        count(site.live),
        bytes(site.live_bytes),
    ]
}

/// What a filter by time asks for.
fn selected(site: &Site) -> Vec<String> {
    let selected = site.selected.unwrap_or_default();
    vec![
        selected.objects.to_string(),
        selected.bytes.map_or_else(|| "-".to_owned(), units::bytes),
        units::duration(selected.from_seconds.max(0.0)),
        selected.to_seconds.map_or_else(|| "-".to_owned(), units::duration),
        count(site.live),
    ]
}

fn holds(site: &Site) -> Vec<String> {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), units::bytes);
    vec![
        count(site.live),
        bytes(site.live_bytes),
        site.allocated.to_string(),
        bytes(site.allocated_bytes),
    ]
}

/// Why a path is not whole.
const fn end(end: PathEnd) -> Option<&'static str> {
    match end {
        PathEnd::Start => None,
        PathEnd::TooDeep => Some("cut here: deeper than the limit"),
        PathEnd::NoUnwindInfo => Some("cut here: the code has no unwind information"),
        PathEnd::Unreadable => Some("cut here: the stack could not be read"),
        PathEnd::NotCaptured => Some("cut here: not captured"),
    }
}

/// The frames that say something: a whole path up to `main`, or without the begin of its thread.
fn reported(site: &Site) -> &[SiteFrame] {
    let frames = &site.frames[..];
    if site.path_end != PathEnd::Start {
        return frames;
    }
    let function = |frame: &SiteFrame| frame.frame.function.clone().unwrap_or_default();
    if let Some(main) = frames.iter().rposition(|frame| function(frame) == "main") {
        return &frames[..=main];
    }
    let begins = ["start_thread", "__clone3", "clone3", "__clone", "clone", "_start"];
    let count = frames
        .iter()
        .rposition(|frame| !begins.contains(&function(frame).as_str()))
        .map_or(frames.len(), |last| last + 1);
    &frames[..count]
}

#[cfg(test)]
mod tests {
    use super::{super::Text, *};
    use crate::{
        Options, Report,
        export::{Exporter as _, Style},
        samples,
    };

    fn page(change: impl FnOnce(&mut Allocator), style: &Style) -> String {
        let mut report = Report::build(&samples::stacks_snapshot(), &Options::default());
        change(&mut report.targets[0].allocators[0]);
        let mut out = Vec::new();
        Text.report(&report, style, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// A page of 80 columns has no longer line, however long the names are.
    #[test]
    fn narrow_terminals() {
        let style = Style { width: 80, ..Style::default() };
        let text = page(
            |allocator| {
                let site = &mut allocator.sites.as_mut().unwrap()[0];
                site.frames[0].frame.function = Some("a::very<long, name>::".repeat(9));
            },
            &style,
        );
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(text.contains("who pins  granules"), "{text}");
    }

    /// On a terminal a row has a bar of its weight, and is no wider for it.
    #[test]
    fn bars() {
        let style = Style { width: 80, colour: true, ..Style::default() };
        let text = page(|_| {}, &style);
        let plain = page(|_| {}, &Style { width: 80, ..Style::default() });
        assert!(
            text.contains("    1. █████      2000") && text.contains("    2. █▏          424"),
            "{text}"
        );
        let row =
            |text: &str| text.lines().find(|line| line.contains(" 2000 ")).unwrap().chars().count();
        assert_eq!(row(&text), row(&plain));
        assert!(!plain.contains('█'));
    }

    /// A deep path shows its inner end and its outermost frame, and says how many lie between.
    #[test]
    fn deep_paths() {
        let text = page(
            |allocator| {
                let site = &mut allocator.sites.as_mut().unwrap()[0];
                let frame = site.frames[0].clone();
                site.frames.splice(1..1, vec![frame; 50]);
            },
            &Style::default(),
        );
        let path: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.contains(" 1. "))
            .skip(1)
            .take(MAX_PATH_LINES)
            .collect();
        assert_eq!(path[MAX_PATH_LINES - 2].trim(), "… 45 more", "{text}");
        assert!(path[MAX_PATH_LINES - 1].contains("main"), "{text}");
        assert!(path[0].contains("make_session"), "{text}");
    }

    /// What leads to `main`, or to a thread's function, is left out of whole paths and stays in cut ones.
    #[test]
    fn beginnings() {
        let frame = |function: &str| {
            let mut frame = SiteFrame::default();
            frame.frame.function = Some(function.to_owned());
            frame
        };
        let functions = |names: &[&str], path_end| {
            let frames = names.iter().map(|name| frame(name)).collect();
            reported(&Site { path_end, frames, ..Site::default() }).len()
        };
        let start = PathEnd::Start;
        assert_eq!(functions(&["f", "main", "__libc_start_main", "_start"], start), 2);
        assert_eq!(functions(&["f", "work", "start_thread", "__clone3"], start), 2);
        assert_eq!(functions(&["f", "work", "start_thread"], PathEnd::Unreadable), 3);
        assert_eq!(functions(&["start_thread"], start), 1);
        assert_eq!(functions(&[], start), 0);
    }

    /// Sites without pins are a fact in one line.
    #[test]
    fn nothing_pins() {
        let text = page(
            |allocator| {
                allocator.sites.as_mut().unwrap().drain(..3);
                allocator.sites_total = Some(1);
            },
            &Style::default(),
        );
        assert!(text.contains("sites     1 call paths allocate; none has pins"), "{text}");
    }
}

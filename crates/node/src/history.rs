//! The history for people and for programs: `drainprof.history/1` (the time series of a process) and
//! `drainprof.changes/1` (what has become of all).

use std::io;

use drainprof_census::HeapSummary;
use drainprof_report::{
    Counts, Kind,
    export::{
        Error, Style,
        curves::{self, Curve},
        escape, shown,
        table::Rows,
    },
    units,
};
use serde::Serialize;

use crate::{
    WindowRecord,
    store::{Event, HeapPoint, ProcessChange, ProfileSeries, Series},
};

/// Columns of a sparkline.
const CURVE_COLUMNS: usize = 40;
/// Characters of a name, and of a sentence.
const MAX_NAME_CHARS: usize = 32;
const MAX_SENTENCE_CHARS: usize = 300;
/// From the lowest to the highest.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The time of day of a number of milliseconds since 1970, as it is to be shown.
pub type Clock<'a> = dyn Fn(u64) -> String + 'a;

/// The time series of the processes that had one process id.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Course {
    /// From when on, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Each process.
    #[serde(rename = "processes")]
    pub series: Vec<Series>,
    /// What has happened to them, oldest first.
    pub events: Vec<Event>,
}

/// What has changed in a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changes {
    /// From when on, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The processes, those that grew most first.
    pub processes: Vec<ProcessChange>,
    /// Windows that began in that time, the latest first.
    pub windows: Vec<WindowRecord>,
    /// What has happened, oldest first.
    pub events: Vec<Event>,
}

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    #[serde(flatten)]
    content: &'a T,
}

/// A time series as a JSON document.
#[must_use]
pub fn course_document(course: &Course) -> impl Serialize + '_ {
    Document { schema: "drainprof.history/1", content: course }
}

/// Writes a time series as one JSON document.
pub fn course_json(course: &Course, out: &mut dyn io::Write) -> Result<(), Error> {
    json(&course_document(course), out)
}

/// Writes what has changed as one JSON document.
pub fn changes_json(changes: &Changes, out: &mut dyn io::Write) -> Result<(), Error> {
    json(&Document { schema: "drainprof.changes/1", content: changes }, out)
}

fn json(document: &impl Serialize, out: &mut dyn io::Write) -> Result<(), Error> {
    let text = serde_json::to_string_pretty(document).map_err(Error::Json)?;
    Ok(writeln!(out, "{}", escape::json(&text))?)
}

/// Draws a course: resident memory and what each profile retains.
pub fn course_svg(
    course: &Course,
    clock: &Clock<'_>,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    let times = || course.series.iter().flat_map(|own| &own.memory).map(|point| point.unix_ms);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    let seconds = |unix_ms: u64| unix_ms.saturating_sub(first) as f64 / 1e3;
    let mut curves = Vec::new();
    for series in &course.series {
        let process =
            format!("{} ({})", shown(&series.process.comm, MAX_NAME_CHARS), series.process.pid);
        let rss = series.memory.iter().filter_map(|at| Some((at.unix_ms, at.memory?.rss_bytes)));
        let mut add = |what: String, points: Vec<(u64, u64)>| {
            let Some(&(_, now)) = points.last() else { return };
            let name = format!("{what} of {process}: {}", units::bytes(now));
            let points = points.into_iter().map(|(at, bytes)| (seconds(at), bytes));
            curves.push(Curve { name, points: points.collect() });
        };
        add("resident memory".to_owned(), rss.collect());
        for profile in &series.profiles {
            let points = profile.points.iter();
            let retained =
                points.filter_map(|at| Some((at.unix_ms, at.counts.held.retained_bytes?)));
            add(
                format!("retained, {},", shown(&profile.profile, MAX_NAME_CHARS)),
                retained.collect(),
            );
        }
    }
    let more = match curves.len().saturating_sub(curves::MAX_LINES) {
        0 => String::new(),
        more => format!("; {more} more curves are left out"),
    };
    let below = format!("{} to {}{more}", clock(first), clock(last));
    Ok(writeln!(out, "{}", curves::picture(&curves, "Memory over time", &below))?)
}

/// Writes a time series with a sparkline for resident memory, and two for each profile.
pub fn course_text(
    course: &Course,
    clock: &Clock<'_>,
    style: &Style,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    for series in &course.series {
        let process = &series.process;
        let [first, last] = [series.memory.first(), series.memory.last()]
            .map(|point| point.map_or(0, |point| point.unix_ms));
        writeln!(
            out,
            "{} ({}), {}, {} to {}, {}",
            shown(&process.comm, MAX_NAME_CHARS),
            process.pid,
            shown(&process.exe, MAX_SENTENCE_CHARS),
            clock(first),
            clock(last),
            units::counted(series.memory.len() as u64, "reading", "readings")
        )?;
        let mut rows =
            Rows::new(&["", "", "", "lowest", "highest", "last"], 3, style.width).unwrapped();
        let span = (first, last);
        let rss = series
            .memory
            .iter()
            .filter_map(|point| Some((point.unix_ms, point.memory?.rss_bytes as f64)));
        rows.push(line("", "RSS", &rss.collect::<Vec<_>>(), span, &bytes));
        heap_lines(&series.heaps, span, &mut rows);
        for profile in &series.profiles {
            profile_lines(profile, span, &mut rows);
        }
        for line in rows.lines("  ") {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
    }
    events_text(&course.events, clock, out)
}

/// Of each heap what lives, and what is resident with nothing alive in it.
fn heap_lines(points: &[HeapPoint], span: (u64, u64), rows: &mut Rows) {
    let mut allocators: Vec<&str> = points.iter().map(|one| one.heap.allocator.as_str()).collect();
    allocators.sort_unstable();
    allocators.dedup();
    for allocator in allocators {
        let own = points.iter().filter(|one| one.heap.allocator == allocator);
        let course = |of: fn(&HeapSummary) -> u64| -> Vec<(u64, f64)> {
            own.clone().map(|one| (one.unix_ms, of(&one.heap) as f64)).collect()
        };
        let title = format!("{} heap", shown(allocator, MAX_NAME_CHARS));
        rows.push(line(&title, "live", &course(|heap| heap.live_bytes), span, &bytes));
        rows.push(line("", "idle", &course(HeapSummary::idle_bytes), span, &bytes));
    }
}

fn profile_lines(profile: &ProfileSeries, span: (u64, u64), rows: &mut Rows) {
    let name = shown(&profile.profile, MAX_NAME_CHARS);
    let retained: Vec<_> = profile
        .points
        .iter()
        .filter_map(|point| Some((point.unix_ms, point.counts.held.retained_bytes? as f64)))
        .collect();
    let mut title = name.as_str();
    if profile.kind == "drain" {
        let dsr = dsr_course(profile, span);
        rows.push(line(&name, "DSR", &dsr, span, &|value| units::dsr(Some(value))));
        title = "";
    }
    if retained.is_empty() {
        let open: Vec<_> = profile
            .points
            .iter()
            .map(|point| (point.unix_ms, point.counts.held.open_now as f64))
            .collect();
        rows.push(line(title, "open", &open, span, &|value| format!("{value:.0}")));
    } else {
        rows.push(line(title, "retained", &retained, span, &bytes));
    }
}

/// The DSR of the closes in each column's time; a column without a decided close has none.
fn dsr_course(profile: &ProfileSeries, span: (u64, u64)) -> Vec<(u64, f64)> {
    let mut columns: Vec<(u64, Counts)> = vec![(0, Counts::default()); CURVE_COLUMNS];
    for point in &profile.points {
        if let Some((time, sums)) = columns.get_mut(column(point.unix_ms, span)) {
            *time = point.unix_ms;
            sums.add(point.added);
        }
    }
    columns.into_iter().filter_map(|(time, sums)| Some((time, sums.dsr(Kind::Drain)?))).collect()
}

fn line(
    title: &str,
    what: &str,
    points: &[(u64, f64)],
    span: (u64, u64),
    unit: &dyn Fn(f64) -> String,
) -> Vec<String> {
    let mut values = points.iter().map(|(_, value)| *value);
    let shown = |value: Option<f64>| value.map_or_else(|| "no data".to_owned(), unit);
    vec![
        title.to_owned(),
        what.to_owned(),
        sparkline(points, span),
        shown(values.clone().reduce(f64::min)),
        shown(values.clone().reduce(f64::max)),
        shown(values.next_back()),
    ]
}

/// The column that a time falls into.
fn column(time: u64, (first, last): (u64, u64)) -> usize {
    let length = u128::from(last.saturating_sub(first)) + 1;
    let into = u128::from(time.saturating_sub(first)) * CURVE_COLUMNS as u128 / length;
    usize::try_from(into).unwrap_or(CURVE_COLUMNS).min(CURVE_COLUMNS - 1)
}

/// The last value in each column's time, from the lowest to the highest of all; a blank where there is none. What
/// never changes is a line at half the height.
fn sparkline(points: &[(u64, f64)], span: (u64, u64)) -> String {
    let mut columns = [None; CURVE_COLUMNS];
    for &(time, value) in points {
        columns[column(time, span)] = Some(value);
    }
    let values = points.iter().map(|(_, value)| *value);
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(f64::NEG_INFINITY, f64::max);
    columns
        .iter()
        .map(|value| match value {
            None => ' ',
            Some(_) if high <= low => BARS[3],
            Some(value) => {
                #[allow(clippy::cast_sign_loss, reason = "the value is not below the lowest")]
                let step = ((value - low) / (high - low) * 7.0).round() as usize;
                BARS[step.min(7)]
            }
        })
        .collect()
}

/// Writes one line per process and profile, and then the windows.
pub fn changes_text(
    changes: &Changes,
    clock: &Clock<'_>,
    style: &Style,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    writeln!(out, "since {}", clock(changes.since_unix_ms))?;
    let header = [
        "process", "level", "profile", "pid", "RSS", "grown", "closes", "DSR", "retained", "grown",
    ];
    let mut rows = Rows::new(&header, 3, style.width).unwrapped();
    for process in &changes.processes {
        let name = shown(&process.process.comm, MAX_NAME_CHARS);
        let level = process.level.map_or("detached", drainprof_profile::Level::name).to_owned();
        let memory = [
            process.process.pid.to_string(),
            process.rss_last_bytes.map_or_else(|| "?".to_owned(), units::bytes),
            grown(process.rss_first_bytes, process.rss_last_bytes),
        ];
        if process.profiles.is_empty() {
            let mut row = vec![name.clone(), level.clone(), String::new()];
            row.extend(memory.clone());
            row.extend([const { String::new() }; 4]);
            rows.push(row);
        }
        for profile in &process.profiles {
            let sums = profile.sums;
            let closes = sums.closed();
            let mut row =
                vec![name.clone(), level.clone(), shown(&profile.profile, MAX_NAME_CHARS)];
            row.extend(memory.clone());
            row.extend([
                closes.to_string(),
                if profile.kind == "drain" { units::dsr(profile.dsr) } else { "-".to_owned() },
                profile.retained_bytes_last.map_or_else(|| "?".to_owned(), units::bytes),
                grown(profile.retained_bytes_first, profile.retained_bytes_last),
            ]);
            rows.push(row);
        }
    }
    if rows.is_empty() {
        writeln!(out, "no process was watched in that time")?;
    } else {
        for line in rows.lines("") {
            writeln!(out, "{line}")?;
        }
    }
    if changes.processes.iter().any(|process| !process.complete) {
        writeln!(out, "incomplete: something that the counts need was lost in that time")?;
    }
    for window in &changes.windows {
        let outcome = serde_json::to_string(&window.outcome).map_err(Error::Json)?;
        writeln!(
            out,
            "{}  window {} of {} ({}), {}, {}{}: {}",
            clock(window.began_unix_ms),
            window.id,
            shown(&window.comm, MAX_NAME_CHARS),
            window.pid,
            units::duration(window.seconds),
            outcome.trim_matches('"').replace('_', " "),
            if window.has_report { ", with a report" } else { "" },
            shown(&window.why, MAX_SENTENCE_CHARS)
        )?;
    }
    Ok(())
}

/// Writes what has happened, one line each.
pub fn events_text(
    events: &[Event],
    clock: &Clock<'_>,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    for event in events {
        let pid = event.pid.map_or_else(|| "node".to_owned(), |pid| pid.to_string());
        let [kind, text] = [(&event.kind, MAX_NAME_CHARS), (&event.text, MAX_SENTENCE_CHARS)]
            .map(|(t, most)| shown(t, most));
        writeln!(out, "{}  {pid}  {kind}: {text}", clock(event.unix_ms))?;
    }
    Ok(())
}

fn bytes(value: f64) -> String {
    #[allow(clippy::cast_sign_loss, reason = "bytes are not negative")]
    units::bytes(value as u64)
}

fn grown(first: Option<u64>, last: Option<u64>) -> String {
    match (first, last) {
        (Some(first), Some(last)) if last >= first => format!("+{}", units::bytes(last - first)),
        (Some(first), Some(last)) => format!("-{}", units::bytes(first - last)),
        _ => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points fall into their columns, gaps stay blank, and what is flat is not shown as full.
    #[test]
    fn sparklines() {
        let rising: Vec<(u64, f64)> = (0..40).map(|at| (at, at as f64)).collect();
        let line = sparkline(&rising, (0, 39));
        assert!(line.starts_with('▁') && line.ends_with('█'), "{line}");
        assert_eq!(line.chars().count(), CURVE_COLUMNS);
        let flat = sparkline(&[(0, 5.0), (39, 5.0)], (0, 39));
        assert_eq!(flat, format!("▄{}▄", " ".repeat(38)));
        assert_eq!(sparkline(&[(7, 1.0)], (7, 7)).trim_end(), "▄");
        assert_eq!(sparkline(&[], (0, u64::MAX)), " ".repeat(CURVE_COLUMNS));
        assert_eq!(column(u64::MAX, (0, u64::MAX)), CURVE_COLUMNS - 1);
    }

    /// Each heap has a line of what lives and one of what is idle.
    #[test]
    fn heaps() {
        let point = |unix_ms, allocator: &str, live_bytes| HeapPoint {
            unix_ms,
            heap: HeapSummary {
                allocator: allocator.to_owned(),
                resident_bytes: 8192,
                live_bytes,
                ..HeapSummary::default()
            },
        };
        let points = [point(0, "go", 1024), point(0, "glibc", 0), point(9, "go", 4096)];
        let mut rows = Rows::new(&["", "", "", "lowest", "highest", "last"], 3, 120).unwrapped();
        heap_lines(&points, (0, 9), &mut rows);
        let text = rows.lines("").join("\n");
        let words = |line: usize| {
            let line = text.lines().nth(line).unwrap_or_default();
            line.split_whitespace().filter(|word| !word.contains('▁')).collect::<Vec<_>>()
        };
        assert_eq!(
            words(3),
            ["go", "heap", "live", "█", "1.0", "KiB", "4.0", "KiB", "4.0", "KiB"],
            "{text}"
        );
        assert_eq!(words(4)[0], "idle", "{text}");
        assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("glibc heap")), "{text}");
    }

    /// Growth has a sign, and what is not known is not zero.
    #[test]
    fn growth() {
        assert_eq!(grown(Some(1024), Some(4096)), "+3.0 KiB");
        assert_eq!(grown(Some(4096), Some(1024)), "-3.0 KiB");
        assert_eq!(grown(None, Some(1024)), "?");
    }
}

//! One process: why its memory is as it is, then its series in a time range, then what is known of it now.

use axum::{
    Extension,
    extract::{Path, Query, State},
    response::Response,
};
use drainprof_report::{
    Counts, Kind,
    export::{
        PinWeight,
        html::{self as parts, Curve, Line, bar, cell, fact, facts, number, table, text},
    },
    units,
};
use maud::{Markup, html};

use super::{
    super::{
        guard::Access,
        past::{Range, RangeQuery, clock, field},
        shared::Shared,
    },
    answer::{answer, deeper, pinners, report},
    node::{labels, pinned_rate},
    shell::{NAME_CHARS, SENTENCE_CHARS, View, nonsense, not_found, page as shell},
    window,
};
use crate::{
    NodeState, NodeTarget, WindowRecord,
    history::Course,
    store::{Event, ProfileSeries, Series},
};

/// Rows of lists.
const MAX_ROWS: usize = 20;
/// Events that are listed.
const MAX_EVENTS: usize = 100;
/// The shortest time that is shown unasked.
const MIN_RANGE_MS: u64 = 10_000;
/// Parts of the time by which rates and DSR are shown.
const RATE_PARTS: usize = 120;
/// Lines of a picture.
const MAX_LINES: usize = 3;
/// Lengths of time to choose from, in seconds.
const RANGES: [(u64, &str); 5] =
    [(3_600, "1 h"), (21_600, "6 h"), (86_400, "24 h"), (604_800, "7 d"), (2_592_000, "30 d")];

pub(super) async fn page(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(pid): Path<String>,
    Query(query): Query<RangeQuery>,
) -> Response {
    let Ok(pid) = pid.parse::<u32>() else { return not_found("this process") };
    let state = shared.hub.state();
    let asked = match Range::of(&query, state.unix_ms) {
        Ok(range) => range,
        Err(message) => return nonsense(message),
    };
    let view = View { shared: &shared, access };
    let now = state.targets.iter().find(|target| target.pid == pid);
    let now = now.and_then(|target| view.seen(target));
    let course = shared.past.course(pid, asked).await;
    let (course, no_course) = match course {
        Ok(course) => (Some(course), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let series =
        course.as_ref().map(|course| own(&course.series, now.as_ref())).unwrap_or_default();
    // Where nothing is asked for, an hour of which most is empty shows nothing.
    let first = series.and_then(|own| own.memory.first()).filter(|_| query.is_default());
    let range = Range {
        from: first
            .map_or(asked.from, |point| point.unix_ms.min(asked.to.saturating_sub(MIN_RANGE_MS))),
        ..asked
    };
    if now.is_none() && series.is_none() {
        return not_found(&format!("process {pid} in this time"));
    }
    let windows = window::latest(&shared).await;
    let windows: Vec<WindowRecord> = windows.into_iter().filter(|own| own.pid == pid).collect();
    let comm = now
        .as_ref()
        .map(|target| target.comm.as_str())
        .or(series.map(|own| own.process.comm.as_str()));
    let title = format!("{} ({pid})", view.text(comm.unwrap_or_default(), NAME_CHARS));
    let events: &[Event] =
        course.as_ref().map(|course: &Course| course.events.as_slice()).unwrap_or_default();
    let deeper = deeper(&view, &windows, now.as_ref()).await;
    let content = html! {
        @if let Some(target) = &now { (head(&view, target)) } @else { p.warn { "It has ended, or is not watched any more." } }
        (answer(&state, now.as_ref(), series, deeper.as_ref()))
        (pinners(&view, &windows, deeper.as_ref()))
        (choose(pid, range))
        @match series {
            Some(series) => (in_range(&view, series, (events, &windows), range)),
            None => p.dim {
                "No course of this process: " (view.text(no_course.as_deref().unwrap_or("in this time nothing was kept; without a profile that matches, or an alert, only the present is"), SENTENCE_CHARS)) "."
            },
        }
        (happened(&view, events))
        (window::list(&view, &windows))
        @if now.is_some() { (window::start_form(&view, pid)) }
        @if let Some(target) = &now { (present(&state, target)) }
    };
    shell(&title, range.live, &content)
}

/// Of the processes that had the pid, the one that runs, else the last.
fn own<'a>(series: &'a [Series], now: Option<&NodeTarget>) -> Option<&'a Series> {
    let same =
        |one: &&Series| now.is_some_and(|target| target.start_time == one.process.start_time);
    series.iter().find(same).or(series.last().filter(|_| now.is_none()))
}

fn head(view: &View<'_>, target: &NodeTarget) -> Markup {
    let level = target.level.map_or("no probe", drainprof_profile::Level::name);
    html! {
        p.dim {
            (view.text(&target.exe, NAME_CHARS)) " " (view.text(&labels(target), NAME_CHARS)) " · "
            (parts::word("level")) " " (level) ": " (view.text(&target.reason, SENTENCE_CHARS)) ", since " (clock(target.since_unix_ms))
        }
        @for alert in &target.alerts {
            p class=(if alert.state == crate::AlertState::Firing { "bad" } else { "warn" }) {
                b { (view.text(&alert.rule, NAME_CHARS)) } " since " (clock(alert.since_unix_ms)) ": " (view.text(&alert.message, SENTENCE_CHARS))
            }
        }
    }
}

/// Links and a form for the range.
fn choose(pid: u32, range: Range) -> Markup {
    let length = range.to - range.from;
    let link = |from: u64, to: u64| format!("/process/{pid}?from={from}&to={to}");
    html! {
        h2 { "From " (clock(range.from)) " to " (clock(range.to)) }
        nav aria-label="Time range" {
            @for (seconds, name) in RANGES { a href={ "/process/" (pid) "?last=" (seconds) } { (name) } }
            a href=(link(range.from.saturating_sub(length / 2), range.to.saturating_sub(length / 2))) { "earlier" }
            a href=(link(range.from.saturating_add(length / 2), range.to.saturating_add(length / 2))) { "later" }
            a href=(link(range.from.saturating_sub(length / 2), range.to.saturating_add(length / 2))) { "wider" }
            a href={ "/api/v1/targets/" (pid) "/history?from=" (range.from) "&to=" (range.to) } { "as JSON" }
        }
        form method="get" action={ "/process/" (pid) } data-range {
            label { "From (UTC)" input type="datetime-local" step="1" name="from" value=(field(range.from)); }
            label { "to" input type="datetime-local" step="1" name="to" value=(field(range.to)); }
            button { "Show this time" }
        }
    }
}

/// Everything that the history knows of the range.
fn in_range(
    view: &View<'_>,
    series: &Series,
    (events, windows): (&[Event], &[WindowRecord]),
    range: Range,
) -> Markup {
    let marks = marks(view, events, windows);
    let points = |value: fn(&drainprof_process::memory::MemoryReading) -> u64| -> Vec<(f64, f64)> {
        series
            .memory
            .iter()
            .filter_map(|point| Some((point.unix_ms as f64, value(&point.memory?) as f64)))
            .collect()
    };
    let bytes = |value: f64| units::bytes(whole(value));
    let count = |value: f64| format!("{value:.2}/s");
    let dsr = |value: f64| units::dsr(Some(value));
    let plain = |value: f64| format!("{value:.0}");
    let curve = |title, lines, shown, most| {
        let span = (range.from as f64, range.to as f64);
        let ends = [clock(range.from), clock(range.to)];
        Curve { title, lines, span, ends, shown, most, marks: marks.clone() }.draw()
    };
    let memory = vec![
        Line { name: "RSS".to_owned(), points: points(|memory| memory.rss_bytes) },
        Line { name: "anonymous".to_owned(), points: points(|memory| memory.anon_bytes) },
    ];
    let of = |values: &dyn Fn(&ProfileSeries) -> Vec<(f64, f64)>, drain: bool| -> Vec<Line> {
        let own = series.profiles.iter().filter(|own| !drain || own.kind == "drain");
        let lines =
            own.map(|own| Line { name: view.text(&own.profile, NAME_CHARS), points: values(own) });
        lines.filter(|line| !line.points.is_empty()).take(MAX_LINES).collect()
    };
    let complete = series.memory.iter().all(|point| point.complete);
    html! {
        p.dim { small { "Drag across a picture to select a time. Shaded: diagnostic windows. Dashed: alerts." } }
        @if !complete { p.bad { "Something that the counts need was lost in this time." } }
        div.charts {
            (curve("Memory", memory, &bytes, None))
            @let retained = of(&retained, false);
            @if retained.iter().any(|line| !line.points.is_empty()) {
                (curve("Retained bytes", retained, &bytes, None))
            } @else {
                p.dim {
                    "Retained bytes are not counted at this level, but in diagnostic windows, and from level "
                    code { "objects" } " on."
                }
            }
            (curve("DSR of the closes", of(&|own| per_part(own, range, |sums, _| sums.dsr(Kind::Drain)), true), &dsr, Some(1.0)))
            (curve("Pinned closes per second", of(&|own| per_part(own, range, |sums, seconds| Some(sums.pinned as f64 / seconds?)), true), &count, None))
            (curve("Open granules", of(&|own| own.points.iter().map(|point| (point.unix_ms as f64, point.counts.held.open_now as f64)).collect(), false), &plain, None))
        }
        (split(series))
        (totals(view, series, range))
    }
}

/// Resident memory at the end of the range, in parts that add up.
fn split(series: &Series) -> Markup {
    let last = series.memory.iter().rev().find_map(|point| point.memory);
    html! {
        @if let Some(last) = last {
            (bar("Resident memory at the end of this time", &[
                ("anonymous".to_owned(), last.anon_bytes),
                ("files".to_owned(), last.file_bytes),
                ("shared".to_owned(), last.shmem_bytes),
            ], &units::bytes))
        }
    }
}

fn retained(own: &ProfileSeries) -> Vec<(f64, f64)> {
    let points = own.points.iter();
    points
        .filter_map(|point| Some((point.unix_ms as f64, point.counts.held.retained_bytes? as f64)))
        .collect()
}

/// What was counted in each part of the range, by the time of its last reading; with it the seconds since the last
/// reading before.
fn per_part(
    own: &ProfileSeries,
    range: Range,
    value: impl Fn(&Counts, Option<f64>) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let length = ((range.to - range.from) / RATE_PARTS as u64).max(1);
    // What was counted, and when the last of it.
    let mut parts: Vec<Option<(Counts, u64)>> = vec![None; RATE_PARTS];
    for point in &own.points {
        let index = (point.unix_ms.saturating_sub(range.from) / length) as usize;
        if let Some(part) = parts.get_mut(index.min(RATE_PARTS - 1)) {
            let (sums, last) = part.get_or_insert_default();
            sums.add(point.added);
            *last = point.unix_ms;
        }
    }
    let mut before: Option<u64> = None;
    parts
        .into_iter()
        .flatten()
        .filter_map(|(sums, last)| {
            let seconds =
                before.replace(last).map(|before| last.saturating_sub(before) as f64 / 1000.0);
            Some((last as f64, value(&sums, seconds)?))
        })
        .collect()
}

/// The sums of the range, by profile.
fn totals(view: &View<'_>, series: &Series, range: Range) -> Markup {
    let columns = [
        text("allocator"),
        number("opened"),
        number("drainable"),
        number("pinned"),
        number("unknown"),
        number("DSR"),
        number("open now"),
        number("retained"),
        number("grown"),
    ];
    let rows: Vec<_> = series
        .profiles
        .iter()
        .map(|own| {
            let mut sums = Counts::default();
            own.points.iter().for_each(|point| sums.add(point.added));
            let bytes = || own.points.iter().filter_map(|point| point.counts.held.retained_bytes);
            let grown = match (bytes().next(), bytes().next_back()) {
                (Some(first), Some(last)) => {
                    let sign = if last < first { "-" } else { "+" };
                    format!("{sign}{}", units::bytes(last.abs_diff(first)))
                }
                _ => "not known".to_owned(),
            };
            vec![
                cell(view.text(&own.profile, NAME_CHARS)),
                cell(sums.opened),
                cell(sums.drainable),
                cell(sums.pinned),
                cell(sums.unknown),
                cell(if own.kind == "drain" {
                    units::dsr(sums.dsr(Kind::Drain))
                } else {
                    "-".to_owned()
                }),
                cell(own.points.last().map_or(0, |point| point.counts.held.open_now)),
                cell(bytes().next_back().map_or("not known".to_owned(), units::bytes)),
                cell(grown),
            ]
        })
        .collect();
    table(&format!("Counted in these {}", units::duration(range.seconds())), &columns, &rows)
}

/// Windows and alerts as marks of pictures.
fn marks(view: &View<'_>, events: &[Event], windows: &[WindowRecord]) -> Vec<(f64, f64, String)> {
    let windows = windows.iter().map(|own| {
        let from = own.began_unix_ms as f64;
        (
            from,
            from + own.seconds * 1000.0,
            format!("window {}: {}", own.id, view.text(&own.why, SENTENCE_CHARS)),
        )
    });
    let alerts = events.iter().filter(|event| event.kind == "alert");
    let alerts = alerts.take(MAX_EVENTS).map(|event| {
        let at = event.unix_ms as f64;
        (at, at, format!("alert: {}", view.text(&event.text, SENTENCE_CHARS)))
    });
    windows.chain(alerts).collect()
}

fn happened(view: &View<'_>, events: &[Event]) -> Markup {
    html! {
        @if !events.is_empty() {
            details {
                summary { "What happened in this time: " (events.len()) }
                ul.plain {
                    @for event in events.iter().rev().take(MAX_EVENTS) {
                        li { span.dim { (clock(event.unix_ms)) } " " (view.text(&event.kind, NAME_CHARS)) ": " (view.text(&event.text, SENTENCE_CHARS)) }
                    }
                }
            }
        }
    }
}

/// What is known now, of the whole time that it is traced.
fn present(state: &NodeState, target: &NodeTarget) -> Markup {
    let report = report(state, target, None);
    let mut more = Vec::new();
    if let Some(rate) = pinned_rate(target, state.unix_ms) {
        more.push(fact("pinned bytes/s", units::byte_rate(rate)));
    }
    if let Some(rate) = target.faults_per_second {
        more.push(fact("faults", units::rate(rate)));
    }
    if let Some(shares) = &target.shares {
        more.push(fact("its own", units::bytes(shares.memory.uss_bytes)).and(format!(
            "{} with its part of what is shared, {}",
            units::bytes(shares.memory.pss_bytes),
            clock(shares.unix_ms)
        )));
    }
    let heaps = target.heaps.as_ref();
    html! {
        h2 { "Now" small { ", since " (clock(target.since_unix_ms)) } }
        @for one in &report.targets { (facts(&more)) (parts::target(one, MAX_ROWS)) }
        @if let Some(heaps) = heaps.filter(|heaps| heaps.failure.is_some() || !heaps.summary.heaps.is_empty()) {
            h3 { "Heaps" small { ", read " (clock(heaps.unix_ms)) } }
            @if let Some(failure) = &heaps.failure { p.warn { (drainprof_report::export::shown(failure, SENTENCE_CHARS)) } }
            @for heap in &heaps.summary.heaps { (parts::heap_bar(heap)) }
        }
        (parts::flame(&report, PinWeight::Granules))
        (parts::losses(&report))
    }
}

#[allow(clippy::cast_sign_loss, reason = "bytes are not negative; the cast saturates")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

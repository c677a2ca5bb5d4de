//! All processes of the node.

use std::{cmp::Reverse, fmt::Write as _};

use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use drainprof_common::loss::Severity;
use drainprof_report::{
    export::html::{Column, cell, fact, facts, number, spark, table, text},
    health::Health,
    units,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    super::{
        guard::Access,
        past::{Range, RangeQuery, clock},
        shared::Shared,
    },
    shell::{self, NAME_CHARS, SENTENCE_CHARS, View},
    window,
};
use crate::{AlertState, NodeState, NodeTarget, store::MemoryOfAll};

/// Rows at most; a search finds the others.
const MAX_ROWS: usize = 300;
/// Points of a spark line.
const SPARK_POINTS: u64 = 24;

#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    q: String,
    last: Option<u64>,
}

pub(super) async fn page(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Query(asked): Query<Asked>,
) -> Response {
    let state = shared.hub.state();
    let range = match Range::of(&RangeQuery::of_last(asked.last), state.unix_ms) {
        Ok(range) => range,
        Err(message) => return shell::nonsense(message),
    };
    // Without a history there are no spark lines.
    let read =
        move |history: &crate::store::History| history.memory(range.from, range.to, SPARK_POINTS);
    let memory = shared.past.read(read).await.unwrap_or_default();
    let windows = window::latest(&shared).await;
    let view = View { shared: &shared, access };
    let content = html! {
        (health(&view, &state))
        (processes(&view, &state, &asked, (&memory, range)))
        (window::list(&view, &windows))
        @if windows.iter().filter(|window| window.has_report).count() > 1 { (window::compare_form(&view, &windows)) }
    };
    shell::page("Processes", true, &content)
}

/// Whether what is shown can be relied on: always visible.
fn health(view: &View<'_>, state: &NodeState) -> Markup {
    let firing =
        state.targets.iter().filter(|target| alert(target) == Some(AlertState::Firing)).count();
    let listed = state.losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect();
    let lines = Health::from_names(&listed).lines;
    let own = &state.self_use;
    let noticed = lines.iter().filter(|line| line.severity == Severity::Notice);
    html! {
        (facts(&[
            fact("with an alert", html! { b class=(if firing > 0 { "bad" } else { "" }) { (firing) } })
                .and(format!("of {}", units::counted(state.targets.len() as u64, "process", "processes"))),
            fact("losses", if state.complete { "none that counts need" } else { "incomplete" }),
            fact("traced", state.targets.iter().filter(|target| target.level.is_some()).count())
                .and(format!("{} match a profile", state.targets.iter().filter(|target| target.matched).count())),
            fact("own CPU time", units::duration(own.cpu_seconds))
                .and(format!("up {}", units::duration(state.uptime_seconds))),
            fact("state", format!("{:.1} s old", view.shared.hub.age().as_secs_f64())),
            fact("own memory", units::bytes(own.rss_bytes.saturating_add(own.map_bytes))),
        ]))
        @if state.killed { p.bad { "The kill switch is on: nothing is attached." } }
        @if !state.ready { p.warn { "The first scan of all processes is not over." } }
        @for text in &state.degraded { p.warn { "Degraded: " (view.text(text, SENTENCE_CHARS)) } }
        @for text in &state.incomplete { p.bad { "Incomplete: " (view.text(text, SENTENCE_CHARS)) } }
        @if state.processes_late > 0 {
            p.dim { (units::counted(state.processes_late, "process", "processes")) " began before the probes were in place: what they did before is not counted." }
        }
        @if noticed.clone().next().is_some() {
            details {
                summary { small { "Noticed, while counts are exact all the same" } }
                ul.plain { @for line in noticed { li { (view.text(&line.sentence(), SENTENCE_CHARS)) } } }
            }
        }
    }
}

fn alert(target: &NodeTarget) -> Option<AlertState> {
    target.alerts.iter().map(|alert| alert.state).max_by_key(|state| *state == AlertState::Firing)
}

/// Bytes of granules that were pinned at their close, per second since the process is traced at this level.
pub(super) fn pinned_rate(target: &NodeTarget, unix_ms: u64) -> Option<f64> {
    let bytes =
        target.allocators.iter().filter_map(|own| own.pins.bytes).reduce(u64::saturating_add)?;
    let seconds = unix_ms.saturating_sub(target.since_unix_ms) as f64 / 1000.0;
    (seconds > 0.0).then(|| bytes as f64 / seconds)
}

/// Labels that say where a process belongs, the most telling first.
pub(super) fn labels(target: &NodeTarget) -> String {
    let own = &target.labels;
    let mut text = String::new();
    for part in [own.namespace.as_ref(), own.pod.as_ref(), own.unit.as_ref()].into_iter().flatten()
    {
        let _ = write!(text, "{}{part}", if text.is_empty() { "" } else { " / " });
    }
    if let Some(id) = &own.container {
        let short = id.get(..12).unwrap_or(id);
        let _ = write!(text, "{}{short}", if text.is_empty() { "" } else { " / " });
    }
    text
}

fn matches(target: &NodeTarget, wanted: &str) -> bool {
    let of = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || of(&target.comm)
        || of(&target.labels.exe)
        || of(&labels(target))
        || target.pid.to_string() == wanted
}

const COLUMNS: [Column; 9] = [
    text("process"),
    text("belongs to"),
    text("alert"),
    number("RSS"),
    text("last hour"),
    number("growth"),
    number("pinned bytes/s"),
    number("DSR"),
    text("level"),
];

fn processes(
    view: &View<'_>,
    state: &NodeState,
    asked: &Asked,
    memory: (&MemoryOfAll, Range),
) -> Markup {
    let wanted = asked.q.trim().to_lowercase();
    let mut found: Vec<&NodeTarget> =
        state.targets.iter().filter(|target| matches(target, &wanted)).collect();
    found.sort_by_cached_key(|target| {
        let rank = match alert(target) {
            Some(AlertState::Firing) => 0,
            Some(AlertState::Pending) => 1,
            None => 2,
        };
        let whole = |rate: Option<f64>| Reverse(rate.map_or(i64::MIN, |rate| rate as i64));
        (
            rank,
            whole(pinned_rate(target, state.unix_ms)),
            whole(target.rss_slope_bytes_per_second),
            target.pid,
        )
    });
    let rows: Vec<_> =
        found.iter().take(MAX_ROWS).map(|target| row(view, state, target, memory)).collect();
    let caption = format!(
        "{} of {} processes: alerts first, then by pinned bytes/s and growth",
        rows.len(),
        state.targets.len()
    );
    html! {
        form method="get" action="/" role="search" {
            label { "Name, pid, unit, container or pod" input type="search" name="q" value=(view.text(&asked.q, NAME_CHARS)); }
            button { "Search" }
        }
        (table(&caption, &COLUMNS, &rows))
        @if rows.is_empty() {
            p {
                @if state.targets.is_empty() { "No process is watched. The configuration's [select] says which are; the first scan takes some seconds." }
                @else { "No process matches. " a href="/" { "All processes" } }
            }
        }
    }
}

fn row(
    view: &View<'_>,
    state: &NodeState,
    target: &NodeTarget,
    (memory, range): (&MemoryOfAll, Range),
) -> Vec<Markup> {
    let dash = || "-".to_owned();
    let points: Vec<(f64, f64)> = memory
        .get(&(target.pid, target.start_time))
        .into_iter()
        .flatten()
        .map(|&(at, bytes)| (at as f64, bytes as f64))
        .collect();
    let lowest = target.allocators.iter().filter_map(|own| own.dsr).reduce(f64::min);
    let rss = target.memory.map(|memory| units::bytes(memory.rss_bytes));
    let label = format!("RSS of {} in the last hour", target.pid);
    vec![
        html! { a href={ "/process/" (target.pid) } { (view.text(&target.comm, NAME_CHARS)) " (" (target.pid) ")" } },
        cell(view.text(&labels(target), NAME_CHARS)),
        html! {
            @for alert in &target.alerts {
                span class=(if alert.state == AlertState::Firing { "bad" } else { "warn" })
                    title={ (view.text(&alert.message, SENTENCE_CHARS)) ", since " (clock(alert.since_unix_ms)) } {
                    (view.text(&alert.rule, NAME_CHARS)) " "
                }
            }
        },
        cell(rss.unwrap_or_else(dash)),
        html! { @if points.len() > 1 { (spark(&points, (range.from as f64, range.to as f64), &label)) } },
        cell(target.rss_slope_bytes_per_second.map_or_else(dash, units::byte_rate)),
        cell(pinned_rate(target, state.unix_ms).map_or_else(dash, units::byte_rate)),
        cell(lowest.map_or_else(dash, |dsr| units::dsr(Some(dsr)))),
        cell(target.level.map_or(
            if target.matched { "no probe" } else { "memory only" },
            drainprof_profile::Level::name,
        )),
    ]
}

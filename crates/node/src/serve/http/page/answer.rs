//! The answer on top of a process' page: why its memory is as it is, and what pins.

use drainprof_report::{
    Began, Host, Memory, Report, SCHEMA, Target, Window,
    export::{
        PinWeight,
        html::{self as parts},
    },
    series::MemorySeries,
    why::Why,
};
use maud::{Markup, html};

use super::{
    super::{guard::Access, past::clock},
    shell::{NAME_CHARS, View},
    window,
};
use crate::{
    NodeState, NodeTarget, WindowRecord,
    store::{MemoryPoint, Series},
};

/// Call stacks that are named beside the answer.
const MAX_PINNERS: usize = 5;

/// The report of a diagnostic window, which knows more than the present counts.
pub(super) struct Deeper<'a> {
    window: &'a WindowRecord,
    report: Box<Report>,
}

/// The last window with a report, where the client may see it; not one of an earlier process with the same pid.
pub(super) async fn deeper<'a>(
    view: &View<'_>,
    windows: &'a [WindowRecord],
    now: Option<&NodeTarget>,
) -> Option<Deeper<'a>> {
    let window = windows.iter().find(|window| window.has_report)?;
    let report = window::seen_report(view, window.id).await?;
    let same = |own: &Target| now.is_none_or(|now| now.start_time == own.start_time);
    report.targets.iter().any(same).then_some(Deeper { window, report })
}

/// The answer of the present counts, or of the last window where that knows more; both with memory in the range.
pub(super) fn answer(
    state: &NodeState,
    now: Option<&NodeTarget>,
    series: Option<&Series>,
    deeper: Option<&Deeper<'_>>,
) -> Markup {
    let memory = series.and_then(memory).or_else(|| now.and_then(memory_now));
    let present = now.map(|target| report(state, target, memory.clone()));
    if let Some(deeper) = deeper {
        let mut report = (*deeper.report).clone();
        for own in report.targets.iter_mut().filter(|own| own.pid == deeper.window.pid) {
            own.memory.clone_from(&memory);
        }
        let weight = |report: &Report| Why::of_report(report).answer;
        if present.as_ref().is_none_or(|present| weight(&report) <= weight(present)) {
            let (id, began) = (deeper.window.id, clock(deeper.window.began_unix_ms));
            return html! {
                (parts::answer(&report))
                p.dim { "By " a href={ "/window/" (id) } { "window " (id) } " of " (began) ", and by memory in this time." }
            };
        }
    }
    match (&present, &memory) {
        (Some(present), _) => parts::answer(present),
        (None, Some(memory)) => html! { p { "In this time: " (memory.verdict_reason) "." } },
        (None, None) => html! {},
    }
}

/// Memory in the range, judged as a report judges it.
fn memory(series: &Series) -> Option<Memory> {
    let mut readings = MemorySeries::new();
    for MemoryPoint { unix_ms, memory, .. } in &series.memory {
        if let Some(memory) = memory {
            readings.add(*unix_ms as f64 / 1000.0, memory);
        }
    }
    Memory::of(&readings)
}

/// Without a history: the last reading, and the slope of the last minutes.
fn memory_now(target: &NodeTarget) -> Option<Memory> {
    let mut readings = MemorySeries::new();
    readings.add(0.0, &target.memory?);
    let memory = Memory::of(&readings)?;
    Some(Memory {
        slope_bytes_per_second: target.rss_slope_bytes_per_second,
        slope_interval: target.rss_slope_interval,
        r_squared: target.rss_r_squared,
        seconds_to_limit: target.seconds_to_limit,
        ..memory
    })
}

/// The present state of a process as a report.
pub(super) fn report(state: &NodeState, target: &NodeTarget, memory: Option<Memory>) -> Report {
    let seconds = state.unix_ms.saturating_sub(target.since_unix_ms) as f64 / 1000.0;
    let own = Target {
        target: 0,
        pid: target.pid,
        start_time: target.start_time,
        comm: target.comm.clone(),
        exe: target.exe.clone(),
        container: None,
        began: Began::Attached,
        ended: None,
        rss_bytes: target.memory.map(|memory| memory.rss_bytes),
        memory,
        findings: target.findings.clone(),
        cost: target.cost,
        probes: Vec::new(),
        allocators: target.allocators.clone(),
        modules: Vec::new(),
        growth: None,
        census: None,
    };
    Report {
        schema: SCHEMA.to_owned(),
        tool: state.tool.clone(),
        host: Host { kernel: String::new() },
        complete: state.complete,
        losses: state.losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect(),
        window: Window { seconds, duty: None },
        pressure: state.pressure,
        self_use: state.self_use,
        symbols: None,
        findings: Vec::new(),
        system: false,
        targets: vec![own],
    }
}

/// What pins, by the report of the last window that has one; a client without the token gets its address.
pub(super) fn pinners(
    view: &View<'_>,
    windows: &[WindowRecord],
    deeper: Option<&Deeper<'_>>,
) -> Markup {
    let allocators =
        deeper.iter().flat_map(|own| &own.report.targets).flat_map(|own| &own.allocators);
    let named: Vec<_> =
        allocators.filter(|own| own.sites.as_ref().is_some_and(|all| !all.is_empty())).collect();
    html! {
        @if let Some(deeper) = deeper.filter(|_| !named.is_empty()) {
            h2 { "Who" small { ", by " a href={ "/window/" (deeper.window.id) } { "window " (deeper.window.id) } " of " (clock(deeper.window.began_unix_ms)) } }
            @for own in named { h3 { (view.text(&own.profile, NAME_CHARS)) } (parts::sites(own, MAX_PINNERS)) }
            (parts::flame(&deeper.report, PinWeight::Granules))
        } @else if let Some(window) = windows.iter().find(|window| window.has_report) {
            p {
                "Who: " a href={ "/window/" (window.id) } { "the report of window " (window.id) }
                " names the call stacks" @if view.access == Access::Public { " to clients with the token" } "."
            }
        }
    }
}

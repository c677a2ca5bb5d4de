//! Saved reports, recordings of the daemon, and records of the ring.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use drainprof_common::event::{EVENT_BYTES, Event, EventKind};
use drainprof_node::{
    NodeState, SCHEMA,
    config::Label,
    serve::{
        in_words,
        metrics::{Flavour, Metrics, render},
    },
    store::Moment,
};
use drainprof_report::{
    Options, Report,
    diff::Diff,
    export::{FORMATS, Interval, Style, diff::DIFF_FORMATS},
    filter::{Filter, Wanted},
    invariants, samples, stored, verdict,
};

/// The report that others are compared with.
const OTHER: &[u8] = include_bytes!("../../../docs/examples/before.json");

/// Reads a report, and does with it what `drainprof report` and `diff` do: one format each, chosen by the input.
pub(super) fn report(bytes: &[u8]) -> bool {
    let mut report = match stored::read(bytes) {
        Ok(report) => report,
        Err(error) => {
            let _ = error.to_string();
            return false;
        }
    };
    let chosen = bytes.iter().fold(0, |sum: usize, byte| sum.wrapping_add(usize::from(*byte)));
    let (_, _) = (invariants(&report), verdict(&report, Some(0.5)));
    let other = stored::read(OTHER).ok();
    let (style, mut out) = (Style::default(), Vec::new());
    if let Some(other) = &other {
        let format = DIFF_FORMATS[chosen % DIFF_FORMATS.len()];
        let (report, other) = (("a", &report), ("b", other));
        let (before, after) = if chosen & 1 == 0 { (report, other) } else { (other, report) };
        let _ = (format.write)(&Diff::of(before, after), &style, &mut out);
    }
    let format = FORMATS[chosen % FORMATS.len()];
    let interval = Interval { before: other.as_ref(), now: &report, clock: "12:00:05" };
    let _ = format.exporter.interval(&interval, &style, &mut out);
    let wanted = Wanted { top: 5, min_bytes: 1, no_paths: chosen & 2 == 0, ..Wanted::default() };
    Filter::new(wanted).apply(&mut report);
    let _ = format.exporter.report(&report, &style, &mut out);
    if !format.binary {
        let text = String::from_utf8_lossy(&out);
        let is_hostile = |c: &char| c.is_control() && *c != '\n';
        let bad = text.chars().find(is_hostile);
        assert_eq!(bad, None, "in {}", format.name);
    }
    true
}

/// Reports of every kind, as documents and as the last line of a stream.
pub(super) fn samples() -> Result<Vec<Vec<u8>>> {
    let mut all = vec![OTHER.to_vec()];
    for (name, snapshot) in samples::all() {
        let report = Report::build(&snapshot, &Options::default());
        all.push(serde_json::to_vec(&report).with_context(|| format!("write {name}"))?);
    }
    let stream = format!(r#"{{"record":"report","report":{}}}"#, String::from_utf8_lossy(&all[1]));
    all.push(format!("{{\"record\":\"interval\"}}\n{stream}\n").into_bytes());
    Ok(all)
}

/// A line of a recording, or a record of the ring.
pub(super) fn records(bytes: &[u8]) -> bool {
    if !bytes.starts_with(b"{") {
        return Event::decode(bytes).is_some();
    }
    let Ok(state) = serde_json::from_slice::<NodeState>(bytes) else { return false };
    let moment = Moment::of(&state);
    let _ = (moment.events(None), moment.events(Some(&Moment::default())), in_words(&state, None));
    let mut metrics = Metrics::new(&Label::ALL);
    let state = Arc::new(state);
    metrics.observe(&state);
    metrics.observe(&state);
    for flavour in [Flavour::OpenMetrics, Flavour::Prometheus] {
        let _ = render(&*metrics.families(), flavour);
    }
    state.schema == SCHEMA
}

/// A record of each kind.
#[allow(clippy::unnecessary_wraps, reason = "as other seeds")]
pub(super) fn events() -> Result<Vec<Vec<u8>>> {
    let kinds = (1..).map_while(EventKind::from_raw);
    let event = |kind: EventKind| {
        let mut bytes = vec![0; EVENT_BYTES];
        bytes[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        bytes
    };
    Ok(kinds.map(event).collect())
}

//! Metrics, health and status.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use drainprof_common::loss::Severity;
use drainprof_profile::Level;
use drainprof_report::{export::shown, health::Health};

use super::{
    super::{
        hub::Hub,
        metrics::{negotiate, render, state_age},
    },
    guard::Access,
    shared::Shared,
};
use crate::{AlertState, NodeState, Outcome};

/// Characters of a name or sentence that are shown.
const MAX_CHARS: usize = 300;

pub(super) fn router() -> Router<Shared> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/status", get(status))
}

async fn metrics(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    let accept: Vec<_> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let flavour = negotiate(&accept.join(","));
    let (families, age) = (hub.families(), state_age(hub.age()));
    let text = render(families.iter().chain([&age]), flavour);
    ([(header::CONTENT_TYPE, flavour.media_type())], text).into_response()
}

/// Whether the daemon's loop works.
async fn health(State(hub): State<Arc<Hub>>) -> Response {
    match hub.stuck() {
        None => "ok\n".into_response(),
        Some(age) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the daemon has made no new state for {} s\n", age.as_secs()),
        )
            .into_response(),
    }
}

/// Whether all processes were checked once.
async fn ready(State(hub): State<Arc<Hub>>) -> Response {
    if hub.state().ready {
        "ready\n".into_response()
    } else {
        let text = "the daemon has not yet checked all processes\n";
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn status(State(shared): State<Shared>, Extension(access): Extension<Access>) -> String {
    let age = shared.hub.age();
    let text = in_words(&shared.hub.state(), Some(age));
    if access == Access::Full { text } else { shared.redactor.text(&text) }
}

/// Whether the counts are complete, why not, and what was noticed that they do not depend on.
fn losses(state: &NodeState, text: &mut String) {
    if state.complete {
        text.push_str("complete  yes\n");
    }
    for why in &state.incomplete {
        let _ = writeln!(text, "complete  no: {}", shown(why, MAX_CHARS));
    }
    if !state.complete && state.incomplete.is_empty() {
        text.push_str("complete  no\n");
    }
    let listed = state.losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect();
    let noticed: Vec<String> = Health::from_names(&listed)
        .lines
        .into_iter()
        .filter(|line| line.severity == Severity::Notice)
        .map(|line| format!("{} {}", line.name, line.count))
        .collect();
    if !noticed.is_empty() {
        let _ = writeln!(text, "noticed   {} (counts are exact all the same)", noticed.join(", "));
    }
}

/// The state in a few lines; with its age, where that is known.
#[must_use]
pub fn in_words(state: &NodeState, age: Option<Duration>) -> String {
    let count =
        |level: Option<Level>| state.targets.iter().filter(|target| target.level == level).count();
    let mut text = String::new();
    let yes = |is: bool| if is { "yes" } else { "no" };
    let _ = writeln!(text, "{} {}", state.tool.name, state.tool.version);
    let _ = writeln!(text, "up        {:.0} s", state.uptime_seconds);
    if let Some(age) = age {
        let _ = writeln!(text, "state     {:.1} s old", age.as_secs_f64());
    }
    let _ = writeln!(text, "ready     {}", yes(state.ready));
    let killed = if state.killed { "on: nothing is attached" } else { "off" };
    let _ = writeln!(text, "kill      {killed}");
    for degraded in &state.degraded {
        let _ = writeln!(text, "degraded  {}", shown(degraded, MAX_CHARS));
    }
    losses(state, &mut text);
    if state.processes_late != 0 {
        let _ = writeln!(
            text,
            "late      {} processes began before their probes were in place: what they did before is not counted",
            state.processes_late
        );
    }
    let unmatched = state.targets.iter().filter(|target| !target.matched).count();
    let _ = writeln!(
        text,
        "targets   {} (memory only {unmatched}, no probe {}, close {}, boundary {}, objects {}, stacks {})",
        state.targets.len(),
        count(None) - unmatched,
        count(Some(Level::Close)),
        count(Some(Level::Boundary)),
        count(Some(Level::Objects)),
        count(Some(Level::Stacks))
    );
    let running = state.windows.iter().filter(|window| window.outcome == Outcome::Running);
    let _ = writeln!(text, "windows   {} running", running.count());
    let _ = writeln!(
        text,
        "self      {:.2} s CPU, {} KiB resident, {} KiB maps",
        state.self_use.cpu_seconds,
        state.self_use.rss_bytes >> 10,
        state.self_use.map_bytes >> 10
    );
    for target in &state.targets {
        for alert in target.alerts.iter().filter(|alert| alert.state == AlertState::Firing) {
            let (comm, rule) = (shown(&target.comm, MAX_CHARS), shown(&alert.rule, MAX_CHARS));
            let message = shown(&alert.message, MAX_CHARS);
            let _ = writeln!(text, "alert     {} ({comm}): {rule}: {message}", target.pid);
        }
    }
    text
}

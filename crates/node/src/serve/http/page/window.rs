//! Diagnostic windows: what they were, their reports, two of them compared, and a new one. The token shows and
//! starts them; it comes in the form, so no other site's page can.

use axum::{
    Extension, Form,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use drainprof_report::{
    Report,
    diff::Diff,
    export::{
        self, FORMATS, Style,
        html::{cell, diff, number, table, text, whole},
    },
    units,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    super::{guard::Access, past::clock, shared::Shared},
    shell::{
        NAME_CHARS, SENTENCE_CHARS, View, admitted, nonsense, not_found, page, refused, token_field,
    },
};
use crate::{Answer, Outcome, Refusal, Request, WindowRecord};

/// Windows that are listed.
const MAX_WINDOWS: u32 = 50;
/// Rows of lists in a report that is shown, and in one that is downloaded.
const MAX_ROWS_SHOWN: usize = 20;
const MAX_ROWS_DOWNLOADED: usize = 1_000;

/// The latest windows; none where the daemon has no time to say.
pub(super) async fn latest(shared: &Shared) -> Vec<WindowRecord> {
    match shared.hub.ask(Request::Windows { limit: MAX_WINDOWS }).await {
        Ok(Answer::Windows { windows }) => windows,
        _ => Vec::new(),
    }
}

const fn words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Running => "running",
        Outcome::Finished => "finished",
        Outcome::TargetEnded => "the process ended",
        Outcome::OverCost => "stopped: over the cost limit",
        Outcome::Interrupted => "interrupted",
        Outcome::Failed => "failed",
    }
}

/// Windows as a table.
pub(super) fn list(view: &View<'_>, windows: &[WindowRecord]) -> Markup {
    let columns = [
        number("window"),
        text("process"),
        text("began"),
        number("lasted"),
        text("outcome"),
        text("why"),
    ];
    let rows: Vec<_> = windows
        .iter()
        .map(|window| {
            vec![
                html! { a href={ "/window/" (window.id) } { (window.id) } },
                html! { a href={ "/process/" (window.pid) } { (view.text(&window.comm, NAME_CHARS)) " (" (window.pid) ")" } },
                cell(clock(window.began_unix_ms)),
                cell(units::duration(window.seconds)),
                cell(words(window.outcome)),
                html! { (view.text(&window.asked_by, NAME_CHARS)) ": " (view.text(&window.why, SENTENCE_CHARS)) },
            ]
        })
        .collect();
    html! {
        h2 { "Diagnostic windows" }
        @if rows.is_empty() { p.dim { "None so far. A rule opens one, or the form of a process." } }
        (table("The latest first", &columns, &rows))
    }
}

/// A form that starts a window on a process.
pub(super) fn start_form(view: &View<'_>, pid: u32) -> Markup {
    html! {
        form method="post" action={ "/process/" (pid) "/window" } {
            label { "Seconds" input type="number" name="seconds" min="1" max="3600" value="60" required; }
            label { "Growth" select name="growth" {
                option value="" { "as configured" }
                option value="true" { "with page faults" }
                option value="false" { "without" }
            } }
            (token_field(view.access))
            button { "Start a diagnostic window" }
        }
    }
}

pub(super) fn compare_form(view: &View<'_>, windows: &[WindowRecord]) -> Markup {
    let with: Vec<_> = windows.iter().filter(|window| window.has_report).collect();
    let choice = |name: &str, shown: &str, chosen: usize| {
        html! {
            label { (shown) select name=(name) {
                @for (index, window) in with.iter().enumerate() {
                    option value=(window.id) selected[index == chosen] {
                        (window.id) ": " (view.text(&window.comm, NAME_CHARS)) ", " (clock(window.began_unix_ms))
                    }
                }
            } }
        }
    };
    html! {
        form method="post" action="/compare" {
            (choice("before", "Before", 1))
            (choice("after", "After", 0))
            (token_field(view.access))
            button { "Compare two windows" }
        }
    }
}

/// What a window was; its report where the client has the token.
pub(super) async fn about(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
) -> Response {
    let Ok(number) = id.parse::<u64>() else { return not_found("this window") };
    let view = View { shared: &shared, access };
    // Of older ones only the report is known.
    let known = latest(&shared).await.into_iter().find(|window| window.id == number);
    let is_running = known.as_ref().is_some_and(|window| window.outcome == Outcome::Running);
    let report = seen_report(&view, number).await;
    let content = html! {
        @if let Some(window) = &known { (list(&view, std::slice::from_ref(window))) }
        @if is_running { p { "It runs. Its report is there when it ends." } }
        @else { (report_form(&view, number)) }
        @if let Some(report) = &report { (shown_report(report)) }
    };
    page(&format!("Window {number}"), is_running, &content)
}

fn report_form(view: &View<'_>, id: u64) -> Markup {
    html! {
        form method="post" action={ "/window/" (id) } {
            label { "Report" select name="format" {
                option value="" { "on this page" }
                @for format in FORMATS { option value=(format.name) { (format.name) ": " (format.what) } }
            } }
            (token_field(view.access))
            button { "Show or download" }
        }
    }
}

fn shown_report(report: &Report) -> Markup {
    whole(report, &Style { top: MAX_ROWS_SHOWN, ..Style::default() })
}

/// A window's report, where the client may see it and there is one.
pub(super) async fn seen_report(view: &View<'_>, id: u64) -> Option<Box<Report>> {
    match view.access {
        Access::Full => report_of(view.shared, id).await.ok(),
        Access::Public => None,
    }
}

async fn report_of(shared: &Shared, id: u64) -> Result<Box<Report>, Refusal> {
    match shared.hub.ask(Request::WindowReport { id }).await? {
        Answer::Report { report } => Ok(report),
        _ => Err(Refusal::Failed { message: "the daemon has answered something else".to_owned() }),
    }
}

#[derive(Deserialize)]
pub(super) struct ReportForm {
    #[serde(default)]
    token: String,
    #[serde(default)]
    format: String,
}

/// A window's report, as a page or as a file.
pub(super) async fn report(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Form(form): Form<ReportForm>,
) -> Response {
    if let Err(refusal) = admitted(&shared, access, &headers, &form.token) {
        return refused(&refusal);
    }
    let Ok(number) = id.parse::<u64>() else { return not_found("this window") };
    let report = match report_of(&shared, number).await {
        Ok(report) => report,
        Err(refusal) => return refused(&refusal),
    };
    if !form.format.is_empty() {
        return download(&report, number, &form.format);
    }
    let view = View { shared: &shared, access };
    let content = html! { (report_form(&view, number)) (shown_report(&report)) };
    page(&format!("Window {number}"), false, &content)
}

fn download(report: &Report, id: u64, name: &str) -> Response {
    let Some(format) = export::format(name) else { return not_found("this format") };
    let mut bytes = Vec::new();
    let style = Style { top: MAX_ROWS_DOWNLOADED, ..Style::default() };
    if let Err(error) = format.exporter.report(report, &style, &mut bytes) {
        return refused(&Refusal::Failed { message: error.to_string() });
    }
    let file = format!("attachment; filename=\"window-{id}.{}\"", format.extension);
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, file),
    ];
    (headers, bytes).into_response()
}

#[derive(Deserialize)]
pub(super) struct CompareForm {
    #[serde(default)]
    token: String,
    before: u64,
    after: u64,
}

/// Two windows' reports compared.
pub(super) async fn compare(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    headers: HeaderMap,
    Form(form): Form<CompareForm>,
) -> Response {
    if let Err(refusal) = admitted(&shared, access, &headers, &form.token) {
        return refused(&refusal);
    }
    let (before, after) =
        (report_of(&shared, form.before).await, report_of(&shared, form.after).await);
    match (before, after) {
        (Ok(before), Ok(after)) => {
            let [one, other] = [form.before, form.after].map(|id| format!("window {id}"));
            let content = diff(&Diff::of((&one, &before), (&other, &after)), MAX_ROWS_SHOWN);
            page(&format!("{one} and {other}"), false, &content)
        }
        (Err(refusal), _) | (_, Err(refusal)) => refused(&refusal),
    }
}

#[derive(Deserialize)]
pub(super) struct StartForm {
    #[serde(default)]
    token: String,
    seconds: f64,
    #[serde(default)]
    growth: String,
}

/// Starts a window.
pub(super) async fn open(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(pid): Path<String>,
    headers: HeaderMap,
    Form(form): Form<StartForm>,
) -> Response {
    if let Err(refusal) = admitted(&shared, access, &headers, &form.token) {
        return refused(&refusal);
    }
    let Ok(pid) = pid.parse::<u32>() else { return not_found("this process") };
    if !form.seconds.is_finite() || form.seconds <= 0.0 {
        return nonsense("seconds must be more than 0".to_owned());
    }
    let (seconds, growth) = (Some(form.seconds), form.growth.parse().ok());
    tracing::info!(pid, seconds, "a diagnostic window is requested on the page");
    match shared.hub.ask(Request::Diagnose { pid, seconds, growth }).await {
        Ok(Answer::Window { window }) => {
            (StatusCode::SEE_OTHER, [(header::LOCATION, format!("/window/{}", window.id))])
                .into_response()
        }
        Ok(_) => refused(&Refusal::Failed {
            message: "the daemon has answered something else".to_owned(),
        }),
        Err(refusal) => refused(&refusal),
    }
}

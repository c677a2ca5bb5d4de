//! `/api/v1`: JSON, as `docs/openapi.json` describes it.

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State, rejection::JsonRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    super::options::Limits,
    guard::Access,
    past::{Range, RangeQuery},
    peer::Peer,
    shared::Shared,
};
use crate::{
    Answer, NodeState, NodeTarget, Refusal, Request, WindowRecord, history::course_document,
};

/// Windows that are listed where the request does not say how many.
const DEFAULT_WINDOWS: u32 = 100;

pub(super) fn router(limits: &Limits) -> Router<Shared> {
    Router::new()
        .route("/api/v1/state", get(state))
        .route("/api/v1/targets", get(targets))
        .route("/api/v1/targets/{pid}/report", get(report))
        .route("/api/v1/targets/{pid}/history", get(history))
        .route("/api/v1/windows", get(windows))
        .route("/api/v1/windows/{id}/report", get(window_report))
        .route("/api/v1/diagnose", post(diagnose))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(DefaultBodyLimit::max(limits.body_bytes))
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::NotFound { .. } => StatusCode::NOT_FOUND,
        Refusal::NotNow { .. } => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::Forbidden { .. } => StatusCode::FORBIDDEN,
        Refusal::Failed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, Json(refusal)).into_response()
}

/// Diagnostic windows.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Windows {
    /// The latest first.
    windows: Vec<WindowRecord>,
}

/// The watched processes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Targets {
    /// In order of their pids.
    targets: Vec<NodeTarget>,
}

/// An answer as its bare content.
fn answered(answer: Result<Answer, Refusal>) -> Response {
    #[derive(Serialize)]
    struct Done {
        message: String,
    }
    match answer {
        Ok(Answer::State { state }) => Json(state).into_response(),
        Ok(Answer::Report { report }) => Json(report).into_response(),
        Ok(Answer::Windows { windows }) => Json(Windows { windows }).into_response(),
        Ok(Answer::Window { window }) => Json(window).into_response(),
        Ok(Answer::Done { message }) => Json(Done { message }).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

async fn nowhere(uri: Uri) -> Response {
    let message = format!("{} does not exist; docs/api.md lists the paths", uri.path());
    refused(&Refusal::NotFound { message })
}

async fn not_so(method: Method, uri: Uri) -> Response {
    let message = format!("{} does not take {method}; docs/api.md lists the methods", uri.path());
    (StatusCode::METHOD_NOT_ALLOWED, Json(Refusal::Forbidden { message })).into_response()
}

/// A document as it is, or for everybody: without addresses and directories.
fn shown<T: Serialize>(shared: &Shared, access: Access, document: &T) -> Response {
    if access == Access::Full {
        return Json(document).into_response();
    }
    match serde_json::to_value(document) {
        Ok(mut value) => {
            shared.redactor.json(&mut value);
            Json(value).into_response()
        }
        Err(error) => refused(&Refusal::Failed { message: error.to_string() }),
    }
}

async fn state(State(shared): State<Shared>, Extension(access): Extension<Access>) -> Response {
    shown::<NodeState>(&shared, access, &shared.hub.state())
}

async fn targets(State(shared): State<Shared>, Extension(access): Extension<Access>) -> Response {
    shown(&shared, access, &Targets { targets: shared.hub.state().targets.clone() })
}

/// A number in a path that is none, or too large, is nothing that exists.
fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal::NotFound { message: format!("{text} is not a {what}") })
}

async fn report(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(pid): Path<String>,
) -> Response {
    if let Some(refusal) = shared.guard.refusal(access) {
        return refusal;
    }
    answered(match number(&pid, "process id") {
        Ok(pid) => shared.hub.ask(Request::Report { pid }).await,
        Err(refusal) => Err(refusal),
    })
}

/// The series of a process in a range, as `drainprof history -p PID -o json` has it.
async fn history(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(pid): Path<String>,
    Query(query): Query<RangeQuery>,
) -> Response {
    let now = shared.hub.state().unix_ms;
    let range = match Range::of(&query, now) {
        Ok(range) => range,
        Err(message) => {
            let body = Json(Refusal::Failed { message });
            return (StatusCode::UNPROCESSABLE_ENTITY, body).into_response();
        }
    };
    let course = match number(&pid, "process id") {
        Ok(pid) => shared.past.course(pid, range).await,
        Err(refusal) => Err(refusal),
    };
    match course {
        Ok(course) if course.series.is_empty() => refused(&Refusal::NotFound {
            message: format!("nothing is kept of a process {pid} in this time"),
        }),
        Ok(course) => shown(&shared, access, &course_document(&course)),
        Err(refusal) => refused(&refusal),
    }
}

#[derive(Deserialize)]
struct WindowsQuery {
    limit: Option<u32>,
}

async fn windows(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Query(query): Query<WindowsQuery>,
) -> Response {
    let limit = query.limit.unwrap_or(DEFAULT_WINDOWS);
    match shared.hub.ask(Request::Windows { limit }).await {
        Ok(Answer::Windows { windows }) => shown(&shared, access, &Windows { windows }),
        answer => answered(answer),
    }
}

async fn window_report(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
) -> Response {
    if let Some(refusal) = shared.guard.refusal(access) {
        return refusal;
    }
    answered(match number(&id, "window number") {
        Ok(id) => shared.hub.ask(Request::WindowReport { id }).await,
        Err(refusal) => Err(refusal),
    })
}

/// The request to open a diagnostic window.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Diagnose {
    /// The process.
    pid: u32,
    /// For how long; null or absent: as configured.
    #[serde(default)]
    #[schemars(extend("exclusiveMinimum" = 0))]
    seconds: Option<f64>,
    /// Whether page faults, heap and mappings are traced; null or absent: as configured.
    #[serde(default)]
    growth: Option<bool>,
}

/// With the token, and not from a web page: a browser marks the requests of the pages that it shows.
async fn diagnose(
    State(shared): State<Shared>,
    Extension(access): Extension<Access>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Json<Diagnose>, JsonRejection>,
) -> Response {
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        let message = "web pages cannot request windows".to_owned();
        return refused(&Refusal::Forbidden { message });
    }
    if let Some(refusal) = shared.guard.refusal(access) {
        return refusal;
    }
    let Diagnose { pid, seconds, growth } = match body {
        Ok(Json(body)) => body,
        Err(rejection) => {
            let message = rejection.body_text();
            return (rejection.status(), Json(Refusal::Failed { message })).into_response();
        }
    };
    if seconds.is_some_and(|seconds| !seconds.is_finite() || seconds <= 0.0) {
        let message = "seconds must be more than 0".to_owned();
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(Refusal::Failed { message }))
            .into_response();
    }
    tracing::info!(peer = %peer.remote, pid, seconds, "a diagnostic window is requested over HTTP");
    answered(shared.hub.ask(Request::Diagnose { pid, seconds, growth }).await)
}

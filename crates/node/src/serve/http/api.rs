//! `/api/v1`: JSON, as `docs/openapi.json` describes it.

use std::sync::Arc;

use axum::{
    Extension, Json, Router,
    extract::{DefaultBodyLimit, Path, Query, State, rejection::JsonRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};

use super::{
    super::{Limits, hub::Hub},
    Peer,
};
use crate::{Answer, NodeState, NodeTarget, Refusal, Request};

/// Windows that are listed where nobody says how many.
const WINDOWS: u32 = 100;
/// Windows that are listed at most.
const MOST_WINDOWS: u32 = 10_000;

pub(super) fn router(limits: &Limits) -> Router<Arc<Hub>> {
    Router::new()
        .route("/api/v1/state", get(state))
        .route("/api/v1/targets", get(targets))
        .route("/api/v1/targets/{pid}/report", get(report))
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

/// An answer as its bare content.
fn answered(answer: Result<Answer, Refusal>) -> Response {
    #[derive(Serialize)]
    struct Windows<T> {
        windows: T,
    }
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
    let message = format!("there is nothing at {}; docs/api.md lists what there is", uri.path());
    refused(&Refusal::NotFound { message })
}

async fn not_so(method: Method, uri: Uri) -> Response {
    let message = format!("{} does not take {method}; docs/api.md says what it takes", uri.path());
    (StatusCode::METHOD_NOT_ALLOWED, Json(Refusal::Forbidden { message })).into_response()
}

async fn state(State(hub): State<Arc<Hub>>) -> Response {
    Json::<&NodeState>(&hub.state()).into_response()
}

async fn targets(State(hub): State<Arc<Hub>>) -> Response {
    #[derive(Serialize)]
    struct Targets<'a> {
        targets: &'a [NodeTarget],
    }
    Json(Targets { targets: &hub.state().targets }).into_response()
}

/// A number in a path that is none, or too large, is nothing that exists.
fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| Refusal::NotFound { message: format!("{text} is no {what}") })
}

async fn report(State(hub): State<Arc<Hub>>, Path(pid): Path<String>) -> Response {
    answered(match number(&pid, "process id") {
        Ok(pid) => hub.ask(Request::Report { pid }).await,
        Err(refusal) => Err(refusal),
    })
}

#[derive(Deserialize)]
struct WindowsQuery {
    limit: Option<u32>,
}

async fn windows(State(hub): State<Arc<Hub>>, Query(query): Query<WindowsQuery>) -> Response {
    let limit = query.limit.unwrap_or(WINDOWS).min(MOST_WINDOWS);
    answered(hub.ask(Request::Windows { limit }).await)
}

async fn window_report(State(hub): State<Arc<Hub>>, Path(id): Path<String>) -> Response {
    answered(match number(&id, "number of a window") {
        Ok(id) => hub.ask(Request::WindowReport { id }).await,
        Err(refusal) => Err(refusal),
    })
}

/// The body of `POST /api/v1/diagnose`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Diagnose {
    pid: u32,
    #[serde(default)]
    seconds: Option<f64>,
    #[serde(default)]
    growth: Option<bool>,
}

/// HTTP knows no users: whoever may give orders runs on this machine and is no web page. Pages that a browser shows
/// can send requests to this machine too; the browser then says so.
async fn diagnose(
    State(hub): State<Arc<Hub>>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Json<Diagnose>, JsonRejection>,
) -> Response {
    let forbidden = |message: &str| refused(&Refusal::Forbidden { message: message.to_owned() });
    if !peer.ip().to_canonical().is_loopback() {
        return forbidden("orders are taken from this machine only; use its control socket");
    }
    if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        return forbidden("orders are not taken from web pages");
    }
    let Diagnose { pid, seconds, growth } = match body {
        Ok(Json(body)) => body,
        Err(rejection) => {
            let message = rejection.body_text();
            return (rejection.status(), Json(Refusal::Failed { message })).into_response();
        }
    };
    if seconds.is_some_and(|seconds| !seconds.is_finite() || seconds <= 0.0) {
        let message = "seconds must be above 0".to_owned();
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(Refusal::Failed { message }))
            .into_response();
    }
    tracing::info!(%peer, pid, seconds, "a diagnostic window is asked for over HTTP");
    answered(hub.ask(Request::Diagnose { pid, seconds, growth }).await)
}

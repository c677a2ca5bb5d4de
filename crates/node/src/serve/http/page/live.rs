//! What pages load besides themselves: style, script, and news of the state.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::header,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use drainprof_report::export::html::STYLE;
use futures_util::stream;
use tokio::time::Instant;

use crate::serve::hub::Hub;

/// Less than a connection may take.
const MAX_STREAM_TIME: Duration = Duration::from_secs(25);
const SCRIPT: &str = include_str!("page.js");

pub(super) async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}

pub(super) async fn script() -> Response {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], SCRIPT).into_response()
}

/// An event for each new state. It ends before the connection's time is up; the browser connects again by itself.
pub(super) async fn events(State(hub): State<Arc<Hub>>) -> Response {
    let end = Instant::now() + MAX_STREAM_TIME;
    let news = stream::unfold(hub.news(), move |mut news| async move {
        tokio::time::timeout_at(end, news.changed()).await.ok()?.ok()?;
        let unix_ms = news.borrow_and_update().unix_ms;
        let event = Event::default().event("state").data(unix_ms.to_string());
        Some((Ok::<_, Infallible>(event), news))
    });
    Sse::new(news).keep_alive(KeepAlive::default()).into_response()
}

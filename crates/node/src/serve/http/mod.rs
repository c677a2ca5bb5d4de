//! HTTP/1.1: one request per connection, every connection bounded in time.

mod api;
mod pages;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

#[cfg(test)]
pub(super) use api::{Diagnose, Targets, Windows};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
pub use pages::in_words;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{Limits, hub::Hub};

/// All that is served, by method; the document of the API and its tests follow this list.
#[cfg(test)]
pub(super) const ROUTES: &[(&str, &str)] = &[
    ("get", "/metrics"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/status"),
    ("get", "/api/v1/state"),
    ("get", "/api/v1/targets"),
    ("get", "/api/v1/targets/{pid}/report"),
    ("get", "/api/v1/windows"),
    ("get", "/api/v1/windows/{id}/report"),
    ("post", "/api/v1/diagnose"),
];

/// Who asks.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

/// A connection to whom there is no place.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";
/// After a failed accept, for example without a free descriptor, before the next.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is dropped; connections end with it.
pub(super) async fn serve(listener: TcpListener, hub: Arc<Hub>, limits: Limits) {
    let router = api::router(&limits).merge(pages::router()).with_state(hub);
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match Arc::clone(&places).try_acquire_owned() {
                    Ok(place) => {
                        let router = router.clone();
                        connections.spawn(async move {
                            connection(stream, peer, router, limits).await;
                            drop(place);
                        });
                    }
                    // A fresh socket has room for so little; who does not read it is cut off all the same.
                    Err(_) => drop(stream.try_write(FULL)),
                },
                Err(error) => told(&error).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn told(error: &io::Error) {
    tracing::warn!(%error, "cannot accept an HTTP connection");
    tokio::time::sleep(PAUSE).await;
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, limits: Limits) {
    let service = TowerToHyperService::new(router.layer(Extension(Peer(peer))));
    let answering = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8 << 10))
        .serve_connection(TokioIo::new(stream), service);
    match timeout(limits.connection_timeout, answering).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, %error, "an HTTP connection failed"),
        Err(_) => tracing::debug!(%peer, "an HTTP connection took too long and was cut off"),
    }
}

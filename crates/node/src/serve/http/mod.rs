//! HTTP/1.1: one request per connection, every connection bounded in time, and every client in its connections.
//!
//! The accept loop is our own: `axum::serve` has no bounds for the bytes of a request's headers and for the time until
//! they are there, and tower's limits begin only with a request, not with a connection.

mod api;
mod guard;
mod page;
mod pages;
mod past;
mod peer;
mod places;
mod redact;
mod shared;

#[cfg(feature = "testing")]
use std::net::{IpAddr, SocketAddr};
use std::{io, sync::Arc, time::Duration};

#[cfg(test)]
pub(super) use api::{Diagnose, Targets, Windows};
use axum::{Extension, Router, middleware};
pub(super) use guard::Guard;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
pub use pages::in_words;
pub(super) use past::Past;
use peer::Peer;
use places::Places;
use shared::Shared;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

use super::{hub::Hub, options::Limits};

/// All that is served besides the page for browsers, by method; the document of the API and its tests follow this list.
#[cfg(test)]
pub(super) const ROUTES: &[(&str, &str)] = &[
    ("get", "/metrics"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/status"),
    ("get", "/api/v1/state"),
    ("get", "/api/v1/targets"),
    ("get", "/api/v1/targets/{pid}/report"),
    ("get", "/api/v1/targets/{pid}/history"),
    ("get", "/api/v1/windows"),
    ("get", "/api/v1/windows/{id}/report"),
    ("post", "/api/v1/diagnose"),
];

/// A connection to whom there is no place.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 5\r\n\
    content-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n\r\ntoo many connections\n";
/// After a failed accept, for example without a free descriptor, before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

fn router(hub: Arc<Hub>, guard: Guard, past: Past, limits: &Limits) -> Router {
    let (guard, past) = (Arc::new(guard), Arc::new(past));
    let shared = Shared { hub, guard, redactor: Arc::default(), past };
    let admit = middleware::from_fn_with_state(Arc::clone(&shared.guard), Guard::admit);
    let pages = pages::router().merge(page::router(limits));
    api::router(limits).merge(pages).with_state(shared).layer(admit)
}

/// Accepts until it is dropped; connections end with it.
pub(super) async fn serve(
    listener: TcpListener,
    hub: Arc<Hub>,
    guard: Guard,
    past: Past,
    limits: Limits,
) {
    let router = router(hub, guard, past, &limits);
    let places = Arc::new(Places::new(limits.connections, limits.connections_per_client));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    let Ok(local) = stream.local_addr() else { continue };
                    let peer = Peer { remote, local: local.ip(), port: local.port() };
                    if let Some(place) = places.take(peer) {
                        let router = router.clone();
                        connections.spawn(async move {
                            connection(stream, peer, router, limits).await;
                            drop(place);
                        });
                    } else {
                        // A fresh socket has room for so little; who does not read it is cut off all the same.
                        drop(stream.try_write(TOO_MANY_CONNECTIONS));
                    }
                }
                Err(error) => accept_failed(&error).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn accept_failed(error: &io::Error) {
    tracing::warn!(%error, "cannot accept an HTTP connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

fn builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(limits.header_bytes.max(8 << 10));
    builder
}

async fn connection(stream: TcpStream, peer: Peer, router: Router, limits: Limits) {
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    let answering = builder(&limits).serve_connection(TokioIo::new(stream), service);
    match timeout(limits.connection_timeout, answering).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(peer = %peer.remote, %error, "an HTTP connection failed"),
        Err(_) => {
            tracing::debug!(peer = %peer.remote, "an HTTP connection took too long and was cut off");
        }
    }
}

/// Answers a client that sends this and no more, as the server does, but without a socket.
#[cfg(feature = "testing")]
pub(super) async fn answer(hub: Arc<Hub>, bytes: &[u8]) -> Vec<u8> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let limits = Limits::default();
    let local = IpAddr::from([127, 0, 0, 1]);
    let peer = Peer { remote: SocketAddr::new(local, 1), local, port: 9464 };
    let router = router(hub, Guard::new(&[], None), Past::default(), &limits);
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (mut from, mut to) = tokio::io::split(ours);
    let service = TowerToHyperService::new(router.layer(Extension(peer)));
    // The client closes its side before it is answered.
    let answering =
        builder(&limits).half_close(true).serve_connection(TokioIo::new(theirs), service);
    let mut answer = Vec::new();
    let send = async {
        // The server may have read enough and close before all is sent.
        let _ = to.write_all(bytes).await;
        let _ = to.shutdown().await;
    };
    // What is no request is an error, and the connection ends.
    let _ = tokio::join!(answering, send, from.read_to_end(&mut answer));
    answer
}

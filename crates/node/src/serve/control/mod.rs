//! The control socket: one JSON [`Request`] a line in, one JSON [`Reply`] a line out.
//!
//! Who may: root, the daemon's own user, members of the configured group. The socket's mode says so, and the kernel's
//! word on the peer's user is checked once more.

mod client;
mod line;
mod peers;
mod place;

use std::{sync::Arc, time::Duration};

pub use client::{AskError, Client};
use line::Reply;
pub(super) use line::parse;
use peers::Peers;
use place::Listening;
pub(super) use place::Place;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixStream, unix::UCred},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{hub::Hub, options::Limits};
use crate::{Refusal, Request};

/// After a failed accept, for example without a free descriptor, before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is dropped; connections end with it.
pub(super) async fn serve(listening: Listening, hub: Arc<Hub>, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.clients));
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listening.listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                        let (hub, admitted) = (Arc::clone(&hub), admitted(&stream, &listening.peers));
                        clients.spawn(async move {
                            match admitted {
                                Ok(peer) => client(stream, peer, &hub, limits).await,
                                Err(refusal) => drop(refuse(stream, refusal, limits).await),
                            }
                            drop(place);
                        });
                    } else {
                        // A fresh socket has room for so little.
                        let message = "the control socket has too many clients; try again".to_owned();
                        let line = Reply::Refused(Refusal::NotNow { message }).line();
                        drop(stream.try_write(&line));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client on the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = clients.join_next(), if !clients.is_empty() => {}
        }
    }
}

/// Whether the kernel says that this peer may.
fn admitted(stream: &UnixStream, peers: &Peers) -> Result<UCred, Refusal> {
    let forbidden = |message: String| Refusal::Forbidden { message };
    let peer = stream
        .peer_cred()
        .map_err(|error| forbidden(format!("the kernel does not say who asks: {error}")))?;
    if peers.admit(peer.uid(), peer.gid()) {
        return Ok(peer);
    }
    tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused on the control socket");
    Err(forbidden(format!("user {} may not: {}", peer.uid(), peers.who())))
}

async fn client(stream: UnixStream, peer: UCred, hub: &Hub, limits: Limits) {
    let (from, mut to) = stream.into_split();
    let most = limits.line_bytes as u64;
    let mut from = BufReader::new(from);
    let mut text = Vec::new();
    loop {
        text.clear();
        let mut one = (&mut from).take(most + 1);
        match timeout(limits.idle_timeout, one.read_until(b'\n', &mut text)).await {
            // Gone, or silent for too long.
            Err(_) | Ok(Err(_) | Ok(0)) => return,
            Ok(Ok(_)) => {}
        }
        let (reply, close) = match parse(&text, limits.line_bytes) {
            Ok(request) => {
                log(&request, &peer);
                let reply = match hub.ask(request).await {
                    Ok(answer) => Reply::Ok(answer),
                    Err(refusal) => Reply::Refused(refusal),
                };
                (reply, false)
            }
            Err(message) => {
                tracing::debug!(uid = peer.uid(), message, "no request on the control socket");
                (Reply::Error(message), true)
            }
        };
        let line = reply.line();
        let written = timeout(limits.idle_timeout, to.write_all(&line)).await;
        if close || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

/// Orders are logged with the user that gave them; questions only at level debug.
fn log(request: &Request, peer: &UCred) {
    let (uid, pid) = (peer.uid(), peer.pid());
    match request {
        Request::Diagnose { .. } | Request::Kill | Request::Resume | Request::Reload => {
            tracing::info!(uid, pid, ?request, "an order on the control socket");
        }
        Request::State
        | Request::Report { .. }
        | Request::Windows { .. }
        | Request::WindowReport { .. } => {
            tracing::debug!(uid, pid, ?request, "a question on the control socket");
        }
    }
}

async fn refuse(mut stream: UnixStream, refusal: Refusal, limits: Limits) -> std::io::Result<()> {
    let line = Reply::Refused(refusal).line();
    match timeout(limits.idle_timeout, stream.write_all(&line)).await {
        Ok(written) => written,
        Err(_) => Ok(()),
    }
}

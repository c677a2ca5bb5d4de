//! The control socket: one JSON [`Request`] a line in, one JSON [`Reply`] a line out.
//!
//! Who may: root, the daemon's own user, members of the configured group. The socket's mode says so, and the kernel's
//! word on who has connected is checked once more.

mod client;
mod peers;
mod place;

use std::{sync::Arc, time::Duration};

pub use client::{AskError, Client};
pub(super) use peers::Peers;
pub(super) use place::Place;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream, unix::UCred},
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

use super::{Limits, hub::Hub};
use crate::{Answer, Refusal, Request};

/// Where the control socket is unless the configuration says otherwise.
pub const SOCKET: &str = "/run/drainprof/control.sock";

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    /// The answer.
    Ok(Answer),
    /// It is not done.
    Refused(Refusal),
    /// The line was no request; the connection is closed.
    Error(String),
}

/// After a failed accept, for example without a free descriptor, before the next.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) listener: UnixListener,
    pub(super) peers: Peers,
    /// Removes the file and lets the lock go.
    pub(super) _place: Place,
}

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
                                Err(refusal) => drop(tell(stream, refusal, limits).await),
                            }
                            drop(place);
                        });
                    } else {
                        // A fresh socket has room for so little.
                        let message = "the control socket has too many clients; try again".to_owned();
                        let line = line(&Reply::Refused(Refusal::NotNow { message }));
                        drop(stream.try_write(&line));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client on the control socket");
                    tokio::time::sleep(PAUSE).await;
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
        let line = line(&reply);
        let written = timeout(limits.idle_timeout, to.write_all(&line)).await;
        if close || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

pub(super) fn parse(text: &[u8], most: usize) -> Result<Request, String> {
    let Some(text) = text.strip_suffix(b"\n") else {
        return Err(if text.len() > most {
            format!("a request has at most {most} bytes")
        } else {
            "a request ends with a line feed".to_owned()
        });
    };
    serde_json::from_slice(text).map_err(|error| format!("this is no request: {error}"))
}

/// Orders are reported, with who gave them; questions only to who wants to know everything.
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

async fn tell(mut stream: UnixStream, refusal: Refusal, limits: Limits) -> std::io::Result<()> {
    let line = line(&Reply::Refused(refusal));
    match timeout(limits.idle_timeout, stream.write_all(&line)).await {
        Ok(written) => written,
        Err(_) => Ok(()),
    }
}

fn line(reply: &Reply) -> Vec<u8> {
    let mut line = serde_json::to_vec(reply).unwrap_or_else(|error| {
        let reply = Reply::Error(format!("the answer has no JSON form: {error}"));
        serde_json::to_vec(&reply).unwrap_or_default()
    });
    line.push(b'\n');
    line
}

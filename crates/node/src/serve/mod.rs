//! What a running daemon shows, and how it is asked: metrics and an API over HTTP, a control socket for the command
//! line, OTLP, and messages to systemd.
//!
//! The daemon's loop owns all that it knows. It publishes a [`NodeState`] through a watch
//! channel and takes [`Asked`] from a bounded channel; nothing here can make it wait. Clients
//! are bounded: in number, in bytes, in time.

mod control;
mod error;
mod http;
mod hub;
pub mod metrics;
mod options;
mod otlp;
mod outgoing;
pub mod systemd;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod token;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

pub use control::{AskError, Client};
pub use error::ServeError;
pub use http::in_words;
use hub::Hub;
pub use options::{Limits, Options, OtlpOptions, SOCKET};
pub(crate) use outgoing::{Client as HttpClient, Peer, sensitive};
use token::Token;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{Asked, NodeState};

/// Listens, but answers nothing yet: a connection that comes meanwhile waits.
#[derive(Debug)]
pub struct Server {
    options: Options,
    http: Option<TcpListener>,
    control: Option<control::Place>,
    token: Option<Token>,
}

impl Server {
    /// Takes the address and the socket. The socket that a daemon has left behind is replaced, that of one that runs
    /// is not.
    pub fn bind(options: &Options) -> Result<Self, ServeError> {
        let token = options.token_file.as_deref().map(Token::read).transpose()?;
        let control = match &options.socket {
            Some(path) => Some(control::Place::take(path, options.group.as_deref())?),
            None => None,
        };
        let listen = |address: SocketAddr| -> io::Result<TcpListener> {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let http = match options.http {
            Some(address) => {
                Some(listen(address).map_err(|source| ServeError::Http { address, source })?)
            }
            None => None,
        };
        Ok(Self { options: options.clone(), http, control, token })
    }

    /// The address on which HTTP is served: that of the options, with the port that the kernel has chosen where they
    /// say 0.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.http.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.control.as_ref().map(control::Place::path)
    }

    /// Serves until `shutdown` is there. What is being answered then is cut off; the socket is removed.
    pub async fn run(
        self,
        state: watch::Receiver<Arc<NodeState>>,
        requests: mpsc::Sender<Asked>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let limits = self.options.limits;
        let hub = Arc::new(Hub::new(&self.options, state, requests));
        // Whatever is spawned ends with this set, however this function ends.
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&hub).follow());
        if let Some(listener) = self.http {
            let listener =
                tokio::net::TcpListener::from_std(listener).map_err(ServeError::Runtime)?;
            let guard = http::Guard::new(&self.options.hosts, self.token);
            let past = http::Past::new(self.options.history);
            tasks.spawn(http::serve(listener, Arc::clone(&hub), guard, past, limits));
        }
        if let Some(place) = self.control {
            tasks.spawn(control::serve(place.listen()?, Arc::clone(&hub), limits));
        }
        let otlp = self.options.otlp.as_ref();
        let sender = otlp.map(|otlp| otlp::Sender::new(otlp, Arc::clone(&hub))).transpose()?;
        match sender {
            Some(mut sender) => {
                tokio::select! {
                    () = sender.run() => {}
                    () = shutdown => {}
                }
                sender.finish().await;
            }
            None => shutdown.await,
        }
        tasks.shutdown().await;
        Ok(())
    }
}

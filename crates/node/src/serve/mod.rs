//! What a running daemon shows, and how it is asked: metrics and an API over HTTP, a control socket for the command
//! line, OTLP, and word to systemd.
//!
//! The daemon's loop owns all that it knows. It publishes a [`NodeState`] through a watch
//! channel and takes [`Asked`] from a bounded channel; nothing here can make it wait. Whoever
//! connects is bounded: in number, in bytes, in time.

mod control;
mod http;
mod hub;
pub mod metrics;
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
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use control::{AskError, Client, SOCKET};
pub use http::in_words;
use hub::Hub;
pub use otlp::OtlpOptions;
pub(crate) use outgoing::{Client as HttpClient, Peer, sensitive};
use token::Token;
pub(crate) use token::secret;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use crate::{Asked, NodeState, config::Label};

/// Where to be found, and how much to bear.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address for HTTP; `None`: no HTTP.
    pub http: Option<SocketAddr>,
    /// Further names of this machine that requests may name in `Host`.
    pub hosts: Vec<String>,
    /// The file with the token that HTTP asks for; `None`: there is none, so nobody has it.
    pub token_file: Option<PathBuf>,
    /// The control socket; `None`: none.
    pub socket: Option<PathBuf>,
    /// The group whose members may use the control socket besides root and the daemon's own user.
    pub group: Option<String>,
    /// The history that pages and the API read; `None`: none is kept.
    pub history: Option<PathBuf>,
    /// The labels that metrics carry.
    pub labels: Vec<Label>,
    /// Where to send metrics by OTLP; `None`: nowhere.
    pub otlp: Option<OtlpOptions>,
    /// After this time without a new state, `/healthz` says that the daemon is stuck.
    pub stale_after: Duration,
    /// What others may use up.
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http: Some(SocketAddr::from(([127, 0, 0, 1], 9464))),
            hosts: Vec::new(),
            token_file: None,
            socket: Some(PathBuf::from(SOCKET)),
            group: None,
            history: None,
            labels: Label::ALL.to_vec(),
            otlp: None,
            stale_after: Duration::from_secs(15),
            limits: Limits::default(),
        }
    }
}

/// What others may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// HTTP connections at once; one more is answered with 503.
    pub connections: usize,
    /// HTTP connections at once of one client: a user of this machine, or another machine.
    pub connections_per_client: usize,
    /// From the begin of a connection until its headers are there.
    pub header_timeout: Duration,
    /// From the begin of a connection until its end: a reader that hangs is cut off.
    pub connection_timeout: Duration,
    /// Bytes of a request's line and headers.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Clients of the control socket at once.
    pub clients: usize,
    /// Bytes of a line on the control socket.
    pub line_bytes: usize,
    /// How long a client of the control socket may be silent, or take no answer.
    pub idle_timeout: Duration,
    /// How long the daemon's loop may take to answer.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            connections_per_client: 16,
            header_timeout: Duration::from_secs(5),
            connection_timeout: Duration::from_secs(30),
            header_bytes: 16 << 10,
            body_bytes: 4 << 10,
            clients: 32,
            line_bytes: 64 << 10,
            idle_timeout: Duration::from_secs(60),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address for HTTP is taken, not ours, or not allowed.
    #[error("cannot listen on {address} for HTTP; is it taken? Configure another address, or none")]
    Http {
        /// The address.
        address: SocketAddr,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// Another daemon runs.
    #[error(
        "another drainprof daemon runs (pid {pid}): it holds {}; stop it first, or configure another socket",
        lock.display()
    )]
    Running {
        /// Its process id, as it has written it down.
        pid: String,
        /// The file that it holds.
        lock: PathBuf,
    },
    /// Something else is in the socket's place.
    #[error("{} is there and is no socket; move it away, or configure another socket", path.display())]
    NoSocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// The group is not known here.
    #[error("no group is called {group}; make it (groupadd --system {group}), or configure none")]
    Group {
        /// The group.
        group: String,
    },
    /// A step in making the control socket failed.
    #[error("cannot {step} {}", path.display())]
    Socket {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The token is not safe with its file.
    #[error("cannot take the secret of {}: {why}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Metrics cannot be sent.
    #[error("cannot send metrics to {endpoint}: {message}")]
    Otlp {
        /// The endpoint.
        endpoint: String,
        /// Why.
        message: String,
    },
    /// The listeners cannot be handed to the runtime.
    #[error("cannot hand the listeners to the runtime")]
    Runtime(#[source] io::Error),
}

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
        let sender = match &self.options.otlp {
            Some(options) => Some(otlp::Sender::start(options, &hub)?),
            None => None,
        };
        shutdown.await;
        if let Some(sender) = sender {
            sender.stop().await;
        }
        tasks.shutdown().await;
        Ok(())
    }
}

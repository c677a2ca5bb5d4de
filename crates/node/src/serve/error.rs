//! Why nothing is served.

use std::{io, net::SocketAddr, path::PathBuf};

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

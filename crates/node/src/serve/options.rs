//! Where the daemon is to be found, and how much its clients may use up.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::config::Label;

/// Where the control socket is unless the configuration says otherwise.
pub const SOCKET: &str = "/run/drainprof/control.sock";

/// Where to be found, and how much to bear.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address for HTTP; `None`: no HTTP.
    pub http: Option<SocketAddr>,
    /// Further names of this machine that requests may name in `Host`.
    pub hosts: Vec<String>,
    /// The file with the token that HTTP asks for; `None`: there is none.
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

/// Where metrics are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpOptions {
    /// The whole URL, as `http://collector:4318/v1/metrics`.
    pub endpoint: String,
    /// A file with the value of the `Authorization` header.
    pub authorization_file: Option<PathBuf>,
    /// A file with the certificates (PEM) that the collector's must come from; `None`: those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// From one export to the next.
    pub interval: Duration,
}

//! The client of the control socket, for the command line and `top`: it waits for each answer.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use drainprof_report::stored::MOST_BYTES;

use super::line::Reply;
use crate::{Answer, Refusal, Request};

/// How long an answer is waited for unless the caller says otherwise; longer than the daemon gives itself.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No daemon listens.
    #[error("no drainprof daemon listens on {}; is it running? Start it, or name its socket", path.display())]
    NoDaemon {
        /// The socket.
        path: PathBuf,
    },
    /// We may not.
    #[error("may not use {}: that takes root, or the group that the daemon is configured with", path.display())]
    Permission {
        /// The socket.
        path: PathBuf,
    },
    /// It cannot be reached for another reason.
    #[error("cannot ask the daemon on {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// It takes too long.
    #[error("the daemon on {} has not answered within {} s", path.display(), patience.as_secs())]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long was waited.
        patience: Duration,
    },
    /// It has gone away.
    #[error("the daemon on {} has closed the connection without an answer", path.display())]
    Closed {
        /// The socket.
        path: PathBuf,
    },
    /// What it says is not understood.
    #[error("what listens on {} is no drainprof daemon of this version: {message}", path.display())]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// It does not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    patience: Duration,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects, and waits long for answers.
    pub fn connect(path: &Path) -> Result<Self, AskError> {
        Self::patient(path, DEFAULT_PATIENCE)
    }

    /// Connects, and waits so long for each answer.
    pub fn patient(path: &Path, patience: Duration) -> Result<Self, AskError> {
        let failed = |source: io::Error| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    AskError::NoDaemon { path }
                }
                io::ErrorKind::PermissionDenied => AskError::Permission { path },
                _ => AskError::Io { path, source },
            }
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(patience)).map_err(failed)?;
        stream.set_write_timeout(Some(patience)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), patience, stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer.
    ///
    /// After any error but a refusal, what else comes on this connection may be the answer to an earlier request:
    /// connect again.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, AskError> {
        let path = || self.path.clone();
        let foreign = |message: String| AskError::Foreign { path: path(), message };
        let mut line = serde_json::to_vec(request).map_err(|error| foreign(error.to_string()))?;
        line.push(b'\n');
        // A refusal for our user, or for want of room, comes before our request, and closes: read what there is.
        let sent = self.stream.get_mut().write_all(&line);
        let mut text = Vec::new();
        let read = (&mut self.stream).take(MOST_BYTES as u64).read_until(b'\n', &mut text);
        match read {
            Ok(0) => {
                return Err(match sent {
                    Ok(()) => AskError::Closed { path: self.path.clone() },
                    Err(error) => self.broken(error),
                });
            }
            Ok(_) => {}
            Err(error) => return Err(self.broken(error)),
        }
        if text.last() != Some(&b'\n') {
            return Err(AskError::Closed { path: self.path.clone() });
        }
        let foreign = |message: String| AskError::Foreign { path: self.path.clone(), message };
        match serde_json::from_slice(&text).map_err(|error| foreign(error.to_string()))? {
            Reply::Ok(answer) => Ok(answer),
            Reply::Refused(refusal) => Err(refusal.into()),
            Reply::Error(message) => Err(foreign(message)),
        }
    }

    fn broken(&self, source: io::Error) -> AskError {
        let path = self.path.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                AskError::Silent { path, patience: self.patience }
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => AskError::Closed { path },
            _ => AskError::Io { path, source },
        }
    }
}

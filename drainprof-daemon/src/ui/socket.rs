//! The control socket of a daemon: one JSON request a line, one JSON answer a line.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Deserialize;

use super::source::{Source, SourceError};
use crate::node::{Answer, NodeState, Refusal, Request};

/// How long a request may take. A daemon answers from memory; the screen stands still meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longest answer that is read.
const ANSWER: u64 = 256 << 20;

/// What the daemon writes.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Ok(Answer),
    Refused(Refusal),
}

/// A daemon, asked over its control socket; connected anew whenever that fails.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    stream: Option<BufReader<UnixStream>>,
    period: Duration,
    due: Option<Instant>,
}

impl Socket {
    /// Where a daemon listens unless it is told otherwise.
    pub const DEFAULT: &'static str = "/run/drainprof/control.sock";

    /// Connects to the daemon at `path`, to ask it for its state once in each `period`.
    pub fn connect(path: &Path, period: Duration) -> Result<Self, SourceError> {
        let mut socket = Self { path: path.to_owned(), stream: None, period, due: None };
        socket.open()?;
        Ok(socket)
    }

    fn open(&mut self) -> Result<&mut BufReader<UnixStream>, SourceError> {
        let stream = if let Some(stream) = self.stream.take() {
            stream
        } else {
            let connect = || {
                let stream = UnixStream::connect(&self.path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(BufReader::new(stream))
            };
            connect().map_err(|error| {
                let what = format!("cannot reach a daemon at {}", self.path.display());
                SourceError::because(what, error)
            })?
        };
        Ok(self.stream.insert(stream))
    }

    fn exchange(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        let path = self.path.display().to_string();
        let failed =
            |error| SourceError::because(format!("the daemon at {path} did not answer"), error);
        let mut line = serde_json::to_vec(request)
            .map_err(|error| SourceError::new(format!("the request cannot be written: {error}")))?;
        line.push(b'\n');
        let stream = self.open()?;
        stream.get_mut().write_all(&line).map_err(failed)?;
        line.clear();
        stream.take(ANSWER).read_until(b'\n', &mut line).map_err(failed)?;
        if line.pop() != Some(b'\n') {
            let what = format!("the daemon at {path} broke off in the middle of an answer");
            return Err(SourceError::new(what));
        }
        match serde_json::from_slice(&line) {
            Ok(Line::Ok(answer)) => Ok(Ok(answer)),
            Ok(Line::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(SourceError::new(format!(
                "the daemon at {path} answered what this version does not understand: {error}"
            ))),
        }
    }
}

impl Source for Socket {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        let now = Instant::now();
        if self.due.is_some_and(|due| now < due) {
            return Ok(None);
        }
        self.due = Some(now + self.period);
        match self.ask(&Request::State)? {
            Ok(Answer::State { state }) => Ok(Some(*state)),
            Ok(_) => Err(SourceError::new("the daemon answered something else than its state")),
            Err(refusal) => Err(SourceError::new(refusal.to_string())),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        let outcome = self.exchange(request);
        if outcome.is_err() {
            // What else comes on this connection may be the answer to an earlier request.
            self.stream = None;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;
    use crate::ui::samples::state;

    /// A daemon that gives each connection its lines, one per request, and hangs up after the last.
    fn daemon(connections: Vec<Vec<String>>) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for lines in connections {
                let (mut stream, _) = listener.accept().unwrap();
                let mut requests = BufReader::new(stream.try_clone().unwrap());
                for line in lines {
                    let mut request = String::new();
                    requests.read_line(&mut request).unwrap();
                    serde_json::from_str::<Request>(&request).unwrap();
                    stream.write_all(line.as_bytes()).unwrap();
                }
            }
        });
        (directory, path)
    }

    /// States and refusals come over; after garbage, half a line and a hang-up it connects anew.
    #[test]
    fn survives_what_goes_wrong() {
        let good = serde_json::json!({ "ok": Answer::State { state: Box::new(state()) } });
        let refused =
            serde_json::json!({ "refused": { "refused": "not_now", "message": "a window runs" } });
        let (_directory, path) = daemon(vec![
            vec![format!("{good}\n"), format!("{refused}\n"), "garbage\n".to_owned()],
            vec!["{\"ok\":".to_owned()],
            vec![format!("{good}\n")],
        ]);
        let mut socket = Socket::connect(&path, Duration::ZERO).unwrap();
        assert_eq!(socket.poll().unwrap(), Some(state()));
        let refusal =
            socket.ask(&Request::Diagnose { pid: 1, seconds: None, growth: None }).unwrap();
        assert_eq!(refusal.unwrap_err().to_string(), "a window runs");
        let garbage = socket.poll().unwrap_err().in_full();
        assert!(garbage.contains("does not understand"), "{garbage}");
        let half = socket.poll().unwrap_err().in_full();
        assert!(half.contains("broke off"), "{half}");
        assert_eq!(socket.poll().unwrap(), Some(state()));
    }

    /// Without a daemon it says where it was looked for.
    #[test]
    fn nobody_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let error = Socket::connect(&path, Duration::ZERO).unwrap_err().in_full();
        assert!(error.contains("control.sock") && error.contains("No such file"), "{error}");
    }
}

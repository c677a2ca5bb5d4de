//! States of a daemon, asked for over its control socket.

use std::{
    error::Error as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use drainprof_node::{
    Answer, NodeState, Refusal, Request,
    serve::{AskError, Client},
};

use crate::ui::{Source, SourceError};

/// How long an answer is waited for. A daemon answers from memory; the screen stands still meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

/// A daemon; connected to again whenever that fails, so that one that is started again is shown again.
#[derive(Debug)]
pub(super) struct Daemon {
    path: PathBuf,
    client: Option<Client>,
    period: Duration,
    due: Instant,
}

impl Daemon {
    /// Connects to the daemon at `path`, to ask it for its state once in each `period`.
    pub(super) fn connect(path: &Path, period: Duration) -> Result<Self, AskError> {
        let client = Some(Client::patient(path, PATIENCE)?);
        Ok(Self { path: path.to_owned(), client, period, due: Instant::now() })
    }

    fn exchange(&mut self, request: &Request) -> Result<Answer, AskError> {
        if let Some(mut client) = self.client.take() {
            match client.ask(request) {
                // The daemon lets go of who was silent for long, as we are after Ctrl-Z, and then has not read this.
                Err(AskError::Closed { .. }) => {}
                outcome => return self.keep(client, outcome),
            }
        }
        let mut client = Client::patient(&self.path, PATIENCE)?;
        let outcome = client.ask(request);
        self.keep(client, outcome)
    }

    /// Keeps a connection on which the next line is the answer to the next request.
    fn keep(
        &mut self,
        client: Client,
        outcome: Result<Answer, AskError>,
    ) -> Result<Answer, AskError> {
        if matches!(outcome, Ok(_) | Err(AskError::Refused(_))) {
            self.client = Some(client);
        }
        outcome
    }
}

impl Source for Daemon {
    fn name(&self) -> &'static str {
        "daemon"
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        let now = Instant::now();
        if now < self.due {
            return Ok(None);
        }
        self.due = now + self.period;
        match self.ask(&Request::State)? {
            Ok(Answer::State { state }) => Ok(Some(*state)),
            Ok(_) => Err(SourceError::new("the daemon answered something else than its state")),
            Err(refusal) => Err(SourceError::new(refusal.to_string())),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        match self.exchange(request) {
            Ok(answer) => Ok(Ok(answer)),
            Err(AskError::Refused(refusal)) => Ok(Err(refusal)),
            Err(error) => Err(SourceError::new(match error.source() {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        os::unix::net::UnixListener,
        thread,
    };

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

    /// States and refusals come over one connection; after one that was let go, garbage and half a line it connects
    /// again.
    #[test]
    fn survives_what_goes_wrong() {
        let good = serde_json::json!({ "ok": Answer::State { state: Box::new(state()) } });
        let good = format!("{good}\n");
        let refused =
            serde_json::json!({ "refused": { "refused": "not_now", "message": "a window runs" } });
        let (_directory, path) = daemon(vec![
            vec![good.clone(), format!("{refused}\n"), good.clone()],
            vec![good.clone(), "garbage\n".to_owned()],
            vec!["{\"ok\":".to_owned()],
            vec![good],
        ]);
        let mut daemon = Daemon::connect(&path, Duration::ZERO).unwrap();
        assert_eq!(daemon.poll().unwrap(), Some(state()));
        let refusal =
            daemon.ask(&Request::Diagnose { pid: 1, seconds: None, growth: None }).unwrap();
        assert_eq!(refusal.unwrap_err().to_string(), "a window runs");
        assert_eq!(daemon.poll().unwrap(), Some(state()));
        assert_eq!(daemon.poll().unwrap(), Some(state()), "it was hung up on in between");
        let garbage = daemon.poll().unwrap_err().in_full();
        assert!(garbage.contains("no drainprof daemon of this version"), "{garbage}");
        let half = daemon.poll().unwrap_err().in_full();
        assert!(half.contains("closed the connection"), "{half}");
        assert_eq!(daemon.poll().unwrap(), Some(state()));
    }

    /// Without a daemon it says where one was searched for.
    #[test]
    fn nobody_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let error = Daemon::connect(&path, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("control.sock; is it running?"), "{error}");
    }
}

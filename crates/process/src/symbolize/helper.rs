//! drainprof's side of the symbol helper: starts it, asks it, and ends it where it does not answer.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::wire::{self, Answer, MAX_ADDRESSES, MAX_ANSWER, Name, Request};

/// The hidden command that makes drainprof a symbol helper.
pub const COMMAND: &str = "symbol-helper";
/// Helpers that may die before no more are started.
const MAX_DEATHS: u32 = 8;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// It cannot be started.
    #[error("the symbol helper cannot be started ({program})")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// It died, or took too long and was ended.
    #[error("the symbol helper {what}")]
    Died {
        /// What happened.
        what: String,
    },
    /// Too many have died.
    #[error("{MAX_DEATHS} symbol helpers have died; no other is started")]
    GivenUp,
}

/// A symbol helper that is started when it is needed.
#[derive(Debug)]
pub struct Helper {
    program: PathBuf,
    running: Option<Running>,
    deaths: u32,
}

#[derive(Debug)]
struct Running {
    child: Child,
    stream: UnixStream,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; either way it is waited for, so that none is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Helper {
    /// A helper that `program` becomes with [`COMMAND`]. Nothing is started yet.
    #[must_use]
    pub const fn new(program: PathBuf) -> Self {
        Self { program, running: None, deaths: 0 }
    }

    /// The names of addresses (of more than 256, those of the first) in `object`'s own address space, within
    /// `limit`. What has no name is `None`. An error costs the helper; the next question starts another.
    pub fn ask(
        &mut self,
        object: &File,
        debug: Option<&File>,
        addresses: &[u64],
        limit: Duration,
    ) -> Result<Vec<Option<Name>>, HelperError> {
        if self.deaths >= MAX_DEATHS {
            return Err(HelperError::GivenUp);
        }
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let addresses: Vec<u64> = addresses.iter().copied().take(MAX_ADDRESSES).collect();
        let wanted = addresses.len();
        // The helper's own clock is the second net.
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX - 2).saturating_add(2);
        let until = Instant::now() + limit;
        let mut descriptors = vec![object.as_fd()];
        descriptors.extend(debug.map(File::as_fd));
        let sent = running.stream.set_write_timeout(Some(limit)).and_then(|()| {
            let request = Request { addresses, seconds };
            wire::send(&mut running.stream, &request, &descriptors)
        });
        let answer = sent
            .and_then(|()| wire::receive::<Answer>(&mut running.stream, MAX_ANSWER, Some(until)));
        let what = match answer {
            Ok(Some((Answer { names }, _))) if names.len() == wanted => {
                self.running = Some(running);
                return Ok(names);
            }
            Ok(Some(_)) => "gave an answer that does not fit the question".to_owned(),
            Ok(None) => "died over it".to_owned(),
            Err(error) => match error.kind() {
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                    format!("took longer than {limit:?} and was ended")
                }
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe => "died over it".to_owned(),
                _ => format!("failed: {error}"),
            },
        };
        self.deaths += 1;
        Err(HelperError::Died { what })
    }

    fn start(&self) -> Result<Running, HelperError> {
        let failed =
            |source| HelperError::Start { program: self.program.display().to_string(), source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(&self.program)
            .arg(COMMAND)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for drainprof, whose final report still needs names.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        Ok(Running { child, stream: ours })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    fn script(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("helper");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// A helper that hangs is ended in time, one that dies or talks nonsense is no answer, and after a number
    /// of deaths no other is started.
    #[test]
    fn bad_helpers() {
        let directory = tempfile::tempdir().unwrap();
        let file = tempfile::tempfile().unwrap();
        let cases = [
            ("exec sleep 1000", "took longer"),
            ("exit 3", "died"),
            ("printf '\\377\\377\\377\\377' >&0; exec sleep 1000", "not believed"),
            ("printf '\\014\\000\\000\\000{\"names\":[]}' >&0; exec sleep 1000", "does not fit"),
        ];
        for (text, told) in cases {
            let mut helper = Helper::new(script(directory.path(), text));
            let began = Instant::now();
            let error = helper.ask(&file, None, &[1], Duration::from_millis(500)).unwrap_err();
            assert!(error.to_string().contains(told), "{text}: {error}");
            assert!(began.elapsed() < Duration::from_secs(20), "{text}");
            assert!(helper.running.is_none());
        }
        let mut helper = Helper::new(script(directory.path(), "exit 0"));
        for _ in 0..MAX_DEATHS {
            let error = helper.ask(&file, None, &[1], Duration::from_secs(20)).unwrap_err();
            assert!(matches!(error, HelperError::Died { .. }), "{error}");
        }
        let error = helper.ask(&file, None, &[1], Duration::from_secs(20)).unwrap_err();
        assert!(matches!(error, HelperError::GivenUp), "{error}");
    }

    /// A program that is not there is told with its name.
    #[test]
    fn no_program() {
        let file = tempfile::tempfile().unwrap();
        let mut helper = Helper::new(PathBuf::from("/nowhere/drainprof"));
        let error = helper.ask(&file, None, &[1], Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("/nowhere/drainprof"), "{error}");
    }
}

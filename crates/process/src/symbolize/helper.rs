//! drainprof's side of the symbol helper: starts it, asks it, and ends it where it does not answer.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _, process::ExitStatusExt as _},
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::libc;

use super::wire::{self, Answer, Hello, MAX_ADDRESSES, MAX_ANSWER, Part, Request};

/// The hidden command that makes drainprof a symbol helper.
pub const COMMAND: &str = "symbol-helper";
/// Helpers that may die before no more are started.
const MAX_DEATHS: u32 = 8;
/// How long a helper may take to start and confine itself.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Longest first message of a helper.
const MAX_HELLO: usize = 16 << 10;
/// A helper that has answered for so long is replaced, before its limit of processor time ends it.
const MAX_BUSY: Duration = Duration::from_secs(30);
/// How long the end of a helper is waited for.
const END_LIMIT: Duration = Duration::from_secs(1);

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
    /// It cannot be confined, so it reads nothing.
    #[error("the symbol helper reads no files, because {why}; see `drainprof doctor`")]
    Refused {
        /// Which step failed.
        why: String,
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

/// How far a helper is confined: what the kernel says, and what the helper could not take away from itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Its user.
    pub user: u32,
    /// Its permitted capabilities, as bits.
    pub capabilities: u64,
    /// Whether it can never gain privileges.
    pub no_new_privileges: bool,
    /// Whether its system calls are filtered.
    pub filtered: bool,
    /// What it could not take away, and why.
    pub missing: Vec<String>,
}

/// A symbol helper that is started when it is needed.
#[derive(Debug)]
pub struct Helper {
    program: PathBuf,
    running: Option<Running>,
    deaths: u32,
    /// Why none can be confined here.
    refused: Option<String>,
}

#[derive(Debug)]
struct Running {
    /// `None` once it has been ended.
    child: Option<Child>,
    stream: UnixStream,
    missing: Vec<String>,
    /// How long it has been asked.
    busy: Duration,
}

impl Running {
    /// Ends it. Says how it ended, unless that takes too long: it may wait for a file system that hangs.
    fn end(&mut self) -> Option<ExitStatus> {
        let mut child = self.child.take()?;
        // It may have ended already, and that is what is reported then.
        let _ = child.kill();
        let (sender, ended) = mpsc::channel();
        let wait = move || sender.send(child.wait());
        thread::Builder::new().name("helper's end".to_owned()).spawn(wait).ok()?;
        ended.recv_timeout(END_LIMIT).ok()?.ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl Helper {
    /// A helper that `program` becomes with [`COMMAND`]. Nothing is started yet.
    #[must_use]
    pub const fn new(program: PathBuf) -> Self {
        Self { program, running: None, deaths: 0, refused: None }
    }

    /// The names of addresses (of more than 256, those of the first) in an object's own address space, within
    /// `limit`. `files` are the object and those that belong to it. What has no name is `None`. An error costs the
    /// helper; the next question starts another.
    pub fn ask(
        &mut self,
        files: &[(Part, &File)],
        addresses: &[u64],
        limit: Duration,
    ) -> Result<Answer, HelperError> {
        let mut running = self.take()?;
        let addresses: Vec<u64> = addresses.iter().copied().take(MAX_ADDRESSES).collect();
        let wanted = addresses.len();
        let began = Instant::now();
        let until = began + limit;
        let descriptors: Vec<_> = files.iter().map(|(_, file)| file.as_fd()).collect();
        let sent = running.stream.set_write_timeout(Some(limit)).and_then(|()| {
            let parts = files.iter().map(|(part, _)| *part).collect();
            wire::send(&mut running.stream, &Request { addresses, parts }, &descriptors)
        });
        let answer = sent
            .and_then(|()| wire::receive::<Answer>(&mut running.stream, MAX_ANSWER, Some(until)));
        let what = match answer {
            Ok(Some((answer, _))) if answer.names.len() == wanted => {
                running.busy += began.elapsed();
                self.running = Some(running).filter(|running| running.busy < MAX_BUSY);
                return Ok(answer);
            }
            Ok(Some(_)) => "gave an answer that does not fit the question".to_owned(),
            Ok(None) => died(&mut running),
            Err(error) => why(&error, &mut running, limit),
        };
        self.deaths += 1;
        Err(HelperError::Died { what })
    }

    /// How far the helper is confined; starts it where none runs.
    pub fn confinement(&mut self) -> Result<Confinement, HelperError> {
        let running = self.take()?;
        let failed = |source| HelperError::Start { program: COMMAND.to_owned(), source };
        let pid = running.child.as_ref().map(Child::id).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(failed)?;
        let word = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|line| line.split_whitespace().next()).unwrap_or_default()
        };
        let confinement = Confinement {
            user: word("Uid:").parse().unwrap_or_default(),
            capabilities: u64::from_str_radix(word("CapPrm:"), 16).unwrap_or(u64::MAX),
            no_new_privileges: word("NoNewPrivs:") == "1",
            filtered: word("Seccomp:") == "2",
            missing: running.missing.clone(),
        };
        self.running = Some(running);
        Ok(confinement)
    }

    /// The running helper, or a new one.
    fn take(&mut self) -> Result<Running, HelperError> {
        if self.deaths >= MAX_DEATHS {
            return Err(HelperError::GivenUp);
        }
        if let Some(why) = &self.refused {
            return Err(HelperError::Refused { why: why.clone() });
        }
        if let Some(running) = self.running.take() {
            return Ok(running);
        }
        let started = self.start();
        match &started {
            Err(HelperError::Refused { why }) => self.refused = Some(why.clone()),
            // That is no fault of the object which is asked about.
            Err(_) => self.deaths += 1,
            Ok(_) => {}
        }
        started
    }

    fn start(&self) -> Result<Running, HelperError> {
        let failed =
            |source| HelperError::Start { program: self.program.display().to_string(), source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let child = Command::new(&self.program)
            .arg(COMMAND)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for drainprof, whose final report still needs names.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut running =
            Running { child: Some(child), stream: ours, missing: Vec::new(), busy: Duration::ZERO };
        let until = Some(Instant::now() + START_LIMIT);
        let what = match wire::receive::<Hello>(&mut running.stream, MAX_HELLO, until) {
            Ok(Some((Hello { refused: Some(why), .. }, _))) => {
                return Err(HelperError::Refused { why });
            }
            Ok(Some((hello, _))) => {
                if hello.keeps_root {
                    tracing::warn!("the symbol helper: {}", hello.missing.join("; "));
                } else if !hello.missing.is_empty() {
                    tracing::debug!("the symbol helper: {}", hello.missing.join("; "));
                }
                running.missing = hello.missing;
                return Ok(running);
            }
            Ok(None) => died(&mut running),
            Err(error) => why(&error, &mut running, START_LIMIT),
        };
        Err(failed(io::Error::other(format!("it {what}"))))
    }
}

/// What an error on the way says of the helper.
fn why(error: &io::Error, running: &mut Running, limit: Duration) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            format!("took longer than {limit:?} and was ended")
        }
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => died(running),
        _ => format!("failed: {error}"),
    }
}

/// How a helper ended that drainprof did not end.
fn died(running: &mut Running) -> String {
    let signal = running.end().map(|status| status.signal());
    match signal.flatten() {
        Some(libc::SIGSYS) => "died: it made a system call that it may not make".to_owned(),
        Some(libc::SIGXCPU) => "died: its processor time was used up".to_owned(),
        Some(libc::SIGABRT) => "died: it was out of memory, or gave up".to_owned(),
        Some(signal) => format!("died of signal {signal}"),
        None => "died".to_owned(),
    }
}

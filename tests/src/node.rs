//! A daemon under test: its configuration, its state as it reports it over HTTP, and its control socket.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    environment::{self, deadline},
    process::{Ended, Process},
};

/// Between two questions whether something has come about.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The token of all daemons under test.
pub const TOKEN: &str = "a-token-of-these-tests";
/// Longest answer that is read.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;

/// A running daemon. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    directory: TempDir,
    port: u16,
}

/// A daemon watches all of these tests' own programs, those of other tests included: a test that holds this has them to
/// itself.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    // A test that failed has nothing to do with the next one.
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line that keeps a daemon from everything but these tests' own programs, behind rules of a test's own.
#[must_use]
#[allow(clippy::unnecessary_debug_formatting, reason = "a TOML string has quotes")]
pub fn own_programs(rules: &str) -> String {
    let own = environment::targets().join("*");
    format!("select.rules = [{rules}{{ action = \"include\", exe = {own:?} }}]")
}

/// The text of a configuration in `directory` that looks often, at these tests' own programs, with these profiles alone,
/// and `more` lines of it.
pub fn configure(directory: &Path, profiles: &[&str], more: &str) -> Result<PathBuf> {
    let often = "daemon.interval = \"200ms\"\ndaemon.discover_interval = \"100ms\"\n";
    configure_at_usual_pace(directory, profiles, &format!("{often}{more}"))
}

/// The same, looking as often as by default.
#[allow(clippy::unnecessary_debug_formatting, reason = "a TOML string has quotes")]
pub fn configure_at_usual_pace(directory: &Path, profiles: &[&str], more: &str) -> Result<PathBuf> {
    let own = directory.join("profiles");
    fs::create_dir_all(&own)?;
    fs::create_dir_all(directory.join("store"))?;
    for name in profiles {
        let from = environment::profile(name);
        fs::copy(&from, own.join(format!("{name}.toml")))
            .with_context(|| format!("cannot copy the profile {from}"))?;
    }
    let path = directory.join("drainprof.toml");
    let own_programs = if more.contains("select.rules") { String::new() } else { own_programs("") };
    let text = format!(
        "daemon.profile_directories = [{own:?}]\n\
         daemon.kill_file = {kill:?}\n\
         listen.address = \"127.0.0.1:0\"\n\
         listen.control = {control:?}\n\
         listen.token_file = {token:?}\n\
         store.path = {store:?}\n\
         {own_programs}\n\
         {more}\n",
        kill = directory.join("kill"),
        control = directory.join("control.sock"),
        token = write_token(directory)?,
        store = directory.join("store/history.db"),
    );
    fs::write(&path, text)?;
    Ok(path)
}

/// Writes the token where the configuration names it.
fn write_token(directory: &Path) -> Result<PathBuf> {
    let path = directory.join("token");
    fs::write(&path, TOKEN)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

impl Daemon {
    /// Starts a daemon with the profiles called `profiles` and these lines in its configuration, and waits until it
    /// watches.
    pub fn start(profiles: &[&str], more: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        configure(directory.path(), profiles, more)?;
        Self::start_in(directory)
    }

    /// Starts a daemon with the configuration that is in a directory.
    pub fn start_in(directory: TempDir) -> Result<Self> {
        Self::start_command(Command::new(environment::drainprof()?), directory)
    }

    /// As [`Daemon::start_in`], in a mount namespace of its own, in which the shell runs `script` first; the directory
    /// is its first argument.
    pub fn start_elsewhere(directory: TempDir, script: &str) -> Result<Self> {
        let script = format!("{script} && shift && exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(directory.path()).arg(environment::drainprof()?);
        Self::start_command(command, directory)
    }

    /// The same by a command of its own, for example with few capabilities.
    pub fn start_command(command: Command, directory: TempDir) -> Result<Self> {
        let mut daemon = Self::begin_by(directory, command)?;
        daemon.process.expect_err("drainprof: watching")?;
        Ok(daemon)
    }

    /// Starts a daemon with the configuration that is in a directory, and waits until it answers; it may not have
    /// looked at anything yet.
    pub fn begin_in(directory: TempDir) -> Result<Self> {
        Self::begin_by(directory, Command::new(environment::drainprof()?))
    }

    fn begin_by(directory: TempDir, mut command: Command) -> Result<Self> {
        command.arg("daemon").arg("--config").arg(directory.path().join("drainprof.toml"));
        let mut process = Process::start("drainprof daemon", command)?;
        let line = process.expect_err("drainprof: metrics and API at ")?;
        let port = line.rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.with_context(|| format!("no port in {line:?}"))?;
        Ok(Self { process, directory, port })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A file of its own: `store/history.db`, `control.sock`, `kill`, `drainprof.toml`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its HTTP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// What it answers to `GET path` with the token: status and body.
    pub fn get(&self, path: &str) -> Result<(u16, String)> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        ask(self.port, &format!("{head}Authorization: Bearer {TOKEN}\r\n\r\n"))
    }

    /// Its metrics, as OpenMetrics.
    pub fn open_metrics(&self) -> Result<String> {
        let (status, text) = ask(
            self.port,
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Accept: application/openmetrics-text; version=1.0.0\r\n\r\n",
        )?;
        ensure!(status == 200, "the metrics cannot be had: {status} {text}");
        Ok(text)
    }

    /// What it answers to `POST path` with a JSON body.
    pub fn post(&self, path: &str, body: &str) -> Result<(u16, String)> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {TOKEN}\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        ask(self.port, &request)
    }

    /// Its state now.
    pub fn state(&self) -> Result<Value> {
        let (status, body) = self.get("/api/v1/state")?;
        ensure!(status == 200, "the state cannot be had: {status} {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// A state in which everything is that had happened when this was called.
    pub fn fresh(&self) -> Result<Value> {
        // The next look may have begun before; the one after it has not.
        let mut state = self.state()?;
        for _ in 0..2 {
            let before = state["unix_ms"].as_u64();
            state =
                self.until("it has looked again", |state| state["unix_ms"].as_u64() > before)?;
        }
        Ok(state)
    }

    /// Waits until its state is as wanted, and returns it.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let until = Instant::now() + deadline();
        loop {
            let state = self.state()?;
            if wanted(&state) {
                return Ok(state);
            }
            if Instant::now() > until {
                bail!("the daemon's state did not become: {what}; it is {}", brief(&state));
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Waits until some diagnostic window has ended; the state then.
    pub fn until_window_ended(&self) -> Result<Value> {
        self.until("a window has ended", |state| {
            let windows = state["windows"].as_array();
            windows.is_some_and(|all| all.iter().any(|one| one["outcome"] != "running"))
        })
    }

    /// Waits until these processes are observed, at any level.
    pub fn attached(&self, pids: &[u32]) -> Result<()> {
        self.until(&format!("{pids:?} are observed"), |state| {
            pids.iter().all(|pid| target(state, *pid).is_some_and(|one| !one["level"].is_null()))
        })?;
        Ok(())
    }

    /// Tells it to end, and waits for that.
    pub fn finish(self) -> Result<Ended> {
        self.process.signal(Signal::SIGTERM)?;
        let ended = self.process.finish()?;
        ensure!(
            ended.status.success(),
            "the daemon failed ({}):\n{}",
            ended.status,
            ended.stderr.join("\n")
        );
        Ok(ended)
    }

    /// Tells it to end, waits for that, and gives its directory back.
    pub fn stop(mut self) -> Result<TempDir> {
        self.process.signal(Signal::SIGTERM)?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the daemon failed ({status}):\n{}", self.process.talk());
        Ok(self.directory)
    }

    /// Kills it, and gives its directory back.
    pub fn kill(mut self) -> Result<TempDir> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait()?;
        Ok(self.directory)
    }
}

/// What a server on a loopback port answers to `GET path` without a token: status and body.
pub fn get(port: u16, path: &str) -> Result<(u16, String)> {
    ask(port, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

/// What a server on a loopback port answers to a request: status and body.
pub fn ask(port: u16, request: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(deadline()))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer)?;
    let (head, body) =
        answer.split_once("\r\n\r\n").context("the answer has no end of its head")?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.with_context(|| format!("no status in {head:?}"))?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if chunked { unchunked(body) } else { body.to_owned() }))
}

/// What the daemon's resident memory may grow by, whatever happens around it.
pub const GROWTH: u64 = 32 << 20;

/// How many descriptors a process has.
pub fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Bytes of a process that are resident now.
pub fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.context("VmRSS")?.trim_end_matches("kB").trim().parse()?;
    Ok(kib << 10)
}

/// The process `pid` in a state.
#[must_use]
pub fn target(state: &Value, pid: u32) -> Option<&Value> {
    let targets = state["targets"].as_array()?;
    targets.iter().find(|target| target["pid"].as_u64() == Some(u64::from(pid)))
}

/// The sum of a count over all label sets of a profile.
#[must_use]
pub fn sum(state: &Value, profile: &str, count: &str) -> u64 {
    let all = state["counts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let own = all.iter().filter(|one| one["profile"] == profile);
    own.map(|one| one[count].as_u64().unwrap_or_default()).sum()
}

/// A state without what is long.
fn brief(state: &Value) -> String {
    let targets = state["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let targets: Vec<String> = targets
        .iter()
        .map(|one| {
            format!(
                "{} {} {} ({}) alerts {} findings {}",
                one["pid"],
                one["comm"],
                one["level"],
                one["reason"],
                one["alerts"],
                one["findings"]
            )
        })
        .collect();
    format!(
        "ready {}, killed {}, counts {}, windows {}, targets:\n{}",
        state["ready"],
        state["killed"],
        state["counts"],
        state["windows"],
        targets.join("\n")
    )
}

fn unchunked(body: &str) -> String {
    let mut text = String::new();
    let mut rest = body;
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let Some(chunk) = after.get(..size).filter(|_| size > 0) else { break };
        text.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    text
}

//! Diagnostic windows: a process is examined as deeply as its profiles allow, for a limited time.
//!
//! A window is a `drainprof attach` of its own. So its kernel maps and symbols are gone when it is, whatever it takes
//! does not stay in the daemon, and a failure there is a failed window and no more. It ends by itself, on request, or
//! with the daemon.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use drainprof_profile::Level;
use drainprof_report::Report;
use nix::sys::signal::{Signal, kill};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use crate::{Outcome, WindowRecord};

/// Longest report that is taken from a window.
const MAX_REPORT_BYTES: u64 = 64 << 20;
/// So much of what it says is kept, from the end.
const MAX_LOG_BYTES: u64 = 16 << 10;
/// The exit code of a window that cost its process too much.
const OVER_COST: i32 = 6;
/// Exit codes with which a report is written: all is well, below a threshold, incomplete, too expensive.
const WITH_REPORT: [i32; 4] = [0, 3, 5, OVER_COST];

/// How windows are run.
#[derive(Clone, Debug)]
pub(super) struct WindowOptions {
    /// When the process began, in clock ticks since boot.
    pub(super) start_time: u64,
    /// The drainprof to run.
    pub(super) program: PathBuf,
    /// The level of its probes.
    pub(super) level: Level,
    /// Whether page faults, heap and mappings are watched, too.
    pub(super) growth: bool,
    /// Whether heaps are read at begin and end: of processes of at most so many bytes.
    pub(super) census: Option<u64>,
    /// Memory for that.
    pub(super) census_memory: u64,
    /// Cost that ends a window, as a share of one CPU.
    pub(super) budget: f64,
    /// Names or files of profiles; empty: all that match.
    pub(super) profiles: Vec<String>,
    /// Where profiles are.
    pub(super) directories: Vec<PathBuf>,
}

/// A window that runs.
#[derive(Debug)]
pub(super) struct Window {
    /// What is known of it.
    pub(super) record: WindowRecord,
    child: Child,
    report: JoinHandle<Vec<u8>>,
    words: JoinHandle<Vec<u8>>,
}

/// What a window has come to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ended {
    /// How it ended.
    pub(super) outcome: Outcome,
    /// What it has seen; `None` where it failed.
    pub(super) report: Option<Box<Report>>,
    /// Why it failed; empty where it did not.
    pub(super) failure: String,
}

impl Window {
    /// Begins a window of `record.seconds` on `record.pid`. Must be called inside the runtime, on a thread that
    /// lives as long as the daemon: the window ends with it.
    pub(super) fn begin(record: WindowRecord, options: &WindowOptions) -> io::Result<Self> {
        let mut command = Command::new(&options.program);
        command.args(arguments(&record, options));
        // What is in the environment is meant for commands that people type.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DRAINPROF_") {
                command.env_remove(name);
            }
        }
        // Nothing is done between fork and exec: so the memory is not copied, which could wait for a process that holds
        // its lock (docs/security.md).
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let report = tokio::spawn(all_of(child.stdout.take(), MAX_REPORT_BYTES));
        let words = tokio::spawn(all_of(child.stderr.take(), MAX_LOG_BYTES));
        Ok(Self { record, child, report, words })
    }

    /// Waits for its end, or ends it early once `stop` is there: it still reports what it has seen.
    pub(super) async fn run(mut self, stop: oneshot::Receiver<()>) -> (WindowRecord, Ended) {
        let mut stopped = false;
        let length = Duration::try_from_secs_f64(self.record.seconds).unwrap_or_default();
        let status = tokio::select! {
            status = timeout(length + ENDING_PATIENCE, self.child.wait()) => status,
            _ = stop => {
                stopped = true;
                if let Some(pid) = self.child.id() {
                    // It may have ended in this very instant.
                    let _ = kill(nix::unistd::Pid::from_raw(pid.cast_signed()), Signal::SIGINT);
                }
                timeout(ENDING_PATIENCE, self.child.wait()).await
            }
        };
        let Ok(status) = status else { return self.leave() };
        let report = (&mut self.report).await.unwrap_or_default();
        let words = (&mut self.words).await.unwrap_or_default();
        let ended = judge(status, stopped, &report, &words);
        let seen = ended.report.as_ref().map(|report| report.window.seconds);
        let record = WindowRecord {
            outcome: ended.outcome,
            seconds: seen.unwrap_or(self.record.seconds),
            has_report: ended.report.is_some(),
            ..self.record
        };
        (record, ended)
    }
}

impl Window {
    /// Gives a window up that does not end: a kill would take its probes out, which may stop the machine. Waits for it in
    /// the background.
    fn leave(mut self) -> (WindowRecord, Ended) {
        let failure = format!(
            "it had not ended {} s after its time: a process may be in the way of its probes",
            ENDING_PATIENCE.as_secs()
        );
        let record = WindowRecord { outcome: Outcome::Failed, ..self.record };
        tokio::spawn(async move { self.child.wait().await });
        (record, Ended { outcome: Outcome::Failed, report: None, failure })
    }
}

/// Arguments of the process of a window.
fn arguments(record: &WindowRecord, options: &WindowOptions) -> Vec<OsString> {
    let (pid, length) = (record.pid.to_string(), format!("{:.3}s", record.seconds));
    let budget = format!("{:.4}", options.budget);
    // By then, the number may be another process's.
    let started = options.start_time.to_string();
    let parent = std::process::id().to_string();
    let fixed = ["attach", "-o", "json", "--top", "100", "-p", &pid, "-d", &length]
        .into_iter()
        .chain(["--started", &started, "--parent", &parent])
        .chain(["--level", options.level.name(), "--budget", &budget])
        .chain(options.growth.then_some("--growth"));
    let mut all: Vec<OsString> = fixed.map(OsString::from).collect();
    if let Some(largest) = options.census {
        all.extend(["--census".into(), "--census-limit".into(), largest.to_string().into()]);
        all.extend(["--census-memory".into(), options.census_memory.to_string().into()]);
    }
    for directory in &options.directories {
        all.extend(["--profile-dir".into(), directory.clone().into_os_string()]);
    }
    for profile in &options.profiles {
        all.extend(["--profile".into(), profile.into()]);
    }
    all
}

/// Reads to the end, and keeps at most the first `limit` bytes: so that the writer is never held up.
async fn all_of(from: Option<impl AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut from) = from else { return kept };
    // What cannot be read any more is not there.
    let _ = (&mut from).take(limit).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    kept
}

fn judge(status: io::Result<ExitStatus>, stopped: bool, report: &[u8], words: &[u8]) -> Ended {
    let failed = |failure: String| Ended { outcome: Outcome::Failed, report: None, failure };
    let code = match status {
        Ok(status) => status.code(),
        Err(error) => return failed(format!("its end could not be waited for: {error}")),
    };
    let said = || {
        let text = String::from_utf8_lossy(words);
        let last =
            text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        drainprof_process::printable(last.trim_start_matches("drainprof: "))
    };
    let Some(code) = code.filter(|code| WITH_REPORT.contains(code)) else {
        return match code {
            Some(code) => failed(format!("{} (exit code {code})", said())),
            None => failed(format!("it was killed; its last words: {}", said())),
        };
    };
    let report: Report = match serde_json::from_slice(report) {
        Ok(report) => report,
        Err(error) => return failed(format!("its report cannot be read: {error}")),
    };
    let gone = report.targets.iter().all(|target| target.ended.is_some());
    let outcome = match code {
        OVER_COST => Outcome::OverCost,
        _ if gone => Outcome::TargetEnded,
        _ if stopped => Outcome::Interrupted,
        _ => Outcome::Finished,
    };
    Ended { outcome, report: Some(Box::new(report)), failure: String::new() }
}

/// For how long a window may go on after its time: names are found, and the kernel takes probes out.
const ENDING_PATIENCE: Duration = Duration::from_secs(180);
/// How long the stopping daemon waits for its windows: the kernel takes a tenth of a second for each probe.
pub(super) const STOPPING_PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use drainprof_report::{Options, samples};

    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "as the wait for it gives it")]
    fn exited(code: i32) -> io::Result<ExitStatus> {
        Ok(ExitStatus::from_raw(code << 8))
    }

    fn saved(ended: bool) -> Vec<u8> {
        let mut report = Report::build(&samples::drain_snapshot(), &Options::default());
        for target in &mut report.targets {
            target.ended = ended.then_some(drainprof_report::Ended::Exec);
        }
        serde_json::to_vec(&report).unwrap()
    }

    /// The outcome follows from exit code, report and whether it was asked to end.
    #[test]
    fn outcomes() {
        let of = |code, stopped, report: &[u8]| judge(exited(code), stopped, report, b"").outcome;
        assert_eq!(of(0, false, &saved(false)), Outcome::Finished);
        assert_eq!(of(5, false, &saved(false)), Outcome::Finished);
        assert_eq!(of(0, true, &saved(false)), Outcome::Interrupted);
        assert_eq!(of(0, false, &saved(true)), Outcome::TargetEnded);
        assert_eq!(of(6, false, &saved(false)), Outcome::OverCost);
        assert_eq!(of(0, false, b"{"), Outcome::Failed);
        assert_eq!(of(4, false, &saved(false)), Outcome::Failed);
    }

    /// A window gets what was decided; growth is watched, and heaps are read, only where that is wanted.
    #[test]
    fn what_a_window_is_told() {
        let record = WindowRecord {
            id: 1,
            pid: 4242,
            comm: String::new(),
            exe: String::new(),
            asked_by: "user".to_owned(),
            why: String::new(),
            began_unix_ms: 0,
            seconds: 2.5,
            outcome: Outcome::Running,
            has_report: false,
        };
        let reported = |growth| {
            let options = WindowOptions {
                start_time: 4711,
                program: PathBuf::from("drainprof"),
                level: Level::Stacks,
                growth,
                census: growth.then_some(4096),
                census_memory: 512,
                budget: 0.2,
                profiles: vec!["nginx".to_owned()],
                directories: vec![PathBuf::from("/etc/own")],
            };
            let words = arguments(&record, &options);
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let parent = std::process::id();
        let fixed = format!(
            "attach -o json --top 100 -p 4242 -d 2.500s --started 4711 --parent {parent} --level stacks --budget 0.2000"
        );
        let places = "--profile-dir /etc/own --profile nginx";
        assert_eq!(reported(false), format!("{fixed} {places}"));
        assert_eq!(
            reported(true),
            format!("{fixed} --growth --census --census-limit 4096 --census-memory 512 {places}")
        );
    }

    /// A failure is reported with the last thing that was said, without control characters.
    #[test]
    fn failures_say_why() {
        let words = b"warning\ndrainprof: no profile matches \x1b[31m\n\n";
        let ended = judge(exited(4), false, b"", words);
        assert_eq!(ended.report, None);
        assert!(ended.failure.starts_with("no profile matches"), "{}", ended.failure);
        assert!(!ended.failure.contains('\x1b') && ended.failure.ends_with("(exit code 4)"));
        let killed = judge(Ok(ExitStatus::from_raw(9)), false, b"", b"");
        assert!(killed.failure.contains("killed") && killed.failure.contains("said nothing"));
    }
}

//! Diagnostic windows: a process is examined as deeply as its profiles allow, for a limited time.
//!
//! A window is a `drainprof window` of its own, which gets one request in JSON on its stdin. So its kernel maps and symbols are gone when it is, whatever it takes
//! does not stay in the daemon, and a failure there is a failed window and no more. It ends by itself, on request, or
//! with the daemon.

use std::{
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use drainprof_observe::{
    engine::OVER_BUDGET,
    goal::{Follow, Goal, Growth, HeapLimits, Probing, Span, WindowRequest},
};
use drainprof_profile::Level;
use drainprof_report::Report;
use nix::sys::signal::{Signal, kill};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
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
    pub(super) fn begin(record: WindowRecord, options: WindowOptions) -> io::Result<Self> {
        let mut command = Command::new(&options.program);
        command.arg("window");
        let request = serde_json::to_vec(&request(&record, options))?;
        // What is in the environment is meant for commands that people type.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DRAINPROF_") {
                command.env_remove(name);
            }
        }
        // Nothing is done between fork and exec: so the memory is not copied, which could wait for a process that holds
        // its lock (docs/security.md).
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // If it does not read that, it has ended, which is reported.
            tokio::spawn(async move { stdin.write_all(&request).await });
        }
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

/// What the process of a window is asked for.
fn request(record: &WindowRecord, options: WindowOptions) -> WindowRequest {
    let probing = Probing {
        profiles: options.profiles,
        profile_dirs: options.directories,
        level: Some(options.level),
        sample: 1,
    };
    let growth = options.growth.then_some(Growth::Stacks);
    let heaps = |largest| HeapLimits {
        process_bytes: Some(largest),
        memory_bytes: Some(options.census_memory),
    };
    let goal = Goal {
        probing: Some(probing),
        span: Span::Whole { follow: Follow::No, growth },
        memory: options.growth,
        heaps: options.census.map(heaps),
        budget: Some(options.budget),
        duration: Some(Duration::try_from_secs_f64(record.seconds).unwrap_or_default()),
        symbols: true,
        ..Goal::default()
    };
    let (pid, start_time) = (record.pid, options.start_time);
    WindowRequest { goal, pid, start_time, parent: std::process::id() }
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
    match code {
        Some(0) => {}
        Some(code) => return failed(format!("{} (exit code {code})", said())),
        None => return failed(format!("it was killed; its last words: {}", said())),
    }
    let report: Report = match serde_json::from_slice(report) {
        Ok(report) => report,
        Err(error) => return failed(format!("its report cannot be read: {error}")),
    };
    let gone = report.targets.iter().all(|target| target.ended.is_some());
    let outcome = if report.findings.iter().any(|finding| finding.code == OVER_BUDGET) {
        Outcome::OverCost
    } else if gone {
        Outcome::TargetEnded
    } else if stopped {
        Outcome::Interrupted
    } else {
        Outcome::Finished
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

    use drainprof_report::{Finding, Options, Severity, samples};

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
        assert_eq!(of(0, true, &saved(false)), Outcome::Interrupted);
        assert_eq!(of(0, false, &saved(true)), Outcome::TargetEnded);
        let mut dear: Report = serde_json::from_slice(&saved(false)).unwrap();
        dear.findings.push(Finding {
            code: OVER_BUDGET.to_owned(),
            severity: Severity::Info,
            profile: None,
            instance: None,
            message: String::new(),
        });
        assert_eq!(of(0, false, &serde_json::to_vec(&dear).unwrap()), Outcome::OverCost);
        assert_eq!(of(0, false, b"{"), Outcome::Failed);
        assert_eq!(of(4, false, &saved(false)), Outcome::Failed);
    }

    /// A window gets what was decided; growth is watched, and heaps are read, only where that is wanted.
    #[test]
    fn what_a_window_is_asked_for() {
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
        let asked = |growth| {
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
            request(&record, options)
        };
        let WindowRequest { goal, pid, start_time, parent } = asked(false);
        assert_eq!((pid, start_time, parent), (4242, 4711, std::process::id()));
        assert_eq!((goal.growth(), goal.heaps, goal.budget), (None, None, Some(0.2)));
        assert_eq!(goal.duration, Some(Duration::from_millis(2500)));
        let probing = goal.probing.unwrap();
        assert_eq!(
            (&probing.profiles[..], probing.level),
            (&["nginx".to_owned()][..], Some(Level::Stacks))
        );
        let deep = asked(true).goal;
        let limits = HeapLimits { process_bytes: Some(4096), memory_bytes: Some(512) };
        assert_eq!((deep.growth(), deep.heaps), (Some(Growth::Stacks), Some(limits)));
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

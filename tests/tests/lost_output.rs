//! Output that nothing can have read is a failure of every command that prints, with the reason, and never a panic.

use std::{
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    node::{Daemon, alone},
    target::Target,
};
use nix::fcntl::{FcntlArg, fcntl};

/// Where output goes, and what the reason says.
const LOST: [(&str, &str); 3] = [
    (">&-", "stdout is closed"),
    ("", "cannot write to stdout: Broken pipe"),
    (">/dev/full", "cannot write to stdout: No space left on device"),
];

/// Runs drainprof by a shell, with stdout redirected; without a redirection it is a pipe whose reader has gone.
fn run(args: &[&str], redirect: &str) -> Result<(Option<i32>, String)> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("read _; exec \"$0\" \"$@\" {redirect}")]);
    command.arg(environment::drainprof()?).args(args);
    command.env("DRAINPROF_BUDGET", "none").env("DRAINPROF_GO", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("a shell")?;
    drop(child.stdout.take());
    // It begins when the reader has gone.
    drop(child.stdin.take());
    let ended = child.wait_with_output()?;
    Ok((ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned()))
}

/// Each command with a result that is no failure, or one that its code names.
fn commands(place: &Path, pid: u32, with_socket: &str) -> Result<Vec<Vec<String>>> {
    let pid = pid.to_string();
    let path = |name: &str| place.join(name).display().to_string();
    let (report, profile) = (path("report.json"), environment::profile("arena"));
    let program = environment::target("psweep")?.display().to_string();
    let (socket, store) = (path("control.sock"), path("store/history.db"));
    let cache = path("cache");
    let configuration = path("drainprof.toml");
    let lines = [
        "--version",
        "--help",
        "help attach",
        "attach --help",
        "man",
        "completions bash",
        "profile list",
        "profile show nginx",
        &format!("profile check {profile}"),
        &format!("profile check {profile} -p {pid}"),
        &format!("profile check {profile} -p {pid} -o json"),
        &format!("profile check {profile} -p {pid} --for 100ms"),
        &format!("profile new --from-symbols {program}"),
        "config default",
        &format!("config show --config {configuration}"),
        &format!("config check {configuration}"),
        "doctor",
        "doctor -o json",
        "doctor --programs",
        &format!("calibrate --cache-dir {cache}"),
        &format!("calibrate --cache-dir {cache} -o json"),
        &format!("discover -p {pid}"),
        &format!("discover -p {pid} -o json"),
        &format!("attach -p {pid} --profile {profile} --dry-run"),
        &format!("attach -p {pid} --profile {profile} --dry-run -o json"),
        &format!("attach -p {pid} --profile {profile} -d 100ms"),
        &format!("attach -p {pid} --profile {profile} -d 100ms -o ndjson"),
        &format!("run --profile {profile} -- {program} closes=1"),
        &format!("growth -p {pid} -d 100ms"),
        &format!("why -p {pid} -d 1s"),
        &format!("why -p {pid} -d 1s -o json"),
        &format!("census -p {pid}"),
        &format!("census -p {pid} -o json"),
        &format!("report {report}"),
        &format!("report {report} -o json"),
        &format!("report {report} -o pprof"),
        &format!("diff {report} {report}"),
        &format!("diff {report} {report} -o json"),
        &format!("daemon --config {configuration} --dry-run"),
        &format!("history --store {store}"),
        &format!("history --store {store} -o json"),
        &format!("ctl --socket {socket} status"),
        &format!("ctl --socket {socket} status -o json"),
        &format!("diagnose --socket {socket} -p {with_socket} --for 1s"),
    ];
    Ok(lines.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect())
}

/// The reasons are one line; the code is that of a failure without its own one.
#[test]
fn no_command_loses_its_output() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    let watched = Target::start("psweep", &["closes=10"])?;
    daemon.attached(&[watched.pid()])?;
    let target = Target::start("psweep", &["closes=10"])?;
    let report = daemon.file("report.json");
    let pid = target.pid().to_string();
    let mut command = Command::new(environment::drainprof()?);
    command.args(["attach", "-p", &pid, "--profile", &environment::profile("arena")]);
    let made = command.args(["-d", "100ms", "-o", "json", "-O"]).arg(&report).output()?;
    ensure!(report.exists(), "{}", String::from_utf8_lossy(&made.stderr));
    let place = daemon.file("");
    let mut wrong = Vec::new();
    for args in commands(&place, target.pid(), &watched.pid().to_string())? {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for (redirect, reason) in LOST {
            let (code, talk) = run(&args, redirect)?;
            if code != Some(1) || !talk.contains(reason) || talk.contains("panicked") {
                wrong.push(format!("{args:?} {redirect}: {code:?}\n{talk}"));
            }
        }
        // The null device is a place like any other.
        let (code, talk) = run(&args, ">/dev/null")?;
        if !matches!(code, Some(0 | 4 | 5)) {
            wrong.push(format!("{args:?} >/dev/null: {code:?}\n{talk}"));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    watched.kill()?;
    target.kill()?;
    daemon.finish()?;
    Ok(())
}

/// A reader that has had enough is no failure: `drainprof … | head`.
#[test]
fn a_reader_that_has_enough() -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "read _; exec \"$0\" config default"]).arg(environment::drainprof()?);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("a shell")?;
    let mut out = child.stdout.take().context("stdout is piped")?;
    // The smallest that there is: the writer waits for room when the reader goes.
    fcntl(&out, FcntlArg::F_SETPIPE_SZ(4096)).context("cannot make a pipe smaller")?;
    drop(child.stdin.take());
    out.read_exact(&mut [0])?;
    drop(out);
    let ended = child.wait_with_output()?;
    let talk = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!((ended.status.code(), talk.as_str()), (Some(0), ""));
    Ok(())
}

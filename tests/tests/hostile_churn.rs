//! Processes that come and go faster than they are scanned for: what is not counted is reported.

use std::{
    collections::VecDeque,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, deadline, requires_root},
    node::{Daemon, alone, configure_at_usual_pace, descriptors, sum},
    target::{Target, truths},
};
use serde_json::Value;

/// Opens of each process, evenly over its life.
const OPENS: &str = "opens=300";

/// Those of a daemon that is behind with taking out probes: two kernel sides of some 50 each, what is there anyway, and
/// twice 64 probes and those of one cycle.
const DESCRIPTORS: usize = 300;

/// Starts a process that waits for nobody.
fn start(more: &[&str]) -> Result<Child> {
    let mut command = Command::new(environment::target("brief")?);
    command.arg(OPENS).args(more).env("DRAINPROF_GO", "1");
    Ok(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// Granules that a process has opened, by its own account.
fn opened(child: Child) -> Result<u64> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{output:?}");
    let lines: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    let truth = truths(&lines)?.remove(0);
    truth.pointer("/allocators/0/granules/opened").and_then(Value::as_u64).context("no truth")
}

/// Starts so many processes a second for so long; returns what all of them have opened.
fn churn(each_second: u32, seconds: u32) -> Result<u64> {
    let (began, pause) = (Instant::now(), Duration::from_secs(1) / each_second);
    let (mut children, mut truth) = (VecDeque::new(), 0);
    for number in 0..each_second * seconds {
        children.push_back(start(&[])?);
        while let Some(mut first) = children.pop_front() {
            if first.try_wait()?.is_none() {
                children.push_front(first);
                break;
            }
            truth += opened(first)?;
        }
        // The rate is the workload: nothing is waited for here.
        thread::sleep((pause * number).saturating_sub(began.elapsed()));
    }
    children.into_iter().try_fold(truth, |truth, child| Ok(truth + opened(child)?))
}

/// Whether a state says of itself that something is missing, and why.
fn says_why(state: &Value, loss: &str) -> bool {
    let reasons = state["incomplete"].as_array().into_iter().flatten();
    let named = reasons.filter_map(Value::as_str).any(|why| why.starts_with(loss));
    named && state["complete"] == false && state["losses"][loss].as_u64() > Some(0)
}

/// With probes on the files, a process of a program that is watched is counted from its first instruction on, whoever
/// has started it.
#[test]
fn strangers_are_counted_from_their_start() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let resident = Target::start("brief", &["opens=1"])?;
    let daemon = Daemon::start(&["arena"], "daemon.attach = \"file\"")?;
    daemon.attached(&[resident.pid()])?;
    let mut truth = 0;
    for more in [&["ms=1000"][..], &["ms=300"], &["ms=10"], &["ms=0"]] {
        truth += opened(start(more)?)?;
    }
    let state =
        daemon.until("all is counted", |state| sum(state, "test-arena", "opened") >= truth)?;
    assert_eq!(sum(&state, "test-arena", "opened"), truth);
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    resident.kill()?;
    daemon.finish()?;
    Ok(())
}

/// Of a program's first process, the daemon cannot know what it has missed, and says so.
#[test]
fn the_first_process_is_late() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "daemon.attach = \"file\"")?;
    let truth = opened(start(&["ms=2000"])?)?;
    let state = daemon.until("it is gone", |state| says_why(state, "attached_late"))?;
    assert!(sum(&state, "test-arena", "opened") <= truth);
    daemon.finish()?;
    Ok(())
}

/// A daemon that attaches to files, or to processes, at its usual pace.
fn at_usual_pace(attach: &str) -> Result<Daemon> {
    let directory = tempfile::tempdir()?;
    let more =
        format!("daemon.attach = \"{attach}\"\ngovernor.enabled = false\ndaemon.interval = \"1s\"");
    configure_at_usual_pace(directory.path(), &["arena"], &more)?;
    Daemon::start_in(directory)
}

/// For a minute thirty processes a second that live for one and a half, while two daemons scan for them every two
/// seconds: what is counted is the truth, or the state says that it is not, and why. Probes that wait for the kernel to
/// take them out are bounded.
#[test]
fn thirty_processes_a_second() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let resident = Target::start("brief", &["opens=1"])?;
    let daemons = [("process", at_usual_pace("process")?), ("file", at_usual_pace("file")?)];
    for (_, daemon) in &daemons {
        daemon.attached(&[resident.pid()])?;
    }
    let truth = churn(30, 60)?;
    for (attach, daemon) in daemons {
        let open = descriptors(daemon.pid())?;
        let until = Instant::now() + deadline();
        let mut state = daemon.fresh()?;
        while sum(&state, "test-arena", "processes") > 1 && Instant::now() < until {
            state = daemon.fresh()?;
        }
        let counted = sum(&state, "test-arena", "opened");
        let told = format!(
            "{attach}: {counted} of {truth} opens, complete {}, {} late, losses {}; {open} descriptors",
            state["complete"], state["processes_late"], state["losses"]
        );
        eprintln!("{told}");
        assert!(counted <= truth && open < DESCRIPTORS, "{told}");
        if attach == "file" {
            assert_eq!(counted, truth, "{told}");
            assert_eq!(state["complete"], true, "{told}");
        } else {
            assert!(says_why(&state, "processes_missed"), "{told}");
            assert!(counted < truth, "nothing was missed, so nothing is shown: {told}");
        }
        daemon.finish()?;
    }
    resident.kill()?;
    Ok(())
}

//! The daemon in bad company: started twice, with a bad configuration, killed in the middle of its work.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    http,
    node::{Daemon, alone, configure, sum, target},
    process::Process,
    target::Target,
};
use serde_json::Value;

/// How often it is killed.
const KILLS: usize = 100;

/// Windows whenever the test asks for one, and none that a rule wants: one runs at a time.
const ONLY_ASKED: &str = r#"
window.cooldown = "0s"
window.cost = "400%"
triggers.dsr_low.enabled = false
triggers.dsr_drop.enabled = false
triggers.faults_high.enabled = false
triggers.vsz_growth.enabled = false
"#;

fn daemon(config: &std::path::Path) -> Result<Command> {
    let mut command = Command::new(environment::drainprof()?);
    command.arg("daemon").arg("--config").arg(config);
    Ok(command)
}

/// A second daemon with the same configuration is refused, and told who runs; the first goes on.
#[test]
fn started_twice() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let first = Daemon::start(&["arena"], "")?;
    let second = Process::start("second daemon", daemon(&first.file("drainprof.toml"))?)?;
    let ended = second.finish()?;
    assert_eq!(ended.status.code(), Some(1), "{:?}", ended.stderr);
    let said = ended.stderr.join("\n");
    assert!(said.contains(&first.pid().to_string()), "{said}");
    assert_eq!(first.state()?["ready"], true);
    first.finish()?;
    Ok(())
}

/// A configuration with errors is refused with all of them, each with its place.
#[test]
fn bad_configuration() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let path = configure(directory.path(), &[], "daemon.intervall = \"1s\"\nwindow.at_once = 0")?;
    let ended = Process::start("daemon", daemon(&path)?)?.finish()?;
    assert_eq!(ended.status.code(), Some(78), "{:?}", ended.stderr);
    let said = ended.stderr.join("\n");
    assert!(said.contains("intervall") && said.contains("at_once"), "{said}");
    assert!(said.contains("drainprof.toml:"), "{said}");
    Ok(())
}

/// The windows that a daemon's history has, by their ids.
fn windows(daemon: &Daemon) -> Result<Vec<Value>> {
    let (status, body) = daemon.get("/api/v1/windows?limit=200")?;
    ensure!(status == 200, "{status} {body}");
    let found: Value = serde_json::from_str(&body)?;
    Ok(found.as_array().or_else(|| found["windows"].as_array()).cloned().unwrap_or_default())
}

fn window(all: &[Value], id: u64) -> Option<&Value> {
    all.iter().find(|one| one["id"].as_u64() == Some(id))
}

/// Has a window of some seconds begin, and waits until the history has it: what is not in there yet does not outlive a
/// kill. Its id.
fn open_window(daemon: &Daemon, pid: u32, seconds: u32) -> Result<u64> {
    let body = format!("{{\"pid\":{pid},\"seconds\":{seconds}}}");
    let (status, answer) = daemon.post("/api/v1/diagnose", &body)?;
    ensure!(status == 200, "{status} {answer}");
    let answer: Value = serde_json::from_str(&answer)?;
    let id = answer["id"].as_u64().with_context(|| format!("a window has an id: {answer}"))?;
    http::until("the history has the window", || Ok(window(&windows(daemon)?, id).is_some()))?;
    Ok(id)
}

/// Killed a hundred times, before it has looked at anything, just when it has, and in the middle of its work, a window
/// included: its process runs on unharmed, the next daemon begins at once with the same history, holds every window that
/// had ended with its report, and counts exactly from there.
#[test]
fn killed() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let mut service = Target::start("routing", &["rate=2000"])?;
    let pid = service.pid();
    let mut running = Daemon::start(&["arena"], ONLY_ASKED)?;
    running.attached(&[pid])?;
    service.go()?;
    let (mut ended, mut cut) = (Vec::new(), Vec::new());
    for round in 0..KILLS {
        match round % 4 {
            0 => {
                // Each time a little later, so that it is killed at attaching, at looking, at writing.
                running.until("it counts", |state| {
                    sum(state, "test-arena", "drainable") > 20 * round as u64
                })?;
            }
            2 => {}
            _ => {
                running = Daemon::begin_in(running.kill()?)?;
                continue;
            }
        }
        if round % 20 == 0 {
            running.attached(&[pid])?;
            let id = open_window(&running, pid, 1)?;
            running.until("it has ended", |state| {
                state["windows"].as_array().is_some_and(|all| {
                    window(all, id).is_some_and(|one| one["outcome"] == "finished")
                })
            })?;
            // Committed: the history tells of it.
            http::until("the window is in the history", || {
                Ok(window(&windows(&running)?, id).is_some_and(|one| one["outcome"] == "finished"))
            })?;
            ended.push(id);
            cut.push(open_window(&running, pid, 60)?);
        }
        running = Daemon::start_in(running.kill()?)?;
    }
    running = Daemon::start_in(running.kill()?)?;
    running.attached(&[pid])?;
    let kept = windows(&running)?;
    for id in ended {
        assert_eq!(window(&kept, id).context("kept")?["outcome"], "finished", "{kept:?}");
        let (status, report) = running.get(&format!("/api/v1/windows/{id}/report"))?;
        assert_eq!(status, 200, "window {id}: {report}");
        let report: Value = serde_json::from_str(&report)?;
        assert_eq!(report["targets"][0]["pid"], pid);
    }
    for id in cut {
        assert_eq!(window(&kept, id).context("kept")?["outcome"], "interrupted", "{kept:?}");
    }
    let mut history = Command::new(environment::drainprof()?);
    history.args(["history", "-o", "json", "--store"]).arg(running.file("store/history.db"));
    let ended = Process::start("drainprof history", history)?.finish()?;
    assert!(ended.status.success(), "{:?}", ended.stderr);
    let history: Value = serde_json::from_str(&ended.stdout.join("\n"))?;
    assert!(
        history.to_string().contains(&format!("\"pid\":{pid}")),
        "the service is in the history"
    );
    assert_eq!(running.state()?["degraded"], Value::Array(Vec::new()), "nothing was set aside");
    assert_eq!(
        fs::read_dir(running.file("store"))?
            .filter_map(Result::ok)
            .filter(|entry| { entry.file_name().to_string_lossy().contains(".damaged-") })
            .count(),
        0
    );
    assert!(target(&running.state()?, pid).is_some());
    service.go()?;
    assert_eq!(service.finish()?.code, Some(0));
    running.finish()?;
    Ok(())
}

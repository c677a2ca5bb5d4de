//! The daemon in bad company: started twice, with a bad configuration, killed in the middle of its work.

use std::process::Command;

use anyhow::Result;
use drainprof_tests::{
    environment::{self, requires_root},
    node::{Daemon, alone, configure, target},
    process::Process,
    target::Target,
};
use serde_json::Value;

/// How often it is killed; what a single writer of the history survives is tested a hundred times beside its code.
const KILLS: usize = 8;

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

/// Killed in the middle of its work, again and again: its processes run on unharmed, the next daemon begins at once with
/// the same history, and counts exactly from there.
#[test]
fn killed() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let mut service = Target::start("routing", &["rate=2000"])?;
    let pid = service.pid();
    let mut running = Daemon::start(&["arena"], "")?;
    running.attached(&[pid])?;
    service.go()?;
    for round in 0..KILLS {
        // Each time a little later, so that it is killed at attaching, at looking, at writing.
        if round % 2 == 0 {
            running.until("it counts", |state| {
                drainprof_tests::node::sum(state, "test-arena", "drainable") > 100 * round as u64
            })?;
        }
        running = Daemon::start_in(running.kill()?)?;
    }
    running.attached(&[pid])?;
    let mut history = Command::new(environment::drainprof()?);
    history.args(["history", "-o", "json", "--store"]).arg(running.file("history.db"));
    let ended = Process::start("drainprof history", history)?.finish()?;
    assert!(ended.status.success(), "{:?}", ended.stderr);
    let history: Value = serde_json::from_str(&ended.stdout.join("\n"))?;
    assert!(
        history.to_string().contains(&format!("\"pid\":{pid}")),
        "the service is in the history"
    );
    let state = running.state()?;
    assert!(target(&state, pid).is_some());
    service.go()?;
    assert_eq!(service.finish()?.code, Some(0));
    running.finish()?;
    Ok(())
}

//! The daemon and processes that no profile matches: their memory is watched all the same.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    node::{Daemon, alone, target},
    target::Target,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The rule about growth alone, in seconds instead of minutes.
const QUICK: &str = "
window.length = \"3s\"
window.cost = \"400%\"
daemon.pss_budget = \"10%\"
triggers.rss_slope.for = \"1s\"
triggers.faults_high.enabled = false
triggers.vsz_growth.enabled = false
";

fn fires(state: &Value, pid: u32) -> bool {
    let alerts = target(state, pid).and_then(|one| one["alerts"].as_array());
    let own = |one: &Value| one["rule"] == "rss_slope" && one["state"] == "firing";
    alerts.is_some_and(|all| all.iter().any(own))
}

/// A process without a profile grows steadily, beside one that does not: its slope is known, `rss_slope` fires for it
/// alone, and the window that opens names the function that touches the memory.
#[test]
fn steady_growth_is_found() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&[], QUICK)?;
    let mut quiet = Target::start("grow", &["mode=creep", "rate=1000"])?;
    let mut grower = Target::start("grow", &["mode=creep", "rate=1000"])?;
    let pid = grower.pid();
    quiet.go()?;
    grower.go()?;
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGUSR1)?;
    let state = daemon.until("steady growth fires", |state| fires(state, pid))?;
    let own = target(&state, pid).context("the process is watched")?;
    assert_eq!((&own["matched"], &own["level"]), (&Value::Bool(false), &Value::Null), "{own}");
    // A thousand pages a second, at most; less where the machine is busy.
    let slope = own["rss_slope_bytes_per_second"].as_f64().context("a slope")?;
    let ends = own["rss_slope_interval"].as_array().context("an interval")?;
    assert!((100_000.0..=4_300_000.0).contains(&slope), "{own}");
    assert!(ends[0].as_f64() <= Some(slope) && ends[1].as_f64() >= Some(slope), "{own}");
    assert!(!fires(&state, quiet.pid()), "{:?}", target(&state, quiet.pid()));
    let state = daemon.until_window_ended()?;
    let window = &state["windows"][0];
    assert_eq!(
        (&window["outcome"], &window["asked_by"], &window["pid"]),
        (&"finished".into(), &"rss_slope".into(), &pid.into())
    );
    let (status, body) = daemon.get(&format!("/api/v1/windows/{}/report", window["id"]))?;
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"creep\""), "no call stack creeps: {body}");
    let state = daemon.until("it had its turn", |state| {
        target(state, pid).is_some_and(|one| one["shares"].is_object())
    })?;
    let shares = &target(&state, pid).context("the process")?["shares"];
    assert!(shares["uss_bytes"].as_u64() > Some(1 << 20), "{shares}");
    assert!(shares["pss_bytes"].as_u64() >= shares["uss_bytes"].as_u64(), "{shares}");
    let (_, text) = daemon.get("/metrics")?;
    assert!(text.contains("drainprof_targets{level=\"memory\"} 2"), "{text}");
    for process in [quiet, grower] {
        let mut process = process;
        process.go()?;
        process.finish()?;
    }
    daemon.finish()?;
    Ok(())
}

/// Where only matched processes are wanted, no other is watched.
#[test]
fn unmatched_can_be_left_out() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "select.unmatched = false")?;
    let quiet = Target::start("grow", &["mode=creep", "rate=1"])?;
    let service = Target::start("routing", &["rate=1000"])?;
    daemon.attached(&[service.pid()])?;
    assert!(target(&daemon.fresh()?, quiet.pid()).is_none());
    quiet.kill()?;
    service.kill()?;
    daemon.finish()?;
    Ok(())
}

//! The daemon looks deeper when it matters: a service whose routing goes wrong, the window that opens by itself, the
//! governor, and the kill switch.

use std::fs;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    http,
    node::{Daemon, alone, own_programs, sum, target},
    paths::{shown, steps},
    process::Process,
    target::Target,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// Rules and windows that need seconds instead of minutes.
const QUICK: &str = "
window.length = \"3s\"
window.cooldown = \"1s\"
window.cost = \"400%\"
governor.enabled = false
triggers.dsr_low.for = \"1s\"
triggers.dsr_low.over = \"10s\"
";

fn send(target: &Target, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(target.pid().cast_signed()), signal)?)
}

fn level(state: &Value, pid: u32) -> Option<String> {
    Some(target(state, pid)?["level"].as_str()?.to_owned())
}

/// A service drains well until its routing is switched to be wrong: the DSR falls below its threshold, a window
/// opens by itself, and its report names the path that pins. Right again, the rule ends; the daemon never left the
/// level `boundary`.
#[test]
fn a_fall_opens_a_window() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], QUICK)?;
    let mut service = Target::start("routing", &["rate=2000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    daemon.until("enough was seen", |state| {
        let allocators =
            target(state, pid).map(|one| &one["allocators"][0]["granules"]["drainable"]);
        allocators.and_then(Value::as_u64).is_some_and(|closes| closes > 5_000)
    })?;
    let before = daemon.state()?;
    assert_eq!(before["windows"], Value::Array(Vec::new()), "nothing was wrong yet");
    send(&service, Signal::SIGUSR1)?;
    let state = daemon.until_window_ended()?;
    let window = &state["windows"][0];
    assert_eq!(window["outcome"], "finished", "{window}");
    assert_eq!(window["asked_by"], "dsr_low", "{window}");
    assert_eq!(level(&state, pid).as_deref(), Some("boundary"));
    let (status, body) = daemon.get(&format!("/api/v1/windows/{}/report", window["id"]))?;
    assert_eq!(status, 200, "{body}");
    let report: Value = serde_json::from_str(&body)?;
    assert_eq!(report["targets"][0]["growth"], Value::Null, "no rule about memory fires");
    let allocator = &report["targets"][0]["allocators"][0];
    let pins = |site: &&Value| site["granules_pinned"].as_u64() > Some(0);
    let sites = allocator["sites"].as_array().context("the report has sites")?;
    let guilty: Vec<String> = sites.iter().filter(pins).map(|site| shown(&steps(site))).collect();
    assert!(!guilty.is_empty(), "nobody pins: {allocator}");
    assert!(guilty.iter().all(|path| path.contains("make_session")), "{guilty:?}");
    assert!(
        sites.iter().any(|site| !pins(&site) && shown(&steps(site)).contains("handle_request")),
        "the request itself drains"
    );
    let most =
        sites.iter().max_by_key(|site| site["granules_pinned"].as_u64()).context("a site")?;
    let id = most["id"].as_str().context("the worst site has an id")?;
    let pointer = format!("# {{site=\"{id}\",window=\"{}\"}}", window["id"]);
    http::until("the metrics name the worst site", || {
        let text = daemon.open_metrics()?;
        Ok(text.lines().any(|line| line.contains("outcome=\"pinned\"") && line.contains(&pointer)))
    })?;
    send(&service, Signal::SIGUSR2)?;
    daemon.until("the rule has ended, and no window runs", |state| {
        let alerts = target(state, pid).and_then(|one| one["alerts"].as_array());
        let quiet = alerts.is_some_and(|all| all.iter().all(|one| one["rule"] != "dsr_low"));
        let windows = state["windows"].as_array();
        quiet && windows.is_some_and(|all| all.iter().all(|one| one["outcome"] != "running"))
    })?;
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// Rules about memory alone, that need seconds.
const MEMORY: &str = "
window.length = \"3s\"
window.cost = \"400%\"
governor.enabled = false
triggers.dsr_low.enabled = false
triggers.dsr_drop.enabled = false
triggers.faults_high.for = \"1s\"
triggers.faults_high.above = 100.0
triggers.faults_high.back = 10.0
";

/// The part of a report about where memory grows, of a process that creeps: what it touched is told by the function
/// that touches it, and lies in pinned granules.
fn names_who_creeps(report: &Value) -> Result<()> {
    let growth = &report["targets"][0]["growth"];
    let paths = growth["paths"].as_array().context("the report has no growth")?;
    let bytes = |path: &Value| path["rss"]["anon_bytes"].as_i64().unwrap_or_default();
    let most = paths.iter().max_by_key(|path| bytes(path)).context("no path has grown")?;
    let frames: Vec<_> =
        most["frames"].as_array().context("frames")?.iter().map(|one| &one["function"]).collect();
    assert!(frames.starts_with(&[&"slab_take".into(), &"creep".into()]), "{frames:?}");
    assert!(bytes(most) > 100 * 4096, "{most}");
    assert!(growth["touched"]["pinned_bytes"].as_i64() > Some(100 * 4096), "{}", growth["touched"]);
    Ok(())
}

/// A process without a probe begins to touch memory: a rule about memory opens a window, whose report names the
/// function that touches it, beside the call paths that allocate. What a user asks for shows the same as text.
#[test]
fn growth_opens_a_window() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["grow"], MEMORY)?;
    let mut grower = Target::start("grow", &["mode=creep", "rate=1000"])?;
    let pid = grower.pid();
    let faults =
        |state: &Value| target(state, pid).and_then(|one| one["faults_per_second"].as_f64());
    grower.go()?;
    let state = daemon.until("its faults are read", |state| faults(state).is_some())?;
    assert_eq!(state["windows"], Value::Array(Vec::new()), "nothing was wrong yet");
    assert_eq!(level(&state, pid), None, "no level is shallow enough to be always on");
    send(&grower, Signal::SIGUSR1)?;
    let state = daemon.until_window_ended()?;
    let window = &state["windows"][0];
    assert_eq!(
        (&window["outcome"], &window["asked_by"]),
        (&"finished".into(), &"faults_high".into())
    );
    let (status, body) = daemon.get(&format!("/api/v1/windows/{}/report", window["id"]))?;
    assert_eq!(status, 200, "{body}");
    let report: Value = serde_json::from_str(&body)?;
    names_who_creeps(&report)?;
    let sites = report["targets"][0]["allocators"][0]["sites"].as_array().context("sites")?;
    assert!(
        sites
            .iter()
            .any(|site| site["allocated"].as_u64() > Some(100)
                && shown(&steps(site)).contains("creep")),
        "{sites:?}"
    );

    let mut command = std::process::Command::new(environment::drainprof()?);
    command.args(["diagnose", "--growth", "--for", "2s", "-p"]).arg(pid.to_string());
    command.arg("--socket").arg(daemon.file("control.sock"));
    let asked = Process::start("drainprof diagnose", command)?.finish()?;
    let text = asked.stdout.join("\n");
    assert!(
        text.contains("page faults:") && text.contains("slab_take"),
        "{text}\n{:?}",
        asked.stderr
    );
    grower.go()?;
    grower.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A user's window: it waits for its end, shows the report, and obeys one at a time.
#[test]
fn diagnose() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], QUICK)?;
    let mut service = Target::start("routing", &["rate=1000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    let mut command = std::process::Command::new(environment::drainprof()?);
    let socket = daemon.file("control.sock");
    command.arg("diagnose").arg("-p").arg(pid.to_string()).args(["--for", "4s", "-o", "json"]);
    command.arg("--socket").arg(&socket);
    let first = Process::start("drainprof diagnose", command)?;
    daemon.until("the window runs", |state| state["windows"][0]["outcome"] == "running")?;
    let (status, body) =
        daemon.post("/api/v1/diagnose", &format!("{{\"pid\":{pid},\"seconds\":4}}"))?;
    assert_eq!(status, 503, "one at a time: {body}");
    let (status, body) = daemon.post("/api/v1/diagnose", "{\"pid\":1,\"seconds\":4}")?;
    assert_eq!(status, 404, "not watched: {body}");
    let ended = first.finish()?;
    assert!(ended.status.success(), "{:?}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout.join("\n"))?;
    assert_eq!(report["targets"][0]["pid"], pid);
    assert_eq!(report["targets"][0]["allocators"][0]["level"], "stacks");
    assert!(report["targets"][0]["allocators"][0]["granules"]["closed"].as_u64() > Some(0));
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// The kill switch, by file: no probe stays in the process, which runs on; taken back, it is observed again.
#[test]
fn kill_switch() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    let mut service = Target::start("routing", &["rate=1000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    fs::write(daemon.file("kill"), "")?;
    let state = daemon.until("everything is detached", |state| {
        state["killed"] == true && target(state, pid).is_some_and(|one| one["level"].is_null())
    })?;
    assert!(target(&state, pid).is_some_and(|one| one["reason"] == "the kill switch is on"));
    let (status, body) =
        daemon.post("/api/v1/diagnose", &format!("{{\"pid\":{pid},\"seconds\":1}}"))?;
    assert_eq!(status, 503, "no window either: {body}");
    // Counts stand still from now on.
    let closes = |state: &Value| sum(state, "test-arena", "drainable");
    let before = closes(&daemon.state()?);
    daemon
        .until("it was looked again", |now| now["unix_ms"].as_u64() > state["unix_ms"].as_u64())?;
    assert_eq!(closes(&daemon.state()?), before);
    fs::remove_file(daemon.file("kill"))?;
    daemon.attached(&[pid])?;
    daemon.until("it counts again", |state| closes(state) > before)?;
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// The governor: what costs more than its budget even at the cheapest level is observed in parts of the time. It says
/// why, and an alert is raised.
#[test]
fn the_governor_steps_in() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let expensive = "
governor.budget = \"0.1%\"
governor.burst = \"1s\"
governor.pause = \"1s\"
triggers.observed_low.for = \"0s\"
triggers.dsr_low.enabled = false
triggers.dsr_drop.enabled = false
";
    let daemon = Daemon::start(&["arena"], expensive)?;
    let mut service = Target::start("routing", &["rate=5000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    let paused = |state: &Value| target(state, pid).is_some_and(|one| one["level"].is_null());
    let state = daemon.until("it is paused", paused)?;
    let reason = target(&state, pid).and_then(|one| one["reason"].as_str()).unwrap_or_default();
    assert!(reason.contains("budget") && reason.contains("paused"), "{reason}");
    // At the cheapest level of its profile.
    let state = daemon.until("it is observed again", |state| !paused(state))?;
    assert_eq!(level(&state, pid).as_deref(), Some("close"));
    daemon.until("it is paused again", paused)?;
    daemon.until("an alert says so", |state| {
        let alerts = target(state, pid).and_then(|one| one["alerts"].as_array());
        alerts.into_iter().flatten().any(|alert| {
            (&alert["rule"], &alert["state"]) == (&"observed_low".into(), &"firing".into())
        })
    })?;
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A window that costs its process more than it may lasts its full time, but observes only parts of it: the report says
/// how much. No probe stays.
#[test]
fn a_dear_window_pauses() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(
        &["arena"],
        "window.cost = \"0.01%\"\ngovernor.enabled = false\ntriggers.dsr_low.enabled = false\n",
    )?;
    let mut service = Target::start("routing", &["rate=5000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    service.go()?;
    let mut command = std::process::Command::new(environment::drainprof()?);
    command.args(["diagnose", "--for", "8s", "-o", "json", "-p"]).arg(pid.to_string());
    command.arg("--socket").arg(daemon.file("control.sock"));
    let asked = Process::start("drainprof diagnose", command)?.finish()?;
    let report: Value = serde_json::from_str(&asked.stdout.join("\n"))?;
    let findings = report["findings"].as_array().into_iter().flatten();
    let codes: Vec<_> = findings.filter_map(|finding| finding["code"].as_str()).collect();
    assert!(codes.contains(&"duty_lowered"), "{codes:?}");
    let observed = report["window"]["duty"]["observed_seconds"].as_f64();
    assert!(observed < Some(4.0), "{}", report["window"]);
    let state = daemon.state()?;
    let window = &state["windows"][0];
    assert_eq!((&window["outcome"], &window["has_report"]), (&"finished".into(), &true.into()));
    assert!(window["seconds"].as_f64() >= Some(8.0), "{window}");
    assert_eq!(level(&state, pid).as_deref(), Some("boundary"), "the daemon's own probes stay");
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

/// Pin delays as a metric: one for each pinned granule once all have drained, of about the time that a session lasts;
/// and none is lost as the process ends.
#[test]
fn delays_are_counted() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let quiet = "daemon.level = \"objects\"\ngovernor.enabled = false\n\
                 triggers.dsr_low.enabled = false\ntriggers.dsr_drop.enabled = false\n";
    let daemon = Daemon::start(&["arena"], quiet)?;
    let mut service = Target::start("routing", &["rate=2000"])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    send(&service, Signal::SIGUSR1)?;
    service.go()?;
    let delays = |state: &Value| -> (u64, u64) {
        let all = state["counts"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().fold((0, 0), |(count, sum), one| {
            let buckets = one["pin_delays"]["buckets"].as_array().map(Vec::as_slice);
            let own: u64 = buckets.unwrap_or_default().iter().filter_map(Value::as_u64).sum();
            (count + own, sum + one["pin_delays"]["sum_nanoseconds"].as_u64().unwrap_or_default())
        })
    };
    daemon.until("sessions have ended", |state| delays(state).0 > 500)?;
    service.go()?;
    service.finish()?;
    let state = daemon.until("the process is counted", |state| {
        target(state, pid).is_none() && sum(state, "test-arena", "processes") == 0
    })?;
    let (count, nanoseconds) = delays(&state);
    assert_eq!(count, sum(&state, "test-arena", "pinned"));
    let mean = nanoseconds as f64 / count as f64 / 1e9;
    assert!((0.25..30.0).contains(&mean), "a session lasts 2,000 requests, a second: {mean} s");
    let (_, text) = daemon.get("/metrics")?;
    let shown = text.lines().find(|line| line.starts_with("drainprof_pin_delay_seconds_count{"));
    let shown = shown.context("the histogram is not shown")?;
    assert!(shown.ends_with(&format!(" {count}")), "{shown}, and there are {count}");
    if has_programs(&["promtool"]) {
        let path = daemon.file("metrics");
        fs::write(&path, &text)?;
        let file = fs::File::open(path)?;
        let mut check = std::process::Command::new("promtool");
        let output = check.args(["check", "metrics"]).stdin(file).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    daemon.finish()?;
    Ok(())
}

/// SIGHUP applies what has changed, and keeps what is in force where the file has turned bad.
#[test]
fn reload() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let mut daemon = Daemon::start(&["arena"], "")?;
    let service = Target::start("routing", &[])?;
    let pid = service.pid();
    daemon.attached(&[pid])?;
    let file = daemon.file("drainprof.toml");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, format!("{text}\nselect.rulez = []\n"))?;
    daemon.process().signal(Signal::SIGHUP)?;
    let said = daemon.process().expect_err_containing("the old configuration stays in force")?;
    assert!(said.contains("rulez"), "{said}");
    daemon.attached(&[pid])?;
    let without = own_programs("{ action = \"exclude\", exe = \"*/routing\" }, ");
    fs::write(&file, text.replace(&own_programs(""), &without))?;
    daemon.process().signal(Signal::SIGHUP)?;
    daemon.process().expect_err_containing("changed: select.rules")?;
    daemon.until("it is not watched any more", |state| target(state, pid).is_none())?;
    service.kill()?;
    daemon.finish()?;
    Ok(())
}

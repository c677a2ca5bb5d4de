//! The daemon takes censuses: what it reports of a heap equals glibc's own numbers and the command's, in the state and in
//! the metrics; and `heap_idle` fires where freed memory becomes more.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    node::{Daemon, configure, target},
    process::Process,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Censuses each second, as many as there are; and the rule about them alone.
const QUICK: &str = "
census.interval = \"1s\"
census.budget = \"100%\"
window.budget_per_hour = \"0s\"
triggers.heap_idle.censuses = 3
triggers.heap_idle.min_bytes = \"3MiB\"
";

/// A daemon that watches nothing but a copy of the target, which has a label set of its own.
fn daemon(directory: tempfile::TempDir, program: &Path) -> Result<Daemon> {
    let rule =
        format!("select.rules = [{{ action = \"include\", exe = \"{}\" }}]", program.display());
    configure(directory.path(), &[], &format!("{QUICK}{rule}"))?;
    Daemon::start_in(directory)
}

/// glibc's own numbers, from a line of the target.
fn truth(process: &mut Process, word: &str) -> Result<Value> {
    let line = process.expect_out(word)?;
    Ok(serde_json::from_str(line.trim_start_matches(word))?)
}

fn heap(state: &Value, pid: u32) -> Option<&Value> {
    let heaps = target(state, pid)?["heaps"]["heaps"].as_array()?;
    heaps.iter().find(|heap| heap["allocator"] == "glibc")
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("{key} is a number in {value}"))
}

/// What is in the state equals glibc's numbers, once a census was taken since.
fn until_equal(daemon: &Daemon, pid: u32, truth: &Value) -> Result<Value> {
    let free = number(truth, "free")?;
    let state = daemon.until("a census agrees with glibc", |state| {
        heap(state, pid).is_some_and(|heap| heap["free_bytes"] == free)
    })?;
    let heap = heap(&state, pid).context("a heap")?;
    let used = number(heap, "live_bytes")? + number(heap, "cached_bytes")?;
    // A thread's arena is described by 2256 bytes, which glibc counts as in use.
    let threads = number(truth, "arenas")? - 1;
    let own = number(truth, "in_use")? + number(truth, "mapped")?;
    assert_eq!(used + threads * 2256, own, "{truth} {heap}");
    assert_eq!(number(heap, "unknown_bytes")?, 0);
    Ok(state)
}

fn fires(state: &Value, pid: u32) -> Option<&str> {
    let alerts = target(state, pid)?["alerts"].as_array()?;
    let own = alerts.iter().find(|one| one["rule"] == "heap_idle" && one["state"] == "firing")?;
    own["message"].as_str()
}

/// While the target sleeps, state, metrics and command say the same as glibc; as its holes grow, the rule fires, and it
/// ends when the memory was given back.
#[test]
fn as_glibc_says() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("heap_of_daemon");
    fs::copy(environment::target("heap_census")?, &program)?;
    let daemon = daemon(directory, &program)?;
    let mut command = Command::new(&program);
    command.args(["5000", "2"]);
    let mut process = Process::start("heap_of_daemon", command)?;
    let pid = process.pid();
    let ready = truth(&mut process, "READY ")?;
    let state = until_equal(&daemon, pid, &ready)?;
    let of_state = heap(&state, pid).context("a heap")?;
    let of_command = command_census(pid)?;
    let text = daemon.open_metrics()?;
    for name in ["mapped", "resident", "live", "cached", "free", "unknown", "trimmable"] {
        let bytes = number(of_state, &format!("{name}_bytes"))?;
        assert_eq!(bytes, number(&of_command, &format!("{name}_bytes"))?, "{name}");
        let gauge = format!("drainprof_heap_{name}_bytes{{exe=\"heap_of_daemon\"");
        let line = text.lines().find(|line| line.starts_with(&gauge));
        let line = line.with_context(|| format!("no {gauge} in {text}"))?;
        assert!(line.ends_with(&format!("allocator=\"glibc\"}} {bytes}")), "{line}");
    }
    assert!(text.contains("drainprof_heap_census_timestamp_seconds{exe=\"heap_of_daemon\""));
    assert_eq!(fires(&state, pid), None);
    for _ in 0..4 {
        process.send_line("grow")?;
        let grown = truth(&mut process, "GROWN ")?;
        until_equal(&daemon, pid, &grown)?;
    }
    let state = daemon.until("the rule fires", |state| fires(state, pid).is_some())?;
    let message = fires(&state, pid).context("it fires")?;
    assert!(
        message.starts_with("glibc: ") && message.contains("holds no live object"),
        "{message}"
    );
    process.send_line("trim")?;
    process.expect_out("TRIMMED ")?;
    daemon.until("the rule has ended", |state| fires(state, pid).is_none())?;
    process.finish()?;
    daemon.finish()?;
    Ok(())
}

/// What a report says of a heap that grew meanwhile: both censuses as glibc has it, and the difference.
fn compared(report: &Value, before: &Value, after: &Value) -> Result<()> {
    let census = &report["targets"][0]["census"];
    assert_eq!(census["failure"], Value::Null, "{census}");
    let free = [number(before, "free")?, number(after, "free")?];
    let of = |when: &str| number(&census[when]["heaps"][0], "free_bytes");
    assert_eq!([of("begin")?, of("end")?], free, "{census}");
    let growth = &census["growth"][0];
    let change = growth["free_bytes"].as_i64().context("free")?;
    assert_eq!(change, free[1].cast_signed() - free[0].cast_signed());
    // Every 5000th stays: 3 of 15,000, and the list of them.
    let classes = growth["classes"].as_array().context("classes")?;
    let objects: i64 = classes.iter().filter_map(|one| one["objects"].as_i64()).sum();
    assert_eq!((growth["live_objects"].as_i64(), objects), (Some(4), 4), "{growth}");
    Ok(())
}

/// A report that asks for it has a census of the begin and one of the end, and so has a window.
#[test]
fn in_reports() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let program = directory.path().join("heap_of_window");
    fs::copy(environment::target("heap_census")?, &program)?;
    let mut command = Command::new(&program);
    command.args(["5000", "0"]);
    let mut process = Process::start("heap_of_window", command)?;
    let pid = process.pid();
    let ready = truth(&mut process, "READY ")?;
    let mut command = Command::new(environment::drainprof()?);
    command.args(["growth", "--census", "-o", "json", "-p", &pid.to_string()]);
    let mut growth = Process::start("drainprof growth", command)?;
    growth.expect_err("drainprof: attached ")?;
    process.send_line("grow")?;
    let grown = truth(&mut process, "GROWN ")?;
    growth.signal(Signal::SIGINT)?;
    let ended = growth.finish()?;
    ensure!(ended.status.success(), "{:?}", ended.stderr);
    compared(&serde_json::from_str(&ended.stdout.join("\n"))?, &ready, &grown)?;
    let daemon = daemon(directory, &program)?;
    until_equal(&daemon, pid, &grown)?;
    let (_, body) = daemon.post("/api/v1/diagnose", &format!("{{\"pid\":{pid},\"seconds\":1}}"))?;
    let state = daemon.until_window_ended()?;
    let path = format!("/api/v1/windows/{}/report", state["windows"][0]["id"]);
    let report: Value = serde_json::from_str(&daemon.get(&path)?.1).context(body)?;
    let census = &report["targets"][0]["census"];
    for when in ["begin", "end"] {
        let free = number(&census[when]["heaps"][0], "free_bytes")?;
        assert_eq!(free, number(&grown, "free")?, "{when}: {census}");
    }
    let none = serde_json::json!([]);
    let growth = &census["growth"][0];
    assert_eq!((&growth["free_bytes"], &growth["classes"]), (&0.into(), &none), "it slept");
    process.finish()?;
    daemon.finish()?;
    Ok(())
}

/// The heap that the command finds.
fn command_census(pid: u32) -> Result<Value> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let census: Value = serde_json::from_slice(&output.stdout)?;
    let heaps = census["heaps"].as_array().context("heaps")?;
    Ok(heaps.iter().find(|heap| heap["allocator"] == "glibc").context("glibc")?.clone())
}

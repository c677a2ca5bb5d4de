//! Whoever reads the output slowly, or not at all, does not hold the observation up.

use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::command,
};
use serde_json::Value;

/// Bytes that the reader takes at once, and how long it waits in between.
const SLOWLY: (usize, Duration) = (8 << 10, Duration::from_millis(100));

/// Three seconds of everything that there is to tell.
fn observe(pid: u32) -> Result<Command> {
    let mut command = command()?;
    command.args(["attach", "-p"]).arg(pid.to_string()).args(["--profile"]);
    command.arg(environment::profile("arena"));
    command.args(["-o", "ndjson", "--events", "--interval", "100ms", "-d", "3"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// The last record of a slow reader, and how long it took.
fn read_slowly(child: &mut Child) -> Result<(Vec<u8>, Duration)> {
    let mut out = child.stdout.take().context("its output")?;
    let (began, (most, pause)) = (Instant::now(), SLOWLY);
    let mut text = Vec::new();
    let mut part = vec![0; most];
    loop {
        let length = out.read(&mut part)?;
        if length == 0 {
            return Ok((text, began.elapsed()));
        }
        text.extend_from_slice(&part[..length]);
        thread::sleep(pause);
    }
}

/// A slow reader loses records, which are counted; the result comes when it is due.
#[test]
fn records_are_dropped_and_counted() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut service = Target::start("routing", &["rate=20000"])?;
    service.go()?;
    let mut child = observe(service.pid())?.spawn()?;
    let (text, took) = read_slowly(&mut child)?;
    let status = child.wait()?;
    let text = String::from_utf8(text)?;
    let records: Vec<Value> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("whole records")?;
    let last = records.last().context("a record")?;
    assert_eq!(last["record"], "report");
    let report = &last["report"];
    let seconds = report["window"]["seconds"].as_f64().context("a window")?;
    assert!((3.0..5.0).contains(&seconds), "the observation took {seconds} s");
    assert!(report["losses"]["records_dropped"].as_u64() > Some(0), "{}", report["losses"]);
    assert_eq!((&report["complete"], status.code()), (&Value::Bool(true), Some(0)));
    // Loading takes a moment; then there is what the pipe holds, and the result.
    assert!(took < Duration::from_secs(8), "{took:?}");
    service.go()?;
    service.finish()?;
    Ok(())
}

/// Whoever keeps up gets everything.
#[test]
fn nothing_is_dropped_for_whoever_reads() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut service = Target::start("routing", &["rate=500"])?;
    service.go()?;
    let output = observe(service.pid())?.output()?;
    let text = String::from_utf8(output.stdout)?;
    let last: Value = serde_json::from_str(text.lines().last().context("a record")?)?;
    assert_eq!(last["report"]["losses"]["records_dropped"], 0);
    let closed = last["report"]["targets"][0]["allocators"][0]["granules"]["closed"].as_u64();
    let records = text.lines().filter(|line| line.contains("\"record\":\"close\"")).count();
    assert_eq!(closed, Some(records as u64));
    service.go()?;
    service.finish()?;
    Ok(())
}

//! Heaps that are made to cost whoever reads them: a census takes what the size of the process allows, and no more, and says
//! what it did not read.

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    process::Process,
};
use nix::sys::resource::{Resource, setrlimit};
use serde_json::Value;

/// Memory that the reader may have, whatever it reads. Not `RLIMIT_AS`, which counts mapped files too: a program with its
/// debug information is larger than what is to be found.
const MEMORY: u64 = 192 << 20;
/// Bytes that are read at most: for each resident byte, and beside that.
const EACH: u64 = 16;
const MORE: u64 = 64 << 20;

fn hostile(kind: &str) -> Result<Process> {
    let mut command = Command::new(environment::target("hostile_heaps")?);
    command.arg(format!("kind={kind}"));
    let mut process = Process::start("hostile_heaps", command)?;
    process.expect_out("READY ")?;
    Ok(process)
}

/// A census by a process with little memory.
fn census(pid: u32, more: &[&str]) -> Result<Value> {
    let mut command = Command::new(environment::drainprof()?);
    command.args(["census", "-o", "json", "-p", &pid.to_string()]).args(more);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = limited(child)?;
    let output = child.wait_with_output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    // Where no heap is known in the end, the document says so, too.
    let is_written = matches!(output.status.code(), Some(0 | 4));
    ensure!(is_written, "{}: {talk}", output.status);
    let census: Value = serde_json::from_slice(&output.stdout)?;
    let sum = |parts: &Value| -> Result<u64> {
        let parts = parts.as_array().context("a list")?;
        Ok(parts.iter().filter_map(|part| part["bytes"].as_u64()).sum())
    };
    let [rss, read, validated] = ["rss_bytes", "read_bytes", "validated_bytes"]
        .map(|key| census[key].as_u64().unwrap_or_default());
    assert!(read <= EACH * rss + MORE, "{read} bytes of {rss} were read");
    assert_eq!(sum(&census["parts"])?, rss, "{}", census["parts"]);
    assert_eq!(validated + sum(&census["unknown"])?, rss, "{}", census["unknown"]);
    Ok(census)
}

fn limited(command: &mut Command) -> Result<Child> {
    // SAFETY: `setrlimit` is a system call, and nothing else is done between fork and exec.
    unsafe {
        command
            .pre_exec(|| setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY).map_err(io::Error::from));
    }
    Ok(command.spawn()?)
}

fn heap<'a>(census: &'a Value, allocator: &str) -> Option<&'a Value> {
    census["heaps"].as_array()?.iter().find(|heap| heap["allocator"] == allocator)
}

/// More extents than there is memory to keep are not counted, and that is said; what was not read is not known.
#[test]
fn extents() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let process = hostile("extents")?;
    for more in [&[][..], &["--freeze"]] {
        let census = census(process.pid(), more)?;
        let what = census["ran_out"].as_str().with_context(|| census.to_string())?;
        let notes = census["notes"].to_string();
        assert!(notes.contains(what) && notes.contains("unknown"), "{notes}");
        let [rss, validated] =
            ["rss_bytes", "validated_bytes"].map(|key| census[key].as_u64().unwrap_or_default());
        assert!(validated < rss / 4, "{validated} of {rss}");
        assert!(heap(&census, "jemalloc").is_none_or(|heap| heap["trimmable_bytes"].is_null()));
        let frozen = census["frozen_seconds"].as_f64().unwrap_or_default();
        assert!(frozen < 8.0, "{frozen}");
    }
    Ok(())
}

/// A chain that seems to lead to many places costs a few times what it has.
#[test]
fn chain() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let process = hostile("chain")?;
    let census = census(process.pid(), &[])?;
    let heap = heap(&census, "glibc").with_context(|| census.to_string())?;
    assert!(heap["unknown_bytes"].as_u64() >= Some(2 << 20), "{heap}");
    assert!(heap["trimmable_bytes"].is_null(), "{heap}");
    assert!(census["read_bytes"].as_u64() < Some(64 << 20), "{census}");
    Ok(())
}

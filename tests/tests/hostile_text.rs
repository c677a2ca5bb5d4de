//! What strangers wrote does nothing to a terminal: reports, profiles and configurations whose every text is a command
//! to one.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root},
    node::{Daemon, alone, configure},
    target::Target,
    tracer::{command, trace},
};
use serde_json::Value;

/// Sets the title, rings and colours; once as it is, and once as the second range of control characters has it.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\r";
/// Keys whose values are one of a few words: a report with others is refused.
const WORDS: [&str; 14] = [
    "schema", "how", "kind", "level", "weight", "verdict", "class", "path_end", "state",
    "exe_kind", "unit", "severity", "began", "ended",
];

/// Makes every text of a document hostile, but for keys that are `kept`.
fn spoil(value: &mut Value, kept: &[&str]) {
    match value {
        Value::String(text) => HOSTILE.clone_into(text),
        Value::Array(all) => all.iter_mut().for_each(|one| spoil(one, kept)),
        Value::Object(fields) => {
            let spoilt = fields.iter_mut().filter(|(key, _)| !kept.contains(&key.as_str()));
            spoilt.for_each(|(_, value)| spoil(value, kept));
        }
        _ => {}
    }
}

/// Runs drainprof, and checks all that it says.
fn says_nothing_hostile(args: &[&str]) -> Result<Option<i32>> {
    let mut command: Command = command()?;
    let output = command.args(args).stdin(Stdio::null()).output()?;
    for text in [&output.stdout, &output.stderr] {
        let text = String::from_utf8(text.clone())?;
        let bad = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(bad, None, "{args:?}: {text:?}");
    }
    assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{args:?} says nothing");
    Ok(output.status.code())
}

/// A report and the comparison of two, in every format that is text; also where a word is none of those that it may be,
/// so that the report is refused with it.
#[test]
fn reports() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = trace("psweep", &["p=2500"], "arena", &["--level", "stacks"])?;
    let directory = tempfile::tempdir()?;
    let file = |name: &str, value: &Value| -> Result<String> {
        let path = directory.path().join(name);
        fs::write(&path, value.to_string())?;
        Ok(path.to_string_lossy().into_owned())
    };
    let mut spoilt = traced.outcome.report().clone();
    spoil(&mut spoilt, &WORDS);
    let path = file("spoilt.json", &spoilt)?;
    for format in ["text", "json", "ndjson", "folded", "flamegraph"] {
        assert_eq!(says_nothing_hostile(&["report", &path, "-o", format])?, Some(0), "{format}");
    }
    for format in ["text", "json", "folded"] {
        let code = says_nothing_hostile(&["diff", &path, &path, "-o", format])?;
        assert!(code.is_some(), "{format}");
    }
    for word in WORDS {
        let kept: Vec<&str> = WORDS.into_iter().filter(|kept| *kept != word).collect();
        let mut worse = traced.outcome.report().clone();
        spoil(&mut worse, &kept);
        let path = file("worse.json", &worse)?;
        says_nothing_hostile(&["report", &path])?;
        says_nothing_hostile(&["diff", &path, &path])?;
    }
    Ok(())
}

/// A profile's texts, keys and values.
#[test]
fn profiles() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("hostile.toml");
    let quoted = "\\u001b]0;x\\u0007\\u001b[31m\\u009b2J\\r";
    let arena = fs::read_to_string(environment::profile("arena"))?;
    for (from, to) in [
        ("name = \"test-arena\"", format!("name = \"{quoted}\"")),
        ("kind = \"drain\"", format!("kind = \"{quoted}\"")),
        ("summary = \"", format!("summary = \"{quoted}")),
        ("role = \"open\"", format!("role = \"{quoted}\"")),
        ("at = \"arena_open\"", format!("at = \"{quoted}\"")),
        ("instance = \"arg0\"", format!("instance = \"{quoted}\"")),
        ("schema = 1", format!("schema = 1\n\"{quoted}\" = 1")),
        ("schema = 1", format!("schema = {HOSTILE}")),
    ] {
        fs::write(&path, arena.replacen(from, &to, 1))?;
        let path = path.to_string_lossy();
        says_nothing_hostile(&["profile", "check", &path])?;
        let shown = says_nothing_hostile(&["attach", "-p", "1", "--profile", &path, "--dry-run"])?;
        assert!(shown.is_some());
    }
    Ok(())
}

/// A configuration's keys and values, refused line by line.
#[test]
fn configurations() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("hostile.toml");
    let quoted = "\\u001b]0;x\\u0007\\u001b[31m\\u009b2J\\r";
    for text in [
        format!("\"{quoted}\" = 1\n"),
        format!("daemon.interval = \"{quoted}\"\n"),
        format!("daemon.level = \"{quoted}\"\n"),
        format!("daemon.interval = {HOSTILE}\n"),
    ] {
        fs::write(&path, text)?;
        assert_eq!(check(&path)?, Some(78));
    }
    Ok(())
}

fn check(path: &Path) -> Result<Option<i32>> {
    says_nothing_hostile(&["config", "check", "--config", &path.to_string_lossy()])
}

/// A control group, until it is dropped; `None` where there can be none.
struct Group(std::path::PathBuf);

impl Group {
    fn with(name: &str, pid: u32) -> Option<Self> {
        let group = Self(Path::new("/sys/fs/cgroup").join(name));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Names of programs, files, threads and control groups in logs: one line stays one line, and none is forged.
#[test]
fn logs() -> Result<()> {
    const FORGED: &str = "a\nWARN x\u{1b}[2J";
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let (program, library) = (directory.path().join(FORGED), directory.path().join("l\nWARN x\r"));
    fs::copy(environment::target("psweep")?, &program)?;
    fs::write(&library, "no ELF file")?;
    let mut hostile = Command::new(&program);
    hostile.arg("closes=10").env("DRAINPROF_TEST_MAP", &library);
    let target = Target::start_command("psweep", hostile)?;
    let comm = fs::read(format!("/proc/{}/comm", target.pid()))?;
    assert!(comm.starts_with(b"a\nWARN x"), "{comm:?}");
    let _group = Group::with(&format!("drainprof-test\nWARN x{}", target.pid()), target.pid());
    let place = tempfile::tempdir()?;
    let all = directory.path().join("*");
    let rule = format!("select.rules = [{{ action = \"include\", exe = \"{}\" }}]", all.display());
    configure(place.path(), &["arena"], &rule)?;
    let mut command = Command::new(environment::drainprof()?);
    command.arg("-vv");
    let daemon = Daemon::start_command(command, place)?;
    daemon.attached(&[target.pid()])?;
    target.kill()?;
    daemon.until("it is gone", |state| state["targets"].as_array().is_some_and(Vec::is_empty))?;
    let log = daemon.finish()?.stderr;
    let named: Vec<&String> = log.iter().filter(|line| line.contains("WARN x")).collect();
    named.first().context("the log names it")?;
    for line in &log {
        let bad = line.chars().find(|c| c.is_control());
        assert_eq!(bad, None, "{line:?}");
        assert!(!line.trim_start().starts_with("WARN x"), "{log:#?}");
    }
    Ok(())
}

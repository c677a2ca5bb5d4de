//! `drainprof why`: what it says of programs of which the truth is known. No case is called healthy that is not, none
//! leaking that does not leak, and the page fits a terminal.

use std::{fs, process::Command, thread};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    process::Process,
    target::Target,
    tracer::command,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;

/// A running program, and what `why` must say of it.
struct Case {
    name: &'static str,
    program: Program,
    profile: Option<&'static str>,
    answer: &'static str,
    /// Parts of the sentences on who holds memory, and on what to do.
    said: &'static [&'static str],
}

/// What runs.
enum Program {
    /// Python; it prints `ready` once it does what it is for.
    Python(&'static str),
    /// A test target with an argument, and the beginning of the line that it prints then.
    Target(&'static str, &'static str, &'static str),
}

impl Program {
    fn start(&self, name: &str) -> Result<Process> {
        let mut command = match self {
            Self::Python(text) => {
                let mut python = Command::new("python3");
                python.args(["-c", text]);
                python
            }
            Self::Target(name, argument, _) => {
                let mut target = Command::new(environment::target(name)?);
                target.arg(argument);
                target
            }
        };
        command.env("PYTHONMALLOC", "pymalloc");
        let mut process = Process::start(name, command)?;
        match self {
            Self::Target(_, _, "") => {}
            Self::Target(_, _, ready) => drop(process.expect_out(ready)?),
            Self::Python(_) => drop(process.expect_out("ready")?),
        }
        Ok(process)
    }
}

/// Tuples and strings of a service, most of which have gone: in nearly every arena some are left.
const SPARSE: &str = "
import time
all = [('name %d' % number, number) for number in range(800_000)]
keep = all[::97]
del all
print('ready', flush=True)
time.sleep(1000)
";

/// A megabyte a second that stays.
const LEAK: &str = "
import time
keep = []
print('ready', flush=True)
while True:
    keep.append(bytearray(100_000))
    time.sleep(0.1)
";

/// A cache that is full, and whose entries come and go.
const STEADY: &str = "
import time
cache = {number: bytearray(1000) for number in range(40_000)}
print('ready', flush=True)
number = 0
while True:
    cache[number % 40_000] = bytearray(1000)
    number += 1
    if number % 100 == 0: time.sleep(0.01)
";

/// Memory that is the program's own, of no allocator.
const OWN: &str = "
import mmap, time
own = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 200 << 20, 4096): own[at] = 1
print('ready', flush=True)
time.sleep(1000)
";

const CASES: [Case; 6] = [
    Case {
        name: "an arena per request, with sessions in them",
        program: Program::Target("request_server", "requests=1000000000", ""),
        profile: Some("request-server"),
        answer: "pinned",
        said: &["log_in", "closes were pinned", "--level stacks"],
    },
    Case {
        name: "few objects keep arenas",
        program: Program::Python(SPARSE),
        profile: None,
        answer: "pinned",
        said: &["cpython", "drainprof census"],
    },
    Case {
        name: "a leak",
        program: Program::Python(LEAK),
        profile: None,
        answer: "growing",
        said: &["drainprof growth"],
    },
    Case {
        name: "a full cache",
        program: Program::Python(STEADY),
        profile: None,
        answer: "healthy",
        said: &[],
    },
    Case {
        name: "a heap of which much is free",
        program: Program::Target("heap_census", "400000", "READY "),
        profile: None,
        answer: "idle",
        said: &["malloc_trim(0)"],
    },
    Case {
        name: "memory of no allocator",
        program: Program::Python(OWN),
        profile: None,
        answer: "unknown",
        said: &["no known heap"],
    },
];

impl Case {
    fn ask(&self, pid: u32) -> Result<Value> {
        let mut why = command()?;
        why.args(["why", "-o", "json", "-d", "25s", "-p", &pid.to_string()]);
        if let Some(profile) = self.profile {
            why.args(["--profile", &environment::profile(profile)]);
        }
        let output = why.output()?;
        let talk = String::from_utf8_lossy(&output.stderr);
        let expected = if self.answer == "unknown" { 5 } else { 0 };
        ensure!(output.status.code() == Some(expected), "{}: {}: {talk}", self.name, output.status);
        serde_json::from_slice(&output.stdout).with_context(|| talk.into_owned())
    }

    fn check(&self) -> Result<()> {
        let process = self.program.start(self.name)?;
        let why = self.ask(process.pid())?;
        ensure!(why["answer"] == self.answer, "{}: {why:#}", self.name);
        let text = why.to_string();
        for part in self.said {
            ensure!(text.contains(part), "{}: nothing of {part}: {why:#}", self.name);
        }
        // Ten seconds' budget may be spent at once, at each of two levels.
        let cost = why["cost_ratio"].as_f64().context("a cost")?;
        ensure!(cost < 0.05, "{}: the probes took {cost}", self.name);
        Ok(())
    }
}

/// All at once: each takes as long as a verdict on growth does.
#[test]
fn the_answers_are_true() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    thread::scope(|scope| {
        let all: Vec<_> = CASES.iter().map(|case| scope.spawn(|| case.check())).collect();
        let failed = all.into_iter().filter_map(|case| match case.join() {
            Ok(checked) => checked.err().map(|error| format!("{error:#}")),
            Err(_) => Some("it panicked".to_owned()),
        });
        let failed: Vec<String> = failed.collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        Ok(())
    })
}

/// A command under a shell, from its first instruction on: the server that the shell starts is who is reported, exactly, and
/// goes on after the answer until it is done.
#[test]
fn a_command() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let server = environment::target("request_server")?;
    let mut why = command()?;
    why.args([
        "why",
        "-o",
        "json",
        "-d",
        "10s",
        "--profile",
        &environment::profile("request-server"),
    ]);
    let script = "\"$0\" requests=40000 & wait; exit 7";
    why.args(["--", "sh", "-c", script]).arg(&server);
    let output = why.output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(talk.contains("the command has ended with exit status: 7"), "{talk}");
    // The server prints what it has done beside the answer.
    let all = String::from_utf8_lossy(&output.stdout);
    let document = all.find("{\n").context("a document")?;
    let mut documents = serde_json::Deserializer::from_str(&all[document..]).into_iter::<Value>();
    let said = documents.next().context("an answer")??;
    let comm = said["comm"].as_str().context("a name")?;
    ensure!(server.ends_with(comm) || comm.starts_with("request_serv"), "{said:#}");
    let granules = said["holders"].as_array().into_iter().flatten();
    ensure!(granules.filter(|holder| holder["kind"] == "granules").count() == 1, "{said:#}");
    Ok(())
}

/// Asks without a profile; drafts go to a directory of the test's own.
fn without_profile(pid: u32, time: &str, drafts: &TempDir) -> Result<Value> {
    let mut why = command()?;
    why.env("DRAINPROF_CACHE_DIR", drafts.path());
    let output = why.args(["why", "-o", "json", "-d", time, "-p", &pid.to_string()]).output()?;
    serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// No profile knows this allocator: one is drafted from its functions, its kind is found out by frees that come after the
/// closes, and its counts are the truth: every second request pins.
#[test]
fn a_draft_is_proven() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let drafts = TempDir::new()?;
    // The draft is tried for 10 s, and a session ends after 1.7. Five times as many requests cost more than the budget, and
    // windows see no free of what an earlier one saw.
    let mut service = Target::start("routing", &["rate=60", "life=100"])?;
    kill(Pid::from_raw(service.pid().cast_signed()), Signal::SIGUSR1)?;
    service.go()?;
    let why = without_profile(service.pid(), "30s", &drafts)?;
    service.go()?;
    service.finish()?;
    let draft = &why["draft"];
    assert_eq!((&draft["kind"], &draft["against"]), (&"drain".into(), &Value::Null), "{why:#}");
    let path = draft["path"].as_str().context("a path")?;
    assert!(path.starts_with(&drafts.path().display().to_string()) && fs::exists(path)?, "{path}");
    let holders = why["holders"].as_array().context("holders")?;
    let granules = holders.iter().find(|holder| holder["kind"] == "granules");
    let text = granules.and_then(|holder| holder["text"].as_str()).context("a holder")?;
    let dsr = text.split("(DSR ").nth(1).and_then(|rest| rest.split(')').next());
    let dsr: f64 = dsr.context("a DSR")?.parse()?;
    assert!((dsr - 0.5).abs() < 0.002, "{text}");
    assert!(why["who"].to_string().contains("make_session"), "{why:#}");
    Ok(())
}

/// The granule's own live count stands in the DWARF, says the same as counting, and so becomes part of the draft, which then
/// measures at level `boundary` what every fourth request pins.
#[test]
fn a_live_count_is_proven() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let drafts = TempDir::new()?;
    let mut server = Command::new(environment::target("request_server")?);
    // A session ends after 1 s; the draft is tried for 7, within its budget.
    server.args(["requests=1000000000", "rate=24", "session=24"]);
    let server = Process::start("server", server)?;
    // A machine with other work leaves probes less time within the budget; then it says that the kind stays open.
    let mut why = without_profile(server.pid(), "21s", &drafts)?;
    for longer in ["42s", "84s", "168s"] {
        if why["unseen"].to_string().contains("closes left live objects") {
            why = without_profile(server.pid(), longer, &drafts)?;
        }
    }
    let draft = &why["draft"];
    assert_eq!((&draft["kind"], &draft["against"]), (&"drain".into(), &Value::Null), "{why:#}");
    assert_eq!(draft["live"], "*(u64)(arg0 + offsetof(arena, live))", "{why:#}");
    let path = draft["path"].as_str().context("a path")?;
    let mut attach = command()?;
    attach.args(["attach", "-o", "json", "-d", "2s", "--level", "boundary", "--profile", path]);
    let output = attach.args(["-p", &server.pid().to_string()]).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    let granules = &report["targets"][0]["allocators"][0]["granules"];
    let count = |what: &str| granules[what].as_u64().unwrap_or_default();
    let (drained, pinned) = (count("drainable"), count("pinned"));
    // Every fourth, wherever the time begins and ends.
    assert!(pinned > 5 && (drained + pinned).div_ceil(4).abs_diff(pinned) <= 1, "{granules}");
    Ok(())
}

/// Where no free was seen after a close, as there was too little time, the kind stays open, and nothing is called pinned.
#[test]
fn a_kind_stays_open() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let drafts = TempDir::new()?;
    let mut server = Command::new(environment::target("request_server")?);
    server.arg("requests=1000000000");
    let server = Process::start("server", server)?;
    let why = without_profile(server.pid(), "21s", &drafts)?;
    assert_eq!((&why["answer"], &why["draft"]["kind"]), (&"unknown".into(), &"bulk".into()));
    let unseen = why["unseen"].to_string();
    assert!(unseen.contains("closes left live objects"), "{why:#}");
    assert!(unseen.contains("the draft was tried in parts of the time"), "{why:#}");
    Ok(())
}

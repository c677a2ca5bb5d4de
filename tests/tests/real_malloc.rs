//! The mallocs that Debian has, under one program that allocates in every way that C and C++ know.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root, skip},
    tracer::Tracer,
};
use serde_json::Value;

const ROUNDS: u64 = 500;

/// A library that is preloaded, where it is installed.
fn library(file: &str) -> Option<PathBuf> {
    let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]
        .map(|directory| PathBuf::from(directory).join(file))
        .into_iter()
        .find(|path| path.is_file());
    if found.is_none() {
        skip(&format!("{file} is not installed"));
    }
    found
}

/// What the program says of itself, and its report.
struct Run {
    made: u64,
    freed: u64,
    live_bytes: u64,
    report: Value,
}

fn run(profile: &str, preload: Option<&PathBuf>, rounds: u64) -> Result<Run> {
    let mut command = Command::new(environment::target("malloc_family")?);
    command.arg(rounds.to_string());
    if let Some(library) = preload {
        // drainprof itself goes without it.
        let program = command.get_program().to_owned();
        command = Command::new("/usr/bin/env");
        command
            .arg(format!("LD_PRELOAD={}", library.display()))
            .arg(program)
            .arg(rounds.to_string());
    }
    let outcome = Tracer::run_command(&command, profile, &[])?.finish()?;
    let line = outcome.stdout.iter().find(|line| line.starts_with("MADE")).context("its truth")?;
    let mut words = line.split_whitespace().skip(1).step_by(2).map(str::parse);
    let mut next = || words.next().context("a number").and_then(|word| Ok(word?));
    let (made, freed, live_bytes) = (next()?, next()?, next()?);
    let report = outcome.report.context("a report")?;
    assert_eq!(report["complete"], true, "{profile}: {}", report["losses"]);
    Ok(Run { made, freed, live_bytes, report })
}

/// The last program: with `env` in front there are two.
fn last(report: &Value) -> Result<&Value> {
    report["targets"].as_array().and_then(|all| all.last()).context("a target")
}

fn live(run: &Run) -> Result<[u64; 2]> {
    let allocator = &last(&run.report)?["allocators"][0];
    assert_eq!(allocator["census"]["unknown_frees"], 0, "{allocator}");
    assert_eq!(run.report["losses"]["objects_replaced"], 0);
    let objects = &allocator["objects"];
    let number = |key: &str| objects[key].as_u64().with_context(|| format!("no {key}"));
    Ok([number("live")?, number("live_bytes")?])
}

/// Every object that the program makes and frees is seen once, whichever malloc serves it and whichever of its functions
/// call one another: what is live at the end is exact, in objects and bytes, beyond what the libraries hold themselves.
#[test]
fn every_malloc_is_exact() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    for (profile, file) in [
        ("malloc-glibc", None),
        ("malloc-jemalloc", Some("libjemalloc.so.2")),
        ("malloc-mimalloc", Some("libmimalloc.so.2")),
        ("malloc-mimalloc", Some("libmimalloc.so.3")),
        ("malloc-tcmalloc", Some("libtcmalloc_minimal.so.4")),
        ("malloc-tcmalloc", Some("libtcmalloc.so.4")),
    ] {
        let preload = file.map(library);
        if preload == Some(None) {
            continue;
        }
        let preload = preload.flatten();
        let none = live(&run(profile, preload.as_ref(), 0)?)?;
        let some = run(profile, preload.as_ref(), ROUNDS)?;
        let [objects, bytes] = live(&some)?;
        assert_eq!(some.made, 18 * ROUNDS, "the program's own count");
        assert_eq!(objects - none[0], some.made - some.freed, "{profile} {file:?}");
        assert_eq!(bytes - none[1], some.live_bytes, "{profile} {file:?}");
    }
    Ok(())
}

/// Where another malloc is preloaded, glibc's is mapped too, and serves nothing: its profile says that it never fired.
#[test]
fn the_other_malloc_is_silent() -> Result<()> {
    let Some(jemalloc) = library("libjemalloc.so.2").filter(|_| requires_root()) else {
        return Ok(());
    };
    let run = run("malloc-glibc", Some(&jemalloc), 10)?;
    let allocator = &last(&run.report)?["allocators"];
    let seen = allocator[0]["objects"]["allocated"].as_u64().unwrap_or_default();
    assert_eq!((run.made, seen), (180, 0), "{allocator}");
    Ok(())
}

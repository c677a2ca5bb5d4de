//! What is made of sites, from end to end: folded stacks, flame graph, pprof, and saved reports that are read again.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    target::Target,
    tracer::{self, Outcome, Tracer},
};
use serde_json::Value;

/// What every round of `paths` pins, in the order of folded stacks.
const INNER: &str = "main;drive;path_b;path_b_inner;make_object ";
/// `paths rounds=60`: path number 2 pins every third of 60 rounds.
const INNER_GRANULES: u64 = 20;

/// Attaches with an output format; the output is at `path`.
fn observe(format: &str, path: &Path, more: &[&str]) -> Result<Outcome> {
    let mut target = Target::start("paths", &["rounds=60"])?;
    let mut command = tracer::command()?;
    command.args(["attach", "-p", &target.pid().to_string(), "--level", "stacks", "--top", "2000"]);
    command.args(["--profile", &environment::profile("paths"), "-o", format, "-O"]).arg(path);
    command.args(more);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    target.finish()?;
    let outcome = tracer.finish()?;
    ensure!(outcome.code == Some(0), "{format}: exit {:?}: {}", outcome.code, outcome.talk());
    Ok(outcome)
}

/// `drainprof report` on a saved report; what it prints.
fn report(path: &Path, more: &[&str]) -> Result<String> {
    let mut command = tracer::command()?;
    command.arg("report").arg(path).args(more);
    let output = command.output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "report {more:?}: {}: {talk}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Lines of folded stacks, sorted.
fn folded(text: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (_, value) = line.rsplit_once(' ').context("a stack and a number")?;
        ensure!(value.parse::<u64>().is_ok(), "no number at the end of {line:?}");
        lines.push(line.to_owned());
    }
    lines.sort();
    Ok(lines)
}

fn total(lines: &[String]) -> u64 {
    lines.iter().filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
}

fn saved(path: &Path) -> Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Sum of a figure over the sites of the only allocator.
fn sum(report: &Value, key: &str) -> u64 {
    let sites = report["targets"][0]["allocators"][0]["sites"].as_array();
    sites.into_iter().flatten().filter_map(|site| site[key].as_u64()).sum()
}

/// Folded stacks have each path once, outermost first, with the granules that it pins; made live or from a saved
/// report they are the same.
#[test]
fn folded_stacks() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let (live, json) = (directory.path().join("live"), directory.path().join("report.json"));
        observe("folded", &live, &[])?;
        observe("json", &json, &[])?;
        let live = folded(&fs::read_to_string(&live)?)?;
        let later = folded(&report(&json, &["-o", "folded"])?)?;
        assert_eq!(live, later);
        assert_eq!(total(&live), sum(&saved(&json)?, "granules_pinned"));
        let inner: Vec<&String> = live.iter().filter(|line| line.contains(INNER)).collect();
        ensure!(inner.len() == 1, "{live:#?}");
        assert!(inner[0].ends_with(&format!("{INNER}{INNER_GRANULES}")), "{inner:?}");
        assert!(
            live.iter().all(|line| line.contains("_start") || line.contains("worker;make_object"))
        );
    }
    Ok(())
}

/// Other weights are other figures of the same sites.
#[test]
fn weights() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let json = directory.path().join("report.json");
        observe("json", &json, &[])?;
        let document = saved(&json)?;
        for (weight, key) in
            [("granules", "granules_pinned"), ("bytes", "bytes"), ("retained", "retained_bytes")]
        {
            let lines = folded(&report(&json, &["-o", "folded", "--weight", weight])?)?;
            assert_eq!(total(&lines), sum(&document, key), "{weight}");
            assert!(total(&lines) > 0, "{weight}");
        }
    }
    Ok(())
}

/// The flame graph is an SVG with the paths' functions in it.
#[test]
fn flame_graph() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("graph.svg");
        observe("flamegraph", &path, &[])?;
        let text = fs::read_to_string(&path)?;
        ensure!(text.contains("<svg") && text.trim_end().ends_with("</svg>"), "no SVG");
        for function in ["path_b_inner", "path_aligned", "worker", "make_object", "_start"] {
            assert!(text.contains(&format!("<title>{function} (")), "no frame of {function}");
        }
    }
    Ok(())
}

/// The pprof profile is compressed, and its table of strings has the sample types, functions and files.
#[test]
fn pprof() -> Result<()> {
    if requires_root() && has_programs(&["gzip"]) {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("pins.pb.gz");
        observe("pprof", &path, &[])?;
        let mut gzip = Command::new("gzip");
        let mut child = gzip.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let packed = fs::read(&path)?;
        // Less than a pipe holds, so that nobody waits for anybody.
        ensure!(packed.len() < 65536, "{} bytes", packed.len());
        child.stdin.take().context("a pipe")?.write_all(&packed)?;
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "gzip: {}", output.status);
        for word in [
            "pinned_granules",
            "pinning_objects",
            "pinned_space",
            "pin_delay",
            "nanoseconds",
            "path_b_inner",
            "paths.c",
        ] {
            let found = output.stdout.windows(word.len()).any(|window| window == word.as_bytes());
            assert!(found, "no {word} in the profile");
        }
    }
    Ok(())
}

/// The profile for the Firefox Profiler is made of events: its allocations that are not freed add up to the retained
/// bytes of the same run with a report, and each has a call stack.
#[test]
fn firefox() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let [profile, json] =
            ["profile.json", "report.json"].map(|name| directory.path().join(name));
        observe("firefox", &profile, &[])?;
        observe("json", &json, &[])?;
        let profile = saved(&profile)?;
        let threads = profile["threads"].as_array().context("threads")?;
        let tables: Vec<&Value> = threads
            .iter()
            .map(|own| &own["nativeAllocations"])
            .filter(|own| own.is_object())
            .collect();
        let [table] = tables[..] else {
            anyhow::bail!("{} threads with allocations", tables.len())
        };
        let mut retained = std::collections::BTreeMap::new();
        let rows = table["memoryAddress"].as_array().into_iter().flatten();
        for (address, bytes) in rows.zip(table["weight"].as_array().into_iter().flatten()) {
            match bytes.as_i64().context("a number of bytes")? {
                bytes if bytes < 0 => drop(retained.remove(&address.as_u64())),
                bytes => drop(retained.insert(address.as_u64(), bytes.unsigned_abs())),
            }
        }
        let report = saved(&json)?;
        let held = report["targets"][0]["allocators"][0]["retention"]["bytes"].as_u64();
        assert_eq!(Some(retained.values().sum()), held);
        let text = profile.to_string();
        assert!(text.contains("path_b_inner") && !text.contains("without times"), "no events");
    }
    Ok(())
}

/// A saved report that is read again is the same report, and its text shows the paths.
#[test]
fn saved_reports() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let json = directory.path().join("report.json");
        observe("json", &json, &[])?;
        let again: Value = serde_json::from_str(&report(&json, &["-o", "json", "--top", "2000"])?)?;
        assert_eq!(again, saved(&json)?);
        let text = report(&json, &["-o", "text", "--top", "2000"])?;
        for part in ["path_b_inner", "make_object", "paths.h:", "paths.c:"] {
            assert!(text.contains(part), "no {part} in:\n{text}");
        }
        let few = report(&json, &["-o", "folded", "--include", "path_b_inner"])?;
        assert_eq!(folded(&few)?.len(), 1, "{few}");
        let others =
            report(&json, &["-o", "folded", "--exclude", "path_b_inner", "--top", "2000"])?;
        assert!(!others.contains("path_b_inner") && others.contains("path_aligned"), "{others}");
    }
    Ok(())
}

//! `drainprof report` and `diff` as processes, without privileges: what they print, and their exit codes.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// drainprof among the documentation's saved reports.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drainprof"));
    command
        .args(arguments)
        .current_dir(docs().join("examples"))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs, expects the code, and gives what came to stdout and stderr.
fn expect(code: i32, arguments: &[&str]) -> (String, String) {
    let output = run(arguments);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {out}{err}");
    (out, err)
}

fn example(name: &str) -> Value {
    serde_json::from_slice(&fs::read(docs().join("examples").join(name)).unwrap()).unwrap()
}

/// Each `$ drainprof …` of the page, run among the example reports, prints what the page shows
/// (`UPDATE_DOCS=1` rewrites it).
#[test]
fn the_page_shows_what_is_printed() {
    let path = docs().join("reports-offline.md");
    let page = fs::read_to_string(&path).unwrap();
    let (mut fresh, mut seen) = (String::new(), 0);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        fresh.push_str(line);
        fresh.push('\n');
        if line != "```console" {
            continue;
        }
        let typed = lines.next().unwrap();
        let words: Vec<_> = typed.strip_prefix("$ drainprof ").unwrap().split(' ').collect();
        let words: Vec<_> = words.iter().map(|word| word.trim_matches('\'')).collect();
        fresh.push_str(typed);
        fresh.push('\n');
        fresh.push_str(&text(&run(&words).stdout));
        // What the page shows now is passed by.
        lines.by_ref().find(|line| *line == "```").unwrap();
        fresh += "```\n";
        seen += 1;
    }
    assert!(seen >= 4, "only {seen} examples were found");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &fresh).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == fresh,
        "the page is stale: run with UPDATE_DOCS=1"
    );
}

/// The exit code is that of the report: complete, below a threshold, incomplete; the worst of several.
#[test]
fn exit_codes() {
    let directory = tempfile::tempdir().unwrap();
    let mut value = example("before.json");
    value["complete"] = Value::Bool(false);
    value["losses"]["granule_map_full"] = 1.into();
    let lossy = directory.path().join("lossy.json");
    fs::write(&lossy, value.to_string()).unwrap();
    let lossy = lossy.to_str().unwrap();
    expect(0, &["report", "before.json"]);
    expect(0, &["report", "before.json", "--fail-under", "0.75"]);
    expect(3, &["report", "before.json", "--fail-under", "0.76"]);
    expect(3, &["report", "after.json", "before.json", "--fail-under", "0.9"]);
    expect(5, &["report", lossy, "before.json", "--fail-under", "0.9"]);
    expect(0, &["diff", "before.json", "after.json"]);
    expect(5, &["diff", "before.json", lossy]);
}

/// What cannot be read, and what is no report, is reported with its name; a wrong command line with the option and
/// the place.
#[test]
fn failures_say_what_and_where() {
    let directory = tempfile::tempdir().unwrap();
    let other = directory.path().join("other.json");
    fs::write(&other, "{\"schema\": \"drainprof.plan/1\"}").unwrap();
    let other = other.to_str().unwrap();
    for command in ["report", "diff"] {
        let (_, err) = expect(1, &[command, "before.json", "missing.json"]);
        assert!(err.contains("cannot read missing.json: No such file"), "{err}");
        let (_, err) = expect(1, &[command, "before.json", other]);
        assert!(err.contains(other) && err.contains("`drainprof.plan/1`"), "{err}");
        let (_, err) = expect(1, &[command, "before.json", "."]);
        assert!(err.contains("cannot read .: Is a directory"), "{err}");
        let (_, err) = expect(2, &[command, "-", "-"]);
        assert!(err.contains("only once"), "{err}");
        expect(2, &[command]);
        expect(2, &[command, "before.json", "after.json", "-o", "xml"]);
    }
    let (_, err) = expect(2, &["report", "before.json", "--exclude", "a(b"]);
    assert!(
        err.contains("--exclude <REGEX>") && err.contains("a(b\n") && err.contains("unclosed"),
        "{err}"
    );
    expect(2, &["report", "before.json", "--live-only", "--drained"]);
    let (_, err) = expect(1, &["diff", "before.json", "/dev/null"]);
    assert!(err.contains("/dev/null") && err.contains("empty"), "{err}");
}

/// A document that is written again without filters is the same report; so is one that went through a stream
/// and stdin.
#[test]
fn written_again() {
    let (out, _) = expect(0, &["report", "before.json", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap(), example("before.json"));
    let (stream, _) = expect(0, &["report", "after.json", "before.json", "-o", "ndjson"]);
    assert_eq!(stream.lines().count(), 2);
    let mut child = command(&["report", "-", "-o", "json"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stream.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout).unwrap(), example("before.json"));
}

/// Several reports come one after the other: text with their names, JSON as documents in a row.
#[test]
fn several_reports() {
    let (out, _) = expect(0, &["report", "before.json", "after.json"]);
    let (first, second) =
        (out.find("== before.json ==").unwrap(), out.find("== after.json ==").unwrap());
    assert!(first < second && !expect(0, &["report", "before.json"]).0.contains("=="));
    let (out, _) = expect(0, &["report", "before.json", "after.json", "-o", "json"]);
    let documents: Vec<Value> =
        serde_json::Deserializer::from_str(&out).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(documents, [example("before.json"), example("after.json")]);
}

/// Filters reach the lists of a saved report, and leave its counts.
#[test]
fn filters() {
    let sites = |arguments: &[&str]| {
        let all = [&["report", "before.json", "-o", "json"], arguments].concat();
        let report: Value = serde_json::from_str(&expect(0, &all).0).unwrap();
        let allocator = &report["targets"][0]["allocators"][0];
        assert_eq!(allocator["granules"]["pinned"], 2_474);
        assert_eq!(allocator["sites_total"], 3);
        allocator["sites"].as_array().unwrap().len()
    };
    assert_eq!(sites(&[]), 3);
    assert_eq!(sites(&["--top", "1"]), 1);
    assert_eq!(sites(&["--include", "session", "--include", "cache"]), 2);
    assert_eq!(sites(&["--exclude", "session"]), 2);
    assert_eq!(sites(&["--live-only"]), 2);
    assert_eq!(sites(&["--drained"]), 1);
    assert_eq!(sites(&["--min-size", "1000000"]), 1);
    assert_eq!(sites(&["--min-age", "1s"]), 2);
    let (out, _) = expect(0, &["report", "before.json", "-o", "json", "--no-paths"]);
    assert!(out.contains("make_session") && !out.contains("session.c") && !out.contains("svc"));
}

/// The output may be the input: it is read before it is written.
#[test]
fn in_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.json");
    fs::copy(docs().join("examples/before.json"), &path).unwrap();
    let path = path.to_str().unwrap();
    expect(0, &["report", path, "-o", "json", "--top", "1", "-O", path]);
    let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(report["targets"][0]["allocators"][0]["sites"].as_array().unwrap().len(), 1);
}

/// Counts that do not add up are reported on stderr, once per report; the report is shown all the same.
#[test]
fn changed_reports_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let mut value = example("before.json");
    value["targets"][0]["allocators"][0]["granules"]["opened"] = 1.into();
    let path = directory.path().join("changed.json");
    fs::write(&path, value.to_string()).unwrap();
    let (out, err) = expect(0, &["report", path.to_str().unwrap()]);
    assert!(out.contains("epoch-demo") && err.contains("do not add up"), "{err}");
    assert_eq!(err.lines().count(), 1);
}

/// The picture of a comparison is an SVG; a comparison without call paths has none.
#[test]
fn flame_graph_of_a_comparison() {
    let (out, _) = expect(0, &["diff", "before.json", "after.json", "-o", "flamegraph"]);
    assert!(out.starts_with("<?xml") && out.contains("</svg>") && out.contains("retry_push"));
    let directory = tempfile::tempdir().unwrap();
    let mut value = example("before.json");
    value["targets"][0]["allocators"][0]["sites"] = Value::Null;
    let path = directory.path().join("objects.json");
    fs::write(&path, value.to_string()).unwrap();
    let (_, err) = expect(1, &["diff", "before.json", path.to_str().unwrap(), "-o", "flamegraph"]);
    assert!(err.contains("nothing to draw"), "{err}");
}

/// Widths that the report does not have, beside others, are refused with those that it has.
#[test]
fn widths_that_are_not_there() {
    for format in ["folded", "flamegraph"] {
        let (out, err) = expect(2, &["report", "before.json", "-o", format, "--weight", "faults"]);
        assert!(err.contains("it has granules, bytes, retained") && out.is_empty(), "{err}");
        expect(0, &["report", "before.json", "-o", format, "--weight", "bytes"]);
    }
}

/// A reader that goes away is no failure; one that was never there is.
#[test]
fn a_closed_pipe() {
    let mut child = command(&["report", "before.json", "-o", "json"]).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!((child.wait().unwrap().code(), first), (Some(0), *b"{"));

    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let mut command = command(&["report", "before.json", "-o", "json"]);
    assert_eq!(command.stdout(writer).status().unwrap().code(), Some(1));
}

//! Files that earlier versions wrote are read by this one: reports, histories, configurations, profiles.
//!
//! `versions/0.1.0` is of drainprof 0.1.0, on the demo's server: `attach --level stacks -o json`, the history of a
//! daemon with one diagnostic window, its configuration, and the profile. A format that has to change keeps its reader.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/versions/0.1.0").join(name)
}

/// What drainprof prints, which has to end well.
fn printed(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drainprof"));
    let output = command.args(arguments).env_clear().output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    out.into_owned()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(arguments)).unwrap()
}

/// A report keeps every number; its text names who wrote it; it can be compared.
#[test]
fn report() {
    let path = kept("report.json");
    let path = path.to_str().unwrap();
    let then: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let now = json(&["report", path, "-o", "json"]);
    assert_eq!(now["tool"]["version"], "0.1.0");
    let allocator = |report: &Value| report["targets"][0]["allocators"][0].clone();
    assert!(allocator(&then)["granules"]["closed"].as_u64().unwrap() > 0);
    for part in ["granules", "objects", "pins", "dsr", "retention", "sites"] {
        assert_eq!(allocator(&now)[part], allocator(&then)[part], "{part}");
    }
    assert!(printed(&["report", path]).starts_with("drainprof 0.1.0, "));
    assert!(printed(&["diff", path, path]).contains("drainprof 0.1.0"));
}

/// A history shows its processes and windows; the report of a window is in it.
#[test]
fn history() {
    // Readers write locks beside it.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("history.db");
    fs::copy(kept("history.db"), &path).unwrap();
    let store = ["--store", path.to_str().unwrap()];
    let shown = json(&[&["history", "--since", "20000d", "-o", "json"], &store[..]].concat());
    let process = &shown["processes"][0];
    assert_eq!(process["comm"], "request_server");
    let text = printed(&[&["history", "--since", "20000d"], &store[..]].concat());
    assert!(text.contains("window 1 of request_server"), "{text}");
    let window = json(&[&["report", "--window", "1", "-o", "json"], &store[..]].concat());
    assert_eq!(window["tool"]["version"], "0.1.0");
    assert!(window["targets"][0]["allocators"][0]["granules"]["closed"].as_u64().unwrap() > 0);
}

/// A configuration and a profile mean the same as then.
#[test]
fn configuration_and_profile() {
    let path = kept("drainprof.toml");
    printed(&["config", "check", path.to_str().unwrap()]);
    let shown = printed(&["config", "show", "--config", path.to_str().unwrap()]);
    for line in
        ["interval = \"1s\"", "level = \"objects\"", "below = \"75%\"", "comm = \"request_server\""]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let path = kept("profile.toml");
    printed(&["profile", "check", path.to_str().unwrap()]);
}

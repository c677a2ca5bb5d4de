//! What is shipped to run the daemon, looked at by the programs that will read it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use drainprof_tests::environment::{self, has_programs};

fn deploy() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Runs a program that must be content, and has nothing to say on stderr if `silent`.
fn content(command: &mut Command, silent: bool) -> Result<()> {
    let output = command.output().with_context(|| format!("run {command:?}"))?;
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}{}", String::from_utf8_lossy(&output.stdout));
    assert!(!silent || talk.is_empty(), "{talk}");
    Ok(())
}

/// systemd takes the unit, every line of it, and the lists of groups and directories.
#[test]
fn systemd_takes_the_unit() -> Result<()> {
    if !has_programs(&["systemd-analyze", "systemd-sysusers", "systemd-tmpfiles"]) {
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    let unit = fs::read_to_string(deploy().join("systemd/drainprof.service"))?;
    // It looks whether what is started is there.
    let binary = environment::drainprof()?.display().to_string();
    let changed = unit.replace("/usr/bin/drainprof", &binary);
    assert_ne!(unit, changed, "the unit starts drainprof");
    let path = scratch.path().join("drainprof.service");
    fs::write(&path, changed)?;
    content(Command::new("systemd-analyze").arg("verify").arg(&path), true)?;

    let root = scratch.path().join("root");
    fs::create_dir_all(root.join("etc"))?;
    let root = format!("--root={}", root.display());
    let sysusers = deploy().join("systemd/drainprof.sysusers.conf");
    content(Command::new("systemd-sysusers").arg(&root).arg(sysusers), false)?;
    let groups = fs::read_to_string(scratch.path().join("root/etc/group"))?;
    assert!(groups.lines().any(|line| line.starts_with("drainprof:")), "{groups}");
    fs::write(scratch.path().join("root/etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
    fs::write(scratch.path().join("root/etc/group"), format!("root:x:0:\n{groups}"))?;
    let tmpfiles = deploy().join("systemd/drainprof.tmpfiles.conf");
    content(Command::new("systemd-tmpfiles").args(["--create", &root]).arg(tmpfiles), false)?;
    assert!(scratch.path().join("root/run/drainprof").is_dir());
    assert!(scratch.path().join("root/etc/drainprof/conf.d").is_dir());
    Ok(())
}

/// Prometheus takes the rules, and each alert fires on its case and not on a healthy one.
#[test]
fn prometheus_takes_the_rules() -> Result<()> {
    if !has_programs(&["promtool"]) {
        return Ok(());
    }
    let directory = deploy().join("prometheus");
    let mut check = Command::new("promtool");
    content(check.args(["check", "rules", "drainprof.rules.yml"]).current_dir(&directory), false)?;
    let mut test = Command::new("promtool");
    content(test.args(["test", "rules", "drainprof.tests.yml"]).current_dir(&directory), false)
}

/// The dashboard is JSON, its panels have numbers of their own, and what they ask for are drainprof's metrics.
#[test]
fn dashboard_asks_for_our_metrics() -> Result<()> {
    let text = fs::read_to_string(deploy().join("grafana/drainprof.json"))?;
    let dashboard: serde_json::Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("the dashboard has panels")?;
    assert!(panels.len() > 5);
    let mut numbers: Vec<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), panels.len());
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let question = panel["targets"][0]["expr"].as_str().context("a panel asks something")?;
        assert!(question.contains("drainprof_"), "{question}");
        // A link by a label needs the label in each series.
        let labels = ["instance", "exe"];
        for link in panel["fieldConfig"]["defaults"]["links"].as_array().into_iter().flatten() {
            let url = link["url"].as_str().context("a link has a URL")?;
            for label in labels.iter().filter(|own| url.contains(&format!("labels.{own}}}"))) {
                let (_, by) =
                    question.split_once(" by (").context("a panel with links is a sum")?;
                let (by, _) = by.split_once(')').context("a list of labels")?;
                assert!(by.split(", ").any(|own| own == *label), "no {label} in {question}");
            }
        }
    }
    Ok(())
}

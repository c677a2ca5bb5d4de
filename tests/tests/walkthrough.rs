//! The walkthrough: its blocks are run in their order on a program that tells the truth about itself, and answer with it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_tests::{environment, target};
use serde_json::Value;
use tempfile::TempDir;

/// Blocks of the page, each with its language.
fn blocks() -> Result<Vec<(String, String)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/walkthrough.md");
    let page = fs::read_to_string(path)?;
    let parts = page.split("```").skip(1).step_by(2);
    let block = |part: &str| {
        let (language, text) = part.split_once('\n').context("a block has lines")?;
        Ok((language.to_owned(), text.to_owned()))
    };
    parts.map(block).collect()
}

/// Runs a block where the report is, and gives what it prints.
fn run(directory: &TempDir, (language, text): &(String, String)) -> Result<String> {
    let shell = match language.as_str() {
        "python" => "python3",
        _ => "sh",
    };
    let mut command = Command::new(shell);
    let binary = environment::drainprof()?;
    let mut paths = vec![binary.parent().context("drainprof is in a directory")?.to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command.args(["-c", text]).env("PATH", std::env::join_paths(paths)?);
    command.current_dir(directory.path()).env("DRAINPROF_GO", "1").stdin(Stdio::null());
    let output = command.output().with_context(|| format!("{shell}: cargo xtask setup"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}\n{}: {said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Lines of two words by the first.
fn answers<'a>(text: &'a str, between: &str) -> BTreeMap<&'a str, &'a str> {
    text.lines().filter_map(|line| line.split_once(between)).collect()
}

#[test]
fn the_answers_are_true() -> Result<()> {
    if !environment::requires_root() {
        return Ok(());
    }
    let directory = TempDir::new()?;
    // A verdict takes forty samples, whose distance is a hundred times their cost: 24 s allow for 6 ms each.
    let behaviours = environment::target("behaviours")?;
    let program = format!("#!/bin/sh\nexec {} seconds=24\n", behaviours.display());
    let path = directory.path().join("program");
    fs::write(&path, program)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    let blocks = blocks()?;
    ensure!(blocks.len() == 6, "the page has {} blocks", blocks.len());

    let lines: Vec<String> = run(&directory, &blocks[0])?.lines().map(ToOwned::to_owned).collect();
    let truths = target::truths(&lines)?;
    let truth: BTreeMap<&String, &Value> =
        truths.iter().filter_map(|truth| truth["sites"].as_object()).flatten().collect();
    ensure!(truth.len() == 6, "{lines:?}");

    let held = run(&directory, &blocks[1])?;
    let held = answers(&held, " ");
    for (&function, expected) in &truth {
        let live = expected[1].as_u64().context("a count")?;
        let found = held.get(function.as_str()).map(|rest| rest.split(' ').next());
        let expected = (live > 0).then(|| live.to_string());
        ensure!(found.flatten() == expected.as_deref(), "{function}: {found:?}, not {expected:?}");
    }

    let kinds = run(&directory, &blocks[2])?;
    let kinds = answers(&kinds, ": ");
    for (function, kind) in [
        ("temporary", "temporary"),
        ("leak", "leak"),
        ("at_the_end", "freed at the end"),
        ("bounded", "bounded"),
        ("mixed", "leaks in part"),
        ("once", "kept once"),
    ] {
        ensure!(kinds.get(function) == Some(&kind), "{function}: {kinds:?}");
    }

    let verdicts = run(&directory, &blocks[3])?;
    for (function, verdict) in answers(&verdicts, ": ") {
        let own = truth.get(&function.to_owned()).and_then(|own| own[0].as_str());
        let may_be = |expected| verdict == expected || verdict == "too_early";
        ensure!(own.is_none_or(may_be), "{function}: {verdict}");
    }
    if !verdicts.contains("leak: linear_leak") {
        let report = fs::read_to_string(directory.path().join("report.json"))?;
        let reasons: Vec<&str> =
            report.lines().filter(|line| line.contains("verdict_reason")).collect();
        bail!("{verdicts}{reasons:#?}");
    }

    // Twenty blocks of 32.5 bytes a second.
    let forecast = run(&directory, &blocks[4])?;
    let forecast: f64 = answers(&forecast, " ").get("leak").context("no forecast")?.parse()?;
    let expected = 20.0 * 32.5 * 86_400.0;
    ensure!((forecast / expected - 1.0).abs() < 0.4, "{forecast} is not {expected}");

    let folded = run(&directory, &blocks[5])?;
    let holds = |function: &str| {
        let name = format!(";{function}");
        folded.lines().any(|line| line.contains(&name))
    };
    ensure!(holds("leak") && holds("mixed") && !holds("temporary") && !holds("once"), "{folded}");
    let page = fs::read_to_string(directory.path().join("sites.html"))?;
    ensure!(page.contains("leak") && page.trim_end().ends_with("</html>"), "{page}");
    Ok(())
}

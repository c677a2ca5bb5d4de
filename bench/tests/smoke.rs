//! The benchmarks run from end to end: one short round each. Times are not examined.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::environment::{drainprof, requires_root};
use serde_json::Value;
use tempfile::TempDir;

/// One that has every kind of variant of probes, and those that go their own ways; servers take longer than they show.
const ONLY: &str = "malloc,stacks,scale,attach,daemon,growth";

fn bench(args: &[&str]) -> Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_drainprof-bench"));
    let output = command.args(args).env("DRAINPROF_BIN", drainprof()?).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{args:?} ended with {}:\n{talk}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Every benchmark yields samples of drainprof and of the floor, exact counts at scale, and a page; a peer
/// that is missing is reported with its reason.
#[test]
fn runs_from_end_to_end() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let text = bench(&["measure", "--quick", "--only", ONLY])?;
    let results: Value = serde_json::from_str(&text).context("results are JSON")?;
    let benchmarks = results["benchmarks"].as_array().context("a list of benchmarks")?;
    assert_eq!(benchmarks.len(), ONLY.split(',').count(), "{text}");
    for benchmark in benchmarks {
        assert_eq!(benchmark["failed"], Value::Null, "{}", benchmark["name"]);
        let tables = benchmark["tables"].as_array().context("a list of tables")?;
        for row in tables.iter().filter_map(|table| table["rows"].as_array()).flatten() {
            let name = row["name"].as_str().context("a row has a name")?;
            let ours = ["bare", "floor", "drainprof"].iter().any(|word| name.starts_with(word));
            let measured = row["summary"]["median"].is_number() && row["unavailable"].is_null();
            let reported = row["unavailable"].as_str().is_some_and(|why| !why.is_empty());
            assert!(measured || (reported && !ours), "{}: {row}", benchmark["name"]);
        }
    }
    let scale = benchmarks.iter().find(|benchmark| benchmark["name"] == "scale");
    for goal in &scale.context("the benchmark of scale")?["goals"].as_array().context("goals")?[..2]
    {
        assert_eq!(goal["reached"], true, "{goal}");
    }
    let directory = TempDir::new()?;
    let file = directory.path().join("results.json");
    std::fs::write(&file, &text)?;
    let page = bench(&["page", &file.display().to_string()])?;
    assert!(
        page.contains("| `malloc` | bpftrace ÷ drainprof")
            && page.contains("## `nginx`\n\nNot run.")
    );
    Ok(())
}

/// A benchmark that does not exist is refused, and those that do are named.
#[test]
fn unknown_names_are_refused() -> Result<()> {
    let error = bench(&["measure", "--only", "mallok"]).err().context("it is refused")?;
    assert!(error.to_string().contains("there are malloc, objects"), "{error}");
    Ok(())
}

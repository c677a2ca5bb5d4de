//! The default budget: what costs a busy process too much is measured less, and the report says how.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    process::Process,
    tracer::command,
};
use serde_json::Value;
use tempfile::TempDir;

/// The request server as fast as it can, and a profile that has to see each object.
struct Busy {
    server: Process,
    directory: TempDir,
}

impl Busy {
    fn start() -> Result<Self> {
        let mut server = std::process::Command::new(environment::target("request_server")?);
        server.args(["rate=0", "requests=1000000000000"]);
        Ok(Self { server: Process::start("server", server)?, directory: TempDir::new()? })
    }

    fn profile(&self, kind: &str) -> Result<PathBuf> {
        let text = fs::read_to_string(environment::profile("request-server"))?;
        let lines = text.lines().filter(|line| !line.starts_with("live ="));
        let text = lines.collect::<Vec<_>>().join("\n");
        let path = self.directory.path().join(format!("busy-{kind}.toml"));
        let text = text.replace("\"drain\"", &format!("\"{kind}\""));
        fs::write(&path, text.replace("\"request-server\"", &format!("\"busy-{kind}\"")))?;
        Ok(path)
    }

    /// Attaches with the default budget.
    fn attach(&self, kind: &str, more: &[&str]) -> Result<Value> {
        let mut attach = command()?;
        attach.env_remove("DRAINPROF_BUDGET").arg("attach").arg("--profile");
        attach.arg(self.profile(kind)?).args(["-p", &self.server.pid().to_string()]);
        let output = attach.args(["-o", "json"]).args(more).output()?;
        let talk = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {talk}", output.status);
        serde_json::from_slice(&output.stdout).with_context(|| talk.into_owned())
    }
}

fn codes(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings.filter_map(|finding| finding["code"].as_str()).collect()
}

/// A level that costs too much gives way to the next, which is measured as if it had been asked for.
#[test]
fn a_level_less() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let busy = Busy::start()?;
    let report = busy.attach("bulk", &["-d", "6s"])?;
    assert!(codes(&report).contains(&"level_lowered"), "{}", report["findings"]);
    let allocator = &report["targets"][0]["allocators"][0];
    assert_eq!((&allocator["level"], &allocator["objects"]), (&"boundary".into(), &Value::Null));
    let [opened, closed] = ["opened", "closed"].map(|key| allocator["granules"][key].as_u64());
    assert!(opened > Some(100) && closed > Some(100), "{allocator:#}");
    Ok(())
}

/// Growth goes on at the lower level, from when its probes are in place; where even that costs too much, and windows are
/// measured, the report says that it is dropped.
#[test]
fn growth_stays() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let busy = Busy::start()?;
    let report = busy.attach("bulk", &["--growth", "-d", "6s"])?;
    let codes = codes(&report);
    assert!(codes.contains(&"level_lowered"), "{}", report["findings"]);
    let target = &report["targets"][0];
    assert_eq!(target["growth"].is_object(), !codes.contains(&"duty_lowered"), "{target:#}");
    Ok(())
}

/// Where nothing costs less, windows are measured: the DSR is that of the server, which pins every fourth arena. What costs
/// thirty times the budget has one in this time, since its probes cost until the kernel has removed them.
#[test]
fn parts_of_the_time() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let busy = Busy::start()?;
    let report = busy.attach("drain", &["-d", "10s"])?;
    assert!(codes(&report).contains(&"duty_lowered"), "{}", report["findings"]);
    let duty = &report["window"]["duty"];
    assert!(duty["windows"].as_u64() >= Some(1), "{duty}");
    let observed = duty["observed_seconds"].as_f64().context("observed seconds")?;
    assert!(observed < 1.0, "{observed}");
    let allocator = &report["targets"][0]["allocators"][0];
    let dsr = allocator["dsr"].as_f64().context("a DSR")?;
    let decided = allocator["granules"]["closed"].as_u64().context("closes")?;
    // One arena at each end of a window is not decided.
    assert!((dsr - 0.75).abs() <= 4.0 / decided as f64, "{dsr} of {decided}");
    let cost = report["targets"][0]["cost"]["cpu_seconds"].as_f64().context("a cost")?;
    // No more than the budget of the time.
    assert!(cost < 0.05 * 10.0, "{cost} s");
    Ok(())
}

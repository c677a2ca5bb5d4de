//! A real Prometheus server reads the daemon's metrics, and evaluates the rules that are shipped for it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{has_programs, requires_root},
    http,
    node::{Daemon, alone, get},
    process::Process,
    target::Target,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// A Prometheus server that scrapes one port and evaluates the shipped rules, each second.
struct Prometheus {
    process: Process,
    port: u16,
}

impl Prometheus {
    fn start(directory: &Path, scraped: u16) -> Result<Self> {
        let rules = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../deploy/prometheus/drainprof.rules.yml")
            .canonicalize()?;
        let config = directory.join("prometheus.yml");
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: [\"{}\"]\n\
                 scrape_configs:\n\
                 - job_name: drainprof\n  \
                   static_configs: [{{targets: [\"127.0.0.1:{scraped}\"]}}]\n",
                rules.display()
            ),
        )?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--log.level=info"]);
        let mut process = Process::start("prometheus", command)?;
        let line = process.expect_err_containing("\"Listening on\"")?;
        let port = line.rsplit(':').next().and_then(|port| port.trim().parse().ok());
        let port = port.with_context(|| format!("no port in {line:?}"))?;
        process.expect_err_containing("Server is ready")?;
        Ok(Self { process, port })
    }

    /// The data of an answer of its API.
    fn ask(&self, path: &str) -> Result<Value> {
        let (status, body) = get(self.port, path)?;
        ensure!(status == 200, "{path}: {status} {body}");
        Ok(serde_json::from_str::<Value>(&body)?["data"].take())
    }

    /// What a query answers now.
    fn query(&self, query: &str) -> Result<Value> {
        let mut encoded = String::new();
        for byte in query.bytes() {
            write!(encoded, "%{byte:02X}")?;
        }
        self.ask(&format!("/api/v1/query?query={encoded}"))
    }

    /// The first value that a query has now, if it has one.
    fn value(&self, query: &str) -> Result<Option<f64>> {
        let found = self.query(query)?;
        let value = found.pointer("/result/0/value/1").and_then(Value::as_str);
        Ok(value.map(str::parse).transpose()?)
    }

    fn names(&self) -> Result<BTreeSet<String>> {
        Ok(serde_json::from_value(self.ask("/api/v1/label/__name__/values")?)?)
    }
}

/// All rules, as the server tells of them.
fn rules(found: &Value) -> impl Iterator<Item = &Value> {
    let groups = found["groups"].as_array().into_iter().flatten();
    groups.flat_map(|group| group["rules"].as_array().into_iter().flatten())
}

/// What the shipped dashboard's panels ask for, by their titles, with values for its variables.
fn dashboard() -> Result<Vec<(String, String)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana/drainprof.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let panels = dashboard["panels"].as_array().context("it has panels")?;
    let mut asked = Vec::new();
    for panel in panels {
        let title = panel["title"].as_str().context("a panel has a title")?;
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut query = target["expr"].as_str().context("a panel asks")?.to_owned();
            for (variable, value) in [
                ("$__rate_interval", "10s"),
                ("$instance", ".*"),
                ("$job", "drainprof"),
                ("$exe", ".*"),
            ] {
                query = query.replace(variable, value);
            }
            ensure!(!query.contains('$'), "a variable that this test does not know: {query}");
            asked.push((title.to_owned(), query));
        }
    }
    Ok(asked)
}

/// Every panel of the dashboard has something to show, but those that show what is wrong.
fn dashboard_is_filled(prometheus: &Prometheus) -> Result<()> {
    for (title, query) in dashboard()? {
        // An answer of another kind than data is an error of `ask`.
        let found = prometheus.query(&query)?;
        match title.as_str() {
            // The last two need minutes, and what grows.
            "Rules" | "Growth" | "Time to the limit" => {}
            "Lost events" => assert_eq!(found["result"], Value::Array(Vec::new()), "{query}"),
            "Memory pressure" if !Path::new("/proc/pressure/memory").exists() => {}
            _ => http::until(&format!("{title}: {query}"), || {
                Ok(prometheus.value(&query)?.is_some())
            })?,
        }
    }
    Ok(())
}

/// A service whose routing is wrong: its DSR in Prometheus is what its counts say, every rule is evaluated without
/// error, and the alert on a low DSR begins to wait out its time; no other one does.
#[test]
fn scrapes_and_evaluates() -> Result<()> {
    if !requires_root() || !has_programs(&["prometheus"]) {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    // What is retained, and for how long, is seen where every object is looked at.
    let config = "daemon.level = \"objects\"\ngovernor.enabled = false\n\
                  window.budget_per_hour = \"0s\"\ncensus.interval = \"1s\"\ncensus.budget = \"20%\"\n\
                  pyroscope.endpoint = \"http://127.0.0.1:9\"";
    let daemon = Daemon::start(&["arena"], config)?;
    // Sessions end 2,000 requests later. (Faster, and the probes would be too expensive: another alert.)
    let mut service = Target::start("routing", &["rate=200"])?;
    daemon.attached(&[service.pid()])?;
    service.go()?;
    kill(Pid::from_raw(service.pid().cast_signed()), Signal::SIGUSR1)?;
    let mut prometheus = Prometheus::start(directory.path(), daemon.port())?;

    http::until("the alert on a low DSR waits", || {
        let found = prometheus.ask("/api/v1/rules")?;
        let low = rules(&found).find(|rule| rule["name"] == "DrainprofLowDsr");
        Ok(low.context("the alert is there")?["state"] == "pending")
    })?;
    // Every second request pins, once it is wrong.
    http::until("the DSR is what the counts say", || {
        Ok(prometheus
            .value("drainprof:dsr:ratio10m{exe=\"routing\"}")?
            .is_some_and(|dsr| (0.45..0.55).contains(&dsr)))
    })?;
    assert_eq!(prometheus.value("up")?, Some(1.0));
    assert_eq!(prometheus.value("drainprof_complete")?, Some(1.0));

    let found = prometheus.ask("/api/v1/rules")?;
    assert!(rules(&found).count() >= 10, "{found}");
    for rule in rules(&found) {
        assert_eq!(rule["health"], "ok", "{rule}");
        if rule["type"] == "alerting" && rule["name"] != "DrainprofLowDsr" {
            assert_eq!(rule["state"], "inactive", "{rule}");
        }
    }
    let names = prometheus.names()?;
    for name in [
        "drainprof_granule_closes_total",
        "drainprof_overhead_ratio",
        "drainprof_killed",
        "drainprof_state_timestamp_seconds",
    ] {
        assert!(names.contains(name), "the rules ask for {name}: {names:?}");
    }

    dashboard_is_filled(&prometheus)?;

    // A scrape that fails is told by Prometheus itself; nothing lingers in the daemon.
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    http::until("the daemon is down", || Ok(prometheus.value("up")? == Some(0.0)))?;
    prometheus.process.signal(Signal::SIGTERM)?;
    assert!(prometheus.process.wait()?.success(), "{}", prometheus.process.talk());
    Ok(())
}

/// What a scrape in the text format says has nothing that promtool would mend.
#[test]
fn promtool_has_nothing_to_say() -> Result<()> {
    if !requires_root() || !has_programs(&["promtool"]) {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let daemon = Daemon::start(&["arena"], "")?;
    let mut service = Target::start("routing", &["rate=1000"])?;
    daemon.attached(&[service.pid()])?;
    service.go()?;
    daemon.until("it counts", |state| {
        drainprof_tests::node::sum(state, "test-arena", "drainable") > 100
    })?;
    let (status, body) = daemon.get("/metrics")?;
    assert_eq!(status, 200);
    assert!(body.contains("drainprof_granule_closes_total{"), "{body}");
    let file = directory.path().join("metrics");
    fs::write(&file, &body)?;
    let check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::from(File::open(&file)?))
        .output()?;
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&check.stdout),
        String::from_utf8_lossy(&check.stderr)
    );
    assert!(check.status.success() && said.is_empty(), "{said}");
    service.go()?;
    service.finish()?;
    daemon.finish()?;
    Ok(())
}

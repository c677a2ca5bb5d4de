//! Profiles on libraries of other distributions: what drainprof counts, against what the program counts of itself.
//!
//! `malloc_family.cc` makes and frees objects in each way that C and C++ have. It runs twice, without any and with many;
//! the difference is its own. BIND counts its calls in a library that is preloaded. Called by `mod`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;
use serde_json::{Value, json};

use super::compare::{Outcome, Slack};
use super::roots::Root;
use super::running::Talk;
use super::workshop::Workshop;
use crate::work;

/// Rounds of all ways to allocate.
const ROUNDS: &str = "500";

/// drainprof may take this long to write its report after its target has ended.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);

/// BIND may take this long to end.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// What drainprof says once it counts.
const ATTACHED: &str = "attached ";

/// A profile of a malloc, on a library that is preloaded into the program; the truth, and what is compared.
pub(super) fn malloc(
    workshop: &Workshop<'_>,
    drainprof: &Path,
    root: &Root,
    profile: &str,
    prefix: &str,
) -> Result<(Value, Vec<Outcome>)> {
    let source = "tests/targets/malloc_family.cc";
    let built = workshop.compile(source, "malloc_family", &["-lstdc++"])?;
    let library = root.library(prefix).context("the library is gone")?;
    let (program, report) = (root.put(&built)?, workshop.own(root, "report.json")?);
    let once = |rounds: &str| -> Result<([u64; 3], Value)> {
        let mut command = root.command(None, "/usr/bin/env");
        command.arg(format!("LD_PRELOAD={library}")).arg(&program).args([rounds, "wait"]);
        let mut target = Talk::start(command)?;
        let ready = target.expect(|line| line.starts_with("READY "))?;
        let pid = ready.split_whitespace().nth(1).context("no process")?.to_owned();
        let mut command = work::as_root(drainprof, &[]);
        command.args(["attach", "-p", &pid, "--profile", profile, "--level", "objects"]);
        command.args(["--budget", "none", "-o", "json", "-O"]).arg(&report);
        let mut tracer = Talk::start(command)?;
        tracer.expect(|line| line.contains(ATTACHED))?;
        target.send("")?;
        let made = target.expect(|line| line.starts_with("MADE "))?;
        if !tracer.ends_within(REPORT_TIMEOUT) {
            bail!("drainprof goes on after its target's end");
        }
        let numbers = made.split_whitespace().filter_map(|word| word.parse().ok());
        let numbers: Vec<u64> = numbers.collect();
        Ok((numbers.try_into().ok().with_context(|| format!("read {made}"))?, read(&report)?))
    };
    let (none, before) = once("0")?;
    let ([made, freed, bytes], after) = once(ROUNDS)?;
    if none != [0; 3] {
        bail!("without a round {none:?} were made");
    }
    let own = |name: &str| {
        let of = |report: &Value| allocator(report)["objects"][name].as_u64().unwrap_or_default();
        of(&after).saturating_sub(of(&before))
    };
    let truth = json!({ "made": made, "freed": freed, "live_bytes": bytes });
    let outcomes = vec![
        Outcome::number("live objects", made - freed, own("live"), Slack::Exact),
        Outcome::number("live bytes", bytes, own("live_bytes"), Slack::Exact),
        Outcome::number("lost", 0, lost(&after), Slack::Exact),
    ];
    Ok((truth, outcomes))
}

/// BIND from its start over a reload to its end.
pub(super) fn bind(
    workshop: &Workshop<'_>,
    drainprof: &Path,
    root: &Root,
) -> Result<(Value, Vec<Outcome>)> {
    let source = "tests/targets/isc_counts.c";
    let library = root.put(&workshop.compile(source, "isc_counts.so", &["-shared", "-fPIC"])?)?;
    let at = root.inside.display();
    let options = format!(
        "options {{ directory \"{at}\"; pid-file \"{at}/named.pid\"; session-keyfile \"{at}/key\";\n\
         listen-on {{ none; }}; listen-on-v6 {{ none; }}; recursion no; dnssec-validation no;\n\
         empty-zones-enable no; notify no; }};\ncontrols {{ }};\n\
         zone \"example.test\" {{ type primary; file \"{at}/zone\"; }};\n"
    );
    let configuration = workshop.file(root, "named.conf", &options)?;
    let mut zone =
        "$TTL 60\n@ SOA ns hostmaster 1 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1\n".to_owned();
    zone.extend((0..1000).map(|number| format!("w{number} A 127.0.0.2\n")));
    workshop.file(root, "zone", &zone)?;
    let report = workshop.own(root, "report.json")?;
    let mut command = work::as_root(drainprof, &[]);
    command.args(["run", "--profile", "bind", "--level", "objects", "--budget", "none"]);
    command.args(["--max-objects", "1048576", "-o", "json", "-O"]).arg(&report).arg("--");
    command.args(root.words(None, "/usr/bin/env"));
    command.arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(format!("ISC_COUNTS={at}/counts"));
    command.args(["/usr/sbin/named", "-4", "-g", "-n", "1", "-c"]).arg(configuration);
    let mut tracer = Talk::start(command)?;
    let loaded = |line: &str| line.contains("all zones loaded");
    tracer.expect(loaded)?;
    let pid = fs::read_to_string(root.scratch.join("named.pid"))?;
    let signal = |name: &str| {
        let mut kill = work::as_root("kill", &[]);
        work::run("signal BIND", "has it ended?", kill.args([name, pid.trim()]))
    };
    signal("-HUP")?;
    tracer.expect(loaded)?;
    signal("-TERM")?;
    if !tracer.ends_within(END_TIMEOUT) {
        bail!("BIND or drainprof does not end");
    }
    let mut cat = work::as_root("cat", &[]);
    let counts = cat.arg(root.scratch.join("counts")).output().context("read BIND's counts")?;
    let counts: Vec<u64> = counts
        .stdout
        .chunks_exact(8)
        .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)))
        .collect();
    let [created, get, allocate, pool_get, put, detach, free, pool_put, _bytes, replaced] =
        counts[..]
    else {
        bail!("BIND has counted nothing")
    };
    let version = root.version(&["bind9"])?;
    // Later versions put an object back with the one function, and detach with another.
    let detached = if version.starts_with("9.18.") { detach } else { 0 };
    let taken = get + allocate + pool_get + replaced;
    let given = put + detached + free + pool_put + replaced;
    let after = read(&report)?;
    let own = allocator(&after);
    let number = |found: &Value| found.as_u64().unwrap_or_default();
    let exact = |what, truth, found| Outcome::number(what, truth, found, Slack::Exact);
    let (granules, objects) = (&own["granules"], &own["objects"]);
    // What libisc makes before the program's entry point is older than the probes.
    let older = number(&after["losses"]["unmatched_frees"]);
    let opened = number(&granules["opened"]) + number(&granules["opened_before"]);
    let truth =
        json!({ "contexts": created, "taken": taken, "given_back": given, "version": version });
    let outcomes = vec![
        exact("contexts opened", created, opened),
        exact("contexts drained", created, number(&granules["drainable"])),
        exact("objects taken", taken, number(&objects["allocated"]) + older),
        exact("objects given back", given, number(&objects["freed"]) + older),
        Outcome::number("objects older than the probes", 0, older, Slack::More(64)),
        exact("lost", 0, lost(&after) - older),
    ];
    Ok((truth, outcomes))
}

/// The last target's first allocator.
fn allocator(report: &Value) -> &Value {
    let target = report["targets"].as_array().and_then(|targets| targets.last());
    target.map_or(&Value::Null, |target| &target["allocators"][0])
}

/// All that was lost.
fn lost(report: &Value) -> u64 {
    let lost = report["losses"].as_object().into_iter().flatten();
    lost.filter_map(|(_, number)| number.as_u64()).sum()
}

/// What drainprof has written, which is removed: the next report must not be this one.
fn read(path: &Path) -> Result<Value> {
    let mut cat = work::as_root("cat", &[]);
    let text = work::read("read the report", "check what drainprof says", cat.arg(path))?;
    let mut remove: Command = work::as_root("rm", &[]);
    work::run("remove the report", "remove it by hand", remove.arg("-f").arg(path))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", path.display()))
}

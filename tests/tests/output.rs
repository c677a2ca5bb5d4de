//! What drainprof writes: JSON that its schema describes, one record per line, text, exit codes.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::Expect,
    elf,
    environment::{self, requires_root, schema},
    target::Target,
    tracer::{Outcome, Tracer, command, trace},
};
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// Runs `psweep` with `args` under an attach whose output goes to stdout.
fn to_stdout(args: &[&str], more: &[&str]) -> Result<(Vec<Value>, Outcome)> {
    let mut target = Target::start("psweep", args)?;
    let mut command = command()?;
    command.args(["attach", "-p", &target.pid().to_string()]);
    command.args(["--profile", &environment::profile("arena")]).args(OBJECTS).args(more);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    let truths = target.finish()?.truths;
    Ok((truths, tracer.finish()?))
}

/// Reports of all kinds and levels validate against the schema that documents them.
#[test]
fn reports_validate() -> Result<()> {
    if requires_root() {
        let schema: Value = serde_json::from_str(&schema()?)?;
        let validator = jsonschema::validator_for(&schema)?;
        for (target, args, profile, level) in [
            ("psweep", "p=5000", "arena", "objects"),
            ("psweep", "p=5000", "arena", "boundary"),
            ("bulk", "overdue=2", "bulk", "objects"),
            ("slab", "slabs=8", "slab", "objects"),
            ("misuse", "mode=reopen", "misuse", "objects"),
            ("instances", "destroy=1", "instances", "objects"),
            ("family", "mode=exec", "arena", "objects"),
        ] {
            let traced = trace(target, &[args], profile, &["--level", level])?;
            let report = traced.outcome.report();
            let errors: Vec<String> =
                validator.iter_errors(report).map(|e| e.to_string()).collect();
            assert!(errors.is_empty(), "{target} at {level}: {errors:?}");
            assert_eq!(report["schema"], "drainprof.report/1");
        }
    }
    Ok(())
}

/// An incomplete report validates, too.
#[test]
fn incomplete_report_validates() -> Result<()> {
    if requires_root() {
        let schema: Value = serde_json::from_str(&schema()?)?;
        let more = ["--level", "objects", "--max-granules", "64"];
        let traced = trace("many", &["what=granules"], "arena", &more)?;
        assert!(jsonschema::validator_for(&schema)?.is_valid(traced.outcome.report()));
    }
    Ok(())
}

/// Without -O the JSON is all of stdout, and DSR is drainable / (drainable + pinned).
#[test]
fn json_on_stdout() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = to_stdout(&["closes=1000", "p=2500"], &["-o", "json"])?;
        let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let granules = &truths[0]["allocators"][0]["granules"];
        let count = |key: &str| granules[key].as_u64().unwrap_or(0);
        #[allow(clippy::cast_precision_loss, reason = "a thousand closes")]
        let dsr = count("drainable") as f64 / (count("drainable") + count("pinned")) as f64;
        let reported = report["targets"][0]["allocators"][0]["dsr"].as_f64().context("a DSR")?;
        assert!((reported - dsr).abs() < 1e-9, "truth {dsr}, report {reported}");
    }
    Ok(())
}

/// With --events there is one record per close and one per late drain, and the last record is the report.
#[test]
fn one_record_per_event() -> Result<()> {
    if requires_root() {
        let args = ["closes=1500", "p=2500", "late=2"];
        let (truths, outcome) = to_stdout(&args, &["-o", "ndjson", "--events"])?;
        let records: Vec<Value> = outcome
            .stdout
            .iter()
            .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
            .collect::<Result<_>>()?;
        let of =
            |kind: &str| records.iter().filter(|record| record["record"] == kind).count() as u64;
        let truth = &truths[0]["allocators"][0];
        assert_eq!(Some(of("close")), truth["granules"]["closed"].as_u64());
        assert_eq!(Some(of("late_drain")), truth["retention"]["late_drained"].as_u64());
        let pinned = |record: &&Value| record["record"] == "close" && record["verdict"] == "pinned";
        let pinned = records.iter().filter(pinned).count() as u64;
        assert_eq!(Some(pinned), truth["granules"]["pinned"].as_u64());
        let last = records.last().context("there are records")?;
        assert_eq!(last["record"], "report", "{last}");
    }
    Ok(())
}

/// -i writes records while the target stands still; they show what was counted so far.
#[test]
fn intervals() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=100", "stops=1"])?;
        let mut command = command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "-o", "ndjson", "-i", "1"]);
        command.args(["--profile", &environment::profile("arena")]).args(OBJECTS);
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        target.reaches("half")?;
        for _ in 0..2 {
            let line = tracer.process().expect_out("{")?;
            let record: Value = serde_json::from_str(&line)?;
            assert_eq!(record["record"], "interval", "{line}");
        }
        target.go()?;
        target.reaches("end")?;
        target.go()?;
        target.finish()?;
        assert_eq!(tracer.finish()?.code, Some(0));
    }
    Ok(())
}

/// The text names the process, the profile and the DSR, and has no colour where there is no terminal.
#[test]
fn text() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = to_stdout(&["closes=400", "p=5000"], &["-o", "text"])?;
        let text = outcome.stdout.join("\n");
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let pid = truths[0]["pid"].to_string();
        for word in ["DSR", "test-arena", &pid] {
            assert!(text.contains(word), "no {word} in:\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "escape sequences in:\n{text}");
    }
    Ok(())
}

/// --fail-under turns a low DSR into exit code 3, and only then.
#[test]
fn fail_under() -> Result<()> {
    if requires_root() {
        for (limit, code) in [("0.9", 3), ("0.1", 0)] {
            let more = ["--level", "objects", "--fail-under", limit];
            let traced = trace("psweep", &["p=5000"], "arena", &more)?;
            assert_eq!(traced.outcome.code, Some(code), "{}", traced.outcome.talk());
        }
    }
    Ok(())
}

/// Without a decided close there is nothing that could be below a limit: exit 0.
#[test]
fn fail_under_without_data() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "--fail-under", "0.9"];
        let traced = trace("psweep", &["closes=0"], "arena", &more)?;
        // Nothing was judged, so nothing can be said to be above the limit.
        Expect::default().code(5).check(&traced);
    }
    Ok(())
}

/// The report tells drainprof's own use, and every probe's hits.
#[test]
fn own_cost_and_probe_hits() -> Result<()> {
    if requires_root() {
        let traced = trace("psweep", &["closes=700", "p=0"], "arena", &OBJECTS)?;
        let report = traced.outcome.report();
        assert!(report["self"]["cpu_seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0));
        assert!(report["self"]["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 100_000));
        let probes = report["targets"][0]["probes"].as_array().context("a list of probes")?;
        for (symbol, key) in [
            ("arena_open", "entries"),
            ("arena_close", "entries"),
            ("arena_alloc", "returns"),
            ("arena_free", "entries"),
        ] {
            let probe = probes.iter().find(|probe| probe["symbol"] == symbol).context(symbol)?;
            assert_eq!(probe[key], 700, "{probe}");
        }
    }
    Ok(())
}

/// --dry-run shows where each probe would go, and touches nothing.
#[test]
fn dry_run_attaches_nothing() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("arena");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--level", "objects", "--dry-run"];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let shown = outcome.stdout.join("\n");
        for symbol in ["arena_open", "arena_close", "arena_alloc", "arena_free"] {
            assert!(shown.contains(symbol), "no {symbol} in:\n{shown}");
        }
        let path = environment::target("psweep")?;
        assert_eq!(elf::changed_text_bytes(target.pid(), &path)?, 0);
    }
    Ok(())
}

/// -O replaces an older file as a whole; a directory that does not exist is an error that names it.
#[test]
fn output_file() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("report.json");
        fs::write(&file, "x".repeat(1 << 20))?;
        let mut target = Target::start("psweep", &["closes=5"])?;
        let mut command = command()?;
        command
            .args(["attach", "-p", &target.pid().to_string(), "-o", "json"])
            .arg("-O")
            .arg(&file);
        command.args(["--profile", &environment::profile("arena")]).args(OBJECTS);
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        target.finish()?;
        assert_eq!(tracer.finish()?.code, Some(0));
        serde_json::from_str::<Value>(&fs::read_to_string(&file)?).context("one whole report")?;

        let target = Target::start("psweep", &["closes=5"])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("arena");
        let missing = "/nonexistent/report.json";
        let args = ["attach", "-p", &pid, "--profile", &profile, "-O", missing, "-d", "1"];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.talk().contains(missing), "{}", outcome.talk());
    }
    Ok(())
}

/// A small file system, until it is dropped.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(size: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(directory.path());
        ensure!(mount.status()?.success(), "{mount:?}");
        Ok(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let umount = Command::new("umount").arg(self.0.path()).status();
        if !umount.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.0.path().display());
        }
    }
}

/// A disk that fills up leaves the older file as it was, and no part of the new one beside it.
#[test]
fn full_disk_leaves_the_older_file() -> Result<()> {
    if requires_root() {
        // Two pages, of which the older file has one.
        let disk = Small::mount("8k")?;
        let file = disk.0.path().join("report.json");
        fs::write(&file, "older")?;
        let mut target = Target::start("psweep", &["closes=5"])?;
        let mut command = command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "-o", "json", "-O"]).arg(&file);
        command.args(["--profile", &environment::profile("arena")]).args(OBJECTS);
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        target.finish()?;
        let outcome = tracer.finish()?;
        assert_eq!(outcome.code, Some(1), "{}", outcome.talk());
        assert!(outcome.talk().contains("No space left"), "{}", outcome.talk());
        assert_eq!(fs::read_to_string(&file)?, "older");
        assert_eq!(fs::read_dir(disk.0.path())?.count(), 1);
    }
    Ok(())
}

/// Output that nobody can have had is a failure, before anything is attached; the null device is none.
#[test]
fn closed_stdout() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let target = Target::start("psweep", &["closes=10"])?;
    for (redirect, code) in [(">&-", 1), (">/dev/null", 0)] {
        let script =
            format!("\"$0\" attach -p {} --profile \"$1\" -d 200ms {redirect}", target.pid());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(environment::drainprof()?);
        let output =
            command.arg(environment::profile("arena")).env("DRAINPROF_BUDGET", "none").output()?;
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{redirect}: {talk}");
        assert_eq!(talk.contains("stdout is closed"), code == 1, "{redirect}: {talk}");
    }
    target.kill()
}

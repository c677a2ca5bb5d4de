//! `cargo xtask demo`: a structural leak and its fix, seen by the program, by leak detectors, and by drainprof.
//!
//! Runs a small server (`tests/targets/request_server.c`) twice under `drainprof run`: once with sessions
//! routed into the arenas of requests, once with arenas of their own, and prints what differs. Every number
//! comes from these runs.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{artifacts, packages, setup, work};

/// Only these of drainprof's exit codes bring a report: all well, and not complete.
const REPORTING: [i32; 2] = [0, 5];

/// Arguments of `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests per run, at 1500 a second.
    #[arg(long, default_value_t = 10_000)]
    requests: u64,
    /// Show this drainprof instead of building one.
    #[arg(long, value_name = "FILE")]
    drainprof: Option<PathBuf>,
}

/// Builds, runs both servers, and compares.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    work::step("demo: what it takes");
    packages::install(&setup::DEMO_PACKAGES, "to compile the demo's server")?;
    setup::mount_tracefs()?;
    work::step(
        "demo: build drainprof (as for the tests; minutes at the first time) and the server",
    );
    let drainprof = match &args.drainprof {
        Some(path) => path.canonicalize().with_context(|| format!("find {}", path.display()))?,
        None => artifacts::drainprof_dev(&root)?,
    };
    let directory = artifacts::target_dir(&root).join("demo");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let source = root.join("tests/targets/request_server.c");
    let server = artifacts::target(&source, &directory)?;
    let stage = Stage {
        drainprof,
        server,
        source,
        profile: root.join("tests/profiles/request-server.toml"),
        directory,
        root,
        requests: args.requests,
    };
    let bug = stage.play("request")?;
    let fixed = stage.play("session")?;
    let others = [("Valgrind", stage.valgrind()?), ("LeakSanitizer", stage.leak_sanitizer()?)];
    println!("\n{}", table(&bug, &fixed));
    print!("{}", who_pins(&bug));
    let reported: Vec<_> =
        others.iter().filter_map(|(name, said)| Some((name, said.as_ref()?))).collect();
    if !reported.is_empty() {
        println!(
            "Leak detectors, which ask whether memory is freed in the end, on routing=request:"
        );
        for (name, said) in reported {
            println!("  {name}: {said}");
        }
        println!();
    }
    print!("{}", closing(&bug, &fixed, &stage));
    Ok(())
}

/// What both runs share.
struct Stage {
    drainprof: PathBuf,
    server: PathBuf,
    source: PathBuf,
    profile: PathBuf,
    directory: PathBuf,
    root: PathBuf,
    requests: u64,
}

impl Stage {
    /// One run of the server under drainprof.
    fn play(&self, routing: &str) -> Result<Run> {
        let why = if work::is_root() { "" } else { "; through sudo: loading eBPF needs root" };
        work::step(format!("demo: drainprof run … request_server routing={routing} (7 s{why})"));
        let report = self.directory.join(format!("{routing}.ndjson"));
        // An older run's report must not be taken for this one's.
        if report.exists() {
            fs::remove_file(&report).with_context(|| format!("remove {}", report.display()))?;
        }
        let mut command = work::as_root(&self.drainprof, &[]);
        command.args(["run", "--level", "stacks", "-i", "1", "-o", "ndjson", "--profile"]);
        command.arg(&self.profile).arg("--output").arg(&report).arg("--").arg(&self.server);
        command.arg(format!("routing={routing}")).arg(format!("requests={}", self.requests));
        work::note(work::describe(&command));
        let output = command.stderr(Stdio::inherit()).output().context("run drainprof")?;
        if !output.status.code().is_some_and(|code| REPORTING.contains(&code)) {
            bail!(
                "drainprof ended with {}; its messages are above, `drainprof doctor` says what it lacks",
                output.status
            );
        }
        let text = fs::read_to_string(&report)
            .with_context(|| format!("read drainprof's report {}", report.display()))?;
        Run::read(&String::from_utf8_lossy(&output.stdout), &text)
            .with_context(|| format!("read the results of routing={routing}"))
    }

    /// What Valgrind says of the leaking server, where it is installed.
    fn valgrind(&self) -> Result<Option<String>> {
        let Some(valgrind) = work::find_program("valgrind") else { return Ok(None) };
        work::step("demo: Valgrind on the leaking server (it is installed)");
        let mut command = Command::new(valgrind);
        command.arg("--leak-check=full").arg(&self.server);
        command.args(["routing=request", "requests=4000", "rate=0"]);
        let output = command.output().context("run valgrind")?;
        let reported = String::from_utf8_lossy(&output.stderr);
        let lines = reported.lines().filter_map(|line| Some(line.split_once("== ")?.1.trim()));
        let wanted =
            |line: &&str| line.starts_with("All heap") || line.starts_with("ERROR SUMMARY");
        Ok(Some(lines.filter(wanted).collect::<Vec<_>>().join("; ")))
    }

    /// What `LeakSanitizer` says of the leaking server, where the compiler has it.
    fn leak_sanitizer(&self) -> Result<Option<String>> {
        let program = self.directory.join("request_server_lsan");
        if artifacts::with_leak_sanitizer(&self.source, &program)?.is_none() {
            return Ok(None);
        }
        work::step("demo: LeakSanitizer on the leaking server");
        let mut command = Command::new(program);
        command.args(["routing=request", "requests=4000", "rate=0"]);
        let output = command.output().context("run the server with LeakSanitizer")?;
        let reported = String::from_utf8_lossy(&output.stderr);
        let said = reported.lines().find(|line| line.contains("ERROR") || line.contains("SUMMARY"));
        Ok(Some(match said {
            Some(line) => line.trim().to_owned(),
            None => format!("says nothing, and the server ends with {}", output.status),
        }))
    }
}

/// What one run came to.
#[derive(Debug, Default, PartialEq)]
struct Run {
    allocated: u64,
    freed: u64,
    peak_rss_kib: u64,
    seen_allocated: u64,
    seen_freed: u64,
    dsr: Option<f64>,
    pinned: u64,
    retained_granules: u64,
    retained_bytes: u64,
    complete: bool,
    /// The call path that pins most, where there is one.
    pinner: Option<Pinner>,
}

/// A call path that pins.
#[derive(Debug, PartialEq)]
struct Pinner {
    granules: u64,
    /// Of all pinned closes.
    share: f64,
    class: String,
    median_delay: Option<f64>,
    /// `function (file:line)`, the allocating function first; with those that were inlined.
    frames: Vec<String>,
}

impl Pinner {
    /// From the first of a report's sites.
    fn read(site: &Value) -> Option<Self> {
        let granules = site["granules_pinned"].as_u64().filter(|granules| *granules > 0)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let named = |frame: &Value| {
            let function = text(&frame["function"]).or_else(|| text(&frame["module"]))?;
            let file = frame["file"].as_str().and_then(|file| file.rsplit('/').next());
            Some(match (file, frame["line"].as_u64()) {
                (Some(file), Some(line)) => format!("{function} ({file}:{line})"),
                _ => function,
            })
        };
        // Innermost first, as the frames are: what was inlined into a function stands before it.
        let all = |frame: &Value| -> Vec<String> {
            let inlined = frame["inlined"].as_array().into_iter().flatten().rev();
            let inlined = inlined.filter_map(named).map(|name| format!("{name}, inlined"));
            inlined.chain(named(frame)).collect()
        };
        Some(Self {
            granules,
            share: site["share"].as_f64().unwrap_or_default(),
            class: text(&site["class"]).unwrap_or_default().replace('_', " "),
            median_delay: site["pin_delay_seconds"]["p50"].as_f64(),
            frames: site["frames"].as_array()?.iter().flat_map(all).collect(),
        })
    }
}

impl Run {
    /// From the server's own words and drainprof's records.
    fn read(printed: &str, records: &str) -> Result<Self> {
        let mut run = Self::default();
        let words: Vec<&str> = printed.split([' ', ',', '\n']).filter(|w| !w.is_empty()).collect();
        let number = |name: &str| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1)?.parse::<u64>().ok()
        };
        run.allocated = number("allocated").context("the server printed no `allocated N`")?;
        run.freed = number("freed").context("the server printed no `freed N`")?;
        run.peak_rss_kib = number("peak_rss_kib").context("the server printed no peak RSS")?;
        let mut reported = false;
        for record in serde_json::Deserializer::from_str(records).into_iter::<Value>() {
            let record = record.context("a record is no JSON")?;
            for allocator in record["allocators"].as_array().into_iter().flatten() {
                run.retained(&allocator["retained_granules"], &allocator["retained_bytes"]);
            }
            let report = record.get("report").unwrap_or(&record);
            if let Some(allocator) = report.pointer("/targets/0/allocators/0") {
                run.report(report, allocator);
                reported = true;
            }
        }
        if !reported {
            bail!("drainprof reported no allocator: did the profile match the server?");
        }
        Ok(run)
    }

    fn retained(&mut self, granules: &Value, bytes: &Value) {
        self.retained_granules = self.retained_granules.max(granules.as_u64().unwrap_or(0));
        self.retained_bytes = self.retained_bytes.max(bytes.as_u64().unwrap_or(0));
    }

    fn report(&mut self, report: &Value, allocator: &Value) {
        self.complete = report["complete"] == true;
        self.seen_allocated = allocator["objects"]["allocated"].as_u64().unwrap_or(0);
        self.seen_freed = allocator["objects"]["freed"].as_u64().unwrap_or(0);
        self.dsr = allocator["dsr"].as_f64();
        self.pinned = allocator["granules"]["pinned"].as_u64().unwrap_or(0);
        self.retained(&allocator["retention"]["granules"], &allocator["retention"]["bytes"]);
        self.pinner = Pinner::read(&allocator["sites"][0]);
    }
}

/// How a row of the table is filled for one run.
type Cell<'a> = &'a dyn Fn(&Run) -> String;

/// What was run, and the words of the table, for who has read nothing yet.
const INTRODUCTION: &str = "\
A small server gives each request an arena: a granule of 64 KiB, closed when the request ends, and given
back to the system once no object in it is live. Some requests begin a session, which lives longer.
  routing=request  keeps a session's object in its request's arena
  routing=session  keeps it in an arena for sessions
drainprof watched both runs from outside, through probes on the arena's functions. To it, a close is pinned
when an object is still live; DSR is the share of closes at which none was; a granule is retained from its
pinned close until its last object is freed.

";

/// Both runs side by side.
fn table(bug: &Run, fixed: &Run) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / 1_048_576.0);
    let dsr = |run: &Run| run.dsr.map_or_else(|| "no data".to_owned(), |dsr| format!("{dsr:.4}"));
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let rows: [(&str, Cell<'_>); 10] = [
        ("the server says: allocated", &|run| run.allocated.to_string()),
        ("                 freed", &|run| run.freed.to_string()),
        ("                 peak RSS", &|run| mib(run.peak_rss_kib * 1024)),
        ("drainprof says:  allocated", &|run| run.seen_allocated.to_string()),
        ("                 freed", &|run| run.seen_freed.to_string()),
        ("                 DSR", &dsr),
        ("                 pinned closes", &|run| run.pinned.to_string()),
        ("                 granules retained at most", &|run| run.retained_granules.to_string()),
        ("                 bytes retained at most", &|run| mib(run.retained_bytes)),
        ("                 complete", &|run| yes(run.complete)),
    ];
    let mut text = String::from(INTRODUCTION);
    let _ = writeln!(text, "{:<44}{:>16}{:>16}", "", "routing=request", "routing=session");
    for (name, cell) in rows {
        let _ = writeln!(text, "{name:<44}{:>16}{:>16}", cell(bug), cell(fixed));
    }
    text
}

/// The call path that pins, with what comes of it.
fn who_pins(run: &Run) -> String {
    let Some(pinner) = &run.pinner else { return String::new() };
    let mut text = format!(
        "Who pins, of routing=request: {} of the pinned closes ({:.0} %), {}{}\n",
        pinner.granules,
        pinner.share * 100.0,
        pinner.class,
        pinner
            .median_delay
            .map_or_else(String::new, |delay| format!("; freed {delay:.1} s late (median)")),
    );
    for frame in &pinner.frames {
        let _ = writeln!(text, "    {frame}");
    }
    text.push('\n');
    text
}

/// What it means, said only where the numbers bear it out, and where to go on.
fn closing(bug: &Run, fixed: &Run, stage: &Stage) -> String {
    let mut text = String::new();
    let all_freed = [bug, fixed].iter().all(|run| run.allocated == run.freed);
    if all_freed && bug.pinned > 0 && fixed.pinned == 0 {
        text.push_str(
            "Both servers free every object, so a leak checker has nothing to report. Yet where sessions are\n\
             routed into the arenas of requests, each one keeps a whole granule from being given back. (Retained\n\
             bytes are whole granules; RSS leaves out those of their pages that were never written to.)\n\n",
        );
    }
    let seen = |run: &Run| run.allocated == run.seen_allocated && run.freed == run.seen_freed;
    if !seen(bug) || !seen(fixed) {
        text.push_str(
            "drainprof's counts differ from the server's own: please report this as a bug.\n\n",
        );
    }
    let shown = |path: &Path| path.strip_prefix(&stage.root).unwrap_or(path).display().to_string();
    let _ = writeln!(
        text,
        "Next:\n  \
           the words and the idea            docs/concepts.md\n  \
           leak detectors beside drainprof   docs/leak-detectors.md\n  \
           the server                        tests/targets/request_server.c\n  \
           what drainprof knows of it        {} (write such a file for your allocator: docs/profiles.md)\n  \
           the reports of these runs         {} (docs/report.md)\n  \
           a process of yours                sudo {} attach -p PID",
        shown(&stage.profile),
        shown(&stage.directory.join("*.ndjson")),
        shown(&stage.drainprof),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{Pinner, Run};

    const PRINTED: &str =
        "requests 8\nallocated 82, freed 81\nrss_kib 5 at the end\npeak_rss_kib 900\n";
    const REPORT: &str = r#"{"record":"report","report":{"complete":true,"targets":[{"allocators":[
        {"dsr":0.75,"granules":{"pinned":2},"objects":{"allocated":82,"freed":81},
         "retention":{"granules":1,"bytes":65536}}]}]}}"#;

    /// Who pins comes from the first site, named as far as it is; a site without pins is nobody.
    #[test]
    fn reads_who_pins() {
        let site = serde_json::json!({"granules_pinned": 5, "share": 0.5, "class": "near_miss",
            "pin_delay_seconds": {"p50": 2.5}, "frames": [
                {"function": "main", "file": "/src/server.c", "line": 129, "inlined": [
                    {"function": "handle", "file": "/src/server.c", "line": 90},
                    {"function": "log_in", "file": "/src/server.c", "line": 80}]},
                {"function": null, "module": "libc.so.6"}]});
        let pinner = Pinner::read(&site).unwrap();
        assert_eq!((pinner.granules, pinner.class.as_str()), (5, "near miss"));
        assert_eq!(
            pinner.frames,
            [
                "log_in (server.c:80), inlined",
                "handle (server.c:90), inlined",
                "main (server.c:129)",
                "libc.so.6"
            ]
        );
        assert!(Pinner::read(&serde_json::json!({"granules_pinned": 0, "frames": []})).is_none());
        assert!(Pinner::read(&serde_json::Value::Null).is_none());
    }

    /// The most retained comes from the intervals, the rest from the final report.
    #[test]
    fn reads_server_and_records() {
        let interval = r#"{"record":"interval","allocators":[{"retained_granules":7,"retained_bytes":458752}]}"#;
        let run = Run::read(PRINTED, &format!("{interval}\n{REPORT}")).unwrap();
        assert_eq!((run.allocated, run.freed, run.peak_rss_kib), (82, 81, 900));
        assert_eq!((run.seen_allocated, run.pinned, run.dsr), (82, 2, Some(0.75)));
        assert_eq!((run.retained_granules, run.retained_bytes), (7, 458_752));
        assert!(run.complete);
    }

    /// Without a report, or without the server's truth, there is nothing to compare.
    #[test]
    fn refuses_half_of_the_results() {
        assert!(Run::read(PRINTED, "{\"record\":\"interval\"}").is_err());
        assert!(Run::read("requests 8\n", REPORT).is_err());
    }
}

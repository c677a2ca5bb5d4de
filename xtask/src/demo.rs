//! `cargo xtask demo`: a structural leak and its fix, seen by the program, by leak detectors, and by drainprof.
//!
//! Runs a small server (`tests/targets/request_server.c`) twice under `drainprof run`: once with sessions
//! routed into the arenas of requests, once with arenas of their own, and prints what `drainprof diff` says of both. Every
//! number comes from these runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::{artifacts, packages, setup, work};

/// Only these of drainprof's exit codes bring a report: all well, and not complete.
const REPORTING: [i32; 2] = [0, 5];

/// The server, and what drainprof knows of it.
const SERVER: &str = "tests/targets/request_server.c";
const PROFILE: &str = "tests/profiles/request-server.toml";

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
        Some(path) => fs::canonicalize(path)?,
        None => artifacts::drainprof_dev(&root)?,
    };
    let directory = artifacts::target_dir(&root).join("demo");
    fs::create_dir_all(&directory)?;
    let source = root.join(SERVER);
    let server = artifacts::target(&source, &directory)?;
    let requests = args.requests;
    let stage = Stage { drainprof, server, source, directory, root, requests };
    let (bug, fixed) = (stage.play("request")?, stage.play("session")?);
    let others = [("Valgrind", stage.valgrind()?), ("LeakSanitizer", stage.leak_sanitizer()?)];
    println!("\n{INTRODUCTION}\n{}", table(&bug, &fixed));
    println!("What drainprof has seen (drainprof diff {} {}):\n", bug.report, fixed.report);
    stage.diff(&bug, &fixed)?;
    let reported: Vec<_> =
        others.iter().filter_map(|(name, said)| Some((name, said.as_ref()?))).collect();
    if !reported.is_empty() {
        println!(
            "\nLeak detectors, which ask whether memory is freed in the end, on routing=request:"
        );
    }
    for (name, said) in reported {
        println!("  {name}: {said}");
    }
    print!("{}", stage.closing(&bug, &fixed));
    Ok(())
}

/// What both runs share.
struct Stage {
    drainprof: PathBuf,
    server: PathBuf,
    source: PathBuf,
    directory: PathBuf,
    root: PathBuf,
    requests: u64,
}

impl Stage {
    /// One run of the server under drainprof.
    fn play(&self, routing: &str) -> Result<Run> {
        let why = if work::is_root() { "" } else { "; through sudo: loading eBPF needs root" };
        work::step(format!("demo: drainprof run … request_server routing={routing} (7 s{why})"));
        let name = format!("{routing}.ndjson");
        let report = self.directory.join(&name);
        // An older run's report must not be taken for this one's.
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let mut command = work::as_root(&self.drainprof, &[]);
        command.args(["run", "--level", "stacks", "-i", "1", "-o", "ndjson", "--output"]);
        command.arg(&report).arg("--profile").arg(self.root.join(PROFILE));
        command.arg("--").arg(&self.server);
        command.arg(format!("routing={routing}")).arg(format!("requests={}", self.requests));
        work::note(work::describe(&command));
        let output = command.stderr(Stdio::inherit()).output().context("run drainprof")?;
        if !output.status.code().is_some_and(|code| REPORTING.contains(&code)) {
            bail!(
                "drainprof ended with {}; its messages are above, `drainprof doctor` says what it lacks",
                output.status
            );
        }
        Run::read(&String::from_utf8_lossy(&output.stdout), name)
            .with_context(|| format!("read the results of routing={routing}"))
    }

    /// Prints how the reports of two runs differ.
    fn diff(&self, bug: &Run, fixed: &Run) -> Result<()> {
        let mut diff = Command::new(&self.drainprof);
        diff.current_dir(&self.directory).args(["diff", &bug.report, &fixed.report]);
        print!("{}", work::read("compare the reports", "did the profile match?", &mut diff)?);
        Ok(())
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

    /// What the numbers mean, and where to go on.
    fn closing(&self, bug: &Run, fixed: &Run) -> String {
        let mut text = String::from("\n");
        if [bug, fixed].iter().all(|run| run.allocated == run.freed) {
            text.push_str(
                "Both servers free every object, so a leak checker has nothing to report. Yet where sessions are\n\
                 routed into the arenas of requests, each one keeps a whole granule from being given back.\n\n",
            );
        }
        let shown =
            |path: &Path| path.strip_prefix(&self.root).unwrap_or(path).display().to_string();
        let _ = writeln!(
            text,
            "Next:\n  \
               the words and the idea            docs/concepts.md\n  \
               leak detectors beside drainprof   docs/leak-detectors.md\n  \
               the server                        {SERVER}\n  \
               what drainprof knows of it        {PROFILE} (write such a file for your allocator: docs/profiles.md)\n  \
               the reports of these runs         {} (docs/report.md)\n  \
               a process of yours                sudo {} attach -p PID",
            shown(&self.directory.join("*.ndjson")),
            shown(&self.drainprof),
        );
        text
    }
}

/// What the server says of one run, and where drainprof's report is.
#[derive(Debug, PartialEq)]
struct Run {
    allocated: u64,
    freed: u64,
    peak_rss_kib: u64,
    /// A file's name.
    report: String,
}

impl Run {
    /// From the server's own words.
    fn read(printed: &str, report: String) -> Result<Self> {
        let words: Vec<&str> = printed.split([' ', ',', '\n']).filter(|w| !w.is_empty()).collect();
        let number = |name: &str| {
            let at = words.iter().position(|word| *word == name);
            let word = at.and_then(|at| words.get(at + 1)).and_then(|word| word.parse().ok());
            word.with_context(|| format!("the server printed no `{name} N`"))
        };
        let (allocated, freed) = (number("allocated")?, number("freed")?);
        Ok(Self { allocated, freed, peak_rss_kib: number("peak_rss_kib")?, report })
    }
}

/// What was run, and the terms of the comparison.
const INTRODUCTION: &str = "\
A small server gives each request an arena: a granule of 64 KiB, closed when the request ends, and given
back to the system once no object in it is live. Some requests begin a session, which lives longer.
  routing=request  keeps a session's object in its request's arena
  routing=session  keeps it in an arena for sessions
drainprof watched both runs from outside, through probes on the arena's functions. To it, a close is pinned
when an object is still live; DSR is the share of closes at which none was; a granule is retained from its
pinned close until its last object is freed.
";

/// What the server says of both runs.
fn table(bug: &Run, fixed: &Run) -> String {
    let rows = [
        ("objects allocated", bug.allocated, fixed.allocated),
        ("objects freed", bug.freed, fixed.freed),
        ("peak RSS, KiB", bug.peak_rss_kib, fixed.peak_rss_kib),
    ];
    let mut text =
        format!("{:<32}{:>16}{:>16}\n", "The server says", "routing=request", "routing=session");
    for (name, bug, fixed) in rows {
        let _ = writeln!(text, "  {name:<30}{bug:>16}{fixed:>16}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's truth is found by its words; without it there is nothing to compare.
    #[test]
    fn reads_the_server() {
        let printed =
            "requests 8\nallocated 82, freed 81\nrss_kib 5 at the end\npeak_rss_kib 900\n";
        let run = Run::read(printed, String::new()).unwrap();
        assert_eq!((run.allocated, run.freed, run.peak_rss_kib), (82, 81, 900));
        assert!(Run::read("requests 8\n", String::new()).is_err());
        assert!(table(&run, &run).contains("  objects freed "));
    }
}

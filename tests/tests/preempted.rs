//! Threads that are preempted inside the kernel side's programs, and the truth to the last event.
//!
//! The target (`targets/stacks_chaos.c`) has threads of several policies on each CPU, and threads that sleep and wake
//! up, so that programs of several threads are under way on one CPU at once. Each test is a level and a shape of
//! probes; its cases are numbers of threads and policies. Each case is a line, from which a table can be made:
//!
//! ```text
//! preempted: level=objects shape=returns threads=8 policy=mixed cpus=2 runs=20 exact=20 incomplete=0 losses={} …
//! ```
//!
//! On kernels that preempt programs one loss is real: a thread that is preempted inside a call of `bpf(2)` keeps the
//! kernel from running programs at tracepoints on its CPU. Then the report is incomplete, and exact all the same.
//!
//! How much is run is up to `DRAINPROF_TEST_EVENTS`, `_RUNS` and `_THREADS` (`environment`).

use std::{collections::BTreeMap, thread};

use anyhow::{Context as _, Result};
use drainprof_common::loss::{LOSSES, Loss, Severity};
use drainprof_tests::{
    compare::{Expect, allocator_of_any},
    environment::{self, chaos_seed, number, numbers, requires_root, sweep_closes},
    paths::{self, Sites},
    target::Target,
    tracer::{self, Outcome, Traced, Tracer, trace},
};
use serde_json::Value;

/// Events of a case on an ordinary day.
const EVENTS: u64 = 20_000;
/// Events before them, in which one thread meets all call paths.
const WARM: u64 = 4_000;
const POLICIES: [&str; 2] = ["other", "mixed"];
/// Granules that threads share, and those of each thread's own, to which most events go: else the threads would wait for
/// one another, and few programs would be under way at once.
const USUAL: &[&str] = &["places=8", "own=4", "share=8"];

/// Which probes are placed.
#[derive(Clone, Copy)]
enum Shape {
    /// Probes at entry alone.
    Entry,
    /// Probes at return: out-parameters, refused calls, wrappers, moves.
    Returns,
}

impl Shape {
    const fn name(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Returns => "returns",
        }
    }

    const fn profile(self) -> &'static str {
        match self {
            Self::Entry => "stacks_chaos_entry",
            Self::Returns => "stacks_chaos",
        }
    }
}

/// One line of the table.
struct Case<'a> {
    level: &'a str,
    shape: Shape,
    threads: u64,
    policy: &'a str,
    places: &'a [&'a str],
}

impl Case<'_> {
    /// The target's options.
    fn args(&self, total: u64) -> Result<Vec<String>> {
        let mut args = vec!["stay=0".to_owned(), "rounds=1".to_owned(), chaos_seed()?];
        args.extend([format!("threads={}", self.threads), format!("policy={}", self.policy)]);
        args.extend([format!("total={total}"), format!("warm={WARM}")]);
        args.extend(self.places.iter().map(|&place| place.to_owned()));
        if matches!(self.shape, Shape::Entry) {
            args.push("plain=1".to_owned());
        }
        if self.level == "boundary" {
            args.push("boundary=1".to_owned());
        }
        Ok(args)
    }

    /// Runs the target once under drainprof.
    fn trace(&self) -> Result<Traced> {
        let args = self.args(number("DRAINPROF_TEST_EVENTS", sweep_closes(EVENTS)?)?)?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if self.level == "stacks" {
            let (target, tracer) = with_known_paths(&args, self.level, self.shape)?;
            let truths = target.finish()?.truths;
            return Ok(Traced { truths, outcome: last_report(tracer)? });
        }
        trace("stacks_chaos", &args, self.shape.profile(), &["--level", self.level])
    }

    /// All differences between truth and report.
    fn differences(&self, traced: &Traced) -> Vec<String> {
        let mut expect = Expect::default();
        if self.level == "boundary" {
            expect = expect.leave_out("objects").leave_out("retention");
        }
        if self.level == "stacks" {
            return Sites::default().expect(|_| expect).all_differences(traced);
        }
        expect.differences(&traced.truths, traced.outcome.report(), traced.outcome.code)
    }

    /// Runs it as often as is asked for, and prints its line; what differed.
    fn run(&self) -> Result<Vec<String>> {
        let runs = number("DRAINPROF_TEST_RUNS", 1)?;
        let (mut exact, mut incomplete, mut losses) = (0, 0, BTreeMap::new());
        let (mut failures, mut used) = (Vec::new(), [0; 2]);
        for run in 1..=runs {
            let traced = self.trace().with_context(|| self.named(run))?;
            let found = self.differences(&traced);
            let report = traced.outcome.report();
            exact += u64::from(found.is_empty());
            for (most, key) in used.iter_mut().zip(["peak_rss_bytes", "map_bytes"]) {
                *most = report["self"][key].as_u64().unwrap_or_default().max(*most);
            }
            incomplete += u64::from(report["complete"] == false);
            for info in LOSSES {
                let count = report["losses"][info.name].as_u64().unwrap_or_default();
                if count != 0 {
                    *losses.entry(info.name).or_insert(0) += count;
                }
            }
            if !found.is_empty() {
                failures.push(format!("{}:\n    {}", self.named(run), found.join("\n    ")));
            }
        }
        let cpus = thread::available_parallelism()?;
        let [resident, maps] = used.map(|bytes| bytes >> 20);
        println!(
            "preempted: level={} shape={} threads={} policy={} cpus={cpus} runs={runs} exact={exact} \
             incomplete={incomplete} losses={losses:?} resident={resident}MiB maps={maps}MiB",
            self.level,
            self.shape.name(),
            self.threads,
            self.policy,
        );
        Ok(failures)
    }

    fn named(&self, run: u64) -> String {
        let Self { level, shape, threads, policy, .. } = self;
        format!("level={level} shape={} threads={threads} policy={policy} run={run}", shape.name())
    }
}

/// Starts a target and traces it until all its call paths are met, and learnt, before anything pins; then it goes on.
/// (Until a path is known it has several numbers, and a granule with pins of more than one of them counts for each.)
fn with_known_paths(args: &[&str], level: &str, shape: Shape) -> Result<(Target, Tracer)> {
    let mut target = Target::start("stacks_chaos", &[args, &["stops=1"]].concat())?;
    let mut command = tracer::command()?;
    command.args(["attach", "-p", &target.pid().to_string(), "--level", level, "--top", "2000"]);
    command.args(["-i", "200ms", "-o", "ndjson", "--profile"]);
    command.arg(environment::profile(shape.profile()));
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    target.reaches("warm")?;
    // The stacks that are there are unwound before a record is written: the second one was begun after the stop.
    for _ in 0..2 {
        tracer.process().expect_out("{")?;
    }
    target.go()?;
    Ok((target, tracer))
}

/// The report is in the last record.
fn last_report(tracer: Tracer) -> Result<Outcome> {
    let mut outcome = tracer.finish()?;
    let last = outcome.stdout.last().context("drainprof writes records")?;
    outcome.report = Some(serde_json::from_str::<Value>(last)?["report"].take());
    Ok(outcome)
}

/// Runs all cases of a level and a shape; fails with all that differed.
fn cases(level: &str, shape: Shape) -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut failures = Vec::new();
    for threads in numbers("DRAINPROF_TEST_THREADS", &[1, 2, 4, 8, 64])? {
        for policy in POLICIES {
            failures.extend(Case { level, shape, threads, policy, places: USUAL }.run()?);
        }
    }
    assert!(failures.is_empty(), "truth and report differ:\n{}", failures.join("\n"));
    Ok(())
}

/// Four threads on two CPUs that share no granule: all that they share is the kernel side. Where a program's stack is
/// one per CPU, as on kernels from 6.13 on, the threads overwrite each other's: the kernel oopses within milliseconds,
/// or the counts are wrong.
#[test]
fn four_threads_that_share_no_granule() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut failures = Vec::new();
    for level in ["objects", "stacks"] {
        let places = &["places=0", "own=16"];
        let case = Case { level, shape: Shape::Returns, threads: 4, policy: "other", places };
        failures.extend(case.run()?);
    }
    assert!(failures.is_empty(), "truth and report differ:\n{}", failures.join("\n"));
    Ok(())
}

/// A report of threads that go on: programs that were preempted when counting stopped have ended before it is made, so
/// that all sums hold.
#[test]
fn stopped_while_threads_run() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut found = Vec::new();
    for (level, policy) in [("objects", "mixed"), ("stacks", "other"), ("stacks", "mixed")] {
        // At returns, objects whose frees have not returned are neither live nor freed.
        let case = Case { level, shape: Shape::Entry, threads: 64, policy, places: USUAL };
        for run in 1..=number("DRAINPROF_TEST_RUNS", 1)? {
            let args = case.args(u64::MAX >> 1)?;
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let (target, mut tracer) = with_known_paths(&args, level, case.shape)?;
            for _ in 0..2 {
                tracer.process().expect_out("{")?;
            }
            tracer.interrupt()?;
            let outcome = last_report(tracer)?;
            target.kill()?;
            let allocator = allocator_of_any(&outcome)?;
            let objects = |key: &str| allocator["objects"][key].as_u64().unwrap_or(u64::MAX / 4);
            let mut differs = if level == "stacks" { paths::sums(&allocator) } else { Vec::new() };
            if objects("allocated") != objects("freed") + objects("live") {
                differs.push(format!("objects: {}", allocator["objects"]));
            }
            let losses = LOSSES.iter().filter(|info| info.severity == Severity::Incomplete);
            for info in losses.filter(|info| info.loss != Loss::TracepointSkipped) {
                let count = &outcome.report()["losses"][info.name];
                if *count != 0 {
                    differs.push(format!("losses.{}: {count}", info.name));
                }
            }
            found.extend(differs.iter().map(|what| format!("{}: {what}", case.named(run))));
        }
    }
    assert!(found.is_empty(), "sums do not hold:\n{}", found.join("\n"));
    Ok(())
}

/// Opens and closes, judged by the target's own counts.
#[test]
fn boundary_at_entry() -> Result<()> {
    cases("boundary", Shape::Entry)
}

/// As [`boundary_at_entry`], at returns.
#[test]
fn boundary_at_returns() -> Result<()> {
    cases("boundary", Shape::Returns)
}

/// Objects by the arguments of their calls.
#[test]
fn objects_at_entry() -> Result<()> {
    cases("objects", Shape::Entry)
}

/// Objects by results and out-parameters, with refused calls, wrappers and moves.
#[test]
fn objects_at_returns() -> Result<()> {
    cases("objects", Shape::Returns)
}

/// As [`objects_at_entry`], with the truth of each call path.
#[test]
fn stacks_at_entry() -> Result<()> {
    cases("stacks", Shape::Entry)
}

/// As [`objects_at_returns`], with the truth of each call path.
#[test]
fn stacks_at_returns() -> Result<()> {
    cases("stacks", Shape::Returns)
}

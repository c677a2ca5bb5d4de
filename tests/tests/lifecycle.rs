//! Processes come, change and go: fork, vfork, exec, exit, and the end of drainprof itself.

use std::{io::Write as _, process::Stdio, time::Duration};

use anyhow::{Context as _, Result};
use drainprof_observe::goal::{Goal, Probing, WindowRequest};
use drainprof_tests::{
    compare::{Count, Expect},
    elf,
    environment::{self, deadline, requires_root},
    target::Target,
    tracer::{Traced, Tracer, command, trace},
};
use nix::sys::signal::Signal;
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];
const FOLLOW: [&str; 3] = ["--level", "objects", "--follow-forks"];

/// A child that goes on allocating in its copy of the memory leaves its parent's counts alone.
#[test]
fn fork_leaves_the_parent_alone() -> Result<()> {
    if requires_root() {
        let traced = trace("family", &["mode=fork"], "arena", &OBJECTS)?;
        Expect::default().unseen("child").check(&traced);
    }
    Ok(())
}

/// With --follow-forks parent and child are both exact, each by itself.
#[test]
fn fork_followed() -> Result<()> {
    if requires_root() {
        let traced = trace("family", &["mode=fork"], "arena", &FOLLOW)?;
        traced.exact();
        let targets = traced.outcome.report()["targets"].as_array().cloned().unwrap_or_default();
        assert!(targets.iter().any(|target| target["began"]["how"] == "forked"), "{targets:?}");
    }
    Ok(())
}

/// Probes in all processes that map a file go together, where the kernel can do that; the program is as it was then.
#[test]
fn links_of_files() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("steps", &[])?;
    let tracer = Tracer::attach(&[target.pid()], "arena", &FOLLOW)?;
    let links = tracer.quick_links()?;
    if environment::kernel_is_at_least(6, 6) {
        assert!(links >= 4, "{links} on {}", environment::kernel_release());
    }
    target.steps("o1 a1 f1 c1")?;
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    assert_eq!(elf::changed_text_bytes(target.pid(), &environment::target("steps")?)?, 0);
    assert_eq!(outcome.report()["targets"][0]["allocators"][0]["granules"]["drainable"], 1);
    target.finish().map(drop)
}

/// A vfork child that calls exec is another program: the parent stays exact.
#[test]
fn vfork_leaves_the_parent_alone() -> Result<()> {
    if requires_root() {
        let traced = trace("family", &["mode=vfork"], "arena", &OBJECTS)?;
        Expect::default().unseen("after").check(&traced);
    }
    Ok(())
}

/// With --follow-forks the image after vfork and exec is exact as well.
#[test]
fn vfork_followed() -> Result<()> {
    if requires_root() {
        trace("family", &["mode=vfork"], "arena", &FOLLOW)?.exact();
    }
    Ok(())
}

/// An exec ends one incarnation and begins another under the same pid; both are exact.
#[test]
fn exec_makes_a_new_target() -> Result<()> {
    if requires_root() {
        for (mode, more) in [
            ("mode=exec", &OBJECTS[..]),
            ("mode=exec_thread", &["--level", "objects", "--follow-forks"]),
        ] {
            let traced = trace("family", &[mode], "arena", more)?;
            traced.exact();
            let targets =
                traced.outcome.report()["targets"].as_array().cloned().unwrap_or_default();
            assert_eq!(targets[0]["ended"]["how"], "exec", "{mode}");
            assert_eq!(targets[1]["began"]["how"], "exec", "{mode}");
        }
    }
    Ok(())
}

/// Probes of one process hang on its first thread: where another thread calls exec, the new image is
/// attached to late, and that is told.
#[test]
fn exec_by_another_thread_is_told() -> Result<()> {
    if requires_root() {
        let traced = trace("family", &["mode=exec_thread"], "arena", &OBJECTS)?;
        let report = traced.outcome.report();
        assert_eq!(report["losses"]["attached_late"], 1);
        assert_eq!(report["complete"], false);
        assert_eq!(traced.outcome.code, Some(5), "{}", traced.outcome.talk());
        // What the first image did is exact all the same.
        let mut expect = Expect::default().loss("attached_late", Count::Exactly(1));
        // How much of the second image was seen is a matter of speed, and so is what it began before.
        for notice in ["unmatched_frees", "unmatched_closes", "returns_unmatched"] {
            expect = expect.loss(notice, Count::Any);
        }
        let first = &traced.truths[..1];
        let differences = expect.differences(first, report, traced.outcome.code);
        let about_first: Vec<_> =
            differences.iter().filter(|text| !text.contains("not in the truth")).collect();
        assert!(about_first.is_empty(), "{about_first:?}");
    }
    Ok(())
}

/// An exec in the middle of an alloc cuts that call off: a notice, not a loss.
#[test]
fn exec_inside_an_alloc() -> Result<()> {
    if requires_root() {
        trace("family", &["mode=exec_inside"], "arena", &OBJECTS)?.exact();
    }
    Ok(())
}

/// A target that exits ends the observation, and the report says how.
#[test]
fn exit_is_reported() -> Result<()> {
    if requires_root() {
        let traced = trace("psweep", &["closes=10"], "arena", &OBJECTS)?;
        traced.exact();
        assert_eq!(traced.outcome.report()["targets"][0]["ended"]["how"], "exit");
    }
    Ok(())
}

/// What a target had done when it was killed is all in the report.
#[test]
fn target_killed_in_mid_run() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=2000", "p=2500", "stops=1"])?;
        let tracer = Tracer::attach(&[target.pid()], "arena", &OBJECTS)?;
        target.go()?;
        target.reaches("half")?;
        target.kill()?;
        let finished = target.finish();
        assert!(finished.is_ok_and(|finished| finished.signal == Some(9)));
        let outcome = tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let target = &outcome.report()["targets"][0];
        assert_eq!(target["ended"]["how"], "exit");
        assert_eq!(target["allocators"][0]["granules"]["closed"], 1000);
        assert_eq!(target["allocators"][0]["granules"]["opened"], 1000);
    }
    Ok(())
}

/// Ctrl-C ends the observation, not the target: the report is exact up to then, the text is clean again.
#[test]
fn interrupt_detaches() -> Result<()> {
    if requires_root() {
        let (mut target, path) = half_way(&OBJECTS)?;
        assert!(elf::changed_text_bytes(target.pid(), &path)? > 0, "probes show in the text");
        target.tracer.interrupt()?;
        let outcome = target.tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let counts = &outcome.report()["targets"][0];
        assert_eq!(counts["allocators"][0]["granules"]["closed"], 1000);
        assert_eq!(counts["ended"], Value::Null, "the target lives on");
        assert_eq!(elf::changed_text_bytes(target.target.pid(), &path)?, 0);
        target.target.go()?;
        target.target.reaches("end")?;
        target.target.go()?;
        assert_eq!(target.target.finish()?.code, Some(0));
    }
    Ok(())
}

/// --duration ends the observation by itself.
#[test]
fn duration_ends_the_observation() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "-d", "1"];
        let target = half_way(&more)?.0;
        let outcome = target.tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let report = outcome.report();
        assert_eq!(report["targets"][0]["allocators"][0]["granules"]["closed"], 1000);
        assert!(report["window"]["seconds"].as_f64().is_some_and(|seconds| seconds >= 1.0));
    }
    Ok(())
}

/// Killed without warning, drainprof leaves nothing behind: the text is the file's, the target runs on.
#[test]
fn killed_drainprof_leaves_nothing() -> Result<()> {
    if requires_root() {
        let (mut pair, path) = half_way(&OBJECTS)?;
        assert!(elf::changed_text_bytes(pair.pid(), &path)? > 0, "probes show in the text");
        pair.tracer.process().signal(Signal::SIGKILL)?;
        pair.tracer.process().wait()?;
        // The kernel takes the probes out on its own time, at the latest after a grace period.
        let until = std::time::Instant::now() + deadline();
        while elf::changed_text_bytes(pair.pid(), &path)? > 0 {
            assert!(std::time::Instant::now() < until, "the probes stay in the text");
            std::thread::yield_now();
        }
        pair.target.go()?;
        pair.target.reaches("end")?;
        pair.target.go()?;
        assert_eq!(pair.target.finish()?.code, Some(0));
    }
    Ok(())
}

/// Two drainprofs on one process do not disturb each other.
#[test]
fn two_tracers_at_once() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=2000", "p=2500", "late=5"])?;
        let first = Tracer::attach(&[target.pid()], "arena", &OBJECTS)?;
        let second = Tracer::attach(&[target.pid()], "arena", &OBJECTS)?;
        target.go()?;
        let truths = target.finish()?.truths;
        Traced { truths: truths.clone(), outcome: first.finish()? }.exact();
        Traced { truths, outcome: second.finish()? }.exact();
    }
    Ok(())
}

/// A second attach after a detach starts from nothing: what is older is older.
#[test]
fn attach_again() -> Result<()> {
    if requires_root() {
        let mut pair = half_way(&OBJECTS)?.0;
        pair.tracer.interrupt()?;
        pair.tracer.finish()?;
        let again = Tracer::attach(&[pair.target.pid()], "arena", &OBJECTS)?;
        pair.target.go()?;
        pair.target.reaches("end")?;
        pair.target.go()?;
        pair.target.finish()?;
        let outcome = again.finish()?;
        let granules = &outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!((&granules["opened"], &granules["closed"]), (&1000.into(), &1000.into()));
    }
    Ok(())
}

/// A child that is forked while nothing follows it runs without probes' effects on its exit.
#[test]
fn unfollowed_child_ends_well() -> Result<()> {
    if requires_root() {
        let traced = trace("family", &["mode=fork"], "arena", &OBJECTS)?;
        assert_eq!(traced.truths.len(), 2, "parent and child both came to their ends");
        Expect::default().unseen("child").loss("attached_late", Count::Exactly(0)).check(&traced);
    }
    Ok(())
}

/// A target in the middle of its run, and the tracer on it.
struct Pair {
    target: Target,
    tracer: Tracer,
}

impl Pair {
    fn pid(&self) -> u32 {
        self.target.pid()
    }
}

fn half_way(more: &[&str]) -> Result<(Pair, std::path::PathBuf)> {
    let mut target = Target::start("psweep", &["closes=2000", "p=2500", "stops=1"])?;
    let path = environment::target("psweep")?;
    assert_eq!(elf::changed_text_bytes(target.pid(), &path)?, 0, "the text is clean at first");
    let tracer = Tracer::attach(&[target.pid()], "arena", more)?;
    target.go()?;
    target.reaches("half")?;
    Ok((Pair { target, tracer }, path))
}

/// A process that is killed at some moment of the attach costs only its own result: the other one's is exact. Alone, its
/// end is the reason (4), or it was observed (0), or it was cut off in a call (5).
#[test]
fn killed_during_the_attach() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    for moment in 0..10 {
        let after = Duration::from_millis(moment * 20);
        let mut stays = Target::start("psweep", &["closes=100"])?;
        let dies = Target::start("psweep", &["closes=100"])?;
        let pid = i32::try_from(dies.pid())?;
        let killer = std::thread::spawn(move || {
            std::thread::sleep(after);
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL)
        });
        let mut both = Tracer::attach_unchecked(&[stays.pid(), dies.pid()], "arena", &OBJECTS)?;
        killer.join().expect("the killer does not panic")?;
        both.attached()?;
        stays.go()?;
        stays.finish()?;
        let outcome = both.finish()?;
        assert_eq!(outcome.code, Some(0), "after {after:?}: {}", outcome.talk());
        let targets = outcome.report()["targets"].as_array().cloned().unwrap_or_default();
        let closed = |target: &Value| target["allocators"][0]["granules"]["closed"] == 100;
        assert_eq!(targets.iter().filter(|target| closed(target)).count(), 1, "{targets:?}");
    }
    Ok(())
}

/// A process that has another one's number by now is left alone: windows of the daemon say which one they mean.
#[test]
fn another_process_with_the_number() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let target = Target::start("psweep", &["closes=100"])?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", target.pid()))?;
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let started: u64 = fields.nth(19).unwrap_or_default().parse()?;
    for (start_time, code) in [(started - 1, 4), (started, 0)] {
        let goal = Goal {
            probing: Some(Probing::of(vec![environment::profile("arena")])),
            duration: Some(Duration::from_millis(100)),
            ..Goal::default()
        };
        let parent = std::process::id();
        let request = WindowRequest { goal, pid: target.pid(), start_time, parent };
        let mut window = command()?;
        window.arg("window").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut window = window.spawn()?;
        window.stdin.take().context("its stdin")?.write_all(&serde_json::to_vec(&request)?)?;
        let output = window.wait_with_output()?;
        let talk = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{talk}");
    }
    target.kill()?;
    Ok(())
}

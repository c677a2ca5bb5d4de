//! Duty cycles: what happens inside the windows is counted to the last event, what crosses an edge is
//! not decided, and between the windows no probe is in the target.

use anyhow::Result;
use drainprof_tests::{
    compare::sum_rule,
    elf,
    environment::{self, requires_root},
    target::Target,
    tracer::{Tracer, run_to_end},
};
use serde_json::{Value, json};

/// Long enough for some steps and their answers, on a slow machine too.
const DUTY: [&str; 2] = ["--duty", "3s/7s"];

fn start(more: &[&str]) -> Result<(Target, Tracer)> {
    let target = Target::start("steps", &[])?;
    let args: Vec<&str> = DUTY.iter().chain(more).copied().collect();
    let mut tracer = Tracer::attach(&[target.pid()], "arena", &args)?;
    tracer.window_begins(1)?;
    Ok((target, tracer))
}

/// The keys that are named, out of a group of counts.
fn counts(group: &Value, keys: &[&str]) -> Vec<u64> {
    keys.iter().map(|key| group[key].as_u64().unwrap_or(u64::MAX)).collect()
}

/// Two windows: their counts are what was done inside them. A granule that was open at an edge is left
/// open, and unknown when it closes; a pin at an edge is left. What is done in between is not seen, and
/// the target's text is the file's then.
#[test]
fn two_windows() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let path = environment::target("steps")?;
    let (mut target, mut tracer) = start(&["--level", "objects"])?;
    assert!(elf::changed_text_bytes(target.pid(), &path)? > 0, "probes show in the text");
    target.steps("o1 a1 f1 c1  o2 a2 c2  o3 a3")?;
    tracer.window_ended(1)?;
    assert_eq!(elf::changed_text_bytes(target.pid(), &path)?, 0, "no probe between windows");
    target.steps("f2  o4 a4 c4  o5 a5 f5 c5")?;
    tracer.window_begins(2)?;
    assert!(elf::changed_text_bytes(target.pid(), &path)? > 0, "the probes are back");
    target.steps("f3 c3  o6 a6 a6 f6 c6 f6")?;
    tracer.window_ended(2)?;
    assert_eq!(elf::changed_text_bytes(target.pid(), &path)?, 0);
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let report = outcome.report();
    assert_eq!(report["targets"].as_array().map(Vec::len), Some(1), "one process");
    assert_eq!(report["targets"][0]["allocators"].as_array().map(Vec::len), Some(1));
    let allocator = &report["targets"][0]["allocators"][0];
    assert_eq!(
        counts(
            &allocator["granules"],
            &["opened", "opened_before", "closed", "drainable", "pinned", "unknown"]
        ),
        [4, 1, 4, 1, 2, 1],
        "{allocator:#}"
    );
    assert_eq!(counts(&allocator["granules"], &["open_now", "left_open", "open_peak"]), [0, 1, 1]);
    assert_eq!(sum_rule(allocator), None);
    let retention = &allocator["retention"];
    assert_eq!(counts(retention, &["granules", "late_drained", "left_granules"]), [0, 1, 1]);
    assert_eq!(retention["left_bytes"], 4096);
    assert!(retention["pin_delay_seconds"]["max"].is_f64(), "{retention:#}");
    let objects = counts(&allocator["objects"], &["allocated", "freed", "left", "live"]);
    assert_eq!(objects, [5, 3, 2, 0]);
    assert_eq!(report["losses"]["unmatched_frees"], 1, "the object of granule 3 is older");
    let duty = &report["window"]["duty"];
    assert_eq!((&duty["on_seconds"], &duty["period_seconds"]), (&json!(3.0), &json!(7.0)));
    assert_eq!(duty["windows"], 2);
    let observed = duty["observed_seconds"].as_f64().unwrap_or_default();
    let all = report["window"]["seconds"].as_f64().unwrap_or_default();
    assert!((6.0..all).contains(&observed) && all > 10.0, "{observed} of {all}");
    Ok(())
}

/// Probes of windows go together, where the kernel can do that: a link of many probes each. After the window there is none.
#[test]
fn links_of_windows() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (mut target, mut tracer) = start(&["--level", "objects"])?;
    let links = tracer.quick_links()?;
    if environment::kernel_is_at_least(6, 10) {
        // Open, close, alloc and free, of which open and alloc are judged at their return.
        assert!(links >= 4, "{links} on {}", environment::kernel_release());
    }
    target.steps("o1 a1 f1 c1")?;
    tracer.window_ended(1)?;
    assert_eq!(tracer.quick_links()?, 0);
    tracer.interrupt()?;
    assert_eq!(tracer.finish()?.code, Some(0));
    target.finish().map(drop)
}

/// At level `boundary` the close of a granule from an earlier window is decided: its count is in memory.
/// Ctrl-C inside a window tells what is open now.
#[test]
fn boundary_decides_across_windows() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (mut target, mut tracer) = start(&["--level", "boundary"])?;
    target.steps("o1 a1  o2 a2 f2  o3 c3")?;
    tracer.window_ended(1)?;
    tracer.window_begins(2)?;
    target.steps("c1 c2 o4")?;
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let path = environment::target("steps")?;
    assert_eq!(elf::changed_text_bytes(target.pid(), &path)?, 0, "it ends without a probe");
    let allocator = &outcome.report()["targets"][0]["allocators"][0];
    let granules = &allocator["granules"];
    assert_eq!(
        counts(granules, &["opened", "opened_before", "drainable", "pinned", "unknown"]),
        [4, 2, 2, 1, 0],
        "{allocator:#}"
    );
    assert_eq!(counts(granules, &["open_now", "left_open"]), [1, 2]);
    assert_eq!(allocator["open_granules"].as_array().map(Vec::len), Some(1));
    assert_eq!(allocator["retention"]["left_granules"], Value::Null, "not measurable");
    assert_eq!(sum_rule(allocator), None);
    Ok(())
}

/// Fifty windows each leave eight granules open: many more than the maps hold at once. Nothing is lost.
#[test]
fn fifty_windows_leave_nothing_behind() -> Result<()> {
    if requires_root() {
        many_windows("boundary", 50)?;
    }
    Ok(())
}

/// The same with the objects in them.
#[test]
fn windows_leave_no_objects_behind() -> Result<()> {
    if requires_root() {
        many_windows("objects", 8)?;
    }
    Ok(())
}

/// Each window sees eight granules with an object each, and leaves them; the maps have room for sixteen.
fn many_windows(level: &str, windows: u64) -> Result<()> {
    let mut target = Target::start("steps", &[])?;
    let limits = ["--max-granules", "16", "--max-objects", "16", "--max-instances", "1"];
    let args: Vec<&str> =
        ["--level", level, "--duty", "150ms/160ms"].into_iter().chain(limits).collect();
    let mut tracer = Tracer::attach(&[target.pid()], "arena", &args)?;
    for window in 1..=windows {
        tracer.window_begins(window)?;
        let first = window * 8;
        let steps: Vec<_> = (first..first + 8).map(|id| format!("o{id} a{id}")).collect();
        target.steps(&steps.join(" "))?;
        tracer.window_ended(window)?;
    }
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let report = outcome.report();
    assert_eq!(report["complete"], true);
    assert!(report["window"]["duty"]["windows"].as_u64() >= Some(windows));
    let allocator = &report["targets"][0]["allocators"][0];
    // Steps that come too late for their window are not seen, but most come in time.
    let left = allocator["granules"]["left_open"].as_u64().unwrap_or_default();
    assert!((windows * 4..=windows * 8).contains(&left), "{allocator:#}");
    assert_eq!(allocator["granules"]["opened"], left);
    assert_eq!(sum_rule(allocator), None);
    Ok(())
}

/// A target that ends between two windows ends the observation.
#[test]
fn target_ends_between_windows() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (mut target, mut tracer) = start(&["--level", "objects"])?;
    target.steps("o1 c1")?;
    tracer.window_ended(1)?;
    target.finish()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let report = outcome.report();
    assert_eq!(report["targets"][0]["ended"]["how"], "exit");
    assert_eq!(report["targets"][0]["allocators"][0]["granules"]["drainable"], 1);
    assert_eq!(report["window"]["duty"]["windows"], 1);
    Ok(())
}

/// A program that is executed between two windows is another target in the next, and looked at as such.
#[test]
fn exec_between_windows() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let (mut target, mut tracer) = start(&["--level", "objects"])?;
    target.steps("o1 c1")?;
    tracer.window_ended(1)?;
    target.tell("x")?;
    target.ready_again()?;
    tracer.window_begins(2)?;
    target.go()?;
    target.finish()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    let targets = &outcome.report()["targets"];
    assert_eq!(targets[0]["ended"]["how"], "exec");
    assert_eq!(targets[1]["began"], json!({"how": "exec", "from_target": targets[0]["target"]}));
    assert_eq!(targets[0]["allocators"][0]["granules"]["closed"], 1);
    assert_eq!(targets[1]["allocators"][0]["granules"]["closed"], 10);
    Ok(())
}

/// What is no duty cycle is refused, and so are `run` and --follow-forks, each with its reason.
#[test]
fn refusals() -> Result<()> {
    for (duty, reason) in [
        ("0/10m", "no length"),
        ("10m/10s", "shorter than the period"),
        ("10s/10s", "shorter than the period"),
        ("10s", "on/period"),
        ("often", "on/period"),
        ("x/y", "expected a time"),
    ] {
        let outcome = run_to_end(&["attach", "-p", "1", "--duty", duty])?;
        assert_eq!(outcome.code, Some(2), "{duty}: {}", outcome.talk());
        assert!(outcome.talk().contains(reason), "{duty}: {}", outcome.talk());
    }
    let outcome = run_to_end(&["run", "--duty", "1s/2s", "--", "true"])?;
    assert_eq!(outcome.code, Some(2), "{}", outcome.talk());
    assert!(outcome.talk().contains("drainprof attach"), "{}", outcome.talk());
    let mut child = Target::start("steps", &[])?;
    let pid = child.pid().to_string();
    let outcome = run_to_end(&["attach", "-p", &pid, "--follow-forks", "--duty", "1s/2s"])?;
    assert_eq!(outcome.code, Some(2), "{}", outcome.talk());
    assert!(outcome.talk().contains("would be missed"), "{}", outcome.talk());
    child.steps("")
}

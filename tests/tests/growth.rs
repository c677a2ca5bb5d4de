//! Where memory grows: page faults, heap and mappings of targets that know what they do, and what of the touched
//! memory lies in granules.

use std::{process::Command, time::Instant};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::requires_root,
    http,
    node::resident,
    target::Target,
    tracer::{self, Outcome, Tracer},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

const PAGE: i64 = 4096;
const MIB: i64 = 1 << 20;

/// Starts targets, attaches to all of them at their handshakes, lets them run to their ends: their truths in the order
/// of the targets, and the report.
fn grown(targets: &[&[&str]], more: &[&str]) -> Result<(Vec<Vec<Value>>, Outcome)> {
    let mut all: Vec<Target> =
        targets.iter().map(|args| Target::start("grow", args)).collect::<Result<_>>()?;
    let pids: Vec<u32> = all.iter().map(Target::pid).collect();
    let options: Vec<&str> = ["--growth", "--top", "1000"].iter().chain(more).copied().collect();
    let tracer = Tracer::attach(&pids, "grow", &options)?;
    for target in &mut all {
        target.go()?;
    }
    let truths =
        all.into_iter().map(|target| Ok(target.finish()?.truths)).collect::<Result<Vec<_>>>()?;
    let outcome = tracer.finish()?;
    ensure!(outcome.report()["complete"] == true, "{}", outcome.report()["losses"]);
    Ok((truths, outcome))
}

/// The growth of the target that comes as this one in the report.
fn growth(outcome: &Outcome, target: usize) -> Result<&Value> {
    let growth = outcome.report().pointer(&format!("/targets/{target}/growth"));
    growth.filter(|growth| growth.is_object()).context("the target has a growth")
}

fn number(value: &Value, at: &str) -> Result<i64> {
    let found = value.pointer(at).and_then(Value::as_i64);
    found.with_context(|| format!("{at} is a number in {value}"))
}

/// The sum of a number over the call paths that go through a function.
fn through(growth: &Value, function: &str, at: &str) -> Result<i64> {
    let paths = growth["paths"].as_array().context("there are call paths")?;
    let goes = |path: &&Value| {
        let frames = path["frames"].as_array();
        frames.is_some_and(|frames| frames.iter().any(|frame| frame["function"] == function))
    };
    paths.iter().filter(goes).map(|path| number(path, at)).sum()
}

fn near(what: &str, found: i64, expected: i64) -> Result<()> {
    let off = (found - expected).abs();
    ensure!(off * 100 <= expected.abs(), "{what}: {found}, and the truth is {expected}");
    Ok(())
}

/// Without huge pages, faults times the page size is what resident memory has grown by, and so is the sum of what the
/// kernel says; all of it by one call path.
#[test]
fn pages_that_are_touched() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = grown(&[&["mode=touch", "mb=120", "thp=0"]], &[])?;
        let rss = number(&truths[0][0], "/rss")?;
        let growth = growth(&outcome, 0)?;
        near("faults", through(growth, "touch_pages", "/faults")? * PAGE, rss)?;
        near("resident", through(growth, "touch_pages", "/rss/anon_bytes")?, rss)?;
        near("the change", number(growth, "/rss/change/anon_bytes")?, rss)?;
        near("touched", number(growth, "/touched/bytes")?, rss)?;
    }
    Ok(())
}

/// With huge pages a fault brings 512 pages: the faults are few, and what they bring is told all the same.
#[test]
fn huge_pages() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = grown(&[&["mode=touch", "mb=120", "thp=1"]], &[])?;
        let rss = number(&truths[0][0], "/rss")?;
        let faults = number(&truths[0][0], "/faults")?;
        let growth = growth(&outcome, 0)?;
        near("resident", through(growth, "touch_pages", "/rss/anon_bytes")?, rss)?;
        near("touched", number(growth, "/touched/bytes")?, rss)?;
        let seen = through(growth, "touch_pages", "/faults")?;
        ensure!(seen <= faults, "{seen} of at most {faults} faults");
        ensure!(
            faults > 1000 || growth["faults"]["bytes_each"].as_f64() > Some(4096.0 * 16.0),
            "huge pages are said: {}",
            growth["faults"]
        );
    }
    Ok(())
}

/// The heap's growth is exact, whatever is given back in between.
#[test]
fn heap_by_brk() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = grown(&[&["mode=heap", "mb=21"]], &[])?;
        let growth = growth(&outcome, 0)?;
        let heap = through(growth, "grow_heap", "/heap_bytes")?;
        ensure!(heap == number(&truths[0][0], "/heap")? && heap == 21 * MIB, "{heap}");
    }
    Ok(())
}

/// Of a thousand mappings six hundred are unmapped, some of them partly, and some are moved: what is outstanding is
/// exact, by call path.
#[test]
fn mappings_that_stay() -> Result<()> {
    if requires_root() {
        let (truths, outcome) = grown(&[&["mode=maps"]], &[])?;
        let growth = growth(&outcome, 0)?;
        for (function, truth) in
            [("map_small", "/small"), ("map_large", "/large"), ("map_move", "/moved")]
        {
            let found = through(growth, function, "/outstanding_bytes")?;
            let expected = number(&truths[0][0], truth)?;
            ensure!(found == expected, "{function}: {found}, and the truth is {expected}");
        }
    }
    Ok(())
}

/// What is first touched in pinned granules follows the number of slabs that are pinned.
#[test]
fn pinned_slabs() -> Result<()> {
    if requires_root() {
        for share in ["0", "2500", "10000"] {
            let share = format!("share={share}");
            let level = ["--level", "objects"];
            let (truths, outcome) = grown(&[&["mode=slabs", "thp=0", &share]], &level)?;
            let growth = growth(&outcome, 0)?;
            let pinned = number(&truths[0][0], "/pinned_slabs")? * PAGE;
            near(&share, number(growth, "/touched/pinned_bytes")?, pinned)?;
            // The one that is used again and again is drained.
            let drained = number(growth, "/touched/drained_bytes")?;
            let used = number(&truths[0][0], "/used_slabs")? * PAGE;
            ensure!(drained == used - pinned, "{drained} in drained ones, {used} in all");
            for place in growth["touched"]["places"].as_array().context("places")? {
                ensure!(
                    place["opened_at"]["function"] == "slabs"
                        || place["opened_at"]["function"] == "main",
                    "{place}"
                );
            }
        }
    }
    Ok(())
}

/// Each of two processes has its own, and what a child does that is not followed is nobody's.
#[test]
fn no_cross_talk() -> Result<()> {
    if requires_root() {
        let targets: [&[&str]; 2] =
            [&["mode=fork", "mb=4", "child=32", "thp=0"], &["mode=touch", "mb=16", "thp=0"]];
        let (truths, outcome) = grown(&targets, &[])?;
        ensure!(outcome.report()["targets"].as_array().map(Vec::len) == Some(2));
        let bytes = |target| through(growth(&outcome, target)?, "touch_pages", "/rss/anon_bytes");
        ensure!(truths[0].len() == 2, "parent and child have told theirs");
        near("the parent", bytes(0)?, 4 * MIB)?;
        near("the other", bytes(1)?, 16 * MIB)?;
    }
    Ok(())
}

/// A child that is followed, and the image after an exec, each have their own growth.
#[test]
fn forks_and_execs() -> Result<()> {
    if requires_root() {
        let follow = ["--follow-forks"];
        let (_, outcome) = grown(&[&["mode=fork", "mb=4", "child=32", "thp=0"]], &follow)?;
        let bytes =
            |outcome, target| through(growth(outcome, target)?, "touch_pages", "/rss/anon_bytes");
        near("the parent", bytes(&outcome, 0)?, 4 * MIB)?;
        near("the child", bytes(&outcome, 1)?, 32 * MIB)?;

        let (_, outcome) = grown(&[&["mode=exec", "mb=4", "child=16", "thp=0"]], &[])?;
        near("before the exec", bytes(&outcome, 0)?, 4 * MIB)?;
        near("after the exec", bytes(&outcome, 1)?, 16 * MIB)?;
    }
    Ok(())
}

/// Several processes fault at full speed, five million times: none is lost, and drainprof says what it used itself.
#[test]
fn five_million_faults() -> Result<()> {
    if requires_root() {
        let storm: &[&str] = &["mode=storm", "faults=1250000", "thp=0"];
        let (truths, outcome) = grown(&[storm; 4], &[])?;
        let mut sum = 0;
        for (target, truth) in truths.iter().enumerate() {
            let growth = growth(&outcome, target)?;
            let faults = through(growth, "storm", "/faults")?;
            // A fault may be taken twice where the page table changes meanwhile, but none is missing.
            ensure!((1_250_000..1_250_100).contains(&faults), "{faults}");
            let writes = through(growth, "storm", "/writes")?;
            let expected = number(&truth[0], "/writes")?;
            ensure!((expected..expected + 100).contains(&writes), "{writes}, written: {expected}");
            sum += faults;
        }
        ensure!(sum >= 5_000_000);
        let own = outcome.report()["self"]["cpu_seconds"].as_f64().context("own CPU")?;
        eprintln!("drainprof's own CPU: {own:.3} s");
    }
    Ok(())
}

/// A process that no profile fits has growth all the same, in every format.
#[test]
fn without_a_profile() -> Result<()> {
    if requires_root() {
        for (format, expected) in
            [("text", "page faults:"), ("folded", "touch_pages "), ("flamegraph", "</svg>")]
        {
            let mut target = Target::start("grow", &["mode=touch", "mb=8", "thp=0"])?;
            let mut command: Command = tracer::command()?;
            command.args(["growth", "-o", format, "-p", &target.pid().to_string()]);
            let mut tracer = Tracer::spawn(command)?;
            tracer.attached()?;
            target.go()?;
            target.finish()?;
            let outcome = tracer.finish()?;
            let text = outcome.stdout.join("\n");
            ensure!(text.contains(expected), "{format}: {text}\n{}", outcome.talk());
        }
    }
    Ok(())
}

/// What the kernel touches in a program's name is told apart by the kernel's own stacks, which begin where the page was
/// needed; no address of it is told.
#[test]
fn stacks_of_the_kernel() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut target = Target::start("grow", &["mode=read", "mb=4"])?;
    let mut command: Command = tracer::command()?;
    command.args(["growth", "--kernel-stacks", "-o", "json", "--top", "1000", "-p"]);
    command.arg(target.pid().to_string());
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    let bytes = number(&target.finish()?.truths[0], "/bytes")?;
    let outcome = tracer.finish()?;
    let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
    ensure!(report["complete"] == true, "{}", report["losses"]);
    let growth = &report["targets"][0]["growth"];
    near("read", through(growth, "read_pages", "/rss/anon_bytes")?, bytes)?;
    near("within the system call", through(growth, "ksys_read", "/rss/anon_bytes")?, bytes)?;
    near("locked", through(growth, "__mm_populate", "/rss/anon_bytes")?, bytes)?;
    let sum = |at: &str| number(growth, &format!("/rss/{at}/anon_bytes"));
    let parts = sum("by_paths")? + sum("by_others")? + sum("from_outside")?;
    ensure!(parts == sum("change")?, "{}", growth["rss"]);
    let frames: Vec<&Value> = growth["paths"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|path| path["frames"].as_array().into_iter().flatten())
        .filter(|frame| frame["module"] == "[kernel]")
        .collect();
    let sane = |frame: &&Value| frame["address"].is_null() && frame["function"].is_string();
    ensure!(!frames.is_empty() && frames.iter().all(sane), "{frames:?}");
    Ok(())
}

/// Without a process the whole machine is observed: one that starts meanwhile is found by its command, with its call
/// stacks and all of its pages.
#[test]
fn the_whole_machine() -> Result<()> {
    const GROWN: u64 = 24 << 20;
    if !requires_root() {
        return Ok(());
    }
    let mut command: Command = tracer::command()?;
    command.args(["growth", "-o", "json", "--max-call-paths", "262144"]);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    let mut grower = Target::start("grow", &["mode=creep", "rate=20000"])?;
    let pid = grower.pid();
    let before = resident(pid)?;
    grower.go()?;
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGUSR1)?;
    http::until("it has grown", || Ok(resident(pid)? >= before + GROWN))?;
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGUSR2)?;
    grower.reaches("rest")?;
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    grower.go()?;
    let truth = number(&grower.finish()?.truths[0], "/touched")?;
    let text = outcome.stdout.join("\n");
    let report: Value = serde_json::from_str(&text)?;
    ensure!(report["system"] == true && report["complete"] == true, "{}", report["losses"]);
    let targets = report["targets"].as_array().context("targets")?;
    let own = targets.iter().find(|one| one["pid"] == pid && one["ended"].is_null());
    let growth = &own.context("the newcomer is in the report")?["growth"];
    // Beside its own pages it touches at most a few of code and stack.
    let expected = truth..=truth + 16 * PAGE;
    let bytes = through(growth, "creep", "/faults")? * PAGE;
    ensure!(expected.contains(&bytes), "{bytes} bytes, and the truth is {truth}");
    let directory = tempfile::tempdir()?;
    let saved = directory.path().join("growth.json");
    std::fs::write(&saved, &text)?;
    let shown = |more: &[&str]| -> Result<String> {
        let mut command = tracer::command()?;
        let output = command.arg("report").arg(&saved).args(more).output()?;
        Ok(String::from_utf8(output.stdout)?)
    };
    let page = shown(&[])?;
    ensure!(page.contains("the whole machine:") && page.contains("grow: slab_take"), "{page}");
    let folded = shown(&["-o", "folded", "--weight", "faults"])?;
    let line = folded.lines().find(|line| line.starts_with("grow;") && line.contains(";creep;"));
    let bytes: i64 =
        line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok()).context("a line")?;
    ensure!(expected.contains(&bytes), "{bytes} bytes, and the truth is {truth}: {folded}");
    Ok(())
}

/// One process takes memory once, a second one later, and goes on. Of the time after that, only the second is shown, in
/// text and as widths.
#[test]
fn what_still_grows() -> Result<()> {
    const RATE: &str = "rate=2000";
    if !requires_root() {
        return Ok(());
    }
    let signal = |target: &Target, signal| kill(Pid::from_raw(target.pid().cast_signed()), signal);
    let mut processes = [
        Target::start("grow", &["mode=creep", RATE])?,
        Target::start("grow", &["mode=creep", RATE])?,
    ];
    let [start, leak] = processes.each_ref().map(Target::pid);
    let mut command: Command = tracer::command()?;
    command.args(["growth", "-o", "json", "-p", &start.to_string(), "-p", &leak.to_string()]);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    let attached = Instant::now();
    for process in &mut processes {
        process.go()?;
    }
    let until = |pid, bytes: u64| {
        let begin = resident(pid)?;
        http::until("it has grown", || Ok(resident(pid)? >= begin + bytes))
    };
    signal(&processes[0], Signal::SIGUSR1)?;
    until(start, 8 << 20)?;
    signal(&processes[0], Signal::SIGUSR2)?;
    signal(&processes[1], Signal::SIGUSR1)?;
    until(leak, 8 << 20)?;
    // The report's clock began a little earlier.
    let turn = attached.elapsed().as_secs_f64();
    until(leak, 16 << 20)?;
    for mut process in processes {
        process.go()?;
        process.finish()?;
    }
    let outcome = tracer.finish()?;
    let directory = tempfile::tempdir()?;
    let saved = directory.path().join("growth.json");
    std::fs::write(&saved, outcome.stdout.join("\n"))?;
    let shown = |format: &str| -> Result<String> {
        let range = format!("{turn},{}", turn + 3600.0);
        let mut command = tracer::command()?;
        let output = command.arg("report").arg(&saved).args(["-o", format, "--weight", "faults"]);
        let output = output.args(["--grown-between", &range]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    let report: Value = serde_json::from_str(&shown("json")?)?;
    let paths = |pid: u32| {
        let targets = report["targets"].as_array().into_iter().flatten();
        let own = targets.filter(|target| target["pid"] == pid);
        own.flat_map(|own| own["growth"]["paths"].as_array().into_iter().flatten())
            .collect::<Vec<_>>()
    };
    let creeps = |path: &&&Value| path["frames"].to_string().contains("\"creep\"");
    ensure!(!paths(start).iter().any(|path| creeps(&path)), "{:?}", paths(start));
    let found = paths(leak).into_iter().find(|path| creeps(&path)).context("the leak is shown")?;
    let added = number(found, "/selected/bytes")?;
    let all = number(found, "/rss/anon_bytes")?;
    ensure!(all >= 24 * MIB && added >= 15 * MIB && added <= all - 4 * MIB, "{added} of {all}");
    let folded = shown("folded")?;
    ensure!(folded.contains(&format!(" {added}\n")), "{folded}");
    Ok(())
}

/// Without call paths the sums are the same, and no path is told.
#[test]
fn sums_without_stacks() -> Result<()> {
    if requires_root() {
        for (mode, at, truth_at, exact) in [
            ("mode=touch", "/rss/change/anon_bytes", "/rss", false),
            ("mode=heap", "/heap/change_bytes", "/heap", true),
        ] {
            let mut target = Target::start("grow", &[mode, "mb=40", "thp=0"])?;
            let mut command: Command = tracer::command()?;
            command.args(["growth", "--no-stacks", "-o", "json"]);
            command.arg("-p").arg(target.pid().to_string());
            let mut tracer = Tracer::spawn(command)?;
            tracer.attached()?;
            target.go()?;
            let truth = number(&target.finish()?.truths[0], truth_at)?;
            let outcome = tracer.finish()?;
            let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
            ensure!(report["complete"] == true, "{}", report["losses"]);
            let growth = &report["targets"][0]["growth"];
            let found = number(growth, at)?;
            near(mode, found, truth)?;
            ensure!(!exact || found == truth, "{mode}: {found}, and the truth is {truth}");
            let paths = growth["paths"].as_array().context("there are call paths")?;
            ensure!(
                paths.len() == 1 && paths[0]["frames"].as_array().is_some_and(Vec::is_empty),
                "{mode}: {paths:?}"
            );
        }
    }
    Ok(())
}

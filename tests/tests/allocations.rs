//! Allocator calls outstanding, by call path: the view that `memleak` has, whole and from a sample of the pages.
//!
//! Which pages are in a sample is random, so estimates are compared within seven standard deviations: one run in many
//! millions is farther off by chance.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    target::Target,
    tracer::{self, Traced, Tracer, run_to_end, trace},
};
use serde_json::Value;

const ROOM: [&str; 6] = ["--level", "stacks", "--max-objects", "262144", "--max-granules", "65536"];
const PATHS: [&str; 3] = ["leak_small", "leak_medium", "leak_large"];
const PAGE: f64 = 4096.0;

fn leaks(sample: u32) -> Result<Traced> {
    let sample = format!("1/{sample}");
    let room = [&ROOM[..], &["--sample", &sample]].concat();
    let traced = trace("leaks", &[], "malloc-glibc", &room)?;
    let outcome = &traced.outcome;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    assert_eq!(outcome.report()["complete"], true, "{}", outcome.report()["losses"]);
    Ok(traced)
}

fn allocator(traced: &Traced) -> &Value {
    &traced.outcome.report()["targets"][0]["allocators"][0]
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Objects and bytes that a path has leaked, as the target says.
fn truth(traced: &Traced, path: &str) -> Result<[u64; 2]> {
    let leaks = &traced.truths.first().context("the target's truth")?["leaks"][path];
    Ok([number(&leaks[0]), number(&leaks[1])])
}

/// The sites whose paths lead through a function.
fn sites<'a>(traced: &'a Traced, path: &str) -> Vec<&'a Value> {
    let all = allocator(traced)["sites"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|site| site["frames"].to_string().contains(&format!("\"{path}\""))).collect()
}

/// Without a sample what is outstanding is exact, to the object and the byte, at each path; what was freed is not there.
#[test]
fn whole() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    exact(&leaks(1)?)
}

fn exact(traced: &Traced) -> Result<()> {
    for path in PATHS {
        let found = sites(traced, path);
        let sum = |key: &str| found.iter().map(|site| number(&site[key])).sum::<u64>();
        assert_eq!([sum("live"), sum("live_bytes")], truth(traced, path)?, "{path}");
        assert!(found.iter().all(|site| site["estimated"].is_null()), "{path}");
    }
    assert!(sites(traced, "fill").iter().all(|site| site["live"] == 0));
    assert!(allocator(traced)["sampling"].is_null());
    Ok(())
}

/// The view of `drainprof growth`, with its report as JSON on stdout.
fn viewed(more: &[&str]) -> Result<Traced> {
    let mut target = Target::start("leaks", &[])?;
    let mut command = tracer::command()?;
    command.args(["growth", "--view", "allocations", "-o", "json"]);
    command.args(["-p", &target.pid().to_string()]).args(&ROOM[2..]).args(more);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    let truths = target.finish()?.truths;
    let mut outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    outcome.report = Some(serde_json::from_str(&outcome.stdout.join("\n"))?);
    assert_eq!(outcome.report()["complete"], true, "{}", outcome.report()["losses"]);
    Ok(Traced { truths, outcome })
}

/// The view of growth finds the process's malloc by itself. Whole it is exact; else it is of one page in sixteen, and
/// objects larger than a page are exact there too. It is watched alone.
#[test]
fn view_of_growth() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = viewed(&["--sample", "1"])?;
    exact(&traced)?;
    assert_eq!(allocator(&traced)["profile"], "malloc-glibc");
    assert!(traced.outcome.report()["targets"][0]["growth"].is_null());

    let traced = viewed(&[])?;
    assert_eq!(allocator(&traced)["sampling"]["one_in"], 16);
    let large = sites(&traced, "leak_large");
    let sum = |key: &str| large.iter().map(|site| number(&site["estimated"][key])).sum::<u64>();
    assert_eq!([sum("live"), sum("live_bytes")], truth(&traced, "leak_large")?);
    Ok(())
}

/// A program that is linked statically with its malloc is told so, before anything is attached.
#[test]
fn no_malloc() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let target = Target::start("psweep_static", &[])?;
    let pid = target.pid().to_string();
    let outcome = run_to_end(&["growth", "-p", &pid, "--view", "allocations"])?;
    target.kill()?;
    assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
    for part in ["no malloc that a profile knows", "malloc-jemalloc", "--profile", &pid] {
        assert!(outcome.talk().contains(part), "{part}: {}", outcome.talk());
    }
    Ok(())
}

/// Of one page in four the estimates of each path are near the truth, although all pages were filled and emptied
/// before: a page that is in stays in. Objects larger than a page are exact. The whole is the sum of the paths.
#[test]
fn sampled() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let one_in = 4;
    let traced = leaks(one_in)?;
    for path in PATHS {
        let [objects, bytes] = truth(&traced, path)?;
        let found = sites(&traced, path);
        let sum = |key: &str| found.iter().map(|site| number(&site["estimated"][key])).sum::<u64>();
        if path == "leak_large" {
            assert_eq!([sum("live"), sum("live_bytes")], [objects, bytes], "every one is counted");
            continue;
        }
        // A page holds at most its own bytes of them, so that the variance is at most this.
        let deviation = (f64::from(one_in - 1) * PAGE * bytes as f64).sqrt();
        let off = sum("live_bytes") as f64 - bytes as f64;
        assert!(off.abs() <= 7.0 * deviation, "{path}: {off} of {bytes}, sd {deviation}");
        let counted: u64 = found.iter().map(|site| number(&site["live_bytes"])).sum();
        assert!(counted * 2 < bytes && sum("live_bytes") == counted * u64::from(one_in), "{path}");
        for site in &found {
            let estimated = &site["estimated"];
            let [low, high] = [0, 1].map(|end| number(&estimated["live_bytes_interval"][end]));
            let middle = number(&estimated["live_bytes"]);
            assert!(low <= middle && middle <= high, "{path}: {estimated}");
        }
    }
    let sampling = &allocator(&traced)["sampling"];
    assert_eq!(sampling["one_in"], Value::from(one_in));
    assert!(allocator(&traced)["census"]["unknown_frees"].is_null());
    let all: u64 = allocator(&traced)["sites"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|site| number(&site["estimated"]["live_bytes"]))
        .sum();
    assert_eq!(all, number(&sampling["estimated"]["objects_live_bytes"]));
    Ok(())
}

/// For people: text says that it is an estimate, of what, and how sure; stacks and picture have the estimates as widths.
#[test]
fn outputs() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = leaks(16)?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("report.json");
    std::fs::write(&path, traced.outcome.report().to_string())?;
    let shown = |format: &str| -> Result<String> {
        let path = path.to_str().context("a path of text")?;
        let outcome = run_to_end(&["report", path, "-o", format])?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        Ok(outcome.stdout.join("\n"))
    };
    let text = shown("text")?;
    for part in ["estimated", "1 of 16", "95 %", "outstanding", "leak_medium"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let estimate = |path: &str| -> u64 {
        let found = sites(&traced, path);
        found.iter().map(|site| number(&site["estimated"]["live_bytes"])).sum()
    };
    let folded = shown("folded")?;
    for path in PATHS {
        let of_path = folded.lines().filter(|line| line.contains(path));
        let widths = of_path.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        assert_eq!(widths.sum::<u64>(), estimate(path), "{path}: {folded}");
    }
    let picture = shown("flamegraph")?;
    assert!(picture.contains("estimated from a sample of 1 of 16 pages"), "{picture}");
    Ok(())
}

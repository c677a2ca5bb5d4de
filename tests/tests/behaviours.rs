//! Call paths on plain malloc, each judged by its own live objects and not by the pages that all share: the behaviours of
//! bytehound's simulation, of small objects and of ones that are larger than a page. `crates/report/src/trend/live_tests.rs`
//! has many more runs, and longer ones, without a program.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    tracer::{Traced, trace_from_start},
};
use serde_json::Value;

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("no number: {value}"))
}

fn allocator(traced: &Traced) -> &Value {
    &traced.outcome.report()["targets"][0]["allocators"][0]
}

fn site<'a>(traced: &'a Traced, function: &str) -> Result<&'a Value> {
    let sites = allocator(traced)["sites"].as_array().context("a list")?;
    let is_it = |site: &&Value| site["frames"][0]["function"] == function;
    sites.iter().find(is_it).with_context(|| format!("no site {function}"))
}

/// Runs the program with blocks of so many bytes, and so many steps per second, for so many seconds; one step in twenty
/// leaks a block.
fn run(block: u32, rate: u32, seconds: u32) -> Result<Traced> {
    // Sweeping over the objects takes at most the hundredth part of the time: a small table is swept often.
    let options = ["--level", "stacks", "--max-objects", "16384", "--top", "50"];
    let args = [format!("seconds={seconds}"), format!("size={block}"), format!("rate={rate}")];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let traced = trace_from_start("behaviours", &args, "malloc-glibc", &options)?;
    let outcome = &traced.outcome;
    assert_eq!(outcome.report()["complete"], true, "{}", outcome.report()["losses"]);
    let truth = traced.truths[0]["sites"].as_object().context("the target's truth")?;
    for (function, expected) in truth {
        let site = site(&traced, function)?;
        assert_eq!(site["live"], expected[1], "{function}");
        let verdict = &site["verdict"];
        // Bounded objects live for half of the run. At a high rate the program is slowed down, and that is a close call.
        let may_be_early = matches!(function.as_str(), "temporary" | "mixed")
            || (function == "bounded" && rate > 400);
        assert!(
            *verdict == expected[0] || (may_be_early && verdict == "too_early"),
            "{function}: {verdict}: {}",
            site["verdict_reason"]
        );
        let series = site["live_over_time"]["series"].as_array().context("a series")?;
        assert_eq!(
            series[series.len() - 1][1],
            site["live"],
            "{function}: it ends with what is live"
        );
        let survivors = site["survivors"].as_array().into_iter().flatten();
        let survivors: u64 = survivors.filter_map(|part| part["objects"].as_u64()).sum();
        assert_eq!(Some(survivors), site["live"].as_u64(), "{function}: survivors");
    }
    Ok(traced)
}

/// The rate of what a leak keeps, objects and bytes, is that of the program; the oldest objects are named.
fn leak_of(traced: &Traced, bytes_each: f64, seconds: f64) -> Result<()> {
    let leak = site(traced, "leak")?;
    let live = number(&leak["live"])?;
    let rate = number(&leak["live_over_time"]["objects_per_second"])?;
    assert!((rate / (live / seconds) - 1.0).abs() < 0.15, "{rate} of {live}: {leak:#}");
    let forecast = number(&leak["live_over_time"]["forecast_bytes_per_day"])?;
    let expected = live / seconds * bytes_each * 86_400.0;
    assert!((forecast / expected - 1.0).abs() < 0.25, "{forecast} is not {expected}");
    let oldest = leak["oldest"].as_array().context("a list")?;
    assert_eq!(oldest.len(), 8);
    let times: Vec<f64> = oldest.iter().filter_map(|at| at["allocated_seconds"].as_f64()).collect();
    assert!(times.windows(2).all(|two| two[0] <= two[1]) && times[7] < 3.0, "{times:?}");
    Ok(())
}

/// Objects of up to 64 bytes: their pages are shared, and what grows of them is reported once, for all.
#[test]
fn small() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = run(64, 400, 20)?;
    let chain = site(&traced, "chain")?;
    let oldest = &chain["oldest"][0];
    assert_eq!((&chain["live"], &oldest["bytes"]), (&1.into(), &traced.truths[0]["chain"]));
    assert!(
        number(&oldest["allocated_seconds"])? < 3.0,
        "a chain of reallocs is one life: {chain:#}"
    );
    leak_of(&traced, 32.5, 20.0)
}

/// Objects that are larger than a page, which hold none.
#[test]
fn larger_than_a_page() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    is_found(&run(8_192, 400, 20)?, 8_192.0, 20.0)
}

/// 6.5 MB/s in blocks of 64 KiB, from the heap.
#[test]
fn many_pages() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    // Many objects are swept less often: it takes longer until there are enough samples.
    is_found(&run(65_536, 2_000, 30)?, 65_536.0, 30.0)
}

/// Blocks that malloc maps one by one (`M_MMAP_THRESHOLD`), as long as none was freed.
#[test]
fn mapped_one_by_one() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    is_found(&run(262_144, 400, 20)?, 262_144.0, 20.0)
}

/// The leak has its rate, and is a finding.
fn is_found(traced: &Traced, bytes_each: f64, seconds: f64) -> Result<()> {
    leak_of(traced, bytes_each, seconds)?;
    let findings = traced.outcome.report()["targets"][0]["findings"].as_array();
    let leak = findings.into_iter().flatten().find(|finding| finding["code"] == "leak");
    let message = leak.context("no finding")?["message"].to_string();
    assert!(message.contains("leak"), "{message}");
    Ok(())
}

/// Who frees, by call stack: a profile of a few lines counts frees as if they were allocations.
#[test]
fn stacks_of_frees() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let options = ["--level", "stacks", "--top", "50"];
    let traced = trace_from_start("behaviours", &["seconds=2"], "frees", &options)?;
    assert_eq!(traced.outcome.report()["complete"], true);
    let sites = allocator(&traced)["sites"].as_array().context("a list")?;
    let takes = sites.iter().filter(|site| site["frames"][0]["function"] == "take");
    let (mut calls, mut paths) = (0, 0);
    for site in takes {
        calls += site["allocated"].as_u64().context("a count")?;
        paths += 1;
        assert!(site["allocated_bytes"].as_u64() >= site["allocated"].as_u64().map(|n| 32 * n));
    }
    assert_eq!(Some(calls), traced.truths[0]["freed"].as_u64());
    assert!(paths >= 4, "{paths} places that free: {sites:?}");
    Ok(())
}

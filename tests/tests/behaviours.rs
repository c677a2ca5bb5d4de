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

fn run(block: &str) -> Result<Traced> {
    // Sweeping over the objects takes at most the hundredth part of the time: a small table is swept often.
    let options = ["--level", "stacks", "--max-objects", "16384", "--top", "50"];
    let block = format!("size={block}");
    let traced = trace_from_start("behaviours", &["seconds=12", &block], "malloc-glibc", &options)?;
    let outcome = &traced.outcome;
    assert_eq!(outcome.report()["complete"], true, "{}", outcome.report()["losses"]);
    let truth = traced.truths[0]["sites"].as_object().context("the target's truth")?;
    for (function, expected) in truth {
        let site = site(&traced, function)?;
        assert_eq!(site["live"], expected[1], "{function}");
        let verdict = &site["verdict"];
        let may_be_early = matches!(function.as_str(), "temporary" | "mixed");
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
fn leak_of(traced: &Traced, bytes_each: f64) -> Result<()> {
    let leak = site(traced, "leak")?;
    let live = number(&leak["live"])?;
    let rate = number(&leak["live_over_time"]["objects_per_second"])?;
    assert!((rate / (live / 12.0) - 1.0).abs() < 0.15, "{rate} of {live}: {leak:#}");
    let forecast = number(&leak["live_over_time"]["forecast_bytes_per_day"])?;
    let expected = live / 12.0 * bytes_each * 86_400.0;
    assert!((forecast / expected - 1.0).abs() < 0.25, "{forecast} is not {expected}");
    let oldest = leak["oldest"].as_array().context("a list")?;
    assert_eq!(oldest.len(), 8);
    let times: Vec<f64> = oldest.iter().filter_map(|at| at["allocated_seconds"].as_f64()).collect();
    assert!(times.windows(2).all(|two| two[0] <= two[1]) && times[7] < 3.0, "{times:?}");
    Ok(())
}

/// Objects of up to 64 bytes: their pages are shared, and what grows of them is told once, for all.
#[test]
fn small() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    leak_of(&run("64")?, 32.5)
}

/// Objects that are larger than a page, which hold none.
#[test]
fn larger_than_a_page() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = run("8192")?;
    leak_of(&traced, 8_192.0)?;
    let findings = traced.outcome.report()["targets"][0]["findings"].as_array();
    let leak = findings.into_iter().flatten().find(|finding| finding["code"] == "leak");
    let message = leak.context("no finding")?["message"].to_string();
    assert!(message.contains("leak"), "{message}");
    Ok(())
}

//! Retention over time: the verdict on a program is what the program knows of itself, and the forecast
//! is its rate.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    tracer::{Traced, trace, trace_from_start},
};
use serde_json::Value;

fn retention(traced: &Traced) -> &Value {
    &traced.outcome.report()["targets"][0]["allocators"][0]["retention"]
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("no number: {value}"))
}

/// Compares with the truth, the verdict first: its reason is what explains a difference.
fn check(traced: &Traced) {
    let truth = &traced.truths[0]["allocators"][0]["retention"]["verdict"];
    let retention = retention(traced);
    assert_eq!(&retention["verdict"], truth, "{retention}");
    traced.exact();
}

/// The codes and sentences of the findings about the target.
fn findings(traced: &Traced) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = traced.outcome.report()["targets"][0]["findings"].as_array();
    let found = findings.into_iter().flatten();
    found.map(|finding| (text(&finding["code"]), text(&finding["message"]))).collect()
}

/// Never freed, under `attach`: a linear leak. Its slope is the 100 granules per second that the target
/// makes, the forecast is their bytes for a day, and a finding says both.
#[test]
fn never_freed() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = trace("patterns", &["mode=leak"], "arena", &["--level", "objects"])?;
    check(&traced);
    let retention = retention(&traced);
    let slope = number(&retention["slope_granules_per_second"])?;
    assert!((95.0..105.0).contains(&slope), "{retention:#}");
    assert!(number(&retention["r_squared"])? > 0.98, "{retention:#}");
    let [low, high] = [0, 1].map(|end| number(&retention["slope_interval"][end]));
    assert!((90.0..=slope).contains(&low?) && (slope..110.0).contains(&high?), "{retention:#}");
    let forecast = number(&retention["forecast_bytes_per_day"])?;
    let expected = 100.0 * 65_536.0 * 86_400.0;
    assert!((forecast / expected - 1.0).abs() < 0.05, "{forecast} is not {expected}");
    let series = retention["series"].as_array().context("a list")?;
    assert!((30..=65).contains(&series.len()), "{}", series.len());
    let last = &series[series.len() - 1];
    assert_eq!((&last[1], &last[2]), (&retention["granules"], &retention["bytes"]));
    let found = findings(&traced);
    let leak = found.iter().find(|(code, _)| code == "leak").context("no finding")?;
    assert!(leak.1.contains("GiB/day at the present rate"), "{leak:?}");
    Ok(())
}

/// Evicted when forty younger ones are there, under `run`: bounded, nothing is forecast, no leak is told.
#[test]
fn bounded_by_eviction() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = trace_from_start("patterns", &["mode=cache"], "arena", &["--level", "objects"])?;
    check(&traced);
    assert_eq!(retention(&traced)["forecast_bytes_per_day"], Value::Null);
    assert!(findings(&traced).iter().all(|(code, _)| code != "leak"));
    Ok(())
}

/// Three of four freed soon and one never, under `attach`: mixed, and the slope is that of the fourth.
#[test]
fn temporary_and_linear() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = trace("patterns", &["mode=mixed"], "arena", &["--level", "objects"])?;
    check(&traced);
    let slope = number(&retention(&traced)["slope_granules_per_second"])?;
    assert!((22.0..28.0).contains(&slope), "{:#}", retention(&traced));
    assert!(findings(&traced).iter().any(|(code, _)| code == "leak"));
    Ok(())
}

/// Freed only at the very end, under `run`: told as that. It grew until then, which is a note.
#[test]
fn freed_at_shutdown() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let args = ["mode=shutdown", "seconds=10"];
    let traced = trace_from_start("patterns", &args, "arena", &["--level", "objects"])?;
    check(&traced);
    let retention = retention(&traced);
    assert_eq!(retention["granules"], 0);
    assert_eq!(retention["forecast_bytes_per_day"], Value::Null);
    let slope = number(&retention["slope_granules_per_second"])?;
    assert!((95.0..105.0).contains(&slope), "{retention:#}");
    let report = traced.outcome.report();
    let notes = report["targets"][0]["findings"].as_array().context("a list")?;
    let leak = notes.iter().find(|finding| finding["code"] == "leak").context("no note")?;
    assert_eq!(leak["weight"], "info", "{leak}");
    Ok(())
}

/// Of kind `bulk`, granules that are never closed: the number of open ones grows, and with it the bytes that
/// each told when it was opened.
#[test]
fn never_closed() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let traced = trace("patterns", &["mode=unclosed"], "arena_bulk", &[])?;
    check(&traced);
    let retention = retention(&traced);
    let slope = number(&retention["slope_granules_per_second"])?;
    let bytes = number(&retention["slope_bytes_per_second"])?;
    assert!((22.0..28.0).contains(&slope), "{retention:#}");
    // Granules and their bytes are not read at one instant.
    assert!((bytes / slope / 65_536.0 - 1.0).abs() < 0.01, "{retention:#}");
    let found = findings(&traced);
    let leak = found.iter().find(|(code, _)| code == "leak").context("no finding")?;
    assert!(leak.1.contains("opens/s without a close"), "{leak:?}");
    Ok(())
}

/// Nothing pinned is told as nothing however short the look is; the same short look at a leak is too early.
/// At level `boundary` nobody knows, and everything is null.
#[test]
fn short_looks() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    trace("patterns", &["mode=none", "seconds=1"], "arena", &["--level", "objects"])?.exact();
    let args = ["mode=leak", "seconds=1"];
    let traced = trace("patterns", &args, "arena", &["--level", "objects"])?;
    assert_eq!(retention(&traced)["verdict"], "too_early");
    assert_eq!(retention(&traced)["slope_granules_per_second"], Value::Null);
    let traced = trace("patterns", &args, "arena", &["--level", "boundary"])?;
    for key in ["verdict", "verdict_reason", "series", "slope_interval", "forecast_bytes_per_day"] {
        assert_eq!(retention(&traced)[key], Value::Null, "{key}");
    }
    Ok(())
}

/// One program whose call paths have the four patterns, in the same granules: each path is judged for itself, and
/// the allocator as a whole by the one that leaks.
#[test]
fn four_call_paths() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    // Sweeping over the objects takes at most the hundredth part of the time: a small table is swept often, however
    // slow the build is.
    let options = ["--level", "stacks", "--max-objects", "4096"];
    let args = ["rate=50", "seconds=12"];
    let traced = trace_from_start("patterns_sites", &args, "arena", &options)?;
    traced.exact();
    assert_eq!(retention(&traced)["verdict"], "linear_leak");
    let sites = &traced.outcome.report()["targets"][0]["allocators"][0]["sites"];
    let sites = sites.as_array().context("a list")?;
    for (function, verdict) in [
        ("leak", "linear_leak"),
        ("cache", "bounded"),
        ("mixed", "mixed"),
        ("shutdown_only", "freed_at_shutdown"),
    ] {
        let is_it = |site: &&Value| {
            let mut frames = site["frames"].as_array().into_iter().flatten();
            frames.any(|frame| frame["function"] == function)
        };
        let site = sites.iter().find(is_it).with_context(|| format!("no site {function}"))?;
        assert_eq!(site["verdict"], verdict, "{function}: {}", site["verdict_reason"]);
        assert_eq!(site["granules_pinned"], 600, "{function}");
    }
    Ok(())
}

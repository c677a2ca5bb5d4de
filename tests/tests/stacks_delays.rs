//! Pin delays per site: classes and percentiles against what the program measured around each call.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::requires_root,
    tracer::{Traced, trace},
};
use serde_json::Value;

const STACKS: [&str; 2] = ["--level", "stacks"];
/// A percentile is read from a histogram whose buckets are this wide, relative to their values.
const WIDTH: f64 = 0.25;

/// The only site.
fn site(traced: &Traced) -> Result<&Value> {
    let sites = traced.outcome.report()["targets"][0]["allocators"][0]["sites"].as_array();
    let sites = sites.context("a list of sites")?;
    ensure!(sites.len() == 1, "one path allocates: {sites:#?}");
    Ok(&sites[0])
}

/// Classes, percentiles and counts of `pins` pins, most of which are of class `class`.
fn check(args: &[&str], pins: u64, class: &str) -> Result<()> {
    let number = format!("pins={pins}");
    let args = [args, &[number.as_str()]].concat();
    let traced = trace("delays", &args, "paths", &STACKS)?;
    traced.exact();
    let site = site(&traced)?;
    let truth = &traced.truths[0]["delays"];
    let of = |value: &Value| value.as_f64().with_context(|| format!("{value} is no number"));
    assert_eq!((&site["objects"], &site["objects_live"]), (&pins.into(), &0.into()));
    assert_eq!(site["class"], class, "{site:#}\n{truth}");
    let unsure = of(&truth["unsure"])?;
    ensure!(unsure <= pins as f64 / 10.0, "the machine was too busy to tell: {truth}");
    for class in ["near_miss", "moderate", "fundamental"] {
        let (least, told) = (of(&truth[class])?, of(&site["classes"][class])?);
        assert!((least..=least + unsure).contains(&told), "{class}: {truth} {}", site["classes"]);
    }
    let delays = &site["pin_delay_seconds"];
    for (name, width) in [("p50", WIDTH), ("p99", WIDTH), ("max", 0.001)] {
        let (low, high) = (of(&truth[name][0])? / 1e9, of(&truth[name][1])? / 1e9);
        let told = of(&delays[name])?;
        let range = low * (1.0 - width)..=high * (1.0 + width);
        assert!(range.contains(&told), "{name}: {told} is not in {range:?}; {delays}");
    }
    Ok(())
}

/// 5 % of the granule's lifetime: near misses.
#[test]
fn near_miss() -> Result<()> {
    if requires_root() { check(&["life=20000", "delay=1000"], 60, "near_miss") } else { Ok(()) }
}

/// Three times the lifetime: moderate.
#[test]
fn moderate() -> Result<()> {
    if requires_root() { check(&["life=5000", "delay=15000"], 60, "moderate") } else { Ok(()) }
}

/// A hundred times the lifetime: fundamental.
#[test]
fn fundamental() -> Result<()> {
    if requires_root() { check(&["life=300", "delay=30000"], 60, "fundamental") } else { Ok(()) }
}

/// Never freed until the process ends: fundamental, without a delay.
#[test]
fn never() -> Result<()> {
    if requires_root() {
        let traced = trace("delays", &["life=300", "delay=0", "pins=50"], "paths", &STACKS)?;
        traced.exact();
        let site = site(&traced)?;
        assert_eq!((&site["objects"], &site["objects_live"]), (&50.into(), &50.into()));
        assert_eq!(
            (&site["class"], &site["classes"]["fundamental"]),
            (&"fundamental".into(), &50.into())
        );
        assert_eq!(site["pin_delay_seconds"]["max"], Value::Null, "{site:#}");
    }
    Ok(())
}

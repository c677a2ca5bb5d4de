//! `--sample 1/N`: each granule is in the sample or not, with all that happens to it.
//!
//! What is drawn is random, so the shares are compared within five standard deviations: one run in two million
//! is farther off by chance.

use anyhow::Result;
use drainprof_tests::{
    environment::{requires_root, sweep_closes},
    tracer::{Traced, trace},
};
use serde_json::Value;

const ONE_IN: u64 = 8;
/// Objects that `psweep` allocates in each granule.
const OBJECTS: u64 = 3;

/// A sweep whose granules have three objects each, of which a quarter of the granules is pinned by one.
fn sample(more: &[&str], level: &str, sample: &str) -> Result<(u64, Traced)> {
    let closes = sweep_closes(20_000)?;
    let number = format!("closes={closes}");
    let objects = format!("objects={OBJECTS}");
    let args = [&[number.as_str(), "p=2500", objects.as_str()], more].concat();
    let room = ["--level", level, "--sample", sample, "--max-granules", "65536"];
    Ok((closes, trace("psweep", &args, "arena", &room)?))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Whether a count is within five standard deviations of what is expected of that many draws.
fn is_near(count: u64, draws: u64, share: f64) -> bool {
    let expected = draws as f64 * share;
    (count as f64 - expected).abs() <= 5.0 * (expected * (1.0 - share)).sqrt()
}

/// What must hold of every sampled report of the sweep.
fn check(closes: u64, traced: &Traced, objects: bool) {
    let report = traced.outcome.report();
    assert_eq!(traced.outcome.code, Some(0), "{}", traced.outcome.talk());
    assert_eq!(report["complete"], true);
    assert_eq!(report["losses"]["unmatched_frees"], Value::Null, "a sample cannot know them");
    let found: Vec<&Value> = report["findings"].as_array().into_iter().flatten().collect();
    assert!(found.iter().all(|finding| finding["code"] != "invariant"), "{found:?}");
    let allocator = &report["targets"][0]["allocators"][0];
    let (granules, sampling) = (&allocator["granules"], &allocator["sampling"]);
    let of = |name: &str| number(&granules[name]);

    // Nothing is both, nothing is neither.
    assert_eq!(sampling["one_in"], ONE_IN);
    assert_eq!(of("opened") + number(&sampling["granules_out"]), closes);
    assert_eq!(of("opened"), of("closed"));
    assert!(is_near(of("opened"), closes, 1.0 / ONE_IN as f64), "{granules}");
    // The DSR of the sample is that of all, and its interval stands around it.
    let decided = of("drainable") + of("pinned");
    assert!(is_near(of("pinned"), decided, 0.25), "{granules}");
    let dsr = allocator["dsr"].as_f64().unwrap_or_default();
    let interval: Vec<f64> = allocator["dsr_interval"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64)
        .collect();
    assert!(interval.len() == 2 && interval[0] < dsr && dsr < interval[1], "{allocator}");
    if objects {
        // All objects of a granule are in with it.
        let counted = &allocator["objects"];
        assert_eq!(number(&counted["allocated"]), OBJECTS * of("opened"));
        let live = number(&counted["allocated"]) - number(&counted["freed"]);
        assert_eq!(number(&counted["live"]), live);
    }
}

/// Unique ids: every granule in the sample has all of its objects, and its pins are never freed.
#[test]
fn unique_ids() -> Result<()> {
    if requires_root() {
        let (closes, traced) = sample(&[], "objects", "1/8")?;
        check(closes, &traced, true);
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["objects"]["live"], allocator["granules"]["pinned"]);
        assert_eq!(allocator["retention"]["granules"], allocator["granules"]["pinned"]);
    }
    Ok(())
}

/// A ring of ids that are used again while pinned: each generation is drawn anew, and late frees find theirs.
#[test]
fn ring() -> Result<()> {
    if requires_root() {
        let (closes, traced) = sample(&["ring=16", "late=40"], "objects", "8")?;
        check(closes, &traced, true);
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        let drained = number(&allocator["retention"]["late_drained"]);
        let retained = number(&allocator["retention"]["granules"]);
        assert_eq!(drained + retained, number(&allocator["granules"]["pinned"]));
        assert!(retained <= 40, "only the last forty can still be pinned: {allocator}");
    }
    Ok(())
}

/// At level `boundary` closes are sampled alike.
#[test]
fn boundary() -> Result<()> {
    if requires_root() {
        let (closes, traced) = sample(&["ring=64", "late=1"], "boundary", "1/8")?;
        check(closes, &traced, false);
    }
    Ok(())
}

/// One of one granule is every granule: exact, and no sample.
#[test]
fn all_is_no_sample() -> Result<()> {
    if requires_root() {
        let (_, traced) = sample(&[], "objects", "1/1")?;
        traced.exact();
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(
            (&allocator["sampling"], &allocator["dsr_interval"]),
            (&Value::Null, &Value::Null)
        );
    }
    Ok(())
}

/// Other kinds and other ways of counting keep the rules in a sample, too, and account for every open.
#[test]
fn other_kinds() -> Result<()> {
    if requires_root() {
        for (target, profile) in [("bulk", "bulk"), ("slab", "slab"), ("epoch_ring", "epoch_ring")]
        {
            let room = ["--level", "objects", "--sample", "1/4"];
            let traced = trace(target, &[], profile, &room)?;
            let report = traced.outcome.report();
            let found = report["findings"].to_string();
            assert!(!found.contains("\"invariant\""), "{target}: {found}");
            for allocator in report["targets"][0]["allocators"].as_array().into_iter().flatten() {
                let sampling = &allocator["sampling"];
                assert_eq!(sampling["one_in"], 4, "{target}");
                let granules = &allocator["granules"];
                let all = number(&granules["opened"])
                    + number(&granules["opened_before"])
                    + number(&sampling["granules_out"]);
                let opened = |truth: &Value| number(&truth["granules"]["opened"]);
                let truth: u64 = traced
                    .truths
                    .iter()
                    .flat_map(|truth| {
                        truth["allocators"].as_array().into_iter().flatten().map(opened)
                    })
                    .sum();
                assert!(all >= truth && truth > 0, "{target}: {allocator} of {truth}");
            }
        }
    }
    Ok(())
}

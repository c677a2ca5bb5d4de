//! Live counts that stand in several places, read at the close by `walk` and `popcount`: no probe on any
//! object, and the verdicts are exact. What a walk cannot do costs verdicts, not closes.

use anyhow::Result;
use drainprof_tests::{
    environment::requires_root,
    tracer::{Traced, trace, trace_from_start},
};
use serde_json::Value;

const BOUNDARY: [&str; 2] = ["--level", "boundary"];

fn allocator(traced: &Traced) -> &Value {
    &traced.outcome.report()["targets"][0]["allocators"][0]
}

/// Observes one workload through each of the profiles: all of them must agree with the truth to the last
/// event and the last pin.
fn exact(args: &[&str], profiles: &[&str]) -> Result<()> {
    if requires_root() {
        for profile in profiles {
            let traced = trace("slabs", args, profile, &BOUNDARY)?;
            traced.exact();
            let allocator = allocator(&traced);
            assert_eq!(allocator["level"], "boundary");
            let pinned = allocator["granules"]["pinned"].as_u64();
            assert!(pinned > Some(10), "{profile}: the workload pins some");
        }
    }
    Ok(())
}

/// An epoch that is a list of slabs, Σ `object_count` − `free_count`; the one that was open before the
/// attach is decided as well.
#[test]
fn list_of_slabs() -> Result<()> {
    exact(&["epochs=2000"], &["slabs_list"])
}

/// The same epochs through their circular lists: the head, which is in the epoch, ends them. Read at the
/// return of the close.
#[test]
fn circular_list_of_slabs() -> Result<()> {
    exact(&["epochs=2000"], &["slabs_ring"])
}

/// A bit map of several words: each word by itself, and the words walked over as an array.
#[test]
fn bit_map_of_words() -> Result<()> {
    exact(&["epochs=2000", "granule=slab"], &["slabs_bitmap", "slabs_words"])
}

/// Every tenth list is as long as a walk goes by default.
#[test]
fn longest_lists() -> Result<()> {
    exact(&["epochs=500", "damage=long", "long=512"], &["slabs_list", "slabs_ring"])
}

/// Lists of up to 700 slabs, and two walks at one close, where the profile allows more nodes than usual.
#[test]
fn long_lists_where_allowed() -> Result<()> {
    exact(&["epochs=150", "slabs=700", "p=5000"], &["slabs_long"])
}

/// Observed from the first instruction, and with other values walked for, too.
#[test]
fn from_the_start() -> Result<()> {
    if requires_root() {
        trace_from_start("slabs", &["epochs=500"], "slabs_bytes", &BOUNDARY)?.exact();
    }
    Ok(())
}

/// Lists beyond the bound, and lists that run in a circle, are counted; their closes are unknown, and
/// everything else is exact.
#[test]
fn cut_walks_are_counted() -> Result<()> {
    if requires_root() {
        for (damage, profile) in [
            ("damage=long", "slabs_list"),
            ("damage=long", "slabs_ring"),
            ("damage=cyclic", "slabs_list"),
            ("damage=cyclic", "slabs_ring"),
        ] {
            let traced = trace("slabs", &["epochs=500", damage], profile, &BOUNDARY)?;
            traced.exact();
            assert_eq!(traced.outcome.report()["losses"]["walk_cut"], 50, "{damage} {profile}");
            assert_eq!(allocator(&traced)["granules"]["unknown"], 50, "{damage} {profile}");
        }
    }
    Ok(())
}

/// A list that leads out of memory: a fault, and an unknown close as well.
#[test]
fn live_count_that_cannot_be_read() -> Result<()> {
    if requires_root() {
        for profile in ["slabs_list", "slabs_ring"] {
            let traced = trace("slabs", &["epochs=500", "damage=wild"], profile, &BOUNDARY)?;
            traced.exact();
            let report = traced.outcome.report();
            assert_eq!(report["losses"]["read_fault"], 50);
            assert_eq!(allocator(&traced)["granules"]["unknown"], 50);
        }
    }
    Ok(())
}

/// A live count below zero is none: such closes are unknown, and neither drainable nor pinned.
#[test]
fn negative_counts_decide_nothing() -> Result<()> {
    if requires_root() {
        let traced = trace("slabs", &["epochs=500"], "slabs_negative", &BOUNDARY)?;
        let (truth, granules) =
            (&traced.truths[0]["allocators"][0], &allocator(&traced)["granules"]);
        assert_eq!(granules["unknown"], truth["granules"]["pinned"]);
        assert_eq!(granules["drainable"], truth["granules"]["drainable"]);
        assert_eq!((&granules["pinned"], &granules["closed"]), (&0.into(), &500.into()));
    }
    Ok(())
}

/// Where another value than the live count cannot be walked for, the close itself is lost, and counted.
#[test]
fn other_values_cost_the_close() -> Result<()> {
    if requires_root() {
        let args = ["epochs=500", "damage=long"];
        let traced = trace("slabs", &args, "slabs_bytes", &BOUNDARY)?;
        assert_eq!(traced.outcome.code, Some(5), "{}", traced.outcome.talk());
        assert_eq!(traced.outcome.report()["losses"]["walk_cut"], 50);
        let granules = &allocator(&traced)["granules"];
        assert_eq!((&granules["closed"], &granules["unknown"]), (&450.into(), &0.into()));
    }
    Ok(())
}

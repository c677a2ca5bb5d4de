//! Attached in mid-run: granules and objects are older than the attach.

use anyhow::Result;
use drainprof_tests::{
    environment::requires_root,
    tracer::{trace, trace_from_start},
};

/// By counting, closes of older granules are unknown, frees of older objects unmatched; newer ones exact.
#[test]
fn older_granules_are_unknown_to_counting() -> Result<()> {
    if requires_root() {
        let traced = trace("midrun", &["before=100"], "arena", &["--level", "objects"])?;
        traced.exact();
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!(granules["unknown"], 99, "{granules}");
        assert_eq!(traced.outcome.report()["complete"], true, "being late is no loss");
    }
    Ok(())
}

/// Read from the allocator's memory, the same closes are decided.
#[test]
fn older_granules_are_exact_at_boundary() -> Result<()> {
    if requires_root() {
        let args = ["before=100", "boundary=1"];
        let traced = trace("midrun", &args, "arena", &["--level", "boundary"])?;
        traced.exact();
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!(granules["unknown"], 0, "{granules}");
    }
    Ok(())
}

/// Observed from the first instruction, nothing is older: a granule that was never opened is decided.
#[test]
fn from_the_start_nothing_is_unknown() -> Result<()> {
    if requires_root() {
        let args = ["epochs=200", "late=3"];
        let traced = trace_from_start("epoch_ring", &args, "epoch_ring", &["--level", "objects"])?;
        traced.exact();
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!(granules["unknown"], 0, "{granules}");
        assert_eq!(granules["opened_before"], 1, "epoch 0 was never opened: {granules}");
    }
    Ok(())
}

/// Without a decided close there is no DSR: null, neither 0 nor 1.
#[test]
fn no_decided_close_no_dsr() -> Result<()> {
    if requires_root() {
        let args = ["before=30", "after=0"];
        let traced = trace("midrun", &args, "arena", &["--level", "objects"])?;
        traced.exact();
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["dsr"], serde_json::Value::Null, "{}", allocator["granules"]);
    }
    Ok(())
}

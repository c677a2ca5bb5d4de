//! The p-sweep: 100,000 closes, of which a share p is pinned; the error must be 0, not small.
//!
//! One object per granule keeps a sweep under ten seconds even where every hit is single-stepped.
//! `DRAINPROF_SWEEP_CLOSES` sets another number of closes, for machines that are emulated.

use anyhow::Result;
use drainprof_tests::{
    environment::{requires_root, sweep_closes},
    tracer::trace,
};

const ROOM: [&str; 6] =
    ["--level", "objects", "--max-granules", "262144", "--max-objects", "262144"];

fn sweep(p: &str) -> Result<()> {
    if requires_root() {
        let closes = sweep_closes(100_000)?;
        let traced = trace("psweep", &[&format!("closes={closes}"), p], "arena", &ROOM)?;
        traced.exact();
        let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
        assert_eq!(granules["closed"], closes);
    }
    Ok(())
}

macro_rules! sweeps {
    ($($name:ident $p:literal;)*) => {
        $(#[doc = concat!("Exact with ", $p, " of 10,000 closes pinned and never drained.")]
        #[test]
        fn $name() -> Result<()> {
            sweep($p)
        })*
    };
}

sweeps! {
    none_pinned "p=0";
    one_percent "p=100";
    five_percent "p=500";
    ten_percent "p=1000";
    quarter "p=2500";
    half "p=5000";
    all_pinned "p=10000";
}

/// A ring of 16 ids, every pin freed one close later, when its id is closed but not yet reused.
#[test]
fn ring_late_by_one() -> Result<()> {
    if requires_root() {
        let closes = format!("closes={}", sweep_closes(10_000)?);
        trace("psweep", &[&closes, "ring=16", "late=1", "p=2500"], "arena", &ROOM)?.exact();
    }
    Ok(())
}

/// A ring of 16 ids, every pin freed 40 closes later, when its id has had two further lives.
#[test]
fn ring_late_by_forty() -> Result<()> {
    if requires_root() {
        let closes = format!("closes={}", sweep_closes(10_000)?);
        trace("psweep", &[&closes, "ring=16", "late=40", "p=2500"], "arena", &ROOM)?.exact();
    }
    Ok(())
}

/// Many objects per granule.
#[test]
fn fifty_objects_per_granule() -> Result<()> {
    if requires_root() {
        let closes = format!("closes={}", sweep_closes(2000)?);
        trace("psweep", &[&closes, "objects=50", "late=7", "p=3000"], "arena", &ROOM)?.exact();
    }
    Ok(())
}

/// Level `close` gives the same verdicts with one hit per granule; opens are not seen, so each close counts as one.
#[test]
fn same_verdicts_at_close() -> Result<()> {
    if requires_root() {
        let closes = format!("closes={}", sweep_closes(20_000)?);
        let traced = trace("psweep", &[&closes, "p=2500"], "arena", &["--level", "close"])?;
        let report = traced.outcome.report();
        let probes = report["targets"][0]["probes"].as_array().map_or(0, Vec::len);
        assert_eq!(probes, 1, "{}", report["targets"][0]["probes"]);
        let mut expect = drainprof_tests::compare::Expect::default();
        for unknown in ["objects", "retention", "lifetimes", "granules.open_peak"] {
            expect = expect.leave_out(unknown);
        }
        expect.check(&traced);
    }
    Ok(())
}

/// The boundary level gives the same verdicts with two hits per granule.
#[test]
fn same_verdicts_at_boundary() -> Result<()> {
    if requires_root() {
        let more = ["--level", "boundary"];
        let closes = format!("closes={}", sweep_closes(20_000)?);
        let traced = trace("psweep", &[&closes, "p=2500"], "arena", &more)?;
        drainprof_tests::compare::Expect::default()
            .leave_out("objects")
            .leave_out("retention")
            .check(&traced);
    }
    Ok(())
}

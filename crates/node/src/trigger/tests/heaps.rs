//! `heap_idle`: censuses minutes apart, examined every few seconds.

use drainprof_census::{HeapSummary, Summary};

use crate::{
    Heaps,
    trigger::{Signals, State, testing::Run},
};

/// Seconds between censuses.
const APART: f64 = 300.0;
const MIB: u64 = 1 << 20;

/// A heap of 100 MiB live beside `idle` MiB, in a process with 100 MiB more, as of the last census.
fn idle(at: f64, idle: impl Fn(u64) -> u64) -> Signals {
    #[allow(clippy::cast_sign_loss, reason = "the tests' times are not negative")]
    let census = (at / APART) as u64;
    let idle = idle(census);
    let heap = HeapSummary {
        allocator: "glibc".to_owned(),
        resident_bytes: (100 + idle) * MIB,
        live_bytes: 100 * MIB,
        trimmable_bytes: Some(idle * MIB),
        ..HeapSummary::default()
    };
    let summary =
        Summary { rss_bytes: (200 + idle) * MIB, heaps: vec![heap], ..Summary::default() };
    let heaps = Some(Heaps { unix_ms: census * 1000, summary, failure: None });
    Signals { at, heaps, ..Signals::default() }
}

/// What rises over four censuses fires with the fourth, goes on while it stays high, and ends when it was given back.
#[test]
fn rises() {
    let mut run = Run::new("heap_idle");
    run.over([0.0, 10.0 * APART], |at| {
        idle(at, |census| if census < 8 { 100 + 20 * census.min(5) } else { 10 })
    });
    assert_eq!((run.fired.as_slice(), run.ended.as_slice()), (&[900.0][..], &[2400.0][..]));
}

/// It names the allocator, the bytes, and what to do: another thing where few objects hold the memory.
#[test]
fn explains_itself() {
    let rising = |census| 200 + 50 * census;
    let mut run = Run::new("heap_idle");
    run.over([0.0, 4.0 * APART], |at| idle(at, rising));
    assert_eq!(
        run.message(),
        "glibc: 350.0 MiB of 550.0 MiB resident memory holds no live object, 63.6 %; 3 censuses ago it was 200.0 MiB; \
         the threshold is 30%; malloc_trim(0) would give back 350.0 MiB, a lower M_TRIM_THRESHOLD or MALLOC_ARENA_MAX \
         keeps it low"
    );
    let mut run = Run::new("heap_idle");
    run.over([0.0, 4.0 * APART], |at| {
        let mut signals = idle(at, rising);
        signals.heaps.as_mut().unwrap().summary.heaps[0].trimmable_bytes = Some(5 * MIB);
        signals
    });
    assert!(
        run.message()
            .ends_with("few objects hold it: `drainprof census` names their sizes and types")
    );
}

/// Idle MiB by the census's number.
type Course = fn(u64) -> u64;

/// What stays, falls once, is a small share or few bytes, or rises by less than a tenth, is none.
#[test]
fn is_no_rise() {
    let cases: [(&str, Course); 5] = [
        ("stays", |_| 500),
        ("one step", |census| if census < 10 { 10 } else { 800 }),
        ("falls once in three", |census| 400 + 100 * census - 300 * (census / 3)),
        ("small", |census| (10 + census).min(60)),
        ("creeps", |census| 5000 + census),
    ];
    for (name, course) in cases {
        let mut run = Run::new("heap_idle");
        run.over([0.0, 20.0 * APART], |at| idle(at, course));
        assert_eq!(run.fired, [0.0; 0], "{name}");
    }
}

/// Censuses that fail, and one that is seen again and again, are no censuses.
#[test]
fn needs_censuses() {
    let mut run = Run::new("heap_idle");
    run.over([0.0, 20.0 * APART], |at| {
        let mut signals = idle(at, |census| 100 + 50 * census);
        let heaps = signals.heaps.as_mut().unwrap();
        heaps.failure = (heaps.unix_ms / 1000 % 3 == 2).then(|| "it is too large".to_owned());
        signals
    });
    assert_eq!((run.fired.as_slice(), run.state()), (&[0.0; 0][..], State::Inactive));
    let mut run = Run::new("heap_idle");
    run.over([0.0, 20.0 * APART], |at| Signals { at, ..idle(0.0, |_| 900) });
    assert_eq!(run.fired, [0.0; 0]);
}

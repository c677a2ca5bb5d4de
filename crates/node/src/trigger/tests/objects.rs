//! `unmatched_frees` and `retention_slope`.

use crate::trigger::{
    Objects, Signals, Slope, State,
    testing::{Run, profile},
};

const HOUR: f64 = 3600.0;

fn objects(at: f64, objects: Objects) -> Signals {
    let mut profile = profile(None);
    profile.objects = Some(objects);
    Signals { at, profiles: vec![profile], ..Signals::default() }
}

/// A profile that misses a tenth of the allocations is reported within the window and its `for`.
#[test]
fn missed_allocations() {
    let mut run = Run::new("unmatched_frees");
    let mut now = Objects::default();
    run.over([0.0, 600.0], |at| {
        now = Objects {
            allocs: now.allocs + 90,
            frees: now.frees + 100,
            unmatched_frees: now.unmatched_frees + 10,
        };
        objects(at, now)
    });
    assert_eq!(run.state(), State::Firing);
    assert!(run.fired[0] <= 340.0, "{:?}", run.fired);
    assert!(
        run.message().contains("600 of 6000 frees in the last 5m (10.0 %)"),
        "{}",
        run.message()
    );
    assert!(
        run.engine.wants(&run.config).is_none(),
        "a deeper look at a sick profile says nothing"
    );
}

/// Allocations, frees and unmatched frees of one cycle, by time.
type Counts = fn(f64) -> [u64; 3];

/// Objects older than the attach are freed for a while in the healthiest program: while it allocates new ones for them, or at once, or in one go later.
#[test]
fn older_objects() {
    let cases: [(&str, Counts); 4] = [
        ("renewed", |at| [100, 100, if at < 1000.0 { 50 } else { 0 }]),
        ("at first", |at| if at < 120.0 { [50, 100, 50] } else { [100, 100, 0] }),
        ("in one go", |at| {
            if at.to_bits() == 1000_f64.to_bits() { [0, 5000, 5000] } else { [100, 100, 0] }
        }),
        ("half a percent", |_| [995, 1000, 5]),
    ];
    for (name, counts) in cases {
        let mut run = Run::new("unmatched_frees");
        let mut now = Objects::default();
        run.over([0.0, HOUR], |at| {
            let [allocs, frees, unmatched] = counts(at);
            now = Objects {
                allocs: now.allocs + allocs,
                frees: now.frees + frees,
                unmatched_frees: now.unmatched_frees + unmatched,
            };
            objects(at, now)
        });
        assert_eq!(run.fired, [0.0; 0], "{name}");
    }
}

/// Counts that fall begin again.
#[test]
fn replaced() {
    let mut run = Run::new("unmatched_frees");
    let mut step = 0;
    run.over([0.0, HOUR], |at| {
        step = (step + 1) % 50;
        objects(at, Objects { allocs: step * 90, frees: step * 100, unmatched_frees: step * 10 })
    });
    assert_eq!(run.fired, [0.0; 0]);
}

fn sloping(at: f64, slope: f64, interval: [f64; 2]) -> Signals {
    let mut profile = profile(None);
    profile.retained_bytes = Some(64 << 20);
    profile.retention_slope = Some(Slope { bytes_per_second: slope, interval });
    Signals { at, profiles: vec![profile], ..Signals::default() }
}

/// A sure growth fires after five minutes, and ends when it is no longer sure to be half of it.
#[test]
fn growth() {
    let mut run = Run::new("retention_slope");
    run.over([0.0, 400.0], |at| sloping(at, 20_480.0, [17_408.0, 23_552.0]));
    assert_eq!(run.fired, [300.0]);
    assert_eq!(
        run.message(),
        "demo: retained memory grows by 20.0 KiB/s (95 %: 17.0 KiB/s to 23.0 KiB/s), 1.6 GiB a day; 64.0 MiB are retained now"
    );
    run.over([400.0, 500.0], |at| sloping(at, 12_000.0, [10_000.0, 14_000.0]));
    assert_eq!(run.state(), State::Firing);
    run.check(&sloping(500.0, 12_000.0, [8000.0, 16_000.0]));
    assert_eq!(run.state(), State::Inactive);
}

/// A steep slope that is not sure, one at the threshold, a falling one, and what is no number, are none.
#[test]
fn no_growth() {
    let cases = [
        (1e6, [-1e6, 3e6]),
        (20_000.0, [16_384.0, 24_000.0]),
        (-1e6, [-2e6, -1e5]),
        (f64::NAN, [1e6, 2e6]),
        (1e6, [f64::NAN, f64::NAN]),
        (f64::INFINITY, [1e6, f64::INFINITY]),
        (1e6, [2e6, 1e5]),
    ];
    for (slope, interval) in cases {
        let mut run = Run::new("retention_slope");
        run.over([0.0, HOUR], |at| sloping(at, slope, interval));
        assert_eq!(run.fired, [0.0; 0], "{slope} {interval:?}");
    }
}

//! `dsr_low` and `dsr_drop`.

use crate::trigger::{
    Closes, Config, DsrLow, Signals, State,
    testing::{Closing, Run, TICK, profile},
};

const HOUR: f64 = 3600.0;

/// Exact counts, without noise: `at` and the closes of one cycle.
fn steady(drainable: u64, pinned: u64) -> impl FnMut(f64) -> Signals {
    let mut total = Closes::default();
    move |at| {
        total.drainable += drainable;
        total.pinned += pinned;
        Signals { at, profiles: vec![profile(Some(total))], ..Signals::default() }
    }
}

/// A DSR of .70 fires within a minute of many closes, after its `for`, and says the numbers.
#[test]
fn low_fires() {
    let mut run = Run::new("dsr_low");
    run.over([0.0, 120.0], steady(70, 30));
    assert_eq!(run.fired.len(), 1);
    assert!(run.fired[0] <= 60.0, "{:?}", run.fired);
    assert_eq!(
        run.message(),
        "demo: DSR 0.7000 over the last 1 min 55 s, 690 of 2300 decided closes left a granule behind; the threshold is 0.8"
    );
    assert_eq!(run.engine.wants(&run.config).unwrap().rule, "dsr_low");
}

/// An old sin is not reported for ever: once the last minutes are good, it ends.
#[test]
fn low_ends() {
    let mut run = Run::new("dsr_low");
    let mut closing = Closing::new(1);
    run.over([0.0, HOUR], |at| closing.check(at, 100, if at < 1800.0 { 0.5 } else { 1.0 }));
    assert_eq!((run.fired.len(), run.ended.len()), (1, 1));
    assert!((1800.0..2110.0).contains(&run.ended[0]), "{:?}", run.ended);
}

/// Between the thresholds it neither begins nor ends.
#[test]
fn low_has_hysteresis() {
    let mut run = Run::new("dsr_low");
    run.over([0.0, HOUR], steady(83, 17));
    assert_eq!(run.fired.len(), 0);
    let mut run = Run::new("dsr_low");
    let mut closing = Closing::new(2);
    run.over([0.0, 2.0 * HOUR], |at| closing.check(at, 1000, if at < 900.0 { 0.7 } else { 0.83 }));
    assert_eq!((run.fired.len(), run.ended.len()), (1, 0));
}

/// Noise at .84 does not fire within a day, with few closes nor with many; nor does exactly the threshold.
#[test]
fn low_is_not_fooled_by_noise() {
    for (seed, closes) in [(1, 1), (2, 2), (3, 10), (4, 40)] {
        let mut run = Run::new("dsr_low");
        let mut closing = Closing::new(seed);
        run.over([0.0, 24.0 * HOUR], |at| closing.check(at, closes, 0.84));
        assert_eq!(run.fired, [0.0; 0], "{closes} per look");
    }
    let mut run = Run::new("dsr_low");
    run.over([0.0, HOUR], steady(80, 20));
    assert_eq!(run.fired, [0.0; 0]);
}

/// Too few closes are not judged, however bad.
#[test]
fn low_needs_closes() {
    let mut run = Run::new("dsr_low");
    let mut total = 0;
    // 49 within five minutes.
    run.over([0.0, HOUR], |at| {
        total += u64::from(at % 300.0 < 49.0 * TICK);
        let closes = Closes { drainable: 0, pinned: total };
        Signals { at, profiles: vec![profile(Some(closes))], ..Signals::default() }
    });
    assert_eq!(run.fired, [0.0; 0]);
}

/// A count that falls is that of a process that was replaced: what it had before is not held against it.
#[test]
fn low_forgets_replaced_processes() {
    let mut run = Run::new("dsr_low");
    let mut old = steady(0, 1000);
    run.over([0.0, 20.0], &mut old);
    let mut new = steady(100, 0);
    run.over([20.0, 600.0], &mut new);
    assert_eq!((run.fired.len(), run.state()), (0, State::Inactive));
}

/// The worst profile of several is reported.
#[test]
fn low_tells_the_worst() {
    let mut run = Run::new("dsr_low");
    let (mut good, mut bad) = (steady(100, 0), steady(0, 100));
    run.over([0.0, 120.0], |at| {
        let mut signals = good(at);
        signals.profiles.extend(bad(at).profiles);
        signals.profiles[1].profile = "bad".to_owned();
        signals
    });
    assert_eq!(run.state(), State::Firing);
    assert!(run.message().starts_with("bad: DSR 0.0000"), "{}", run.message());
}

/// A fall from .98 to .92 fires within minutes, and ends when it is back.
#[test]
fn drop_fires_and_ends() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(3);
    run.over([0.0, 3.0 * HOUR], |at| {
        closing.check(at, 40, if (HOUR..2.0 * HOUR).contains(&at) { 0.92 } else { 0.98 })
    });
    assert_eq!((run.fired.len(), run.ended.len()), (1, 1));
    assert!((HOUR..HOUR + 240.0).contains(&run.fired[0]), "{:?}", run.fired);
    assert!((2.0 * HOUR..2.0 * HOUR + 150.0).contains(&run.ended[0]), "{:?}", run.ended);
}

/// The message has both rates, the distance and the number of closes.
#[test]
fn drop_explains_itself() {
    let mut run = Run::new("dsr_drop");
    let mut total = Closes::default();
    run.over([0.0, HOUR + 200.0], |at| {
        let pinned = if at < HOUR { 2 } else { 8 };
        total = Closes { drainable: total.drainable + 100 - pinned, pinned: total.pinned + pinned };
        Signals { at, profiles: vec![profile(Some(total))], ..Signals::default() }
    });
    assert_eq!(run.state(), State::Firing);
    for part in ["DSR 0.9200 over the last 2m", "usual are 0.9799 ± 0.0004", "2400 decided closes"]
    {
        assert!(run.message().contains(part), "{}", run.message());
    }
}

/// A steady .92 is this process's usual state, however noisy and however many closes there are.
#[test]
fn steady_is_no_drop() {
    for (seed, closes, dsr) in
        [(1, 3, 0.92), (2, 10, 0.92), (3, 40, 0.92), (4, 10, 0.5), (5, 10, 0.999)]
    {
        let mut run = Run::new("dsr_drop");
        let mut closing = Closing::new(seed);
        run.over([0.0, 24.0 * HOUR], |at| closing.check(at, closes, dsr));
        assert_eq!(run.fired, [0.0; 0], "{closes} per look at {dsr}");
    }
}

/// A significant fall that is smaller than the least is none: the nearest case that must not fire.
#[test]
fn small_drop_is_none() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(6);
    run.over([0.0, 6.0 * HOUR], |at| {
        closing.check(at, 1000, if at < 3.0 * HOUR { 0.98 } else { 0.96 })
    });
    assert_eq!(run.fired, [0.0; 0]);
}

/// A service whose mix of requests changes the DSR all the time has a wide baseline, and a swing within it is none.
#[test]
fn swings_are_usual() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(7);
    run.over([0.0, 24.0 * HOUR], |at| {
        let swing = if at % 1200.0 < 600.0 { 0.05 } else { -0.05 };
        closing.check(at, 100, 0.9 + swing)
    });
    assert_eq!(run.fired, [0.0; 0]);
}

/// A rise is no drop.
#[test]
fn rise_is_no_drop() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(8);
    run.over([0.0, 4.0 * HOUR], |at| {
        closing.check(at, 100, if at < 2.0 * HOUR { 0.8 } else { 0.99 })
    });
    assert_eq!(run.fired, [0.0; 0]);
}

/// What has lasted for hours is adopted: the rule ends, and a further fall fires again.
#[test]
fn lasting_drop_is_adopted() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(9);
    run.over([0.0, 11.0 * HOUR], |at| {
        let dsr = match at {
            at if at < HOUR => 0.98,
            at if at < 9.0 * HOUR => 0.90,
            _ => 0.80,
        };
        closing.check(at, 100, dsr)
    });
    assert_eq!((run.fired.len(), run.ended.len()), (2, 1), "{:?} {:?}", run.fired, run.ended);
    assert!((7.0 * HOUR..7.3 * HOUR).contains(&run.ended[0]), "{:?}", run.ended);
    assert!((9.0 * HOUR..9.1 * HOUR).contains(&run.fired[1]), "{:?}", run.fired);
}

/// Gaps, a replaced process and times without probes are no drop.
#[test]
fn interruptions_are_no_drop() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(10);
    for part in 0..6 {
        let from = f64::from(part) * 2.0 * HOUR;
        run.over([from, from + HOUR], |at| closing.check(at, 50, 0.95));
        match part % 3 {
            0 => run
                .over([from + HOUR, from + 1.5 * HOUR], |at| Signals { at, ..Signals::default() }),
            1 => closing = Closing::new(11),
            _ => {}
        }
    }
    assert_eq!(run.fired, [0.0; 0]);
}

/// Before enough was learned, nothing is said: a bad start is `dsr_low`'s case.
#[test]
fn drop_needs_a_baseline() {
    let mut run = Run::new("dsr_drop");
    let mut closing = Closing::new(12);
    run.over([0.0, 14.0 * 60.0], |at| closing.check(at, 100, if at < 420.0 { 0.99 } else { 0.5 }));
    assert_eq!(run.fired, [0.0; 0]);
}

/// A rule that is switched off says nothing; switched on again, it begins again.
#[test]
fn switched_off() {
    let off = DsrLow { enabled: false, ..DsrLow::default() };
    let mut run = Run::with("dsr_low", Config { dsr_low: off, ..Config::default() });
    let mut bad = steady(0, 100);
    run.over([0.0, 300.0], &mut bad);
    assert_eq!(run.state(), State::Inactive);
    run.config = Config::default();
    run.over([300.0, 400.0], &mut bad);
    assert_eq!(run.state(), State::Firing);
    run.config.dsr_low.enabled = false;
    run.over([400.0, 405.0], &mut bad);
    assert_eq!((run.state(), run.message()), (State::Inactive, String::new()));
}

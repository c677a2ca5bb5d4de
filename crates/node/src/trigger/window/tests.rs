use drainprof_report::values::Time;
use proptest::prelude::*;

use super::*;
use crate::config::WindowGrowth;

fn config() -> WindowConfig {
    WindowConfig::default()
}

fn refused(result: Result<Grant, Refused>) -> (String, Option<f64>) {
    match result.unwrap_err() {
        Refused::NotNow { why, seconds } => (why, seconds),
        Refused::Wrong(why) => panic!("{why}"),
    }
}

/// One at a time per process, for all that ask, and the refusal says when the running one ends.
#[test]
fn one_at_a_time() {
    let mut windows = Windows::new();
    let grant = windows.ask(&config(), 100.0, 1, By::Rule, None).unwrap();
    assert_eq!(grant, Grant { until: 160.0, seconds: 60.0 });
    for by in [By::Rule, By::User] {
        let (why, seconds) = refused(windows.ask(&config(), 120.0, 1, by, None));
        assert!(why.contains("is running"), "{why}");
        assert_eq!(seconds, Some(40.0));
    }
    assert_eq!(windows.until(1), Some(160.0));
    windows.end(160.0, 1);
    assert_eq!((windows.until(1), windows.running()), (None, 0));
}

/// No more on the node than configured, for all that ask.
#[test]
fn bound_per_node() {
    let mut windows = Windows::new();
    windows.ask(&config(), 0.0, 1, By::Rule, None).unwrap();
    windows.ask(&config(), 10.0, 2, By::User, None).unwrap();
    let (why, seconds) = refused(windows.ask(&config(), 20.0, 3, By::User, None));
    assert!(why.contains("2 diagnostic windows are running"), "{why}");
    assert_eq!(seconds, Some(40.0));
    windows.end(60.0, 1);
    windows.ask(&config(), 60.0, 3, By::User, None).unwrap();
}

/// Rules wait for the cool-down, users do not; after it rules are let in at once.
#[test]
fn cooldown() {
    let mut windows = Windows::new();
    windows.ask(&config(), 0.0, 1, By::Rule, None).unwrap();
    windows.end(60.0, 1);
    let result = windows.ask(&config(), 360.0, 1, By::Rule, None);
    let text = Refusal::from(result.clone().unwrap_err()).to_string();
    assert_eq!(
        text,
        "the last diagnostic window of this process ended 5 min 00 s ago, and the cool-down is 30m; \
         it can be tried again in 25 min 00 s"
    );
    assert!(matches!(Refusal::from(result.unwrap_err()), Refusal::NotNow { .. }));
    windows.clone().ask(&config(), 360.0, 1, By::User, None).unwrap();
    refused(windows.ask(&config(), 1859.0, 1, By::Rule, None));
    windows.ask(&config(), 1860.0, 1, By::Rule, None).unwrap();
}

/// The budget bounds what rules open in an hour, users' windows count, and the refusal says when it is enough again.
#[test]
fn budget() {
    let mut windows = Windows::new();
    for key in 0..10 {
        let at = f64::from(key) * 100.0;
        let by = if key % 2 == 0 { By::Rule } else { By::User };
        windows.ask(&config(), at, key, by, None).unwrap();
        windows.end(at + 60.0, key);
    }
    let (why, seconds) = refused(windows.ask(&config(), 1000.0, 99, By::Rule, None));
    assert!(why.contains("took 10 min 00 s of the budget of 10m"), "{why}");
    assert_eq!(seconds, Some(2600.0));
    windows.clone().ask(&config(), 1000.0, 99, By::User, None).unwrap();
    refused(windows.ask(&config(), 3599.0, 99, By::Rule, None));
    windows.ask(&config(), 3600.0, 99, By::Rule, None).unwrap();
}

/// Time that a window did not take is given back.
#[test]
fn ended_early() {
    let mut windows = Windows::new();
    let tight = WindowConfig { budget_per_hour: Time::seconds(90), ..config() };
    windows.ask(&tight, 0.0, 1, By::Rule, None).unwrap();
    refused(windows.ask(&tight, 1.0, 2, By::Rule, None));
    windows.end(30.0, 1);
    windows.ask(&tight, 31.0, 2, By::Rule, None).unwrap();
    // One that never ends in time gives nothing back.
    windows.end(1000.0, 2);
    refused(windows.ask(&tight, 1001.0, 3, By::Rule, None));
}

/// A budget that is smaller than a window can never be met, and the refusal says so.
#[test]
fn budget_below_one_window() {
    let none = WindowConfig { budget_per_hour: Time::seconds(0), ..config() };
    let error = Windows::new().ask(&none, 0.0, 1, By::Rule, None).unwrap_err();
    assert!(error.to_string().contains("after the configuration was changed"), "{error}");
}

/// Lengths that are none, or too long, are refused.
#[test]
fn lengths() {
    for seconds in [0.0, -1.0, 0.5, 601.0, f64::NAN, f64::INFINITY] {
        let error = Windows::new().ask(&config(), 0.0, 1, By::User, Some(seconds)).unwrap_err();
        assert!(matches!(error, Refused::Wrong(_)), "{seconds}");
    }
    assert!(Windows::new().ask(&config(), 0.0, 1, By::User, Some(600.0)).is_ok());
    assert!(Windows::new().ask(&config(), f64::NAN, 1, By::User, None).is_err());
}

/// Two that begin at the same time get back each its own.
#[test]
fn each_gets_its_own_back() {
    let mut windows = Windows::new();
    windows.ask(&config(), 0.0, 1, By::User, Some(1.0)).unwrap();
    windows.ask(&config(), 0.0, 2, By::User, Some(600.0)).unwrap();
    windows.end(1.0, 2);
    windows.end(1.0, 1);
    assert!((windows.spent.iter().map(|spent| spent.seconds).sum::<f64>() - 2.0).abs() < 1e-9);
}

/// By default a window watches growth where a rule about memory fires; a request decides otherwise.
#[test]
fn growth_is_decided() {
    use WindowGrowth::{Always, Memory, Never};
    for (policy, quiet, firing) in
        [(Memory, false, true), (Always, true, true), (Never, false, false)]
    {
        assert_eq!(policy.watches(None, false), quiet, "{policy:?}");
        assert_eq!(policy.watches(None, true), firing, "{policy:?}");
        for asked in [false, true] {
            for fires in [false, true] {
                assert_eq!(policy.watches(Some(asked), fires), asked, "{policy:?}");
            }
        }
    }
}

proptest! {
    /// Whatever is asked for and whenever: never two of a process, never more than may run at once, and
    /// whenever a rule's window begins, those of the last hour and it fit into the budget.
    #[test]
    fn bounds_hold(steps in prop::collection::vec((0.0..400.0_f64, 0..6_u8, 0..3_u8), 1..300)) {
        let config = config();
        let mut windows = Windows::new();
        let mut now = 0.0;
        // Process, begin, what it took or may take.
        let mut all: Vec<(u8, f64, f64)> = Vec::new();
        for (wait, key, what) in steps {
            now += wait;
            let open = windows.until(key).is_some();
            if what == 0 {
                windows.end(now, key);
                if let Some(last) = all.iter_mut().rev().find(|(of, ..)| *of == key).filter(|_| open) {
                    last.2 = last.2.min(now - last.1);
                }
                continue;
            }
            let by = if what == 1 { By::Rule } else { By::User };
            match windows.ask(&config, now, key, by, None) {
                Ok(grant) => {
                    prop_assert!(!open);
                    all.push((key, now, grant.seconds));
                    let recent = all.iter().filter(|(_, began, _)| now - began < HOUR_SECONDS);
                    let spent: f64 = recent.map(|(.., seconds)| seconds).sum();
                    prop_assert!(by == By::User || spent <= 600.0 + 1e-6, "{}", spent);
                }
                Err(Refused::NotNow { seconds, .. }) => {
                    prop_assert!(seconds.is_some_and(f64::is_finite));
                }
                Err(Refused::Wrong(why)) => prop_assert!(false, "{}", why),
            }
            prop_assert!(windows.running() <= 2);
        }
    }

    /// However many windows a user opens, what is remembered is bounded.
    #[test]
    fn remembers_little(count in 1000..3000_u32) {
        let mut windows = Windows::new();
        for number in 0..count {
            let at = f64::from(number) * 0.01;
            windows.ask(&config(), at, 1, By::User, Some(1.0)).unwrap();
            windows.end(at, 1);
        }
        prop_assert!(windows.spent.len() <= MAX_REMEMBERED && windows.ended.len() == 1);
    }
}

//! `observed_low`: processes that the governor leaves unobserved most of the time.

use crate::trigger::{Signals, testing::Run};

/// It fires after a minute below half, says how much was observed, and ends when most is observed again; where the
/// governor does not decide, nothing is said.
#[test]
fn mostly_unobserved() {
    let mut run = Run::new("observed_low");
    run.over([0.0, 1200.0], |at| {
        let share = match at {
            ..300.0 => 0.9,
            ..600.0 => 0.1,
            ..900.0 => 0.7,
            _ => 0.9,
        };
        Signals { at, observed: Some(share), ..Signals::default() }
    });
    assert_eq!((run.fired.as_slice(), run.ended.as_slice()), (&[360.0][..], &[900.0][..]));
    let mut run = Run::new("observed_low");
    run.over([0.0, 400.0], |at| Signals { at, observed: Some(0.04), ..Signals::default() });
    assert!(run.message().starts_with("it was observed 4.00 % of the last ten minutes"));
    let mut run = Run::new("observed_low");
    run.over([0.0, 400.0], |at| Signals { at, observed: None, ..Signals::default() });
    assert!(run.fired.is_empty());
}

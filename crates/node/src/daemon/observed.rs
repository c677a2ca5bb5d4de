//! For how much of the time a process is observed.

/// The past counts less and less: after so many seconds, a third.
const FADING_SECONDS: f64 = 600.0;
/// A gap this long is no measurement: the governor rested.
const MAX_GAP_SECONDS: f64 = 300.0;

/// Time that was to be observed, and what of it was; both fade.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Observed {
    last: Option<f64>,
    seconds: f64,
    of_seconds: f64,
}

impl Observed {
    /// The time since the last call passed with probes, or without. `at` is in seconds on a monotonic clock.
    pub(super) fn add(&mut self, at: f64, has_probes: bool) {
        let passed = self.last.replace(at).map_or(0.0, |last| (at - last).max(0.0));
        let passed = if passed > MAX_GAP_SECONDS { 0.0 } else { passed };
        let kept = (-passed / FADING_SECONDS).exp();
        self.of_seconds = self.of_seconds.mul_add(kept, passed);
        self.seconds = self.seconds.mul_add(kept, if has_probes { passed } else { 0.0 });
    }

    /// The share of the time with probes; `None` before there was any.
    pub(super) fn ratio(&self) -> Option<f64> {
        (self.of_seconds > 0.0).then(|| self.seconds / self.of_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five seconds of every minute are a twelfth, from the first minute on; and what was long ago is forgotten.
    #[test]
    fn shares() {
        let mut observed = Observed::default();
        assert_eq!(observed.ratio(), None);
        for second in 0..=3600 {
            observed.add(f64::from(second), second % 60 < 5);
            if second % 60 == 0 && second > 0 {
                let ratio = observed.ratio().unwrap();
                assert!((ratio - 1.0 / 12.0).abs() < 0.01, "{second}: {ratio}");
            }
        }
        for second in 3601..=7200 {
            observed.add(f64::from(second), true);
        }
        assert!(observed.ratio() > Some(0.99));
        // While the governor rests, nothing passes.
        observed.add(1e6, false);
        assert!(observed.ratio() > Some(0.99));
    }
}

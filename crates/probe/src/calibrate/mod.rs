//! Calibration: what a hit of a probe costs on this very host.
//!
//! drainprof probes functions of its own, one per kind of instruction, with a program that does nothing,
//! and times them (`measure`), and tries whether what the kernel does there harms it (`harm`). The result is remembered
//! per kernel and processor (`cache`). Costs are of the kernel's probing alone; what drainprof's own programs add to a
//! hit is not in them.
//!
//! [`costs`] always has an answer: `cli::options` calls it once at start and hands the costs down. [`calibrate`] is for `drainprof calibrate`, which shows them.

mod cache;
mod harm;
mod host;
mod measure;
mod model;
mod own;
mod render;
mod samples;

pub use cache::cache_directory;
pub use host::HostKey;
pub use model::{CalibrateError, CalibrateOptions, Calibration};
pub use render::{render_json, render_text};

use crate::{
    kernel::{HostView, LiveHost},
    plan::cost::Costs,
};

/// How often is measured until the figures can be costs. It takes several attempts on an emulated machine whose host is
/// busy.
const ATTEMPTS: usize = 12;

/// The costs of this host: from the cache, else measured and remembered. That the result could not be
/// remembered is said in the log, and is no error.
///
/// A measurement takes about 0.2 s, two or three times as long where other threads want the CPU. The probes are
/// removed in the background, which goes on for some 0.1 s each; a process that ends meanwhile is held up by it.
pub fn calibrate(options: &CalibrateOptions) -> Result<Calibration, CalibrateError> {
    calibrate_on(&LiveHost, options, measure::measure)
}

/// The same without an error: where nothing can be measured, the costs are those of other machines, and the log says
/// why.
#[must_use]
pub fn costs(options: &CalibrateOptions) -> Costs {
    match calibrate(options) {
        Ok(calibration) => calibration.costs,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "what probes cost could not be measured here; costs of other machines are used"
            );
            Costs::assumed()
        }
    }
}

/// The costs that an earlier measurement on this host left behind; nothing is measured.
#[must_use]
pub fn remembered(options: &CalibrateOptions) -> Option<Costs> {
    let directory = options.cache.as_deref()?;
    cache::load(directory, &HostKey::of(&LiveHost)).ok()
}

fn calibrate_on(
    host: &dyn HostView,
    options: &CalibrateOptions,
    measure: impl Fn() -> Result<Costs, CalibrateError>,
) -> Result<Calibration, CalibrateError> {
    let host = HostKey::of(host);
    if let (Some(directory), false) = (&options.cache, options.fresh) {
        match cache::load(directory, &host) {
            Ok(costs) => return Ok(Calibration { costs, host, cached: true }),
            Err(reason) => {
                tracing::debug!(%reason, directory = %directory.display(), "no costs in the cache");
            }
        }
    }
    let costs = try_hard(measure)?;
    if let Some(directory) = &options.cache
        && let Err(error) = cache::store(directory, &host, &costs)
    {
        tracing::debug!(%error, directory = %directory.display(), "costs are not remembered");
    }
    Ok(Calibration { costs, host, cached: false })
}

/// Measures again where the figures cannot be: a machine may have been taken away from us in between.
fn try_hard(measure: impl Fn() -> Result<Costs, CalibrateError>) -> Result<Costs, CalibrateError> {
    for _ in 1..ATTEMPTS {
        match measure() {
            Err(CalibrateError::Implausible) => {
                tracing::debug!("calibration measured impossible costs; measuring again");
            }
            other => return other,
        }
    }
    measure()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    fn measured(return_ns: f64) -> Costs {
        Costs { measured: true, return_ns, ..Costs::assumed() }
    }

    fn failing() -> Result<Costs, CalibrateError> {
        Err(CalibrateError::Implausible)
    }

    /// Figures that cannot be are measured again, but not for ever; other errors are reported at once.
    #[test]
    fn implausible_figures_are_measured_again() {
        let calls = std::cell::Cell::new(0);
        let third = || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { failing() } else { Ok(measured(7.0)) }
        };
        assert_eq!((try_hard(third).unwrap(), calls.get()), (measured(7.0), 3));
        calls.set(0);
        let never = || {
            calls.set(calls.get() + 1);
            failing()
        };
        assert!(try_hard(never).is_err());
        assert_eq!(calls.get(), ATTEMPTS);
        let own = || Err(CalibrateError::Own { step: "do anything", source: None });
        assert!(matches!(try_hard(own), Err(CalibrateError::Own { .. })));
    }

    /// What was measured once is not measured again, unless it is asked for; then it is remembered again.
    #[test]
    fn measured_once() {
        let directory = TempDir::new().unwrap();
        let cache = Some(directory.path().to_owned());
        let options = CalibrateOptions { cache: cache.clone(), fresh: false };
        let fresh = CalibrateOptions { cache, fresh: true };
        let first = calibrate_on(&LiveHost, &options, || Ok(measured(1.0))).unwrap();
        assert!(!first.cached);
        let second = calibrate_on(&LiveHost, &options, failing).unwrap();
        assert!(second.cached);
        assert_eq!(first.costs, second.costs);
        let third = calibrate_on(&LiveHost, &fresh, || Ok(measured(2.0))).unwrap();
        assert!(!third.cached);
        assert_eq!(remembered(&options), Some(measured(2.0)));
        assert_eq!(remembered(&CalibrateOptions::default()), None);
        let fourth = calibrate_on(&LiveHost, &options, failing).unwrap();
        assert_eq!(third.costs, fourth.costs);
    }

    /// Without a cache, or with one that cannot be written, measuring goes on all the same.
    #[test]
    fn without_a_cache() {
        let none = CalibrateOptions::default();
        assert!(!calibrate_on(&LiveHost, &none, || Ok(measured(1.0))).unwrap().cached);
        let cache = Some(PathBuf::from("/proc/self/nothing/can/be/made/here"));
        let bad = CalibrateOptions { cache, fresh: false };
        assert!(!calibrate_on(&LiveHost, &bad, || Ok(measured(1.0))).unwrap().cached);
        assert!(calibrate_on(&LiveHost, &bad, failing).is_err());
    }
}

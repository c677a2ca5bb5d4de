//! How the parts of an inquiry are begun: observations of processes that may end meanwhile, and that no profile may match.

use std::io;

use drainprof_profile::{Kind, Level};
use drainprof_report::Report;

use crate::{
    Observation, ObserveError,
    observation::{Options, Step},
};

/// Observes processes, of which some may have ended.
pub(super) fn begun(
    pids: &[u32],
    options: Options,
    from_start: bool,
) -> Result<Observation, ObserveError> {
    let mut observation = Observation::new(options)?;
    let mut gone = None;
    for &pid in pids {
        match observation.add(pid, from_start) {
            Err(ObserveError::Target(error)) => gone = Some(error),
            added => added?,
        }
    }
    if let Some(error) = gone.filter(|_| observation.running().is_empty()) {
        return Err(error.into());
    }
    observation.start();
    Ok(observation)
}

pub(super) fn at(options: &Options, level: Level) -> Options {
    let mut options = options.clone();
    options.side.level = Some(level);
    options
}

/// Places probes in all processes that a profile matches; `None` where there is none.
pub(super) fn place(
    pids: &[u32],
    options: Options,
    from_start: bool,
    unseen: &mut Vec<String>,
) -> Option<Observation> {
    let mut say = |error: &ObserveError| {
        let text = format!("no probes: {error}");
        tracing::debug!("{text}");
        if !unseen.contains(&text) {
            unseen.push(text);
        }
    };
    let mut probes = match Observation::new(options) {
        Ok(probes) => probes,
        Err(error) => {
            say(&error);
            return None;
        }
    };
    for &pid in pids {
        match probes.add(pid, from_start) {
            Ok(()) | Err(ObserveError::NoMatch { .. } | ObserveError::Target(_)) => {}
            Err(error) => say(&error),
        }
    }
    (probes.attached() > 0).then(|| {
        probes.start();
        probes
    })
}

/// Whether a deeper level would say more: something is pinned, or could not be decided.
pub(super) fn wants_more(report: &Report) -> bool {
    let allocators = report.targets.iter().flat_map(|target| &target.allocators);
    allocators.filter(|allocator| allocator.not_measurable.is_none()).any(|allocator| {
        let granules = &allocator.granules;
        let undecided = granules.decided() == 0 && granules.unknown > 0;
        allocator.kind == Kind::Drain && (granules.pinned > 0 || undecided)
            || allocator.overdue.granules > 0
    })
}

pub(super) async fn next(probes: &mut Option<Observation>) -> io::Result<Step> {
    match probes {
        Some(probes) => probes.next(&mut ()).await,
        None => std::future::pending().await,
    }
}

//! How goals are begun: with processes that may end meanwhile, and that no profile may match.

use std::io;

use drainprof_profile::Library;

use crate::{
    ObserveError,
    engine::{Engine, Options, Step},
    goal::{Goal, Host},
};

/// On which host goals are pursued, and with which profiles.
pub(super) struct Setting {
    host: Host,
    library: Library,
    profiles: Vec<String>,
}

impl Setting {
    pub(super) const fn new(host: Host, library: Library, profiles: Vec<String>) -> Self {
        Self { host, library, profiles }
    }

    pub(super) fn with_profiles(&self, goal: &Goal) -> Options {
        goal.on(self.host.clone(), self.library.clone(), self.profiles.clone())
    }

    pub(super) fn without_profiles(&self, goal: &Goal) -> Options {
        goal.on(self.host.clone(), Library::default(), Vec::new())
    }

    /// With one profile alone, of another library.
    pub(super) fn with_one(&self, goal: &Goal, library: Library, profile: &str) -> Options {
        goal.on(self.host.clone(), library, vec![profile.to_owned()])
    }
}

/// Observes processes, of which some may have ended.
pub(super) fn begun(
    pids: &[u32],
    options: Options,
    from_start: bool,
) -> Result<Engine, ObserveError> {
    let mut engine = Engine::new(options)?;
    let mut gone = None;
    for &pid in pids {
        match engine.add(pid, from_start) {
            Err(ObserveError::Target(error)) => gone = Some(error),
            added => added?,
        }
    }
    if let Some(error) = gone.filter(|_| engine.running().is_empty()) {
        return Err(error.into());
    }
    engine.start();
    Ok(engine)
}

/// Places probes in all processes that a profile matches; `None` where there is none.
pub(super) fn place(
    pids: &[u32],
    options: Options,
    from_start: bool,
    unseen: &mut Vec<String>,
) -> Option<Engine> {
    let mut say = |error: &ObserveError| {
        let text = format!("no probes: {error}");
        tracing::debug!("{text}");
        if !unseen.contains(&text) {
            unseen.push(text);
        }
    };
    let mut probes = match Engine::new(options) {
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

pub(super) async fn next(probes: &mut Option<Engine>) -> io::Result<Step> {
    match probes {
        Some(probes) => probes.next(&mut ()).await,
        None => std::future::pending().await,
    }
}

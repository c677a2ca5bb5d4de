//! The library in-process: empty programs at drainprof's own sites, and an observer for timing it.

use std::{num::NonZeroU32, path::PathBuf};

use anyhow::{Context as _, Result};
use drainprof_observe::{Side, SideOptions};
use drainprof_probe::{
    bpf::{OpenFiles, Session},
    calibrate::{self, CalibrateOptions},
    plan::Sites,
};
use drainprof_process::Process;
use drainprof_profile::{Level, Library, Source};
use drainprof_report::{facts::Duty, series::MOST_POINTS};
use drainprof_tests::{environment, session::session_config};

/// A loaded observer for one profile of the tests; for windows of a duty cycle if there is one.
pub(crate) fn observer(profile: &str, level: Level, duty: Option<Duty>) -> Result<Side> {
    let file = PathBuf::from(environment::profile(profile));
    let (library, name) = if file.is_file() {
        let library = Library::load(std::slice::from_ref(&file), &[])?;
        let name = library
            .iter()
            .find(|known| matches!(&known.source, Source::File(path) if *path == file))
            .map(|known| known.name.clone())
            .with_context(|| format!("the profile in {} is not in the library", file.display()))?;
        (library, name)
    } else {
        (Library::built_in()?, profile.to_owned())
    };
    let options = SideOptions {
        profiles: vec![name],
        level: Some(level),
        follow: false,
        debug_dirs: Vec::new(),
        // The places that the command would choose: the floor is that of the very same ones.
        costs: calibrate::costs(&CalibrateOptions {
            cache: calibrate::cache_directory(None, true, |name| std::env::var_os(name)),
            fresh: false,
        }),
        sites: Sites::Cheapest,
        curve_points: MOST_POINTS,
        duty,
    };
    Ok(Side::new(&session_config()?, library, options)?)
}

/// Empty programs wherever drainprof would put its own, for this process or for all that map its files;
/// they go when the session is dropped.
pub(crate) fn attach(pid: u32, profile: &str, level: Level, for_all: bool) -> Result<Session> {
    let mut observer = observer(profile, level, None)?;
    let process = Process::open(pid)?;
    let (plans, _) = observer.plan(&process)?;
    let scope = NonZeroU32::new(pid).filter(|_| !for_all);
    let config = session_config()?;
    let mut session =
        if for_all { Session::load_for_files(&config) } else { Session::load(&config) }?;
    let mut files = OpenFiles::default();
    for probe in plans.iter().flat_map(|plan| &plan.probes) {
        session.attach_empty(probe, scope, &mut files)?;
    }
    Ok(session)
}

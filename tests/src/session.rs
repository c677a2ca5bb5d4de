//! The library's kernel side, for tests and benchmarks that load it themselves.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use drainprof_observe::{Side, SideOptions};
use drainprof_probe::{
    bpf::{Offsets, SessionConfig, Sizes},
    kernel::{self, LiveHost},
    plan::{Sites, cost::Costs},
};
use drainprof_profile::{Level, Library};
use drainprof_report::series::MOST_POINTS;

use crate::environment;

/// The configuration that the command has by default.
pub fn session_config() -> Result<SessionConfig> {
    let tracefs = kernel::ensure_mounted(&LiveHost).context("find tracefs")?;
    let offset = |category: &str, event: &str, field: &str| -> Result<u32> {
        let format = tracefs.format(&LiveHost, category, event)?;
        Ok(format.field(field).with_context(|| format!("{event}: no field {field}"))?.offset)
    };
    let offsets = Offsets {
        newtask_pid: offset("task", "task_newtask", "pid")?,
        newtask_flags: offset("task", "task_newtask", "clone_flags")?,
        exec_old_pid: offset("sched", "sched_process_exec", "old_pid")?,
    };
    Ok(SessionConfig {
        sizes: Sizes::default(),
        events: false,
        offsets,
        sample: 1,
        growth: None,
        growth_paths: false,
        calls: true,
        patience: Duration::from_secs(10),
    })
}

/// An observer that has nothing to observe yet, for one of the tests' profiles.
pub fn observer(profile: &str, level: Level) -> Result<Side> {
    let options = SideOptions {
        profiles: vec![format!("test-{profile}")],
        level: Some(level),
        follow: false,
        debug_dirs: Vec::new(),
        costs: Costs::assumed(),
        duty: None,
        sites: Sites::Cheapest,
        curve_points: MOST_POINTS,
    };
    let library = Library::load(&[PathBuf::from(environment::profile(profile))], &[])?;
    Ok(Side::new(&session_config()?, library, options)?)
}

//! The library's kernel side, for tests and benchmarks that load it themselves.

use anyhow::{Context as _, Result};
use drainprof_probe::{
    bpf::{Offsets, SessionConfig, Sizes},
    kernel::{self, LiveHost},
};

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
    })
}

//! The symbol helper of a running drainprof.

use std::{fs, thread, time::Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;

use crate::environment;

/// The helper of a running drainprof, once there is one: the thread that looks names up starts it, some time after
/// the first line that wants them.
pub fn helper_of(drainprof: u32) -> Result<Pid> {
    let until = Instant::now() + environment::deadline();
    loop {
        if let Some(helper) = find(drainprof)? {
            return Ok(helper);
        }
        if Instant::now() > until {
            bail!("drainprof {drainprof} has no helper");
        }
        thread::yield_now();
    }
}

fn find(drainprof: u32) -> Result<Option<Pid>> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // A process that ends meanwhile is not the wanted one.
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let Ok(words) = fs::read_to_string(format!("/proc/{pid}/cmdline")) else { continue };
        if status.contains(&format!("\nPPid:\t{drainprof}\n")) && words.contains("symbol-helper") {
            return Pid::from_raw(pid).context("a pid is not 0").map(Some);
        }
    }
    Ok(None)
}

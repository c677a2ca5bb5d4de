//! `drainprof window`: a diagnostic window, which the daemon asks for in JSON on stdin. Its report goes to stdout.

use std::io::{self, Read as _};

use anyhow::{Context as _, Result, bail};
use drainprof_observe::goal::WindowRequest;
use drainprof_process::{ProcessError, readers};
use drainprof_report::{
    self as report,
    export::{self, PinWeight},
};
use nix::sys::{prctl, signal::Signal};

use super::{
    args::{CacheArgs, SizeArgs},
    asked::Asked,
    attach, code,
    drive::block_on,
    filter::FilterArgs,
    options,
    selection::Selection,
};

/// Bytes of a request that are read.
const MAX_REQUEST: u64 = 1 << 20;
/// Rows of each list.
const ROWS: usize = 100;

/// Observes as requested. The exit code is 0 whenever the report is written.
pub(super) fn main() -> Result<u8> {
    let request = io::stdin().lock().take(MAX_REQUEST);
    let request: WindowRequest =
        serde_json::from_reader(request).context("cannot read the request for a window")?;
    end_with(request.parent)?;
    options::require_host_pids()?;
    let process = readers::open(request.pid)?;
    // By now, the number may be another process's.
    if process.start_time != request.start_time {
        return Err(ProcessError::Ended { pid: request.pid }.into());
    }
    let asked = Asked {
        goal: request.goal,
        sizes: options::sizes(&SizeArgs::default()),
        cache: CacheArgs::default(),
        format: export::format("json").context("there is no JSON")?,
        weight: PinWeight::default(),
        report: report::Options {
            kernel: options::kernel_release(),
            top: ROWS,
            ..report::Options::default()
        },
        filter: FilterArgs::default().live(ROWS),
        output: None,
        rows: ROWS,
        fail_under: None,
    };
    block_on(attach::attach(asked, &[process], &Selection::of(request.pid), false))?;
    Ok(code::OK)
}

/// Ends this process as Ctrl-C does when the one that has begun it ends.
fn end_with(parent: u32) -> Result<()> {
    prctl::set_pdeathsig(Signal::SIGTERM).context("cannot end with the parent process")?;
    if nix::unistd::getppid().as_raw().cast_unsigned() != parent {
        bail!("process {parent}, which has begun this one, has ended");
    }
    Ok(())
}

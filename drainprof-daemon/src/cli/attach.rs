//! `drainprof attach`.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    args::AttachArgs,
    drive::{Driver, Happening, block_on},
    options,
    profile::print_plans,
};
use crate::target::Process;

/// Attaches to running processes.
pub(super) fn main(args: AttachArgs) -> Result<u8> {
    if args.observe.dry_run {
        return dry_run(&args);
    }
    block_on(attach(args))
}

async fn attach(args: AttachArgs) -> Result<u8> {
    options::require_host_pids()?;
    // Told before the kernel side is loaded, which takes a moment and privileges.
    for pid in &args.pid {
        Process::open(*pid)?;
    }
    let mut driver = Driver::new(&args.observe)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut pids = args.pid;
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        driver.add(pid, false)?;
    }
    driver.attached();
    loop {
        let happening = tokio::select! {
            happening = driver.next() => happening?,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        };
        match happening {
            Happening::Ended(pid) => {
                driver.ended(pid, None);
                if driver.running().is_empty() {
                    break;
                }
            }
            Happening::TimeUp => break,
            Happening::Quiet => {}
        }
    }
    let (verdict, detaching) = driver.finish().await?;
    detaching.wait().await;
    Ok(verdict.exit_code())
}

fn dry_run(args: &AttachArgs) -> Result<u8> {
    let mut observer = options::observer(&args.observe)?;
    for pid in &args.pid {
        let process = Process::open(*pid)?;
        let (plans, findings) = observer.plan(&process)?;
        print_plans(&process, &plans, &findings)?;
    }
    Ok(super::code::OK)
}

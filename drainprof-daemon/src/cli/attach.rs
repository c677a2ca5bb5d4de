//! `drainprof attach`.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use drainprof_observe::ObserveError;
use drainprof_process::Process;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    args::AttachArgs,
    drive::{Driver, Happening, block_on},
    family, options,
    profile::{plans_json, print_plans},
};

/// Attaches to running processes.
pub(super) fn main(args: AttachArgs) -> Result<u8> {
    if args.observe.dry_run {
        return dry_run(&args);
    }
    block_on(attach(args))
}

async fn attach(mut args: AttachArgs) -> Result<u8> {
    args.observe.follow_forks |= args.family;
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
        if args.family {
            family::add(&mut driver, pid).await?;
        } else {
            driver.add(pid, false)?;
        }
    }
    driver.attached();
    let mut too_dear = false;
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
            Happening::TooDear => {
                too_dear = true;
                break;
            }
            Happening::Quiet => {}
        }
    }
    let (verdict, detaching) = driver.finish().await?;
    detaching.wait().await;
    Ok(if too_dear { super::code::GOVERNOR } else { verdict.exit_code() })
}

fn dry_run(args: &AttachArgs) -> Result<u8> {
    let mut observer = options::observer(&args.observe)?;
    let mut planned = Vec::new();
    for process in family::listed(args)? {
        let (plans, findings) = match observer.plan(&process) {
            Err(ObserveError::NoMatch { .. })
                if args.family && !args.pid.contains(&process.pid) =>
            {
                continue;
            }
            planned => planned?,
        };
        if args.observe.format == "json" {
            planned.push(plans_json(&process, &plans, &findings));
        } else {
            print_plans(&process, &plans, &findings)?;
        }
    }
    if args.observe.format == "json" {
        let document = serde_json::json!({ "schema": "drainprof.plan/1", "processes": planned });
        writeln!(std::io::stdout().lock(), "{document:#}")?;
    }
    Ok(super::code::OK)
}

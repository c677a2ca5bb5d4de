//! `drainprof attach`.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use drainprof_observe::{ObserveError, observation::Excluded};
use drainprof_process::{Process, family, printable, processes};
use tokio::signal::unix::{SignalKind, signal};

use super::{
    args::AttachArgs,
    drive::{Driver, Happening, block_on},
    options,
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
    if args.observe.system {
        add_all(&mut driver)?;
    }
    let mut pids = args.pid;
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        if !args.family {
            driver.observation.add(pid, false)?;
            continue;
        }
        for Excluded { pid, comm } in driver.observation.add_family(pid)? {
            eprintln!(
                "drainprof: no profile matches {pid} ({}) of the family; neither it nor its children are observed",
                printable(comm)
            );
        }
    }
    driver.attached();
    let mut over_budget = false;
    loop {
        let happening = tokio::select! {
            happening = driver.next() => happening?,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        };
        match happening {
            Happening::Ended(pid) => {
                driver.observation.ended(pid, None);
                if driver.observation.running().is_empty() {
                    break;
                }
            }
            Happening::TimeUp => break,
            Happening::OverBudget => {
                over_budget = true;
                break;
            }
        }
    }
    let (verdict, leaving) = driver.finish()?;
    leaving.wait();
    Ok(if over_budget { super::code::GOVERNOR } else { verdict.exit_code() })
}

/// Adds all processes of the machine but this one; those that they start are followed.
fn add_all(driver: &mut Driver) -> Result<()> {
    let own = std::process::id();
    for pid in processes().context("cannot list the processes")? {
        // A parent that is observed already has brought its child.
        if pid == own || driver.observation.counts(pid) {
            continue;
        }
        match driver.observation.add(pid, false) {
            Err(ObserveError::Target(error)) => tracing::debug!(pid, %error, "not observed"),
            added => added?,
        }
    }
    Ok(())
}

fn dry_run(args: &AttachArgs) -> Result<u8> {
    let mut observer = options::observation(&args.observe)?.observer()?;
    let mut planned = Vec::new();
    for process in listed(args)? {
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

/// The processes that the arguments name, with their families where these are asked for.
fn listed(args: &AttachArgs) -> Result<Vec<Process>> {
    let mut listed: Vec<Process> = Vec::new();
    for &pid in &args.pid {
        let members = if args.family { family(pid)? } else { vec![pid] };
        for member in members {
            if listed.iter().any(|known| known.pid == member) {
                continue;
            }
            match Process::open(member) {
                Ok(process) => listed.push(process),
                Err(error) if member != pid && error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(listed)
}

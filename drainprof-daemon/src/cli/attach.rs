//! `drainprof attach`.

use std::io::Write as _;

use anyhow::{Context as _, Result, bail};
use drainprof_observe::{ObserveError, observation::Excluded};
use drainprof_process::{Process, ProcessError, family, printable, processes, readers};
use nix::sys::prctl;
use tokio::signal::unix::{Signal, SignalKind, signal};

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

/// Ends this process as Ctrl-C does when the one that has begun it ends.
fn end_with(parent: u32) -> Result<()> {
    prctl::set_pdeathsig(nix::sys::signal::Signal::SIGTERM)
        .context("cannot end with the parent process")?;
    if nix::unistd::getppid().as_raw().cast_unsigned() != parent {
        bail!("process {parent}, which has begun this one, has ended");
    }
    Ok(())
}

async fn attach(mut args: AttachArgs) -> Result<u8> {
    if let Some(parent) = args.parent {
        end_with(parent)?;
    }
    args.observe.follow_forks |= args.family;
    options::require_host_pids()?;
    // Told before the kernel side is loaded, which takes a moment and privileges.
    let processes = args.selection.open()?;
    for Process { pid, start_time, .. } in &processes {
        if args.started.is_some_and(|started| started != *start_time) {
            return Err(ProcessError::Ended { pid: *pid }.into());
        }
    }
    let mut driver = Driver::new(&args.observe)?;
    let mut ending = Ending::new()?;
    let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    driver.heaps.begin(&pids);
    let is_whole = if args.observe.system {
        add_all(&mut driver, &mut ending).await?
    } else {
        add_each(&mut driver, &args, &processes, &mut ending).await?
    };
    if !is_whole {
        eprintln!("drainprof: interrupted before all processes were attached to");
        return finish(driver);
    }
    driver.attached();
    let mut over_budget = false;
    loop {
        let happening = tokio::select! {
            happening = driver.next() => happening?,
            () = ending.wait() => break,
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
            Happening::BeganAgain if args.family => {
                for pid in &pids {
                    match add_family(&mut driver, *pid) {
                        // The others are still there.
                        Err(error) if args.selection.may_leave_out(&error) => {}
                        added => added?,
                    }
                }
            }
            Happening::BeganAgain => {}
        }
    }
    let code = finish(driver)?;
    Ok(if over_budget { super::code::GOVERNOR } else { code })
}

/// Writes the report and waits until no probe is left.
fn finish(mut driver: Driver) -> Result<u8> {
    let (verdict, leaving) = driver.finish()?;
    leaving.wait();
    Ok(verdict.exit_code())
}

/// The signals that end an observation.
struct Ending {
    interrupt: Signal,
    terminate: Signal,
}

impl Ending {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?,
        })
    }

    /// Returns when one has come.
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Whether one has come. Does not wait: yielding lets the runtime see what the kernel has for it.
    async fn has_come(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.wait() => true,
            () = tokio::task::yield_now() => false,
        }
    }
}

/// Adds the processes that were selected, and their families where these are asked for. Returns whether that was not
/// interrupted.
async fn add_each(
    driver: &mut Driver,
    args: &AttachArgs,
    processes: &[Process],
    ending: &mut Ending,
) -> Result<bool> {
    let mut left_out = None;
    for process in processes {
        if ending.has_come().await {
            return Ok(false);
        }
        let added = if driver.observation.counts(process.pid) {
            Ok(())
        } else if !process.is_alive() {
            Err(ProcessError::Ended { pid: process.pid }.into())
        } else if args.family {
            add_family(driver, process.pid)
        } else {
            driver.observation.add(process.pid, false)
        };
        match added {
            // The others are still there.
            Err(error) if args.selection.may_leave_out(&error) => {
                tracing::warn!("not observed: {error}");
                left_out = Some(error);
            }
            added => added?,
        }
    }
    match left_out.filter(|_| driver.observation.running().is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(true),
    }
}

fn add_family(driver: &mut Driver, pid: u32) -> Result<(), ObserveError> {
    for Excluded { pid, comm } in driver.observation.add_family(pid)? {
        eprintln!(
            "drainprof: no profile matches {pid} ({}) of the family; neither it nor its children are observed",
            printable(comm)
        );
    }
    Ok(())
}

/// Adds all processes of the machine but this one; those that they start are followed. Returns whether that was not
/// interrupted.
async fn add_all(driver: &mut Driver, ending: &mut Ending) -> Result<bool> {
    let own = std::process::id();
    for pid in processes().context("cannot list the processes")? {
        if ending.has_come().await {
            return Ok(false);
        }
        // A parent that is observed already has brought its child.
        if pid == own || driver.observation.counts(pid) {
            continue;
        }
        match driver.observation.add(pid, false) {
            Err(ObserveError::Target(error)) => tracing::debug!(pid, %error, "not observed"),
            added => added?,
        }
    }
    Ok(true)
}

fn dry_run(args: &AttachArgs) -> Result<u8> {
    let mut side = options::observation(&args.observe)?.side()?;
    let mut planned = Vec::new();
    let (mut shown, mut left_out) = (0, None);
    let pids: Vec<u32> = args.selection.open()?.iter().map(|process| process.pid).collect();
    for process in listed(&pids, args.family)? {
        let (plans, findings) = match side.plan(&process) {
            Err(ObserveError::NoMatch { .. }) if args.family && !pids.contains(&process.pid) => {
                continue;
            }
            Err(error) if args.selection.may_leave_out(&error) => {
                tracing::warn!("not observed: {error}");
                left_out = Some(error);
                continue;
            }
            planned => planned?,
        };
        shown += 1;
        if args.observe.format == "json" {
            planned.push(plans_json(&process, &plans, &findings));
        } else {
            print_plans(&process, &plans, &findings)?;
        }
    }
    if let Some(error) = left_out.filter(|_| shown == 0) {
        return Err(error.into());
    }
    if args.observe.format == "json" {
        let document = serde_json::json!({ "schema": "drainprof.plan/1", "processes": planned });
        writeln!(super::output::stdout()?, "{document:#}")?;
    }
    Ok(super::code::OK)
}

/// The processes with these numbers, with their families where these are asked for.
fn listed(pids: &[u32], with_families: bool) -> Result<Vec<Process>> {
    let mut listed: Vec<Process> = Vec::new();
    for &pid in pids {
        let members = if with_families { family(pid)? } else { vec![pid] };
        for member in members {
            if listed.iter().any(|known| known.pid == member) {
                continue;
            }
            match readers::open(member) {
                Ok(process) => listed.push(process),
                Err(error) if member != pid && error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, raise};

    use super::*;

    /// A signal that comes between two processes is noticed before the second.
    #[test]
    fn signals_are_looked_for() {
        for one in [Signal::SIGTERM, Signal::SIGINT] {
            let seen = block_on(async {
                let mut ending = Ending::new()?;
                assert!(!ending.has_come().await);
                raise(one)?;
                Ok(ending.has_come().await)
            });
            assert!(seen.unwrap(), "{one}");
        }
    }
}

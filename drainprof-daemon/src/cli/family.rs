//! `attach --family`: all processes of a prefork server, now and later.
//!
//! Called by `attach`. Children that are born while this goes on are the difficulty: one whose parent is
//! counted already is entered by the kernel side, at its birth; one that was born before is entered here.
//! So the family is listed again and again until it has no member that is not counted.

use std::time::Duration;

use anyhow::Result;
use drainprof_observe::ObserveError;
use drainprof_process::{self as target, Process, ProcessError, printable};

use super::{args::AttachArgs, drive::Driver};

/// How often the family is listed; each time those have come that were born since.
const ROUNDS: usize = 50;
/// A child can be seen in `/proc` an instant before the kernel side enters it.
const BIRTH: Duration = Duration::from_millis(2);

/// Adds the family of `pid`. Members that no profile fits are told and left out.
pub(super) async fn add(driver: &mut Driver, pid: u32) -> Result<()> {
    let mut left_out = Vec::new();
    for round in 0..ROUNDS {
        let missing = |driver: &Driver, left_out: &[u32], members: Vec<u32>| {
            members
                .into_iter()
                .filter(|member| !driver.counts(*member) && !left_out.contains(member))
                .collect::<Vec<_>>()
        };
        let mut newcomers = missing(driver, &left_out, target::family(pid)?);
        if round > 0 && !newcomers.is_empty() {
            tokio::time::sleep(BIRTH).await;
            newcomers = missing(driver, &left_out, newcomers);
        }
        if newcomers.is_empty() {
            return Ok(());
        }
        for member in newcomers {
            if driver.counts(member) {
                continue;
            }
            match driver.add(member, false) {
                Ok(()) => {}
                Err(error) if member != pid && is_left_out(&error) => {
                    tracing::debug!(pid = member, %error, "a member of the family is left out");
                    left_out.push(member);
                }
                Err(error) => return Err(error),
            }
        }
    }
    tracing::warn!(
        pid,
        "the family grows faster than it can be listed; some members may be missing"
    );
    Ok(())
}

/// Whether an error is about one member only: it has ended, or runs something else.
fn is_left_out(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<ObserveError>() {
        Some(ObserveError::NoMatch { pid, comm, .. }) => {
            eprintln!(
                "drainprof: {pid} ({}) belongs to the family, but no profile matches it; neither it nor what it \
                 starts is looked at",
                printable(comm)
            );
            true
        }
        Some(ObserveError::Target(error)) => is_gone(error),
        _ => false,
    }
}

const fn is_gone(error: &ProcessError) -> bool {
    matches!(
        error,
        ProcessError::Ended { .. }
            | ProcessError::NoSuchProcess { .. }
            | ProcessError::Zombie { .. }
    )
}

/// The processes that the arguments name, with their families where these are asked for.
pub(super) fn listed(args: &AttachArgs) -> Result<Vec<Process>> {
    let mut listed: Vec<Process> = Vec::new();
    for &pid in &args.pid {
        let members = if args.family { target::family(pid)? } else { vec![pid] };
        for member in members {
            if listed.iter().any(|known| known.pid == member) {
                continue;
            }
            match Process::open(member) {
                Ok(process) => listed.push(process),
                Err(error) if member != pid && is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(listed)
}

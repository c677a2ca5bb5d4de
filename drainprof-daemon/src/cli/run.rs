//! `drainprof run`.

use std::ffi::OsString;

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_observe::{
    engine::{End, Signals, command::Command},
    goal::Follow,
};
use drainprof_report::Verdict;

use super::{
    args::ObserveArgs,
    asked::{Asked, Wish},
    code,
    drive::{Reporter, block_on},
    exit::Failure,
};

#[derive(Args, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    observe: ObserveArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Starts a command under observation.
pub(super) fn main(args: &RunArgs) -> Result<u8> {
    if args.observe.dry_run {
        return Err(Failure::new(
            code::USAGE,
            "--dry-run needs a process to examine: use it with `drainprof attach -p PID`",
        )
        .into());
    }
    if args.observe.duty.is_some() {
        return Err(Failure::new(
            code::USAGE,
            "--duty looks at a process that runs already: use it with `drainprof attach -p PID`; \
             `run` is for seeing a command from its first instruction on",
        )
        .into());
    }
    block_on(run(args))
}

async fn run(args: &RunArgs) -> Result<u8> {
    let asked = Asked::of(&args.observe, Wish::default())?;
    let follow = asked.goal.follow() != Follow::No;
    let (mut reporter, mut engine) = Reporter::new(asked)?;
    let mut signals = Signals::for_command().context("cannot wait for signals")?;
    let mut command = Command::start(&args.command, follow)?;
    let end = engine.run_command(&mut command, &mut reporter, &mut signals).await?;
    command.require_observed()?;
    let (verdict, leaving) = reporter.finish(engine)?;
    let status = command.wait().await;
    leaving.wait();
    if end == End::OverBudget {
        return Ok(code::GOVERNOR);
    }
    Ok(match (verdict, status) {
        // The low byte, as a shell has it.
        (Verdict::Ok, Some(Ok(status))) => status.to_le_bytes()[0],
        (Verdict::Ok, Some(Err(signal))) => (128 + signal).to_le_bytes()[0],
        (verdict, _) => verdict.exit_code(),
    })
}

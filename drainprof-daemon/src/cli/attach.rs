//! `drainprof attach`.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_observe::{
    ObserveError,
    engine::{End, Engine, Signals, Sink as _, Step},
    goal::Follow,
};
use drainprof_process::{Process, ProcessError, family, processes, readers};

use super::{
    args::ObserveArgs,
    asked::{Asked, Wish},
    drive::{Reporter, block_on},
    options,
    plans::{plans_json, print_plans},
    selection::Selection,
};

#[derive(Args, Debug)]
pub(super) struct AttachArgs {
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Attach to the whole prefork family: topmost ancestor with the same executable, and its descendants. Implies
    /// --follow-forks.
    #[arg(long, conflicts_with = "duty")]
    pub(super) family: bool,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
}

/// Attaches to running processes.
pub(super) fn main(args: &AttachArgs) -> Result<u8> {
    observe(args, Wish::default())
}

/// Observes processes, with what another command asks for beyond its options.
pub(super) fn observe(args: &AttachArgs, mut wish: Wish) -> Result<u8> {
    if args.family {
        wish.follow = Follow::Children;
    }
    if args.observe.dry_run {
        return dry_run(args, wish);
    }
    options::require_host_pids()?;
    // Fails before the kernel side is loaded, which takes a moment and privileges.
    let processes = args.selection.open()?;
    let asked = Asked::of(&args.observe, wish)?;
    block_on(attach(asked, &processes, &args.selection, args.family))
}

/// Attaches to these processes, and their families if these are asked for; returns the exit code.
pub(super) async fn attach(
    asked: Asked,
    processes: &[Process],
    selection: &Selection,
    families: bool,
) -> Result<u8> {
    let is_machine = asked.goal.follow() == Follow::Machine;
    let (mut reporter, mut engine) = Reporter::new(asked)?;
    let mut signals = Signals::new().context("cannot wait for signals")?;
    let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
    reporter.read_heaps(&pids);
    let is_whole = if is_machine {
        add_all(&mut engine, &mut signals).await?
    } else {
        let add = |engine: &mut Engine, pid| {
            if !families {
                return engine.add(pid, false);
            }
            for one in engine.add_family(pid)? {
                reporter.step(&Step::Excluded(one)).map_err(ObserveError::Wait)?;
            }
            Ok(())
        };
        add_each(&mut engine, processes, selection, &mut signals, add).await?
    };
    let mut end = End::Signal;
    if is_whole {
        engine.start();
        end = engine.run(&mut reporter, &mut signals).await?;
    } else {
        eprintln!("drainprof: interrupted before all processes were attached to");
    }
    let (verdict, leaving) = reporter.finish(engine)?;
    leaving.wait();
    Ok(if end == End::OverBudget { super::code::GOVERNOR } else { verdict.exit_code() })
}

/// Adds the processes that were selected. Returns whether that was not interrupted.
async fn add_each(
    engine: &mut Engine,
    processes: &[Process],
    selection: &Selection,
    signals: &mut Signals,
    mut add: impl FnMut(&mut Engine, u32) -> Result<(), ObserveError>,
) -> Result<bool> {
    let mut left_out = None;
    for process in processes {
        if signals.have_come().await {
            return Ok(false);
        }
        let added = if engine.counts(process.pid) {
            Ok(())
        } else if !process.is_alive() {
            Err(ProcessError::Ended { pid: process.pid }.into())
        } else {
            add(engine, process.pid)
        };
        match added {
            // The others are still there.
            Err(error) if selection.may_leave_out(&error) => {
                tracing::warn!("not observed: {error}");
                left_out = Some(error);
            }
            added => added?,
        }
    }
    match left_out.filter(|_| engine.running().is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(true),
    }
}

/// Adds all processes of the machine but this one; those that they start are followed. Returns whether that was not
/// interrupted.
async fn add_all(engine: &mut Engine, signals: &mut Signals) -> Result<bool> {
    let own = std::process::id();
    for pid in processes().context("cannot list the processes")? {
        if signals.have_come().await {
            return Ok(false);
        }
        // A parent that is observed already has brought its child.
        if pid == own || engine.counts(pid) {
            continue;
        }
        match engine.add(pid, false) {
            Err(ObserveError::Target(error)) => tracing::debug!(pid, %error, "not observed"),
            added => added?,
        }
    }
    Ok(true)
}

fn dry_run(args: &AttachArgs, wish: Wish) -> Result<u8> {
    let Asked { goal, sizes, cache, .. } = Asked::of(&args.observe, wish)?;
    let mut side = options::resolve(&goal, sizes, &cache)?.side()?;
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

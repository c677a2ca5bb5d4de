//! The command line: arguments are parsed without side effects, turned once into options, and run.
//!
//! One module per subcommand; `drive` is the loop that `attach` and `run` share. Only this module and
//! `main` know anyhow and tokio.

mod allocations;
mod args;
mod attach;
mod calibrate;
mod census;
mod complete;
mod config;
mod ctl;
mod daemon;
mod diagnose;
mod diff;
mod discover;
#[cfg(test)]
mod docs;
mod doctor;
mod drive;
mod exit;
mod filter;
mod growth;
mod heaps;
mod history;
mod man;
mod options;
mod output;
mod profile;
mod profile_check;
mod profile_new;
mod queue;
mod report;
mod run;
mod saved;
mod selection;
mod top;
mod why;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use drainprof_process::symbolize;
pub use exit::code;

/// Runs the command that the arguments name, and says with which code to exit.
#[must_use]
pub fn main() -> ExitCode {
    match complete::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(code::USAGE);
        }
    }
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return ExitCode::from(code::USAGE);
        }
        // Help and version are data.
        Err(text) => return ended(output::print(&text).map(|()| code::OK)),
    };
    // Nobody sits before a daemon: what it does is in its log.
    let is_daemon = matches!(cli.command, args::Command::Daemon(_));
    output::init_talk(cli.verbose.max(u8::from(is_daemon)));
    let result = match cli.command {
        args::Command::Why(why) => why::main(&why),
        args::Command::Attach(attach) => attach::main(attach),
        args::Command::Growth(growth) => growth::main(growth),
        args::Command::Discover(discover) => discover::main(&discover),
        args::Command::Run(run) => run::main(run),
        args::Command::Report(report) => report::main(&report),
        args::Command::History(history) => history::main(&history),
        args::Command::Diff(diff) => diff::main(&diff),
        args::Command::Top(top) => top::main(&top),
        args::Command::Profile(profile) => profile::main(profile),
        args::Command::Census(census) => census::main(&census),
        args::Command::Calibrate(calibrate) => calibrate::main(&calibrate),
        args::Command::Config(config) => config::main(&config),
        args::Command::Daemon(daemon) => daemon::main(&daemon),
        args::Command::Doctor(doctor) => doctor::main(&doctor),
        args::Command::Diagnose(diagnose) => diagnose::main(&diagnose),
        args::Command::Ctl(ctl) => ctl::main(&ctl),
        args::Command::Completions(completions) => complete::main(&completions),
        args::Command::Man(man) => man::main(&man),
        args::Command::SymbolHelper => {
            symbolize::serve().context("the symbol helper lost its drainprof").map(|()| code::OK)
        }
    };
    ended(result)
}

/// The exit code: a failure also where output was lost unnoticed.
fn ended(result: anyhow::Result<u8>) -> ExitCode {
    let unnoticed = |code| output::failure().map_or(Ok(code), |error| Err(error.into()));
    match result.and_then(unnoticed) {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::reported(&error),
    }
}

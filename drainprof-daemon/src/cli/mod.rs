//! The command line: arguments are parsed without side effects, turned once into options, and run.
//!
//! One module per subcommand; `drive` is the loop that `attach` and `run` share. Only this module and
//! `main` know anyhow and tokio.

mod allocations;
mod args;
mod asked;
mod attach;
mod calibrate;
mod census;
mod command;
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
mod plans;
mod profile;
mod profile_check;
mod profile_new;
mod queue;
mod report;
mod run;
mod saved;
mod selection;
mod top;
mod values;
mod why;
mod window;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
pub use exit::code;

/// Runs the command that the arguments name, and says with which code to exit.
#[must_use]
pub fn main() -> ExitCode {
    match complete::answer(command::Cli::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(code::USAGE);
        }
    }
    let cli = match command::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let _ = error.print();
            return ExitCode::from(code::USAGE);
        }
        // Help and version are data.
        Err(text) => return ended(output::print(&text).map(|()| code::OK)),
    };
    // A daemon has no terminal: what it does is in its log.
    let is_daemon = matches!(cli.command, command::Command::Daemon(_));
    output::init_talk(cli.verbose.max(u8::from(is_daemon)));
    ended(cli.command.run())
}

/// The exit code: a failure also where output was lost unnoticed.
fn ended(result: anyhow::Result<u8>) -> ExitCode {
    let unnoticed = |code| output::failure().map_or(Ok(code), |error| Err(error.into()));
    match result.and_then(unnoticed) {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::reported(&error, output::is_unread()),
    }
}

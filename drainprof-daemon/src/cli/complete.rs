//! `drainprof completions`: a shell asks this binary for candidates, so it completes what is there at this moment.
//!
//! clap's dynamic engine does the work. A script that a shell loads calls `drainprof` with [`VARIABLE`] set.

use std::{collections::BTreeSet, io::Write as _};

use anyhow::{Context as _, Result};
use clap::{Arg, Args, Command, builder::PossibleValuesParser};
use clap_complete::{
    CompleteEnv, PathCompleter,
    engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate, ValueCompleter as _},
    env::Shells,
};
use drainprof_process::{mapped_pages, printable, processes};

use super::{code, options};

/// The environment variable by which a shell asks for candidates; its value names the shell.
const VARIABLE: &str = "DRAINPROF_COMPLETE";

/// Candidates of one kind; a shell shows no more in any useful way.
const MAX_CANDIDATES: usize = 4096;

#[derive(Args, Debug)]
pub(super) struct CompletionsArgs {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = PossibleValuesParser::new(Shells::builtins().names()))]
    shell: String,
}

/// Prints the script that a shell loads.
pub(super) fn main(args: &CompletionsArgs) -> Result<u8> {
    super::output::stdout()?.write_all(&script(&args.shell)?)?;
    Ok(code::OK)
}

fn script(shell: &str) -> Result<Vec<u8>> {
    let shells = Shells::builtins();
    let completer = shells.completer(shell).context("a shell of the list is not known")?;
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "drainprof", "drainprof", "drainprof", &mut script)?;
    if shell == "zsh" {
        // As a file that zsh loads at the first request, the script itself is the function that has to answer it.
        script.extend(
            b"\n[[ \"${funcstack[1]-}\" = _drainprof ]] && _clap_dynamic_completer_drainprof\n",
        );
    }
    Ok(script)
}

/// Answers a shell that asks for candidates of a command line; false if none does.
///
/// # Errors
/// If the shell is not known, or stdout is closed.
pub(super) fn answer(command: fn() -> Command) -> Result<bool, clap::Error> {
    let directory = std::env::current_dir().ok();
    CompleteEnv::with_factory(|| with_candidates(command()))
        .var(VARIABLE)
        .try_complete(std::env::args_os(), directory.as_deref())
}

/// Lets options complete to what is there: processes, their names, profiles.
fn with_candidates(command: Command) -> Command {
    let add = |arg: Arg| {
        let value =
            arg.get_value_names().and_then(|names| names.first()).map(clap::builder::Str::as_str);
        match (arg.get_id().as_str(), value) {
            (_, Some("PID")) => arg.add(ArgValueCandidates::new(pids)),
            (_, Some("NAME|FILE")) => arg.add(ArgValueCompleter::new(profiles_or_files)),
            ("comm", _) => arg.add(ArgValueCandidates::new(comms)),
            ("name", _) => arg.add(ArgValueCandidates::new(profiles)),
            _ => arg,
        }
    };
    command.mut_args(add).mut_subcommands(with_candidates)
}

/// Processes with memory of their own, which kernel threads have not.
fn user_processes() -> impl Iterator<Item = (u32, String)> {
    let pids = processes().into_iter().flatten();
    pids.filter(|&pid| mapped_pages(pid).is_some_and(|(all, _)| all > 0)).filter_map(|pid| {
        let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
        Some((pid, printable(comm.trim_ascii_end())))
    })
}

/// Process numbers, with names.
fn pids() -> Vec<CompletionCandidate> {
    let candidate = |(pid, comm): (u32, String)| {
        CompletionCandidate::new(pid.to_string()).help(Some(comm.into()))
    };
    user_processes().take(MAX_CANDIDATES).map(candidate).collect()
}

/// Names of processes.
fn comms() -> Vec<CompletionCandidate> {
    let names: BTreeSet<String> = user_processes().map(|(_, comm)| comm).collect();
    names.into_iter().take(MAX_CANDIDATES).map(CompletionCandidate::new).collect()
}

/// Names of profiles; none if one of the system's directories has a bad one.
fn profiles() -> Vec<CompletionCandidate> {
    let Ok((library, _)) = options::library(&[], &[]) else { return Vec::new() };
    let candidate = |profile: &std::sync::Arc<drainprof_profile::Profile>| {
        CompletionCandidate::new(&profile.name).help(Some(profile.summary.clone().into()))
    };
    library.iter().take(MAX_CANDIDATES).map(candidate).collect()
}

/// Names of profiles, and files.
fn profiles_or_files(current: &std::ffi::OsStr) -> Vec<CompletionCandidate> {
    let begins = |candidate: &CompletionCandidate| {
        let value = candidate.get_value().as_encoded_bytes();
        value.starts_with(current.as_encoded_bytes())
    };
    let mut found: Vec<_> = profiles().into_iter().filter(begins).collect();
    found.extend(PathCompleter::file().complete(current));
    found
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap_complete::engine;

    use super::*;
    use crate::cli::command::Cli;

    /// What the words complete to, the last of them in part.
    fn completed(words: &[&str]) -> Vec<(String, String)> {
        let words: Vec<_> = ["drainprof"].iter().chain(words).map(Into::into).collect();
        let last = words.len() - 1;
        let found =
            engine::complete(&mut with_candidates(Cli::command()), words, last, None).unwrap();
        let text = |candidate: &CompletionCandidate| {
            let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
            (candidate.get_value().to_str().unwrap().to_owned(), help)
        };
        found.iter().map(text).collect()
    }

    fn has(words: &[&str], value: &str) -> bool {
        completed(words).iter().any(|(found, _)| found == value)
    }

    /// Processes, names, profiles, formats and levels complete to what is there; a second process after a comma, too.
    #[test]
    fn values() {
        let pid = std::process::id().to_string();
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap().trim_end().to_owned();
        assert!(completed(&["attach", "-p", ""]).contains(&(pid.clone(), comm.clone())));
        assert!(has(&["attach", "-p", &format!("1,{pid}")], &format!("1,{pid}")));
        assert!(has(&["why", "--comm", &comm[..1]], &comm));
        assert!(has(&["attach", "--profile", "ngi"], "nginx"));
        assert!(has(&["profile", "show", "ngi"], "nginx"));
        assert!(!has(&["profile", "show", "ngi"], "postgresql"));
        assert!(has(&["attach", "-o", "flame"], "flamegraph"));
        assert!(has(&["attach", "--level", ""], "stacks"));
        assert!(has(&["completions", "z"], "zsh"));
    }

    /// A profile may be a file, too.
    #[test]
    fn files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own.toml");
        std::fs::write(&path, "").unwrap();
        let path = path.to_str().unwrap();
        assert!(has(&["attach", "--profile", &path[..path.len() - 5]], path));
    }

    /// What is hidden is not completed.
    #[test]
    fn hidden() {
        assert!(has(&["att"], "attach"));
        assert!(!has(&[""], drainprof_process::symbolize::COMMAND));
    }

    /// Each shell's script asks this binary, and under no other variable.
    #[test]
    fn scripts() {
        for shell in Shells::builtins().names() {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(script.contains(VARIABLE) && script.contains("drainprof"), "{shell}");
        }
        assert!(script("tcsh").is_err());
    }
}

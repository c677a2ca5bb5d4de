//! `drainprof profile`: the library's profiles.
//!
//! `profile check` and `profile new` have modules of their own.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use drainprof_profile::{self as profile, Level, Source};

use super::{
    code,
    exit::Failure,
    options, output,
    profile_check::{self, CheckArgs},
    profile_new::{self, NewArgs},
};

#[derive(Args, Debug)]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    action: ProfileAction,
}

#[derive(Debug, Subcommand)]
enum ProfileAction {
    /// List all profiles: built in and from directories.
    List,
    /// Print a profile's text.
    Show {
        /// Its name.
        name: String,
    },
    /// Check a profile: alone, against a process, or (--for) at work.
    #[command(after_help = "Examples:
  drainprof profile check svc.toml                           does it parse?
  drainprof profile check svc.toml -p $(pidof -s svc)        where would probes go?
  drainprof profile check svc.toml -p 4242 --for 5s          do all fire, and do allocs and frees balance?
Exit codes: 0 good (with --for: every probe fired), 5 not so, 4 no such process or no match, 78 bad profile.")]
    Check(CheckArgs),
    /// Draft a profile from a binary's functions, for you to finish.
    #[command(after_help = "Example:
  drainprof profile new --from-symbols /usr/sbin/nginx --prefix ngx_ -O nginx.toml")]
    New(NewArgs),
}

/// Lists, shows and checks profiles.
pub(super) fn main(args: ProfileArgs) -> Result<u8> {
    match args.action {
        ProfileAction::List => list(),
        ProfileAction::Show { name } => show(&name),
        ProfileAction::Check(check) => profile_check::main(&check),
        ProfileAction::New(new) => profile_new::main(&new),
    }
}

fn list() -> Result<u8> {
    let (library, _) = options::library(&[], &[])?;
    let mut out = output::stdout()?;
    let rows: Vec<_> = library
        .iter()
        .map(|profile| {
            let levels: Vec<_> = profile::levels(profile).into_iter().map(Level::name).collect();
            (profile, levels.join(", "))
        })
        .collect();
    let names = rows.iter().map(|(profile, _)| profile.name.len()).max().unwrap_or(0);
    let widest = rows.iter().map(|(_, levels)| levels.len()).max().unwrap_or(0);
    for (profile, levels) in rows {
        writeln!(
            out,
            "{:<names$} {:<6} {:<widest$} {}{}  [{}]",
            profile.name,
            profile.kind.name(),
            levels,
            profile.summary,
            if profile.on_request { " (only with --profile)" } else { "" },
            profile.source
        )?;
    }
    Ok(code::OK)
}

fn show(name: &str) -> Result<u8> {
    let (library, names) = options::library(&[name.to_owned()], &[])?;
    let profile = names
        .first()
        .and_then(|name| library.get(name))
        .ok_or_else(|| Failure::new(code::NO_TARGET, format!("no profile is called {name}")))?;
    let text = match &profile.source {
        Source::BuiltIn(file) => profile::built_in_text(file)
            .with_context(|| format!("the built-in profile {file} is not there"))?
            .to_owned(),
        Source::File(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
    };
    output::stdout()?.write_all(text.as_bytes())?;
    Ok(code::OK)
}

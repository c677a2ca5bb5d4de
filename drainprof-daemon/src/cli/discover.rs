//! `drainprof discover`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_observe::discover::{self, Detail, Discovery, ScanOptions};
use drainprof_probe::{calibrate, plan::cost::Costs};

use super::{
    args::CacheArgs,
    code,
    exit::Failure,
    options, output,
    selection::Selection,
    values::{PlainFormat, SitesArg},
};

#[derive(Args, Debug)]
pub(super) struct DiscoverArgs {
    #[command(flatten)]
    selection: Selection,
    /// This profile only: a name, or a file. Repeatable.
    #[arg(long, value_name = "NAME|FILE", env = "DRAINPROF_PROFILE", value_delimiter = ',')]
    profile: Vec<String>,
    /// Also list processes that no profile matches, and those whose profile must be named.
    #[arg(long)]
    all: bool,
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    format: PlainFormat,
    /// Probe a function's first instruction, or the cheapest equivalent one.
    #[arg(long, value_enum, default_value_t = SitesArg::Cheapest, value_name = "WHICH",
          env = "DRAINPROF_SITES")]
    sites: SitesArg,
    /// Look for separate debug files here too.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_DEBUG_DIR")]
    debug_dir: Vec<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Says what can be examined. Attaches nothing, measures nothing, and works without privileges on the
/// user's own processes.
pub(super) fn main(args: &DiscoverArgs) -> Result<u8> {
    let (library, profiles) = options::library(&args.profile, &[])?;
    for name in &profiles {
        if library.get(name).is_none() {
            return Err(
                Failure::new(code::NO_TARGET, format!("no profile is called {name}")).into()
            );
        }
    }
    let options = ScanOptions {
        pids: args.selection.resolve()?,
        profiles,
        asked: args.profile.clone(),
        all: args.all,
        debug_dirs: args.debug_dir.clone(),
        costs: calibrate::remembered(&options::calibration(&args.cache, false))
            .unwrap_or_else(Costs::assumed),
        sites: args.sites.into(),
    };
    let found = discover::scan(&library, &options).context("cannot list the processes in /proc")?;
    let mut out = io::BufWriter::new(output::stdout()?);
    match args.format {
        PlainFormat::Text => discover::render_text(&found, detail(args), &mut out)?,
        PlainFormat::Json => {
            serde_json::to_writer_pretty(&mut out, &found).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(exit_code(&found))
}

/// A profile that matches nearly every program is described at length only where it was asked for.
const fn detail(args: &DiscoverArgs) -> Detail {
    if args.all || !args.selection.is_none() || !args.profile.is_empty() {
        Detail::Full
    } else {
        Detail::Brief
    }
}

/// Success if a profile fits somewhere; else whether it may be for want of a privilege.
fn exit_code(found: &Discovery) -> u8 {
    if found.looked.with_profile + found.looked.on_request > 0 {
        code::OK
    } else if found.passed_over.iter().any(|passed| passed.reason == "permission") {
        code::PRIVILEGE
    } else {
        code::NO_TARGET
    }
}

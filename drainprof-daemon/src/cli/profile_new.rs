//! `drainprof profile new`: lists an object's functions and has a profile drafted from them.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_observe::draft::{DraftingError, Listed, Wanted};
use drainprof_process::{DebugSearch, printable};
use drainprof_profile::Kind;

use super::{code, exit::Failure, output};

#[derive(Args, Debug)]
pub(super) struct NewArgs {
    /// The program or library.
    #[arg(long, value_name = "BINARY")]
    from_symbols: PathBuf,
    /// The profile's name. Default: made from the prefix, or the file's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only functions that begin with this: `ngx_`, or `my::Arena`.
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Write to this file instead of stdout; one that exists is not overwritten.
    #[arg(short = 'O', long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Look for separate debug files here too.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_DEBUG_DIR")]
    debug_dir: Vec<PathBuf>,
}

/// Drafts a profile.
pub(super) fn main(args: &NewArgs) -> Result<u8> {
    let path = &args.from_symbols;
    let shown = printable(path.as_os_str().as_encoded_bytes());
    let whole = fs::canonicalize(path).with_context(|| format!("cannot open {shown}"))?;
    let search = DebugSearch {
        process_root: None,
        object_path: Some(whole.clone()),
        debug_dirs: args.debug_dir.clone(),
    };
    let object = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let wanted = Wanted {
        object: &object,
        name: args.name.as_deref(),
        prefix: args.prefix.as_deref(),
        kind: Kind::Bulk,
        live: false,
    };
    let listed = Listed::read(&whole, &shown, search, wanted.prefix);
    let drafted = listed.and_then(|listed| listed.draft(&wanted)).map_err(|error| match error {
        DraftingError::Draft { .. } | DraftingError::Go => {
            Failure::new(code::NO_TARGET, error.to_string()).into()
        }
        DraftingError::Elf(error) => anyhow::Error::from(error),
    })?;
    write(args.output.as_deref(), &drafted.text)?;
    eprintln!(
        "drainprof: a draft with {} probes, levels {}; its comments say what is left to decide",
        drafted.probes,
        drafted.levels.join(", ")
    );
    Ok(code::OK)
}

fn write(output: Option<&Path>, text: &str) -> Result<()> {
    let Some(path) = output else {
        return Ok(output::stdout()?.write_all(text.as_bytes())?);
    };
    // An earlier draft may be finished by now.
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write the draft to {}", path.display()))
}

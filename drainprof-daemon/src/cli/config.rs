//! `drainprof config`: the daemon's configuration, without the daemon.

use std::{io::Write as _, path::PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use drainprof_node::config::{self, Loaded, Sources};
use drainprof_process::{printable, printable_lines};

use super::code;

/// Where the configuration comes from; the daemon takes the same options.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigSource {
    /// Read only this file. Default: /etc/drainprof/drainprof.toml, then conf.d/*.toml beside it.
    #[arg(long, value_name = "FILE", env = "DRAINPROF_CONFIG")]
    config: Option<PathBuf>,
    /// Set a key; wins over environment and files. Repeatable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigSource {
    /// The same, of this file, if one is named.
    fn of(&self, file: Option<&PathBuf>) -> Self {
        let source = self.clone();
        Self { config: file.cloned().or(source.config), ..source }
    }

    /// The sources to load from, with the environment of this process.
    pub(super) fn sources(&self) -> Sources {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let (file, required, directory) = match &self.config {
            Some(file) => (file.clone(), true, None),
            None => (PathBuf::from(config::FILE), false, Some(PathBuf::from(config::DIRECTORY))),
        };
        Sources { file: Some(file), required, directory, environment, set: self.set.clone() }
    }
}

#[derive(Args, Debug)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Report all errors of the configuration.
    Check {
        /// The same as --config FILE.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        #[command(flatten)]
        source: ConfigSource,
    },
    /// Print the default file with explanations.
    Default,
    /// Print effective values and where they come from.
    Show(ConfigSource),
}

/// Checks, prints and shows configurations.
pub(super) fn main(args: &ConfigArgs) -> Result<u8> {
    let mut out = super::output::stdout()?;
    match &args.action {
        ConfigAction::Check { file, source } => {
            let loaded = match config::load(&source.of(file.as_ref()).sources()) {
                Ok(loaded) => loaded,
                // Line by line, so that an editor can jump to each.
                Err(errors) => {
                    for error in &errors.0 {
                        eprintln!("{}", printable_lines(&error.to_string()));
                    }
                    return Ok(code::CONFIG);
                }
            };
            note(&loaded);
            if loaded.files.is_empty() {
                writeln!(out, "no configuration file: the defaults are in force")?;
            }
            for file in &loaded.files {
                writeln!(out, "{}: ok", printable(file.as_os_str().as_encoded_bytes()))?;
            }
        }
        ConfigAction::Default => out.write_all(config::default_file().as_bytes())?,
        ConfigAction::Show(source) => out.write_all(config::show(&load(source)?).as_bytes())?,
    }
    Ok(code::OK)
}

/// Loads the configuration, and warns on stderr of likely mistakes.
pub(super) fn load(source: &ConfigSource) -> Result<Loaded> {
    let loaded = config::load(&source.sources())?;
    note(&loaded);
    Ok(loaded)
}

fn note(loaded: &Loaded) {
    for note in &loaded.notes {
        tracing::warn!("{note}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::command::{Cli, Command};

    /// The file is named with and without `--config`; what is wrong in it has the code of a bad configuration.
    #[test]
    fn check_takes_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (good, bad) = (path("good.toml"), path("bad.toml"));
        std::fs::write(&good, "[daemon]\n").unwrap();
        std::fs::write(&bad, "[no_such_section]\n").unwrap();
        let checked = |more: &[&str]| {
            let words = ["drainprof", "config", "check"].iter().chain(more);
            match Cli::try_parse_from(words).unwrap().command {
                Command::Config(args) => main(&args).unwrap(),
                _ => unreachable!(),
            }
        };
        for (words, wanted) in [
            (&[good.as_str()][..], code::OK),
            (&["--config", &good], code::OK),
            (&[bad.as_str()], code::CONFIG),
            (&["--config", &bad], code::CONFIG),
            (&["--config", &bad, &good], code::OK),
        ] {
            assert_eq!(checked(words), wanted, "{words:?}");
        }
    }
}

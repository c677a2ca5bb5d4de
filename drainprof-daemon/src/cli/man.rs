//! `drainprof man`: manual pages from the help texts, one per command.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueHint};
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

use super::code;

#[derive(Args, Debug)]
pub(super) struct ManArgs {
    /// Write the pages of all commands into this directory. Default: drainprof(1) to stdout.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Writes one page of a command line, or all.
pub(super) fn main(args: &ManArgs, command: Command) -> Result<u8> {
    let mut command = plain(command).disable_help_subcommand(true);
    command.build();
    match &args.dir {
        Some(directory) => {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            pages(&command, directory)?;
        }
        None => page(&command, &mut super::output::stdout()?)?,
    }
    Ok(code::OK)
}

/// Without what depends on who asks: the values of environment variables.
pub(super) fn plain(command: Command) -> Command {
    command.term_width(100).mut_args(|arg| arg.hide_env_values(true)).mut_subcommands(plain)
}

/// The page of a command and those of its subcommands, each in a file of its own.
fn pages(command: &Command, directory: &Path) -> Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        pages(command, directory)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = directory.join(format!("{name}.1"));
    let mut text = Vec::new();
    page(command, &mut text)?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn page(command: &Command, out: &mut dyn Write) -> Result<()> {
    let source = format!("drainprof {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("drainprof");
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let mut roff = Roff::new();
    if let Some(help) = command.get_after_help() {
        after_help(&mut roff, &help.to_string());
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("drainprof(1), drainprof.toml(5), drainprof-profile(5)")]);
    roff.to_writer(out)?;
    Ok(())
}

/// Examples and exit codes, as they are laid out in the help.
fn after_help(roff: &mut Roff, help: &str) {
    let (title, text) = match help.split_once(":\n") {
        Some(("Example" | "Examples", text)) => ("EXAMPLES", text),
        Some(("Exit codes", text)) => ("EXIT STATUS", text),
        _ => ("NOTES", help),
    };
    roff.control("SH", [title]);
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::command::Cli;

    /// Every command has a page with its options and examples; what is hidden has none.
    #[test]
    fn one_page_per_command() {
        let directory = tempfile::tempdir().unwrap();
        main(&ManArgs { dir: Some(directory.path().to_owned()) }, Cli::command()).unwrap();
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        let whole = read("drainprof.1");
        assert!(
            whole.contains("EXIT STATUS") && whole.contains("drainprof\\-attach(1)"),
            "{whole}"
        );
        let attach = read("drainprof-attach.1");
        for part in
            [".TH drainprof-attach 1", "\\-\\-follow\\-forks", ".SH EXAMPLES", ".SH \"SEE ALSO\""]
        {
            assert!(attach.contains(part), "{part}: {attach}");
        }
        assert!(!attach.contains("census\\-limit"));
        assert!(read("drainprof-profile-check.1").contains("EXAMPLES"));
        let pages = fs::read_dir(directory.path()).unwrap();
        let hidden = drainprof_process::symbolize::COMMAND;
        for page in pages.map(|page| page.unwrap().file_name().into_string().unwrap()) {
            assert!(!page.contains(hidden) && !page.contains("help"), "{page}");
        }
    }
}

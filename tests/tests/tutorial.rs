//! The tutorial: every command of the page is run in the page's order, and prints what the page shows.
//!
//! `UPDATE_DOCS=1` writes what they print into the page. Times, costs and addresses differ from run to run, and so
//! does how far a process got in two seconds; what is compared is all the rest.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{drainprof, kernel_release, requires_root},
    process::Process,
};
use regex::Regex;
use tempfile::{Builder, TempDir};

/// What the page calls the directory in which the commands are run; the real one is as long, for the tables' sake.
const SHOWN: &str = "/home/you/tutorial";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// A shell in a directory with the tutorial's files.
struct Shell {
    process: Process,
    directory: TempDir,
}

impl Shell {
    fn start() -> Result<Self> {
        let directory = Builder::new().prefix("tutorial").rand_bytes(5).tempdir_in("/tmp")?;
        for entry in fs::read_dir(docs().join("tutorial"))? {
            let path = entry?.path();
            fs::copy(&path, directory.path().join(path.file_name().context("a file")?))?;
        }
        let binary = drainprof()?;
        let mut paths = vec![binary.parent().context("drainprof is in a directory")?.to_owned()];
        paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let mut command = Command::new("sh");
        command.current_dir(directory.path()).env("PATH", std::env::join_paths(paths)?);
        command.env("NO_COLOR", "1").env("COLUMNS", "100").env("LC_ALL", "C");
        let mut process = Process::start("sh", command)?;
        // What it leaves running ends with it, and stdout and stderr come in one order.
        process.send_line("trap 'kill $! 2> /dev/null' EXIT; exec 2>&1")?;
        Ok(Self { process, directory })
    }

    /// Runs a command line, and gives the lines that came of it.
    fn run(&mut self, line: &str) -> Result<Vec<String>> {
        // What it prints may not end with a line's end.
        self.process.send_line(&format!("{line}\necho; echo :done:"))?;
        let mut lines = self.process.lines_until(":done:")?;
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        let real = self.directory.path().display().to_string();
        let kernel = format!(" Linux {}", kernel_release());
        // Which kernel it was says nothing to the reader.
        let shown = |line: &String| line.replace(&real, SHOWN).replace(&kernel, " Linux 6.18");
        Ok(lines.iter().map(shown).collect())
    }

    /// Writes a file that the page shows, or appends to it.
    fn write(&self, block: &[&str]) -> Result<()> {
        let (head, rest) = block.split_first().context("a block has a first line")?;
        let head = head.strip_prefix("# ").context("a profile's first line names its file")?;
        let (name, before) = match head.strip_prefix("appended to ") {
            Some(name) => (name, fs::read_to_string(self.directory.path().join(name))?),
            None => (head, String::new()),
        };
        let text = format!("{before}{}\n", rest.join("\n"));
        Ok(fs::write(self.directory.path().join(name), text)?)
    }
}

/// What two runs have in common: `lively` commands look at a process that runs on its own.
fn common(lines: &[String], lively: bool) -> Result<String> {
    let measured = if lively {
        // Of counts only whether there is anything; of frees of what is older than the attach not even that: whether they are
        // too many is said in words.
        Regex::new(
            r"0x[0-9a-f]+|\d+ unmatched frees|unmatched: \d+ frees|\(\d+(\.\d+)? % of all\)|[1-9]\d*(\.\d+)?|0\.\d+",
        )?
    } else {
        Regex::new(
            r"0x[0-9a-f]+|[0-9a-f]{16}|\[\d+\]|(to )?\d+(\.\d+)? ?([KMG]?i?B/s|ns|µs|ms|s)\b|to \d+|\d+/s",
        )?
    };
    let mut words = Vec::new();
    let mut in_note = false;
    for line in lines {
        // What is expensive depends on the machine, and whether its costs were measured.
        in_note = line.contains("expensive_site") || (in_note && line.starts_with("    "));
        let of_this_run = ["own use:", "probing took", "drainprof 0", " growth ", " lifetime "];
        if in_note
            || of_this_run.iter().any(|word| line.contains(word))
            || line.trim_start().starts_with("+0x")
        {
            continue;
        }
        // Columns are as wide as their widest cell, and sentences break where they are full.
        words.extend(measured.replace_all(line, "N").split_whitespace().map(ToOwned::to_owned));
    }
    Ok(words.join(" "))
}

/// The commands of the page work, and print what it shows.
#[test]
fn the_tutorial_is_true() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let path = docs().join("tutorial.md");
    let page = fs::read_to_string(&path)?;
    let mut shell = Shell::start()?;
    let (mut fresh, mut stale, mut commands) = (String::new(), Vec::new(), 0);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        fresh.extend([line, "\n"]);
        if line != "```console" && line != "```toml" {
            continue;
        }
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if line == "```toml" {
            shell.write(&block)?;
            fresh.extend([&block.join("\n"), "\n```\n"]);
            continue;
        }
        let mut rest = block.as_slice();
        while let Some((command, behind)) = rest.split_first() {
            let typed =
                command.strip_prefix("$ ").with_context(|| format!("no command: {command}"))?;
            let next =
                behind.iter().position(|line| line.starts_with("$ ")).unwrap_or(behind.len());
            let shown: Vec<String> = behind[..next].iter().map(|line| (*line).to_owned()).collect();
            let printed = shell.run(typed)?;
            let lively = typed.contains("$!");
            if common(&shown, lively)? != common(&printed, lively)? {
                stale.push(format!("$ {typed}\n{}", printed.join("\n")));
            }
            fresh.extend([*command, "\n"]);
            fresh.extend(printed.iter().map(|line| format!("{line}\n")));
            rest = &behind[next..];
            commands += 1;
        }
        fresh += "```\n";
    }
    ensure!(commands >= 12, "only {commands} commands were found");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, fresh)?;
    } else {
        ensure!(
            stale.is_empty(),
            "the page is stale: run with UPDATE_DOCS=1\n{}",
            stale.join("\n")
        );
    }
    Ok(())
}

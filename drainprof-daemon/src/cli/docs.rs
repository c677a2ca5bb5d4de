//! The documentation, held to the code: the command line's reference page is generated from the help
//! texts, every command that a page shows is one that the parser takes, and every link leads somewhere.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use clap::{CommandFactory as _, Parser as _};
use drainprof_report::Verdict;

use super::{code, command::Cli, man::plain};

/// Pages at the root of the repository; those in `docs/` and `tests/` are found.
const ROOT_PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn pages() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = ROOT_PAGES.iter().map(|page| root().join(page)).collect();
    for directory in ["docs", "docs/profiles", "tests"] {
        for entry in fs::read_dir(root().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "md") {
                paths.push(path);
            }
        }
    }
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// The text of `docs/cli.md`.
fn cli_markdown() -> String {
    let mut page = String::from(
        "# The command line\n\n\
         <!-- Generated from the help texts. To renew it:\n\
         UPDATE_DOCS=1 cargo test -p drainprof-daemon --lib cli::docs -->\n\n\
         The command line wins over environment variables, and these win over defaults. Data goes to stdout,\n\
         messages to stderr. `NO_COLOR` turns colours off; they need a terminal.\n\
         [Exit codes](exit-codes.md) have a page.\n",
    );
    let mut command = plain(Cli::command());
    command.build();
    section(&mut page, &command, &mut Vec::new());
    page
}

/// An option, its help, the command under which the page shows it, and its name there.
type Shown = (clap::Id, String, String, Option<String>);

/// One command. An option that an earlier command has with the same help is only named.
fn section(page: &mut String, command: &clap::Command, shown: &mut Vec<Shown>) {
    if command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let mut again: Vec<(String, Vec<String>)> = Vec::new();
    // Each subcommand has a section of its own.
    let mut short = command.clone().mut_subcommands(|command| command.hide(true));
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
        let (id, help) = (arg.get_id().clone(), arg.get_help().map(ToString::to_string));
        let help = help.unwrap_or_default();
        let is_universal = matches!(id.as_str(), "help" | "version" | "verbose");
        let long = arg.get_long().filter(|_| !is_universal).map(|long| format!("`--{long}`"));
        let is_same = |(known, text, ..): &&Shown| *known == id && (is_universal || *text == help);
        match shown.iter().find(is_same) {
            None => shown.push((id, help, name.clone(), long)),
            Some((_, _, first, _)) => {
                short = short.mut_arg(id.as_str(), |arg| arg.hide(true));
                let Some(long) = long else { continue };
                match again.iter_mut().find(|(known, _)| known == first) {
                    Some((_, names)) => names.push(long),
                    None => again.push((first.clone(), vec![long])),
                }
            }
        }
    }
    let help = short.render_help().to_string();
    let help: Vec<_> = help.lines().map(str::trim_end).collect();
    let _ = write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for (first, names) in again {
        let there = shown.iter().filter(|(_, _, command, _)| *command == first);
        let other: Vec<_> = there
            .filter_map(|(.., long)| long.clone())
            .filter(|long| !names.contains(long))
            .collect();
        let text = match other.as_slice() {
            [] => "every option shown there".to_owned(),
            other if other.len() < names.len() => format!("every option but {}", other.join(", ")),
            _ => names.join(", "),
        };
        let options =
            textwrap::Options::new(100).word_splitter(textwrap::WordSplitter::NoHyphenation);
        let _ =
            write!(page, "\n{}\n", textwrap::fill(&format!("As of `{first}`: {text}"), options));
    }
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        section(page, command, shown);
    }
}

/// The committed page is what the help says now (`UPDATE_DOCS=1` rewrites it).
#[test]
fn page_is_fresh() {
    let path = root().join("docs/cli.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, cli_markdown()).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page == cli_markdown(), "docs/cli.md is stale: run with UPDATE_DOCS=1");
}

/// Every exit code has a row on its page, and the page names no other.
#[test]
fn exit_codes_have_rows() {
    let page = fs::read_to_string(root().join("docs/exit-codes.md")).unwrap();
    let mut codes = vec![
        code::OK,
        code::FAILURE,
        code::USAGE,
        code::NO_TARGET,
        code::GOVERNOR,
        code::UNSUPPORTED,
        code::PRIVILEGE,
        code::CONFIG,
        Verdict::BelowThreshold.exit_code(),
        Verdict::Incomplete.exit_code(),
        126,
        127,
    ];
    codes.sort_unstable();
    let rows: Vec<u8> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(rows, codes);
}

/// Every `drainprof …` in a page's shell examples is a command line that the parser takes.
#[test]
fn examples_parse() {
    let mut seen = 0;
    for (path, text) in pages() {
        for line in shell_lines(&text) {
            let Some(words) = drainprof_words(&line) else { continue };
            seen += 1;
            if let Err(error) = Cli::try_parse_from(&words) {
                assert!(!error.use_stderr(), "{}: {line}\n{error}", path.display());
            }
        }
    }
    assert!(seen > 10, "only {seen} examples were found");
}

/// Lines of shell code blocks that are typed: all of `sh`, those after a prompt of `console`.
fn shell_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut language = None;
    for line in text.lines() {
        if let Some(fence) = line.trim_start().strip_prefix("```") {
            language = if language.is_some() { None } else { Some(fence.trim()) };
        } else if language == Some("sh") {
            lines.push(line.trim().to_owned());
        } else if let (Some("console"), Some(typed)) = (language, line.strip_prefix("$ ")) {
            lines.push(typed.to_owned());
        }
    }
    lines
}

/// The words of a line that runs drainprof, up to where the shell takes over.
fn drainprof_words(line: &str) -> Option<Vec<String>> {
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    if line.split_whitespace().next() != Some("drainprof") {
        return None;
    }
    // What a process substitution gives is a number here, and so is the last process that was put behind.
    let mut rest = line.replace("$!", "4242");
    while let (Some(start), Some(end)) = (rest.find("$("), rest.find(')')) {
        rest.replace_range(start..=end, "4242");
    }
    let mut words = Vec::new();
    for word in rest.split_whitespace() {
        if matches!(word, "|" | "&&" | ";" | ">" | "&" | "#") {
            break;
        }
        words.push(word.to_owned());
    }
    Some(words)
}

/// Every relative link leads to a file, and every anchor to a heading.
#[test]
fn links_lead_somewhere() {
    let mut seen = 0;
    for (path, text) in pages() {
        for target in links(&text) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let aim =
                if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(aim.exists(), "{}: the link to {target} leads nowhere", path.display());
            if !anchor.is_empty() {
                let aimed = fs::read_to_string(&aim).unwrap();
                let found = headings(&aimed).any(|heading| heading == anchor);
                assert!(found, "{}: {target} has no such heading", path.display());
            }
        }
    }
    assert!(seen > 20, "only {seen} links were found");
}

fn links(text: &str) -> Vec<String> {
    text.match_indices("](")
        .filter_map(|(at, mark)| text[at + mark.len()..].split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// Anchors of a page's headings, as they are made from their text.
fn headings(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect()
    })
}

//! Rules of the house that no compiler knows: file sizes, inherited lints. `crates` has those about crates.
//!
//! Each rule is a plain function over text; `check` reads the files.

use std::path::Path;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::{artifacts, work};

/// A file should not be longer …
const NOTED_LINES: usize = 400;
/// … and must not be longer than this.
const MAX_LINES: usize = 700;

/// No line of Markdown has more characters.
const MAX_LINE_CHARACTERS: usize = 120;

/// The pages whose tests must exist.
const PAGES: [&str; 2] = ["docs/compared.md", "docs/security.md"];

/// Checks every rule, and names every breach.
pub(super) fn check(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    for extension in ["c", "h", "md", "rs", "toml"] {
        for path in work::files(root, extension)? {
            let text = fs::read_to_string(&path)?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if let Some(line) = conflict(&text) {
                breaches.push(format!("{name}:{line}: a merge was not finished"));
            }
            match extension {
                "md" => breaches.extend(too_wide(&name, &text)),
                "toml" => {}
                _ => breaches.extend(too_long(&name, &text)),
            }
        }
    }
    for page in PAGES {
        for (file, test) in named_tests(&fs::read_to_string(root.join(page))?) {
            let path =
                if file.contains('/') { file.to_owned() } else { format!("tests/tests/{file}.rs") };
            if !has_test(&fs::read_to_string(root.join(&path))?, test) {
                breaches.push(format!("{page} names the test {test}, which {path} does not have"));
            }
        }
    }
    for package in artifacts::metadata(root)?.workspace_packages() {
        let path = package.manifest_path.as_std_path();
        if !inherits_lints(&fs::read_to_string(path)?)? {
            breaches.push(format!("{} does not say `[lints] workspace = true`", path.display()));
        }
    }
    if !breaches.is_empty() {
        bail!("{} breaches:\n  {}", breaches.len(), breaches.join("\n  "));
    }
    Ok(())
}

/// A file of code that has too many lines; many are noted.
fn too_long(name: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    if lines > MAX_LINES {
        return Some(format!("{name} has {lines} lines, more than {MAX_LINES}: cut it"));
    }
    if lines > NOTED_LINES {
        work::note(format!(
            "{name} has {lines} lines, more than {NOTED_LINES}: does it want a cut?"
        ));
    }
    None
}

/// A page whose lines are too long.
fn too_wide(name: &str, text: &str) -> Option<String> {
    let long: Vec<usize> = long_lines(text).collect();
    let many = long.len();
    long.first().map(|first| {
        format!("{name}:{first}: {many} lines have more than {MAX_LINE_CHARACTERS} characters")
    })
}

/// The numbers of lines that are too long, from 1. Blocks of code hold what programs print, as they print it.
fn long_lines(text: &str) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    let long = text.lines().enumerate().filter(move |(_, line)| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.chars().count() > MAX_LINE_CHARACTERS
    });
    long.map(|(index, _)| index + 1)
}

/// The number of the first line that a merge has left, from 1.
fn conflict(text: &str) -> Option<usize> {
    let is_left = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    text.lines().position(is_left).map(|index| index + 1)
}

/// The tests that a page names: `file::test`.
fn named_tests(page: &str) -> impl Iterator<Item = (&str, &str)> {
    page.split('`').skip(1).step_by(2).filter_map(|name| name.rsplit_once("::"))
}

/// Whether a source has a test of this name, as a function or as a row of a macro.
fn has_test(source: &str, test: &str) -> bool {
    source.lines().map(str::trim_start).any(|line| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let rest = line.strip_prefix("fn ").unwrap_or(line).strip_prefix(test);
        rest.is_some_and(|rest| rest.starts_with(['(', ':', ' ']))
    })
}

/// Whether a manifest takes the workspace's lint table.
fn inherits_lints(manifest: &str) -> Result<bool> {
    let manifest: toml::Table = manifest.parse().context("parse a manifest")?;
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    Ok(lints.and_then(toml::Value::as_bool) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::{conflict, has_test, inherits_lints, long_lines, named_tests};

    /// What a merge leaves is found by its line; lines under a heading are none.
    #[test]
    fn unfinished_merges() {
        assert_eq!(conflict("a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> e5\n"), Some(2));
        assert_eq!(conflict("Title\n=======\n\n> a quotation\n"), None);
    }

    /// Characters are counted, not bytes; blocks of code may be wider.
    #[test]
    fn finds_long_lines() {
        let text = format!("short\n{}\n{}\n", "é".repeat(120), "a".repeat(121));
        assert_eq!(long_lines(&text).collect::<Vec<_>>(), [3]);
        let code = format!("```text\n{0}\n```\n{0}\n", "a".repeat(121));
        assert_eq!(long_lines(&code).collect::<Vec<_>>(), [4]);
    }

    /// Pages name tests of `tests/tests` and unit tests; macros have one per row.
    #[test]
    fn finds_named_tests() {
        let page = "`sweep::half`, `a/b.rs::c`, `cargo xtask vm`";
        assert!(named_tests(page).eq([("sweep", "half"), ("a/b.rs", "c")]));
        for source in ["fn half() {", "    half \"p=1\";", "half: \"psweep\""] {
            assert!(has_test(source, "half"), "{source}");
        }
        assert!(!has_test("fn halves() {\n// half", "half"));
    }

    /// Only an inherited table counts.
    #[test]
    fn wants_inherited_lints() {
        assert!(inherits_lints("[lints]\nworkspace = true\n").unwrap());
        assert!(!inherits_lints("[lints.rust]\nunused = \"warn\"\n").unwrap());
        assert!(!inherits_lints("[package]\n").unwrap());
    }
}

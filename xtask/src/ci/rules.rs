//! Rules of the house that no compiler knows: file sizes, inherited lints, the direction of modules.
//!
//! Each rule is a plain function over text; `check` reads the files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{artifacts, work};

/// A file should not be longer …
const LINES: usize = 400;
/// … and must not be longer than this.
const LINES_AT_MOST: usize = 700;

/// Plain functions and structs: these modules import neither of those crates.
const PURE_MODULES: [&str; 4] = ["account", "plan", "profile", "report"];
const IMPURE_CRATES: [&str; 2] = ["aya", "tokio"];

/// Checks every rule, and names every breach.
pub(super) fn check(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    for extension in ["rs", "c", "h"] {
        for path in work::files(root, extension)? {
            let text = read(&path)?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let lines = text.lines().count();
            if lines > LINES_AT_MOST {
                breaches
                    .push(format!("{name} has {lines} lines, more than {LINES_AT_MOST}: cut it"));
            } else if lines > LINES {
                work::note(format!(
                    "{name} has {lines} lines, more than {LINES}: does it want a cut?"
                ));
            }
            if is_pure(&name) {
                breaches.extend(imports(&text).map(|(line, krate)| {
                    format!(
                        "{name}:{line} uses {krate}; this module is pure, let its caller do that"
                    )
                }));
            }
        }
    }
    for package in artifacts::metadata(root)?.workspace_packages() {
        let path = package.manifest_path.as_std_path();
        if !inherits_lints(&read(path)?)? {
            breaches.push(format!("{} does not say `[lints] workspace = true`", path.display()));
        }
    }
    if !breaches.is_empty() {
        bail!("{} breaches:\n  {}", breaches.len(), breaches.join("\n  "));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// Whether a file, named from the root, belongs to a pure module.
fn is_pure(name: &str) -> bool {
    PURE_MODULES.iter().any(|module| {
        name.strip_prefix("drainprof-daemon/src/")
            .and_then(|rest| rest.strip_prefix(module))
            .is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
    })
}

/// The lines, from 1, that use an impure crate.
fn imports(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let code = line.split("//").next().unwrap_or_default();
        let uses = |krate: &&&str| {
            code.match_indices(**krate).any(|(at, found)| {
                let before = code[..at].chars().next_back();
                let after = &code[at + found.len()..];
                let is_word = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.');
                let imported =
                    code.trim_start().starts_with("use ") && after.starts_with([';', ' ']);
                is_word && (after.starts_with("::") || imported)
            })
        };
        IMPURE_CRATES.iter().find(uses).map(|krate| (index + 1, *krate))
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
    use super::{imports, inherits_lints, is_pure};

    /// Pure modules are found as a folder and as a file; their namesakes elsewhere are not.
    #[test]
    fn knows_pure_modules() {
        assert!(is_pure("drainprof-daemon/src/plan/model.rs"));
        assert!(is_pure("drainprof-daemon/src/plan.rs"));
        assert!(!is_pure("drainprof-daemon/src/planner.rs"));
        assert!(!is_pure("drainprof-daemon/src/bpf/plan/mod.rs"));
    }

    /// Imports and paths are found; comments, other crates and methods are not.
    #[test]
    fn finds_imports() {
        let found = |text: &str| imports(text).collect::<Vec<_>>();
        assert_eq!(found("use aya::Ebpf;\nlet x = tokio::spawn(y);"), [(1, "aya"), (2, "tokio")]);
        assert_eq!(found("use aya;"), [(1, "aya")]);
        assert!(
            found("// aya::Ebpf\nuse aya_obj::Object;\nlet maya = himalaya::new();").is_empty()
        );
    }

    /// Only an inherited table counts.
    #[test]
    fn wants_inherited_lints() {
        assert!(inherits_lints("[lints]\nworkspace = true\n").unwrap());
        assert!(!inherits_lints("[lints.rust]\nunused = \"warn\"\n").unwrap());
        assert!(!inherits_lints("[package]\n").unwrap());
    }
}

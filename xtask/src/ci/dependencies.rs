//! Dependencies: only allowed licences, and none that is not used.
//!
//! Licences are those that `deny.toml` allows, in cargo-deny's own format, so that cargo-deny can be run as
//! well; advisories need its database and are not examined here. A dependency counts as used when its
//! name stands in a source file of its package, which is what cargo-machete goes by.

use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::Package;
use fs_err as fs;
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::{artifacts, work};

/// `deny.toml`.
#[derive(Deserialize)]
struct Deny {
    licenses: Licences,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// What one package may have beside.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

impl Licences {
    fn read(text: &str) -> Result<Self> {
        Ok(toml::from_str::<Deny>(text).context("parse deny.toml")?.licenses)
    }

    /// Whether a package may have what it states.
    fn allow(&self, package: &str, stated: &Expression) -> bool {
        let own = self.exceptions.iter().filter(|exception| exception.name == package);
        let own = own.flat_map(|exception| &exception.allow);
        let allowed: Vec<_> = self.allow.iter().chain(own).collect();
        stated.evaluate(|wanted| allowed.contains(&&wanted.to_string()))
    }
}

/// Every package that is built has a licence which `deny.toml` allows.
pub(super) fn licences(root: &Path) -> Result<()> {
    let licences = Licences::read(&fs::read_to_string(root.join("deny.toml"))?)?;
    let mut breaches = Vec::new();
    let metadata = artifacts::metadata(root)?;
    for package in &metadata.packages {
        let stated = package.license.as_deref().unwrap_or_default();
        let expression = Expression::parse_mode(stated, ParseMode::LAX);
        if !expression.is_ok_and(|expression| licences.allow(&package.name, &expression)) {
            breaches.push(format!("{} {}: `{stated}`", package.name, package.version));
        }
    }
    work::note(format!("{} packages", metadata.packages.len()));
    if !breaches.is_empty() {
        bail!("not allowed by deny.toml:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

/// Every dependency of every member is named in one of its sources.
pub(super) fn unused(root: &Path) -> Result<()> {
    let mut breaches = Vec::new();
    for package in artifacts::metadata(root)?.workspace_packages() {
        let sources = sources(package)?;
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            if !sources.iter().any(|source| names(source, &name)) {
                breaches.push(format!("{} does not use {name}", package.name));
            }
        }
    }
    if !breaches.is_empty() {
        bail!("remove from Cargo.toml:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

/// The text of every source file of a package.
fn sources(package: &Package) -> Result<Vec<String>> {
    let directory = package.manifest_path.parent().context("a manifest lies nowhere")?;
    work::files(directory.as_std_path(), "rs")?
        .iter()
        .map(|path| Ok(fs::read_to_string(path)?))
        .collect()
}

/// Whether `name` stands in the text as a word, outside of line comments.
fn names(source: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    source.lines().map(|line| line.split("//").next().unwrap_or_default()).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            !line[..at].chars().next_back().is_some_and(is_part)
                && !line[at + name.len()..].chars().next().is_some_and(is_part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = "[licenses]\nallow = [\"MIT\", \"Unicode-3.0\"]\n\
                        [[licenses.exceptions]]\ncrate = \"a\"\nallow = [\"MPL-2.0\"]\n";

    fn allows(package: &str, stated: &str) -> bool {
        let expression = Expression::parse_mode(stated, ParseMode::LAX).unwrap();
        Licences::read(DENY).unwrap().allow(package, &expression)
    }

    /// One allowed alternative is enough; a licence that is needed and not allowed is not.
    #[test]
    fn evaluates_expressions() {
        for stated in ["MIT OR Apache-2.0", "(Apache-2.0 OR MIT) AND Unicode-3.0", "GPL-3.0/MIT"] {
            assert!(allows("b", stated), "{stated}");
        }
        assert!(!allows("b", "MIT AND GPL-3.0-only"));
        assert!(!allows("b", "Apache-2.0 WITH LLVM-exception"));
    }

    /// An exception is of the one package that it names. Without a list nothing could be refused, and half an exception
    /// would be one for all: both are errors.
    #[test]
    fn exceptions_are_of_one_package() {
        assert!(allows("a", "MPL-2.0") && !allows("b", "MPL-2.0"));
        let half = "[licenses]\nallow = []\n[[licenses.exceptions]]\nallow = [\"MPL-2.0\"]\n";
        for text in ["[bans]\n", "[licenses]\n", half] {
            assert!(Licences::read(text).is_err(), "{text}");
        }
    }

    /// A name counts as a whole word of code, not in a comment or inside of another word.
    #[test]
    fn finds_whole_words() {
        assert!(names("use toml::Table;", "toml"));
        assert!(names("#[derive(serde::Serialize)]", "serde"));
        assert!(!names("// toml is not used", "toml"));
        assert!(!names("use toml_edit::Item;", "toml"));
    }
}

//! Dependencies: only allowed licences, and none that is not used.
//!
//! Licences are those that `deny.toml` allows, in cargo-deny's own format, so that cargo-deny can be run as
//! well; advisories need its database and are not examined here. A dependency counts as used when its
//! name stands in a source file of its package, which is what cargo-machete goes by.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cargo_metadata::Package;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::{artifacts, work};

/// Every package that is built has a licence which `deny.toml` allows.
pub(super) fn licences(root: &Path) -> Result<()> {
    let path = root.join("deny.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let (allowed, exceptions, none) = (allowed(&text)?, exceptions(&text)?, Vec::new());
    let mut breaches = Vec::new();
    let metadata = artifacts::metadata(root)?;
    for package in &metadata.packages {
        let stated = package.license.as_deref().unwrap_or_default();
        let excepted = exceptions.get(package.name.as_str()).unwrap_or(&none);
        let is_allowed = |wanted: &LicenseReq| allows(&allowed, wanted) || allows(excepted, wanted);
        match Expression::parse_mode(stated, ParseMode::LAX) {
            Ok(expression) if expression.evaluate(is_allowed) => {}
            Ok(_) => breaches.push(format!("{} {}: {stated}", package.name, package.version)),
            Err(_) => breaches.push(format!("{} {}: no licence", package.name, package.version)),
        }
    }
    work::note(format!("{} packages", metadata.packages.len()));
    if !breaches.is_empty() {
        bail!("not allowed by deny.toml:\n  {}", breaches.join("\n  "));
    }
    Ok(())
}

/// The licences that `deny.toml` allows.
fn allowed(text: &str) -> Result<Vec<String>> {
    let table: toml::Table = text.parse().context("parse deny.toml")?;
    let list = table
        .get("licenses")
        .and_then(|licences| licences.get("allow"))
        .and_then(toml::Value::as_array)
        .context("deny.toml has no list `licenses.allow`")?;
    Ok(texts(list))
}

fn texts(list: &[toml::Value]) -> Vec<String> {
    list.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

/// The licences that it allows to single packages, by their names.
fn exceptions(text: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let table: toml::Table = text.parse().context("parse deny.toml")?;
    let list = table
        .get("licenses")
        .and_then(|licences| licences.get("exceptions"))
        .and_then(toml::Value::as_array);
    list.into_iter()
        .flatten()
        .map(|exception| {
            let name = exception.get("crate").and_then(toml::Value::as_str);
            let allow = exception.get("allow").and_then(toml::Value::as_array);
            let (name, allow) = name
                .zip(allow)
                .context("an exception of deny.toml names no `crate` or no `allow`")?;
            Ok((name.to_owned(), texts(allow)))
        })
        .collect()
}

fn allows(allowed: &[String], wanted: &LicenseReq) -> bool {
    let wanted = wanted.to_string();
    allowed.contains(&wanted)
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
        .map(|path| fs::read_to_string(path).with_context(|| format!("read {}", path.display())))
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
    use super::{allowed, allows, exceptions, names};
    use spdx::{Expression, ParseMode};

    /// One allowed alternative is enough; a licence that is needed and not allowed is not.
    #[test]
    fn evaluates_expressions() {
        let list = allowed("[licenses]\nallow = [\"MIT\", \"Unicode-3.0\"]\n").unwrap();
        let holds = |text: &str| {
            let expression = Expression::parse_mode(text, ParseMode::LAX).unwrap();
            expression.evaluate(|wanted| allows(&list, wanted))
        };
        assert!(holds("MIT OR Apache-2.0"));
        assert!(holds("(Apache-2.0 OR MIT) AND Unicode-3.0"));
        assert!(holds("GPL-3.0/MIT"));
        assert!(!holds("MIT AND GPL-3.0-only"));
        assert!(!holds("Apache-2.0 WITH LLVM-exception"));
    }

    /// Without a list nothing could be refused, so that is an error.
    #[test]
    fn a_list_must_be_there() {
        assert!(allowed("[bans]\n").is_err());
    }

    /// An exception is of the one package that it names; half a one is an error, not an exception for all.
    #[test]
    fn exceptions_are_of_one_package() {
        let text = "[[licenses.exceptions]]\ncrate = \"a\"\nallow = [\"MPL-2.0\"]\n";
        let found = exceptions(text).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found["a"], ["MPL-2.0"]);
        assert!(exceptions("[licenses]\n").unwrap().is_empty());
        assert!(exceptions("[[licenses.exceptions]]\nallow = [\"MPL-2.0\"]\n").is_err());
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

//! Whether what a profile names is in the files that it is about.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use drainprof_process::{DebugSearch, Elf};
use drainprof_profile::{Address, Library, Profile, Source, built_in_text};
use globset::Glob;

use super::row::Row;
use crate::environment;

/// The files that a row is about, as they are installed.
///
/// # Errors
/// If there is none for one of its patterns.
pub fn files(row: &Row) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for pattern in row.files {
        let found = match pattern.strip_prefix('/') {
            Some(below) => expand(PathBuf::from("/"), below)?,
            None => vec![environment::target(pattern)?],
        };
        ensure!(
            !found.is_empty(),
            "{pattern} is not installed: it comes with {:?}; `cargo xtask setup` or `cargo xtask test --real` \
             installs that",
            row.needs
        );
        all.extend(found);
    }
    Ok(all)
}

/// The files under `root` whose names match the components of `pattern`.
fn expand(root: PathBuf, pattern: &str) -> Result<Vec<PathBuf>> {
    let mut found = vec![root];
    for component in pattern.split('/') {
        let matcher = Glob::new(component)?.compile_matcher();
        let mut next = Vec::new();
        for path in found {
            if !component.contains(['*', '?', '[', '{']) {
                next.extend(Some(path.join(component)).filter(|path| path.exists()));
                continue;
            }
            let Ok(entries) = fs::read_dir(&path) else { continue };
            next.extend(
                entries
                    .flatten()
                    .filter(|entry| matcher.is_match(entry.file_name()))
                    .map(|entry| entry.path()),
            );
        }
        next.sort();
        found = next;
    }
    Ok(found)
}

/// What of the profile's names is wrong: not in any of the files, or in one in spite of an exception. What
/// `[match]` asks for must be in each of them.
///
/// # Errors
/// If a file is not installed or cannot be read, or there is no such profile.
pub fn unresolved(row: &Row) -> Result<Vec<String>> {
    let library = Library::built_in()?;
    let profile = library.get(row.profile).context("there is no such profile")?;
    let objects = files(row)?
        .into_iter()
        .map(|path| {
            let search = DebugSearch { object_path: Some(path.clone()), ..DebugSearch::default() };
            Ok(Elf::open(&path, &path.display().to_string(), search)?)
        })
        .collect::<Result<Vec<_>>>()?;
    let excused = |name: &str| row.absent.iter().find(|except| except.what == name);
    let mut wrong = Vec::new();
    for elf in &objects {
        for address in &profile.rule.symbols {
            let name = address.to_string();
            if !is_in(elf, address)? && excused(&name).is_none() {
                wrong.push(format!(
                    "{}: {} has no {name}, which [match] asks for",
                    row.profile,
                    elf.shown_path()
                ));
            }
        }
    }
    for probe in &profile.probes {
        let name = probe.at.to_string();
        let mut there = is_anywhere(&objects, &probe.at)?;
        // Of several that stand for one another, one is enough.
        for other in profile.probes.iter().filter(|_| probe.one_of.is_some()) {
            there |= other.one_of == probe.one_of && is_anywhere(&objects, &other.at)?;
        }
        match (there, excused(&name)) {
            (false, None) => {
                wrong.push(format!("{}: none of {:?} has {name}", row.profile, row.files));
            }
            (true, Some(except)) => wrong.push(format!(
                "{}: {name} is there, but was to be absent: {}",
                row.profile, except.why
            )),
            _ => {}
        }
    }
    for variable in variables(profile)? {
        if !objects.iter().any(|elf| !elf.resolve(&variable).is_empty()) {
            wrong.push(format!(
                "{}: none of {:?} has the variable {variable}",
                row.profile, row.files
            ));
        }
    }
    Ok(wrong)
}

fn is_anywhere(objects: &[Elf], address: &Address) -> Result<bool> {
    for elf in objects {
        if is_in(elf, address)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_in(elf: &Elf, address: &Address) -> Result<bool> {
    Ok(match address {
        Address::Symbol(name) => !elf.resolve(name).is_empty(),
        Address::Demangled(glob) => !elf.resolve_demangled(glob)?.is_empty(),
        Address::Offset(offset) => elf.code_at(*offset).is_ok(),
        // A note has both as texts that end at a NUL.
        Address::Usdt { provider, name } => {
            let note = format!("{provider}\0{name}\0");
            let bytes = fs::read(elf.open_path())?;
            bytes.windows(note.len()).any(|window| window == note.as_bytes())
        }
    })
}

/// The variables that a built-in profile's expressions name.
fn variables(profile: &Profile) -> Result<Vec<String>> {
    let Source::BuiltIn(file) = &profile.source else { return Ok(Vec::new()) };
    let text = built_in_text(file).context("the text of a built-in profile")?;
    let code = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    Ok(code
        .flat_map(|line| line.split("var(").skip(1))
        .filter_map(|behind| behind.split(['\'', '"']).nth(1))
        .map(ToOwned::to_owned)
        .collect())
}

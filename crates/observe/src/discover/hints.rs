//! Profiles that nearly fit: what is missing, and what would help.
//!
//! A profile that fits nothing is no news: most profiles are about programs that do not run. It is one where
//! the object is the right one by what the profile itself says of it (its soname, the program's name, its
//! build id), has most of the functions that the profile names, or is called like the profile.

use std::path::Path;

use drainprof_probe::plan::{Mismatch, NoMatch};
use drainprof_process::{Image, LoadedObject, Process, describe};
use drainprof_profile::Profile;

use super::{
    model::Hint,
    packages::{Packages, with_symbols},
};

/// Shortest name of which the beginning alone may be common to profile and program.
const MIN_COMMON: usize = 4;
/// Most hints about one profile in one process.
const MAX_HINTS: usize = 2;
/// Most missing functions that one hint names.
const MAX_NAMED: usize = 3;

/// Makes hints; remembers which package a file is from.
#[derive(Debug, Default)]
pub(super) struct Hints {
    packages: Packages,
}

impl Hints {
    /// What is missing for `profile` in a process that it does not fit.
    pub(super) fn of(
        &mut self,
        profile: &Profile,
        image: &Image,
        process: &Process,
        no_match: &NoMatch,
    ) -> Vec<Hint> {
        let mut hints = Vec::new();
        for object in &image.objects {
            let shown = describe(object);
            let Some(tried) = no_match.tried.iter().find(|tried| tried.object == shown) else {
                continue;
            };
            let Some(missing) = nearly(profile, object, &tried.mismatch) else { continue };
            let mend = self.mend(object, process, &tried.mismatch);
            hints.push(Hint { profile: profile.name.clone(), object: shown, missing, mend });
            if hints.len() == MAX_HINTS {
                break;
            }
        }
        hints
    }

    /// What would help.
    fn mend(
        &mut self,
        object: &LoadedObject,
        process: &Process,
        mismatch: &Mismatch,
    ) -> Option<String> {
        let Mismatch::Symbols { stripped: Some(_), .. } = mismatch else { return None };
        let elf = object.elf.as_ref().ok()?;
        let file = elf.build_id().and_then(|id| {
            let (first, rest) = (id.get(..2)?, id.get(2..)?);
            Some(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"))
        });
        // What is no file of that name any more, or never was one (memfd), is in no package.
        let package = packaged(object)
            .and_then(|path| self.packages.owner(&process.root(), path))
            .map(|package| with_symbols(&package));
        match (package, file) {
            (Some(package), Some(file)) => {
                Some(format!("install {package}, or put its debug file at {file}"))
            }
            (Some(package), None) => Some(format!("install {package}")),
            (None, Some(file)) => Some(format!("put its debug file at {file}, or use --debug-dir")),
            (None, None) => Some("use a build that is not stripped: it has no build id".to_owned()),
        }
    }
}

/// The object's path, if what is there now is what the process has mapped.
fn packaged(object: &LoadedObject) -> Option<&Path> {
    let mapped = &object.mapped;
    (!mapped.deleted && !mapped.replaced).then_some(mapped.path.as_path())
}

/// What is missing, if the profile is about this object at all.
fn nearly(profile: &Profile, object: &LoadedObject, mismatch: &Mismatch) -> Option<String> {
    let rule = &profile.rule;
    match mismatch {
        Mismatch::Symbols { missing, stripped } => {
            let named =
                !(rule.soname.is_empty() && rule.exe.is_empty() && rule.build_id.is_empty());
            let has = rule.symbols.len().saturating_sub(missing.len());
            let most = has >= 2 && has * 2 >= rule.symbols.len();
            if !(named || most || (stripped.is_some() && is_called_like(&profile.name, object))) {
                return None;
            }
            let mut listed = missing.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
            if missing.len() > MAX_NAMED {
                listed.push_str(", …");
            }
            let why = match stripped {
                Some(_) => "it is stripped, and there is no debug file",
                None => "another version?",
            };
            Some(format!(
                "{} of {} functions that the profile looks for ({listed}): {why}",
                missing.len(),
                rule.symbols.len()
            ))
        }
        Mismatch::BuildId { found } if !rule.soname.is_empty() || !rule.exe.is_empty() => {
            Some(match found {
                Some(found) => format!("the profile is for another build than {found}"),
                None => {
                    "the profile is for a certain build, and this one has no build id".to_owned()
                }
            })
        }
        Mismatch::Unreadable(why) if is_called_like(&profile.name, object) => Some(why.clone()),
        _ => None,
    }
}

/// Whether the object's file is called like the profile: `libapr-1.so.0` for `apr`, `postgres` for
/// `postgresql`.
fn is_called_like(profile: &str, object: &LoadedObject) -> bool {
    let file = object.mapped.path.file_name().unwrap_or_default().to_string_lossy();
    let stem = |name: &str| {
        let name = name.strip_prefix("lib").unwrap_or(name);
        name.split(['.', '-', '_']).next().unwrap_or_default().to_owned()
    };
    let (object, profile) = (stem(&file), stem(profile));
    let common = object.len().min(profile.len());
    !profile.is_empty()
        && (object == profile
            || (common >= MIN_COMMON
                && (object.starts_with(&profile) || profile.starts_with(&object))))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use drainprof_process::{ElfError, MappedObject};
    use drainprof_profile::{Source, parse};

    use super::*;

    fn object(path: &str) -> LoadedObject {
        LoadedObject {
            mapped: MappedObject {
                path: PathBuf::from(path),
                shown_path: path.to_owned(),
                deleted: false,
                replaced: false,
                open_path: PathBuf::from(path),
                inode: (1, 1),
                refused: None,
                mappings: Vec::new(),
            },
            elf: Err(ElfError::NotElf { path: path.to_owned() }),
            is_main: true,
        }
    }

    fn profile(rule: &str) -> Profile {
        let text = format!(
            "schema = 1\nname = \"server\"\nkind = \"bulk\"\nsummary = \"s\"\n[match]\n{rule}\n\
             [[probe]]\nrole = \"open\"\nat = \"a\"\ngranule = \"ret\"\n\
             [[probe]]\nrole = \"close\"\nat = \"b\"\ngranule = \"arg0\"\n"
        );
        parse(&text, &Source::BuiltIn("server.toml")).unwrap()
    }

    fn missing(names: &[&str], stripped: bool) -> Mismatch {
        Mismatch::Symbols {
            missing: names.iter().map(|&name| name.to_owned()).collect(),
            stripped: stripped.then(Vec::new),
        }
    }

    /// A profile is said to fit nearly only where the object is the right one: by the rule's other lines, by
    /// most of its functions, or by its name.
    #[test]
    fn only_near_misses_are_told() {
        let by_symbols = profile("symbols = [\"a\", \"b\", \"c\", \"d\"]");
        let by_soname = profile("soname = \"libserver.so.*\"\nsymbols = [\"a\"]");
        let other = object("/usr/bin/cat");
        let all = ["a", "b", "c", "d"];
        assert_eq!(nearly(&by_symbols, &other, &missing(&all, true)), None);
        assert_eq!(
            nearly(&by_symbols, &other, &missing(&all[1..], true)),
            None,
            "one may be chance"
        );
        let half = nearly(&by_symbols, &other, &missing(&all[2..], false)).unwrap();
        assert!(half.starts_with("2 of 4 functions") && half.contains("version"), "{half}");
        assert!(nearly(&by_soname, &other, &missing(&["a"], true)).unwrap().contains("stripped"));
        let own = object("/usr/sbin/server");
        assert!(nearly(&by_symbols, &own, &missing(&all, true)).unwrap().contains("a, b, c, …"));
        assert_eq!(
            nearly(&by_symbols, &own, &missing(&all, false)),
            None,
            "not stripped: no such thing"
        );
        let build = Mismatch::BuildId { found: Some("abcd".to_owned()) };
        assert!(nearly(&by_soname, &other, &build).unwrap().contains("abcd"));
        assert_eq!(nearly(&by_symbols, &other, &build), None);
        assert_eq!(nearly(&by_symbols, &other, &Mismatch::NotMain), None);
    }

    /// A package is searched for only where the file is still the one that is mapped.
    #[test]
    fn deleted_files_have_no_package() {
        let mut found = object("/usr/sbin/server");
        assert_eq!(packaged(&found), Some(Path::new("/usr/sbin/server")));
        found.mapped.replaced = true;
        assert_eq!(packaged(&found), None);
        let mut memfd = object("/memfd:jit");
        memfd.mapped.deleted = true;
        assert_eq!(packaged(&memfd), None);
    }

    /// Names are alike if one begins with the other, and short ones only if they are equal.
    #[test]
    fn names() {
        for (profile, path) in [
            ("postgresql", "/usr/lib/postgresql/15/bin/postgres"),
            ("apr", "/usr/lib/x86_64-linux-gnu/libapr-1.so.0"),
            ("varnish", "/usr/sbin/varnishd"),
            ("tcmalloc-span", "/usr/lib/libtcmalloc_minimal.so.4"),
        ] {
            assert!(is_called_like(profile, &object(path)), "{profile} {path}");
        }
        for (profile, path) in
            [("apr", "/usr/lib/libaprutil-1.so.0"), ("php", "/bin/ph"), ("x", "/bin/cat")]
        {
            assert!(!is_called_like(profile, &object(path)), "{profile} {path}");
        }
    }
}

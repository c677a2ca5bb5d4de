//! Which objects of a process a profile is about.
//!
//! Pure: asks the objects of an image and says, for each that does not fit, why. Where the probes
//! then go is `build`.

use std::fmt;

use drainprof_process::{
    Elf, Image, LoadedObject, describe,
    elf::{CloneKind, readable},
    printable,
};
use drainprof_profile::{Address, Profile};

/// Most names that one line of a message lists.
const MAX_LISTED: usize = 8;

/// No object of the process fits the profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NoMatch {
    /// The profile.
    pub profile: String,
    /// Every object that was tried, with the reasons.
    pub tried: Vec<Tried>,
}

/// One object that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The object, safe to show.
    pub object: String,
    /// Why not: the first line of the rule that does not hold.
    pub mismatch: Mismatch,
}

/// Why an object does not fit a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The rule says nothing, so it would fit anything.
    EmptyRule,
    /// The executable's name matches none of the globs.
    Exe {
        /// Its name, safe to show.
        found: String,
        /// The globs.
        wanted: Vec<String>,
    },
    /// The rule names an executable only, and this object is not the main program.
    NotMain,
    /// The soname or file name matches none of the globs.
    Soname {
        /// The soname, or the file name where there is none, safe to show.
        found: String,
        /// The globs.
        wanted: Vec<String>,
    },
    /// Another build id.
    BuildId {
        /// The object's, if it has one.
        found: Option<String>,
    },
    /// Symbols that are not in it.
    Symbols {
        /// The missing ones, as the profile writes them.
        missing: Vec<String>,
        /// The object has exported names only, and no debug file was found at these places.
        stripped: Option<Vec<String>>,
    },
    /// It could not be read.
    Unreadable(String),
    /// A glob of the profile is malformed.
    Pattern(String),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyRule => f.write_str("the profile's [match] names nothing"),
            Self::Exe { found, wanted } => {
                write!(f, "the program is called {found}, not {}", wanted.join(" or "))
            }
            Self::NotMain => f.write_str("not the main program"),
            Self::Soname { found, wanted } => {
                write!(f, "it is called {found}, not {}", wanted.join(" or "))
            }
            Self::BuildId { found: Some(found) } => write!(f, "its build id is {found}"),
            Self::BuildId { found: None } => f.write_str("it has no build id"),
            Self::Symbols { missing, stripped } => {
                write!(f, "missing {}", list(missing))?;
                match stripped {
                    Some(tried) if !tried.is_empty() => {
                        write!(f, " (stripped; no debug file at {})", list(tried))
                    }
                    Some(_) => f.write_str(" (stripped, and without a link to a debug file)"),
                    None => Ok(()),
                }
            }
            Self::Unreadable(why) | Self::Pattern(why) => f.write_str(why),
        }
    }
}

impl fmt::Display for NoMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "profile {} fits no object of the process:", self.profile)?;
        if self.tried.is_empty() {
            f.write_str(" no file is mapped executable")?;
        }
        for tried in &self.tried {
            write!(f, "\n  {}: {}", tried.object, tried.mismatch)?;
        }
        Ok(())
    }
}

/// Joins names for a message, the first few of them.
pub(crate) fn list(names: &[String]) -> String {
    let shown = names.len().min(MAX_LISTED);
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format_args!(" and {} more", names.len() - shown).to_string());
    }
    text
}

/// How a profile writes an address, safe to show.
pub(crate) fn address_text(address: &Address) -> String {
    match address {
        Address::Symbol(name) => printable(name),
        Address::Demangled(glob) => format!("demangled:{}", printable(glob)),
        Address::Usdt { provider, name } => {
            format!("usdt:{}:{}", printable(provider), printable(name))
        }
        Address::Offset(offset) => format!("offset:{offset:#x}"),
    }
}

/// The objects of `image` that `profile` is about: every line of its rule holds in each of them.
///
/// A rule that names nothing but an executable is about the main program itself. The vdso is never
/// among the objects: it is no file.
pub fn match_objects<'a>(
    profile: &Profile,
    image: &'a Image,
) -> Result<Vec<&'a LoadedObject>, NoMatch> {
    let mut matched = Vec::new();
    let mut tried = Vec::new();
    for object in &image.objects {
        match mismatch(profile, image, object) {
            None => matched.push(object),
            Some(mismatch) => tried.push(Tried { object: describe(object), mismatch }),
        }
    }
    if matched.is_empty() {
        Err(NoMatch { profile: profile.name.clone(), tried })
    } else {
        Ok(matched)
    }
}

/// The first line of the rule that does not hold, cheap ones first; `None` where all hold.
fn mismatch(profile: &Profile, image: &Image, object: &LoadedObject) -> Option<Mismatch> {
    let rule = &profile.rule;
    let about_object =
        !(rule.symbols.is_empty() && rule.soname.is_empty() && rule.build_id.is_empty());
    if !about_object && rule.exe.is_empty() {
        return Some(Mismatch::EmptyRule);
    }
    if !rule.exe.is_empty() {
        // A glob with a slash is meant for the whole path.
        let matches =
            any_glob(
                &rule.exe,
                |glob| {
                    if glob.contains('/') { &image.exe_path } else { &image.exe_name }
                },
            );
        match matches {
            Err(why) => return Some(Mismatch::Pattern(why)),
            Ok(false) => {
                return Some(Mismatch::Exe {
                    found: printable(&image.exe_name),
                    wanted: rule.exe.iter().map(printable).collect(),
                });
            }
            Ok(true) if !about_object && !object.is_main => return Some(Mismatch::NotMain),
            Ok(true) => {}
        }
    }
    let elf = match &object.elf {
        Ok(elf) => elf,
        Err(error) => return Some(Mismatch::Unreadable(error.to_string())),
    };
    if !rule.soname.is_empty() {
        let file_name = object.mapped.path.file_name().unwrap_or_default().to_string_lossy();
        let by = |name: &str| any_glob(&rule.soname, |_| name);
        let soname = elf.soname().unwrap_or_default();
        match (by(soname), by(&file_name)) {
            (Err(why), _) | (_, Err(why)) => return Some(Mismatch::Pattern(why)),
            (Ok(false), Ok(false)) => {
                return Some(Mismatch::Soname {
                    found: printable(elf.soname().unwrap_or(&file_name)),
                    wanted: rule.soname.iter().map(printable).collect(),
                });
            }
            _ => {}
        }
    }
    if !rule.build_id.is_empty()
        && !elf
            .build_id()
            .is_some_and(|id| rule.build_id.iter().any(|want| want.eq_ignore_ascii_case(id)))
    {
        return Some(Mismatch::BuildId { found: elf.build_id().map(ToOwned::to_owned) });
    }
    let mut missing = Vec::new();
    for address in &rule.symbols {
        match is_there(elf, address) {
            Ok(true) => {}
            Ok(false) => missing.push(match address {
                Address::Demangled(glob) => match near(elf, glob) {
                    Some(near) => format!("{} ({near}; is it inlined?)", address_text(address)),
                    None => address_text(address),
                },
                _ => address_text(address),
            }),
            Err(why) => return Some(Mismatch::Pattern(why)),
        }
    }
    if missing.is_empty() {
        return None;
    }
    // Notes of USDT probes are in the object itself, stripped or not.
    let of_symbols = rule.symbols.iter().any(|address| !matches!(address, Address::Usdt { .. }));
    let stripped = if of_symbols { without_symbols(elf) } else { None };
    Some(Mismatch::Symbols { missing, stripped })
}

/// Where a debug file was looked for, if the object is stripped and none was found.
pub(crate) fn without_symbols(elf: &Elf) -> Option<Vec<String>> {
    (elf.is_stripped() && elf.debug_file().is_none()).then(|| elf.debug_tried().to_vec())
}

/// Why no function's name matches a pattern, with those that come near.
pub(crate) fn unmatched(elf: &Elf, glob: &str) -> String {
    let near = near(elf, glob).map_or_else(String::new, |near| format!("; {near}"));
    format!(
        "no function has such a name: it is inlined wherever it is called, or is spelled otherwise{near} \
         (docs/profiles.md, \"C++ and Rust\", has what to use instead)"
    )
}

/// The functions of the type or module whose function `glob` names.
fn near(elf: &Elf, glob: &str) -> Option<String> {
    // What has no scope has no neighbours.
    let scope = glob.rsplit_once("::")?.0.trim_start_matches('*');
    if scope.is_empty() {
        return None;
    }
    let hits = elf.resolve_demangled(&format!("{scope}::*")).ok()?;
    let mut names: Vec<String> = hits.iter().map(|hit| printable(readable(&hit.name))).collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| format!("of {} there is {}", printable(scope), list(&names)))
}

/// Whether an address of a match rule is in the object: a function that exists only as a clone counts,
/// since `build` can probe that and will say what it means.
pub(super) fn is_there(elf: &Elf, address: &Address) -> Result<bool, String> {
    match address {
        Address::Symbol(name) => Ok(!elf.resolve(name).is_empty()
            || elf.clones(name).iter().any(|(_, kind)| *kind != CloneKind::Cold)),
        Address::Demangled(glob) => elf
            .resolve_demangled(glob)
            .map(|hits| !hits.is_empty())
            .map_err(|error| error.to_string()),
        Address::Offset(offset) => Ok(elf.code_at(*offset).is_ok()),
        Address::Usdt { provider, name } => elf.usdt(provider, name).map(|at| !at.is_empty()),
    }
}

fn any_glob<'t>(globs: &'t [String], text: impl Fn(&str) -> &'t str) -> Result<bool, String> {
    for glob in globs {
        let matcher = globset::Glob::new(glob).and_then(drainprof_process::compile_glob).map_err(
            |error| format!("the glob `{}` is malformed: {}", printable(glob), error.kind()),
        )?;
        if matcher.is_match(text(glob)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;

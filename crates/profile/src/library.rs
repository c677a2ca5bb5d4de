//! All profiles that a session knows: the built-in ones, those of the system's directories, and files
//! named by the user. A later one replaces an earlier one of the same name.
//!
//! The only part of `profile` that reads files. Called once at start by `cli` and the daemon.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    error::{ProfileError, line_and_column},
    model::{Profile, Source},
    parse::{MAX_PROFILE_BYTES, parse},
};

/// The built-in profiles: each file of `profiles/` and its text, as `build.rs` finds them.
const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/built_in.rs"));

/// The text of a built-in profile, by its file name.
#[must_use]
pub fn built_in_text(file: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|row| row.0 == file).map(|row| row.1)
}

/// Profile files that a directory can have.
const MAX_FILES: usize = 1024;

/// Why the profiles cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A profile is refused.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A file or directory cannot be read.
    #[error("cannot read profiles from {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Two files of one place claim the same name, and neither is the later one.
    #[error("{first} and {second} both define the profile `{name}`; rename or remove one of them")]
    Duplicate {
        /// The name.
        name: String,
        /// The file that was read first.
        first: String,
        /// The other file.
        second: String,
    },
    /// A directory has more files than are taken.
    #[error("{path} has more than {MAX_FILES} profile files; remove those that are not needed")]
    TooManyFiles {
        /// The directory.
        path: PathBuf,
    },
}

/// All profiles, by name.
#[derive(Clone, Debug, Default)]
pub struct Library {
    profiles: BTreeMap<String, Arc<Profile>>,
}

impl Library {
    /// The directories in which packages and administrators put profiles; later ones win.
    pub const SYSTEM_DIRECTORIES: [&str; 2] =
        ["/usr/share/drainprof/profiles", "/etc/drainprof/profiles"];

    /// The built-in profiles and nothing else.
    pub fn built_in() -> Result<Self, LibraryError> {
        Self::load(&[], &[])
    }

    /// The built-in profiles, then the `*.toml` of `dirs` (those that do not exist are skipped), then the
    /// files `extra`; what comes later replaces what has the same name. The usual `dirs` are
    /// [`Self::SYSTEM_DIRECTORIES`].
    pub fn load(extra: &[PathBuf], dirs: &[PathBuf]) -> Result<Self, LibraryError> {
        let mut library = Self { profiles: BTreeMap::new() };
        let mut layer = Layer::default();
        for (name, text) in BUILT_IN {
            layer.add(parse(text, &Source::BuiltIn(name))?)?;
        }
        library.put(layer);
        for dir in dirs {
            let mut layer = Layer::default();
            for path in files_of(dir)? {
                layer.add(read_profile(&path)?)?;
            }
            library.put(layer);
        }
        for path in extra {
            let mut layer = Layer::default();
            layer.add(read_profile(path)?)?;
            library.put(layer);
        }
        Ok(library)
    }

    /// The profile of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Profile>> {
        self.profiles.get(name)
    }

    /// All profiles, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.profiles.values()
    }

    fn put(&mut self, layer: Layer) {
        self.profiles.extend(layer.0);
    }
}

/// Profiles of one place, whose order means nothing: names are unique.
#[derive(Default)]
struct Layer(BTreeMap<String, Arc<Profile>>);

impl Layer {
    fn add(&mut self, profile: Profile) -> Result<(), LibraryError> {
        if let Some(first) = self.0.get(&profile.name) {
            return Err(LibraryError::Duplicate {
                first: first.source.to_string(),
                second: profile.source.to_string(),
                name: profile.name,
            });
        }
        self.0.insert(profile.name.clone(), Arc::new(profile));
        Ok(())
    }
}

/// The profile files of a directory, sorted; none where it does not exist.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>, LibraryError> {
    let failed = |source| LibraryError::Read { path: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    refuse_open(dir)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        // Anything else of that name (a directory, a FIFO, which would block) is left alone.
        if path.extension().is_some_and(|extension| extension == "toml") && path.is_file() {
            refuse_open(&path)?;
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(LibraryError::TooManyFiles { path: dir.to_owned() });
        }
    }
    files.sort();
    Ok(files)
}

/// What is found by itself says where probes go: it is refused where anybody could have written it. (A file that is named
/// is the caller's choice.)
fn refuse_open(path: &Path) -> Result<(), LibraryError> {
    let failed = |source| LibraryError::Read { path: path.to_owned(), source };
    let mode = path.metadata().map_err(failed)?.mode();
    if mode & 0o002 == 0 {
        return Ok(());
    }
    let text = format!("every user can write to it (mode {:04o}); chmod o-w", mode & 0o7777);
    Err(failed(io::Error::other(text)))
}

fn read_profile(path: &Path) -> Result<Profile, LibraryError> {
    let failed = |source| LibraryError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One byte more than is allowed, for `parse` to refuse; a file without an end is not read to it.
    file.take(MAX_PROFILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    let source = Source::File(path.to_owned());
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(parse(text, &source)?),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let (line, column) = line_and_column(&before, before.len());
            Err(ProfileError {
                file: source.to_string(),
                line,
                column,
                message: "a byte that is not UTF-8".to_owned(),
                hint: Some("save the file as UTF-8".to_owned()),
            }
            .into())
        }
    }
}

#[cfg(test)]
mod tests;

//! Remembering a measurement: one small JSON file.
//!
//! Whatever is wrong with the file (not there, not ours, too large, no JSON, another kernel's), it is as if
//! there were none, and the reason goes to the log. It is replaced as a whole, never changed.

use std::{
    ffi::OsString,
    fs::{DirBuilder, OpenOptions, Permissions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{host::HostKey, measure};
use crate::plan::cost::Costs;

/// The file's name in its directory.
const FILE: &str = "costs.json";
/// The name and version of its form.
const SCHEMA: &str = "drainprof.costs/2";
/// Several times what a file of ours takes.
const MAX_BYTES: u64 = 16 * 1024;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Remembered {
    schema: String,
    host: HostKey,
    costs: Costs,
}

/// The directory of the cache: `asked` (the command line or `DRAINPROF_CACHE_DIR`), else the system's for
/// root, else the user's. `None` where there is none, as for a service without a home.
///
/// Root never uses a user's directory, whatever `sudo` left in the environment. `variable` looks up an
/// environment variable.
#[must_use]
pub fn cache_directory(
    asked: Option<&Path>,
    root: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<PathBuf> {
    if let Some(asked) = asked {
        return Some(asked.to_owned());
    }
    if root {
        return Some(PathBuf::from("/var/cache/drainprof"));
    }
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("drainprof"))
}

/// The costs that were remembered for this host, if a file can be believed.
pub(super) fn load(directory: &Path, host: &HostKey) -> Result<Costs, Unusable> {
    // Without following a link, and without waiting for the writer of a pipe.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC)
        .open(directory.join(FILE))?;
    let found = file.metadata()?;
    let user = nix::unistd::geteuid().as_raw();
    if !found.is_file() {
        return Err(Unusable::Odd("it is no regular file"));
    }
    if found.uid() != user && found.uid() != 0 {
        return Err(Unusable::Odd("it belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(Unusable::Odd("others may write to it"));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Unusable::Odd("it is too large"));
    }
    let remembered: Remembered = serde_json::from_slice(&text)?;
    if remembered.schema != SCHEMA {
        return Err(Unusable::Odd("it has another version's form"));
    }
    if remembered.host != *host {
        return Err(Unusable::Odd("it is of another kernel, processor or version"));
    }
    if !remembered.costs.measured || !measure::plausible(&remembered.costs) {
        return Err(Unusable::Odd("its costs are impossible"));
    }
    Ok(remembered.costs)
}

/// Why there is nothing to be had from the cache.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Odd(&'static str),
}

/// Remembers costs for this host. Readers see the old file or the new one, whole.
pub(super) fn store(directory: &Path, host: &HostKey, costs: &Costs) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let remembered =
        Remembered { schema: SCHEMA.to_owned(), host: host.clone(), costs: costs.clone() };
    let mut text = serde_json::to_vec_pretty(&remembered)?;
    text.push(b'\n');
    let mut file = tempfile::Builder::new()
        .prefix(".costs-")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(directory)?;
    file.write_all(&text)?;
    // Whatever the umask says: the costs are no secret.
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(directory.join(FILE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{chown, symlink},
        time::{Duration, Instant},
    };

    use tempfile::TempDir;

    use super::*;
    use crate::kernel::LiveHost;

    type Edit = fn(&mut serde_json::Value);

    fn measured() -> Costs {
        Costs { measured: true, ..Costs::assumed() }
    }

    /// A directory with a good file in it, and the key that it was written for.
    fn stored() -> (TempDir, PathBuf, HostKey) {
        let directory = TempDir::new().unwrap();
        let host = HostKey::of(&LiveHost);
        store(directory.path(), &host, &measured()).unwrap();
        let file = directory.path().join(FILE);
        (directory, file, host)
    }

    /// Changes the good file's text.
    fn edit(file: &Path, change: impl Fn(&mut serde_json::Value)) {
        let mut value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        change(&mut value);
        fs::write(file, serde_json::to_vec(&value).unwrap()).unwrap();
    }

    /// What was stored is loaded, from a directory that had to be made, and all users may read it.
    #[test]
    fn stored_and_loaded() {
        let directory = TempDir::new().unwrap();
        let host = HostKey::of(&LiveHost);
        let below = directory.path().join("a/b");
        assert!(matches!(load(&below, &host), Err(Unusable::Io(_))));
        store(&below, &host, &measured()).unwrap();
        assert_eq!(load(&below, &host).unwrap(), measured());
        let file = fs::metadata(below.join(FILE)).unwrap();
        assert_eq!(file.mode() & 0o777, 0o644);
        // Nothing else is left behind, and a second time replaces the first.
        let other = Costs { return_ns: 1.0, ..measured() };
        store(&below, &host, &other).unwrap();
        assert_eq!(load(&below, &host).unwrap(), other);
        assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    }

    /// Another kernel, processor, hypervisor or version of the tool is another host.
    #[test]
    fn other_hosts() {
        let (directory, _, host) = stored();
        let others = [
            HostKey { kernel_release: "0.0".to_owned(), ..host.clone() },
            HostKey { kernel_version: "#0".to_owned(), ..host.clone() },
            HostKey { cpu_model: "another".to_owned(), ..host.clone() },
            HostKey { virtual_machine: !host.virtual_machine, ..host.clone() },
            HostKey { tool_version: "0.0.0".to_owned(), ..host.clone() },
        ];
        for other in others {
            assert!(matches!(load(directory.path(), &other), Err(Unusable::Odd(_))), "{other:?}");
        }
        assert!(load(directory.path(), &host).is_ok());
    }

    /// A link is not followed, a pipe not waited for, a directory not read.
    #[test]
    fn no_regular_file() {
        let (directory, file, host) = stored();
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        symlink(&elsewhere, &file).unwrap();
        assert!(matches!(load(directory.path(), &host), Err(Unusable::Io(_))));
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let before = Instant::now();
        assert!(matches!(load(directory.path(), &host), Err(Unusable::Odd(_))));
        assert!(before.elapsed() < Duration::from_secs(10));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(load(directory.path(), &host).is_err());
    }

    /// A file that others may write to, or that another user owns, is not believed.
    #[test]
    fn not_ours() {
        let (directory, file, host) = stored();
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(load(directory.path(), &host), Err(Unusable::Odd(_))));
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(load(directory.path(), &host).is_ok());
        // Only root can give files away; others cannot get into this case.
        if chown(&file, Some(65_534), None).is_ok() {
            assert!(matches!(load(directory.path(), &host), Err(Unusable::Odd(_))));
        }
    }

    /// Files that are empty, cut off, too large, of another form, or with impossible costs are ignored.
    #[test]
    fn hostile_contents() {
        let (directory, file, host) = stored();
        let good = fs::read(&file).unwrap();
        let refused = || load(directory.path(), &host).is_err();
        fs::write(&file, b"").unwrap();
        assert!(refused(), "empty");
        fs::write(&file, &good[..good.len() / 2]).unwrap();
        assert!(refused(), "cut off");
        fs::write(&file, [good.as_slice(), vec![b' '; 20_000].as_slice()].concat()).unwrap();
        assert!(refused(), "too large");
        fs::write(&file, "[".repeat(16_000)).unwrap();
        assert!(refused(), "nested");
        let edits: [(&str, Edit); 8] = [
            ("schema", |value| value["schema"] = "drainprof.costs/1".into()),
            ("unknown key", |value| value["more"] = 1.into()),
            ("too few costs", |value| value["costs"]["entry_ns"] = vec![1.0; 3].into()),
            ("negative", |value| value["costs"]["entry_ns"][2] = (-5.0).into()),
            ("zero", |value| value["costs"]["entry_ns"][2] = 0.into()),
            ("huge", |value| value["costs"]["entry_ns"][2] = 1e300.into()),
            ("no number", |value| value["costs"]["return_ns"] = serde_json::Value::Null),
            ("assumed", |value| value["costs"]["measured"] = false.into()),
        ];
        for (what, change) in edits {
            fs::write(&file, &good).unwrap();
            assert!(!refused(), "before {what}");
            edit(&file, change);
            assert!(refused(), "{what}");
        }
    }

    /// A directory that cannot be made is an error, which is the caller's to ignore.
    #[test]
    fn nowhere_to_store() {
        let (_directory, file, host) = stored();
        assert!(store(&file.join("below"), &host, &measured()).is_err());
    }

    /// Asked for wins; root has the system's directory whatever the environment says; users have theirs.
    #[test]
    fn directories() {
        let with = |variables: &'static [(&str, &str)]| {
            move |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(*value))
            }
        };
        let user: &[(&str, &str)] = &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "/c")];
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(cache_directory(Some(Path::new("x")), true, with(user)), path("x"));
        assert_eq!(cache_directory(None, true, with(user)), path("/var/cache/drainprof"));
        assert_eq!(cache_directory(None, false, with(user)), path("/c/drainprof"));
        let home: &[(&str, &str)] = &[("HOME", "/home/u"), ("XDG_CACHE_HOME", "relative")];
        assert_eq!(cache_directory(None, false, with(home)), path("/home/u/.cache/drainprof"));
        assert_eq!(cache_directory(None, false, with(&[])), None);
    }
}

//! The place of the control socket: a lock that only a running daemon holds, and the socket's file.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use nix::unistd::Group;

use super::{super::error::ServeError, peers::Peers};
use crate::lock::{Attempt, Lock};

/// The socket's mode: for its owner and its group.
const SOCKET_MODE: u32 = 0o660;

/// A socket that is listened on. Its file goes with it.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(super) listener: tokio::net::UnixListener,
    pub(super) peers: Peers,
    /// Removes the file and lets the lock go.
    pub(super) _place: Place,
}

/// A socket and its lock. The file of the socket goes with it; the lock's file stays, because another daemon may have
/// opened it already.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    listener: Option<UnixListener>,
    peers: Peers,
    _lock: Lock,
}

impl Place {
    /// Takes it, unless a running daemon has it.
    pub(crate) fn take(path: &Path, group: Option<&str>) -> Result<Self, ServeError> {
        let failed = |step: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| ServeError::Socket { step, path, source }
        };
        let group = match group {
            None => None,
            Some(name) => {
                let found = Group::from_name(name).ok().flatten();
                let found = found.ok_or_else(|| ServeError::Group { group: name.to_owned() })?;
                Some((found.gid.as_raw(), found.name))
            }
        };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed("make the directory", directory))?;
        }
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(ServeError::NoSocket { path: path.to_owned() });
            }
            // The daemon that left it is gone: we hold the lock.
            Ok(_) => fs::remove_file(path).map_err(failed("remove the old socket", path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("examine", path)(error)),
        }
        // Made under another name, so that no client connects before its mode is right.
        let new = with_ending(path, ".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the old socket", &new)(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&new).map_err(failed("make the control socket", &new))?;
        listener.set_nonblocking(true).map_err(failed("set up the control socket", &new))?;
        if let Some((gid, _)) = &group {
            chown(&new, None, Some(*gid)).map_err(failed("give to its group", &new))?;
        }
        fs::set_permissions(&new, Permissions::from_mode(SOCKET_MODE))
            .map_err(failed("set the mode of", &new))?;
        fs::rename(&new, path).map_err(failed("put into place", path))?;
        let listener = Some(listener);
        Ok(Self { path: path.to_owned(), listener, peers: Peers::new(group), _lock: lock })
    }

    /// The socket's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Hands the socket to the runtime.
    pub(crate) fn listen(mut self) -> Result<Listening, ServeError> {
        let listener = self.listener.take().ok_or_else(|| {
            ServeError::Runtime(io::Error::other("the socket was handed over before"))
        })?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(ServeError::Runtime)?;
        Ok(Listening { listener, peers: self.peers.clone(), _place: self })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "cannot remove the control socket");
        }
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The lock, with our process id in it; an error if another process holds it.
fn lock(path: &Path) -> Result<Lock, ServeError> {
    let name = with_ending(path, ".lock");
    let failed = |step| {
        let path = name.clone();
        move |source: io::Error| ServeError::Socket { step, path, source }
    };
    match Lock::attempt(&name, 0o644).map_err(failed("take the lock"))? {
        Attempt::Taken(mut lock) => {
            lock.sign().map_err(failed("write to the lock"))?;
            Ok(lock)
        }
        Attempt::Held(pid) => {
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            Err(ServeError::Running { pid, lock: name })
        }
    }
}

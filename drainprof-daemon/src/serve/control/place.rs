//! The place of the control socket: a lock that only a running daemon holds, and the socket's file.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use nix::unistd::Group;
use rustix::fs::{FlockOperation, flock};

use super::{super::ServeError, Listening, Peers};

/// The socket's mode: for its owner and its group.
const MODE: u32 = 0o660;
/// Bytes of a lock file that are read: it holds a process id.
const MOST_PID_BYTES: u64 = 32;

/// A socket and its lock. The file of the socket goes with it; the lock's file stays, because another daemon may have
/// opened it already.
#[derive(Debug)]
pub(in super::super) struct Place {
    path: PathBuf,
    listener: Option<UnixListener>,
    peers: Peers,
    /// The kernel lets the lock go with the descriptor, however the daemon ends.
    lock: File,
}

impl Place {
    /// Takes it, unless a running daemon has it.
    pub(in super::super) fn take(path: &Path, group: Option<&str>) -> Result<Self, ServeError> {
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
            // Whoever left it is gone: we hold the lock.
            Ok(_) => fs::remove_file(path).map_err(failed("remove the old socket", path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("look at", path)(error)),
        }
        // Made under another name, so that nobody connects before its mode is right.
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
        fs::set_permissions(&new, Permissions::from_mode(MODE))
            .map_err(failed("set the mode of", &new))?;
        fs::rename(&new, path).map_err(failed("put into place", path))?;
        let listener = Some(listener);
        Ok(Self { path: path.to_owned(), listener, peers: Peers::new(group), lock })
    }

    /// The socket's path.
    pub(in super::super) fn path(&self) -> &Path {
        &self.path
    }

    /// Hands the socket to the runtime.
    pub(in super::super) fn listen(mut self) -> Result<Listening, ServeError> {
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
        // Closing would not do: a child that another thread has forked, and that has not executed its program yet,
        // has a copy of the descriptor, and the lock with it.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The lock, with our process id in it; an error if another process holds it.
fn lock(path: &Path) -> Result<File, ServeError> {
    let name = with_ending(path, ".lock");
    let failed = |step| {
        let path = name.clone();
        move |source: io::Error| ServeError::Socket { step, path, source }
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o644);
    let mut file = options.open(&name).map_err(failed("open the lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let read = file.take(MOST_PID_BYTES).read_to_string(&mut pid);
            let known = read.is_ok() && pid.trim().parse::<u32>().is_ok();
            let pid = if known { pid.trim().to_owned() } else { "unknown".to_owned() };
            return Err(ServeError::Running { pid, lock: name });
        }
        Err(error) => return Err(failed("take the lock")(error.into())),
    }
    let write = |file: &mut File| -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(failed("write to the lock"))?;
    Ok(file)
}

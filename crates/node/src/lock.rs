//! A lock on a file, with the process id of its holder in there.
//!
//! Called by `store` and `serve`, which report the holder in their own errors.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

/// Bytes of a lock file that are read: it holds a process id.
const MAX_PID_BYTES: u64 = 32;

/// A lock that is held. The kernel lets it go with the process, however that ends; the file stays, because another
/// process may have opened it already.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

/// What came of trying.
pub(crate) enum Attempt {
    /// It is ours.
    Taken(Lock),
    /// Another has it: this process, if its id could be read.
    Held(Option<u32>),
}

impl Lock {
    /// Tries to take the lock of a file, which is made with this mode where it is not there.
    pub(crate) fn attempt(path: &Path, mode: u32) -> io::Result<Attempt> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(mode);
        let file = options.open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Attempt::Taken(Self { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = file.take(MAX_PID_BYTES).read_to_string(&mut text);
                Ok(Attempt::Held(read.ok().and_then(|_| text.trim().parse().ok())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes down its holder.
    pub(crate) fn sign(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        writeln!(self.file, "{}", std::process::id())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would not do: a child that another thread has forked, and that has not executed its program yet,
        // has a copy of the descriptor, and the lock with it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who gives the lock up gives it up for the copies of its descriptor, too, such as a child has between its fork and
    /// its program.
    #[test]
    fn copies_do_not_keep_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let Attempt::Taken(mut lock) = Lock::attempt(&path, 0o640).unwrap() else {
            panic!("nobody else has it")
        };
        lock.sign().unwrap();
        let copy = lock.file.try_clone().unwrap();
        let held = Lock::attempt(&path, 0o640).unwrap();
        assert!(matches!(held, Attempt::Held(Some(pid)) if pid == std::process::id()));
        drop(lock);
        assert!(matches!(Lock::attempt(&path, 0o640).unwrap(), Attempt::Taken(_)));
        drop(copy);
    }
}

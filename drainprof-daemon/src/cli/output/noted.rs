//! Stdout whose errors are not lost: what a command has written and not looked after, `main` finds here at the end.

use std::{
    io::{self, Write},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::unistd;

/// Whether a byte has left this process.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);
/// The first error, until it is taken.
static FAILED: Mutex<Option<io::Error>> = Mutex::new(None);
/// Whether the reader was gone before the first byte.
static IS_UNREAD: AtomicBool = AtomicBool::new(false);

/// Stdout without a buffer of its own. (Rust's own drops the error of the last bytes.)
#[derive(Debug)]
pub(super) struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = unistd::write(io::stdout(), bytes).map_err(io::Error::from);
        note(&written);
        written.map_err(|error| io::Error::new(error.kind(), words(&error)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn words(error: &io::Error) -> String {
    format!("cannot write to stdout: {error}")
}

fn note(written: &io::Result<usize>) {
    match written {
        Ok(0) => {}
        Ok(_) => HAS_WRITTEN.store(true, Ordering::SeqCst),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => {
            let is_gone = error.kind() == io::ErrorKind::BrokenPipe;
            if is_gone && !HAS_WRITTEN.load(Ordering::SeqCst) {
                IS_UNREAD.store(true, Ordering::SeqCst);
            }
            let mut failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner);
            failed.get_or_insert_with(|| io::Error::new(error.kind(), words(error)));
        }
    }
}

/// What went wrong first with stdout, unless its reader has had enough.
pub(crate) fn failure() -> Option<io::Error> {
    let failed = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.filter(|error| error.kind() != io::ErrorKind::BrokenPipe || is_unread())
}

/// Whether stdout was a pipe whose reader was gone before the first byte.
pub(crate) fn is_unread() -> bool {
    IS_UNREAD.load(Ordering::SeqCst)
}

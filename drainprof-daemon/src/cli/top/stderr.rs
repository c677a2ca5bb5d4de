//! Holds back what is written to stderr while the screen is ours, and writes it afterwards.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _},
    os::fd::{AsFd as _, OwnedFd},
};

use nix::unistd::{dup, dup2_stderr};

/// Most that is written afterwards: the beginning tells more than the rest.
const MOST: u64 = 64 << 10;

/// As long as it lives, stderr is a file without a name; then the messages in it are written.
#[derive(Debug)]
pub(super) struct Held(Option<(OwnedFd, File)>);

impl Held {
    /// Does nothing where stderr is no terminal: it does not disturb there.
    pub(super) fn hold() -> io::Result<Self> {
        let stderr = io::stderr();
        if !stderr.is_terminal() {
            return Ok(Self(None));
        }
        let terminal = dup(stderr.as_fd())?;
        let file = tempfile::tempfile()?;
        dup2_stderr(&file)?;
        Ok(Self(Some((terminal, file))))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((terminal, mut file)) = self.0.take() else { return };
        // A failure cannot be reported anywhere.
        let _ = dup2_stderr(&terminal);
        let mut text = Vec::new();
        if file.seek(SeekFrom::Start(0)).is_ok()
            && (&file).take(MOST).read_to_end(&mut text).is_ok()
        {
            let _ = io::stderr().write_all(&text);
        }
    }
}

//! Sees whether files are opened, by whomever and through whichever path: also pipes and devices, which a test must not
//! open itself.

use std::{mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use anyhow::{Context as _, Result};
use rustix::{
    fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init},
    io::Errno,
};

/// Watches over some files.
#[derive(Debug)]
pub struct Watch {
    events: OwnedFd,
    /// The watched files by their numbers.
    files: Vec<(i32, String)>,
}

impl Watch {
    /// Watches over `files`, whatever they are.
    pub fn over(files: &[&Path]) -> Result<Self> {
        let events = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let add = |file: &&Path| {
            let number = add_watch(&events, *file, WatchFlags::OPEN);
            let shown = file.display().to_string();
            Ok((number.with_context(|| format!("cannot watch {shown}"))?, shown))
        };
        let files: Result<_> = files.iter().map(add).collect();
        Ok(Self { files: files?, events })
    }

    /// The files that were opened since the last question.
    pub fn opened(&self) -> Result<Vec<String>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.events, &mut buffer);
        let mut opened = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let file = self.files.iter().find(|(number, _)| *number == event.wd());
                    opened.extend(file.map(|(_, shown)| shown.clone()));
                }
                Err(Errno::AGAIN) => return Ok(opened),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

//! The symbol helper: a process of its own that reads the symbols and DWARF of others.
//!
//! Libraries that read DWARF believe the files they read. Here a crash, a hang or all memory taken costs one process
//! that may do nothing but read what it was given ([`sandbox`]); drainprof then shows module and offset, and starts
//! another. Started by `helper`; reads its requests from a socket that is its stdin, and ends with it.

use std::{fs::File, io, os::unix::net::UnixStream};

use super::{
    object::Object,
    sandbox,
    wire::{self, Answer, Hello, MAX_ADDRESSES, Part, Request},
};

/// Objects that are kept from one request to the next.
const KEPT: usize = 8;

/// Answers requests until the other side is gone. Never returns an answer that is not asked for.
pub fn serve() -> io::Result<()> {
    let Some(mut stream) = confine()? else { return Ok(()) };
    let mut objects: Vec<(Vec<Identity>, Object)> = Vec::with_capacity(KEPT);
    while let Some(Question { addresses, files, key }) = receive(&mut stream)? {
        let known = objects.iter().position(|(known, _)| *known == key);
        let at = known.unwrap_or_else(|| {
            if objects.len() == KEPT {
                objects.clear();
            }
            objects.push((key, Object::new(&files)));
            objects.len() - 1
        });
        let object = &objects[at].1;
        let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
        let names = object.names(&files, addresses);
        wire::send(&mut stream, &Answer { names, trouble: object.trouble() }, &[])?;
    }
    Ok(())
}

/// Confines this process, and says so to drainprof; no socket where that failed: then nothing is read.
pub(super) fn confine() -> io::Result<Option<UnixStream>> {
    // The message of a panic has no reader.
    std::panic::set_hook(Box::new(|_| {}));
    sandbox::close_inherited()?;
    let mut stream = UnixStream::from(rustix::io::dup(io::stdin())?);
    let hello = match sandbox::enter() {
        Ok(confined) => {
            Hello { refused: None, missing: confined.missing, keeps_root: confined.keeps_root }
        }
        Err(why) => Hello { refused: Some(why), ..Hello::default() },
    };
    wire::send(&mut stream, &hello, &[])?;
    Ok(hello.refused.is_none().then_some(stream))
}

/// A file as it was when it was given to us: device, inode, size, time of its last change.
type Identity = (u64, u64, i64, i64, u64);

/// A request with its files.
struct Question {
    addresses: Vec<u64>,
    files: Vec<(Part, File)>,
    key: Vec<Identity>,
}

fn receive(stream: &mut UnixStream) -> io::Result<Option<Question>> {
    let received = wire::receive::<Request>(stream, wire::MAX_REQUEST, None)?;
    let Some((Request { addresses, parts }, descriptors)) = received else { return Ok(None) };
    let files: Vec<_> = parts.into_iter().zip(descriptors.into_iter().map(File::from)).collect();
    let key = files.iter().filter_map(|(_, file)| identity(file).ok()).collect();
    Ok(Some(Question { addresses, files, key }))
}

fn identity(file: &File) -> rustix::io::Result<Identity> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec))
}

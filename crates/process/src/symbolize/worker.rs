//! The symbol helper: a process of its own that reads the symbols and DWARF of others.
//!
//! Libraries that read DWARF believe the files they read. Here a crash, a hang or all memory taken costs one process
//! that may do nothing but read what it was given ([`sandbox`]); drainprof then shows module and offset, and starts
//! another. Started by `helper`; reads its requests from a socket that is its stdin, and ends with it.

use std::{cell::OnceCell, fs::File, io, os::unix::net::UnixStream};

use super::{
    object::{Maps, Object, Sections},
    sandbox,
    wire::{self, Answer, Hello, MAX_ADDRESSES, Part, Request},
};

/// Objects that are kept from one request to the next.
const KEPT: usize = 8;

/// Answers requests until the other side is gone. Never returns an answer that is not asked for.
pub fn serve() -> io::Result<()> {
    let Some(mut stream) = confine()? else { return Ok(()) };
    let mut next = receive(&mut stream)?;
    while let Some(question) = next {
        next = serve_some(&mut stream, question)?;
    }
    Ok(())
}

/// Confines this process, and says so to drainprof; no socket where that failed: then nothing is read.
pub(super) fn confine() -> io::Result<Option<UnixStream>> {
    // Nobody reads what a panic says.
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

/// Answers questions about as many objects as are kept. Returns the first question about one more: all are dropped
/// then, because they lean on each other's memory.
fn serve_some(stream: &mut UnixStream, first: Question) -> io::Result<Option<Question>> {
    let maps: [OnceCell<Maps>; KEPT] = Default::default();
    let sections: [OnceCell<Vec<Sections<'_>>>; KEPT] = Default::default();
    let mut objects: Vec<(Vec<Identity>, Object<'_>)> = Vec::with_capacity(KEPT);
    let mut question = first;
    loop {
        let found = objects.iter().position(|(key, _)| *key == question.key);
        if found.is_none() && objects.len() == KEPT {
            return Ok(Some(question));
        }
        let at = found.unwrap_or_else(|| {
            let at = objects.len();
            let maps = maps[at].get_or_init(|| Maps::new(&question.files));
            let object = Object::new(sections[at].get_or_init(|| maps.sections()));
            objects.push((std::mem::take(&mut question.key), object));
            at
        });
        // Mapped files need no descriptor.
        question.files.clear();
        let addresses = question.addresses.iter().take(MAX_ADDRESSES);
        let names = addresses.map(|&address| objects[at].1.name(address)).collect();
        let trouble = objects[at].1.trouble();
        wire::send(stream, &Answer { names, trouble }, &[])?;
        match receive(stream)? {
            Some(next) => question = next,
            None => return Ok(None),
        }
    }
}

fn identity(file: &File) -> rustix::io::Result<Identity> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec))
}

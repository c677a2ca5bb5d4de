//! What is said between drainprof and its symbol helper: length-prefixed JSON over a socket, with the
//! files as descriptors beside it.
//!
//! Neither side believes the other: lengths are bounded, and what is read has an end in time.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Most addresses of one request.
pub const MAX_ADDRESSES: usize = 256;
/// Longest request.
pub(super) const MAX_REQUEST: usize = 64 << 10;
/// Longest answer: all names and files of all addresses, at their longest.
pub(super) const MAX_ANSWER: usize = 64 << 20;
/// Longest name or path that is passed on, bytes.
pub(super) const MAX_TEXT: usize = 4096;
/// Most inlined functions at one address.
pub(super) const MAX_INLINED: usize = 64;

/// Most files of one request.
const MAX_FILES: usize = 7;

/// What the helper says first: how far it is confined.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Hello {
    /// Why it reads nothing.
    pub(super) refused: Option<String>,
    /// What could not be taken away from it, and why.
    pub(super) missing: Vec<String>,
    /// Whether it still is root, though without capabilities.
    pub(super) keeps_root: bool,
}

/// What a file is to the object that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// The object itself.
    Object,
    /// Its debug file.
    Debug,
    /// What the file before it shares with others (`dwz`).
    Shared,
    /// The package with the split DWARF of the file before it (`.dwp`).
    Package,
    /// Its functions and lines as GSYM.
    Gsym,
}

/// Asks for the names of addresses in one object. Its files come with it as descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    /// Addresses in the object's own address space.
    pub(super) addresses: Vec<u64>,
    /// What the descriptors are, in their order.
    pub(super) parts: Vec<Part>,
}

/// The names of addresses in one object.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// In the order of the addresses; `None` where there is none.
    pub names: Vec<Option<Name>>,
    /// Why some of the object's debug information is not read, as the helper explains it.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// The name of one address. Hostile text, but bounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// The function, demangled.
    pub function: String,
    /// Bytes from its entry to the address; `None` in a part that the compiler moved away (`.cold`).
    pub offset: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// Function, file and line of what was inlined there, the outermost first.
    pub inlined: Vec<(String, Option<String>, Option<u32>)>,
}

/// Sends a message with at most [`MAX_FILES`] descriptors.
pub(super) fn send(
    stream: &mut UnixStream,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors in one message"));
    }
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(&*stream, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)
    })?;
    // The descriptors went with the first byte.
    stream.write_all(&length[sent..])?;
    stream.write_all(&bytes)
}

/// Receives a message of at most `most` bytes, until `until`. `None` where the other side is gone.
pub(super) fn receive<T: DeserializeOwned>(
    stream: &mut UnixStream,
    most: usize,
    until: Option<Instant>,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0_u8; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        // A call with a time limit is not restarted by the kernel after a signal.
        wait_at_most(stream, until)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::TIMEDOUT))?;
        let mut parts = [IoSliceMut::new(&mut length)];
        recvmsg(&*stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?
    .bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received == 0 {
        return Ok(None);
    }
    read_until(stream, &mut length[received..], until)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::Error::other(format!("a message of {length} bytes is not believed")));
    }
    let mut bytes = vec![0; length];
    read_until(stream, &mut bytes, until)?;
    let message = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
    Ok(Some((message, descriptors)))
}

fn read_until(
    stream: &mut UnixStream,
    mut bytes: &mut [u8],
    until: Option<Instant>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        wait_at_most(stream, until)?;
        match stream.read(bytes) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => bytes = &mut bytes[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_at_most(stream: &UnixStream, until: Option<Instant>) -> io::Result<()> {
    let Some(until) = until else { return Ok(()) };
    let left = until.saturating_duration_since(Instant::now());
    // No time left is an error of its own: a timeout of 0 would mean none.
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))
}

/// `text`, cut at [`MAX_TEXT`] bytes.
pub(super) fn cut(text: &str) -> String {
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// A message arrives with its descriptors, and the end of the other side is no error.
    #[test]
    fn there_and_back() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let request =
            Request { addresses: vec![1, u64::MAX], parts: vec![Part::Object, Part::Debug] };
        send(&mut one, &request, &[file.as_fd(), file.as_fd()]).unwrap();
        let (got, files) = receive::<Request>(&mut other, MAX_REQUEST, None).unwrap().unwrap();
        assert_eq!((got.addresses, got.parts), (request.addresses, request.parts));
        assert_eq!(files.len(), 2);
        drop(one);
        assert!(receive::<Request>(&mut other, MAX_REQUEST, None).unwrap().is_none());
    }

    /// A length beyond the bound, half a message and silence are errors, not memory or waiting without end.
    #[test]
    fn hostile_messages() {
        let soon = || Some(Instant::now() + Duration::from_millis(50));
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<Answer>(&mut other, MAX_ANSWER, soon()).is_err());
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(&[9, 0, 0, 0, b'{']).unwrap();
        assert!(receive::<Answer>(&mut other, MAX_ANSWER, soon()).is_err());
        drop(one);
        let (_one, mut other) = UnixStream::pair().unwrap();
        assert!(receive::<Answer>(&mut other, MAX_ANSWER, soon()).is_err());
    }

    /// Long text is cut between characters.
    #[test]
    fn long_text_is_cut() {
        let text = "é".repeat(MAX_TEXT);
        assert_eq!(cut(&text).len(), MAX_TEXT);
        assert_eq!(cut(&format!("a{text}")).len(), MAX_TEXT - 1);
    }
}

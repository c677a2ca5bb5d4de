//! A file system of one file, `lib.so`, whose server answers until it is made to hang.
//!
//! Speaks the kernel's protocol over `/dev/fuse`, as little of it as a program needs that maps the file. Dropping it
//! unmounts the file system and ends the connection, which frees all who wait.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::environment::skip;

/// The file's inode; the root has 1.
const FILE: u64 = 2;
/// Longest request: a page, and its head.
const REQUEST: usize = 132 << 10;
/// For how long the kernel may remember attributes and names: not at all.
const VALID: [u64; 1] = [0];

/// The requests that are answered.
mod op {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// A mounted file system.
#[derive(Debug)]
pub struct Hanging {
    place: PathBuf,
    hangs: Arc<AtomicBool>,
    /// Milliseconds before each answer.
    delay: Arc<AtomicU64>,
    /// The requests that were not answered.
    unanswered: Arc<Mutex<Vec<u32>>>,
    /// Dropped last: the server's end, and with it the connection.
    connection: Option<Arc<File>>,
}

impl Hanging {
    /// Whether this kernel has what is needed; prints `SKIP` if not.
    #[must_use]
    pub fn is_possible() -> bool {
        let is_there = Path::new("/dev/fuse").exists();
        if !is_there {
            skip("there is no /dev/fuse");
        }
        is_there
    }

    /// Mounts it at `place`, a directory, with `contents` in its file.
    pub fn mount(place: &Path, contents: Vec<u8>) -> Result<Self> {
        let connection = File::options().read(true).write(true).open("/dev/fuse");
        let connection = Arc::new(connection.context("cannot open /dev/fuse")?);
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            connection.as_raw_fd()
        );
        let kind = Some("fuse");
        mount(Some("hanging"), place, kind, MsFlags::empty(), Some(options.as_str()))
            .context("cannot mount a FUSE file system")?;
        let hangs = Arc::new(AtomicBool::new(false));
        let delay = Arc::new(AtomicU64::new(0));
        let unanswered = Arc::new(Mutex::new(Vec::new()));
        let server = Server {
            connection: Arc::clone(&connection),
            hangs: Arc::clone(&hangs),
            delay: Arc::clone(&delay),
            unanswered: Arc::clone(&unanswered),
            contents,
        };
        // Ends when the file system is unmounted.
        thread::spawn(move || server.serve());
        Ok(Self { place: place.to_owned(), hangs, delay, unanswered, connection: Some(connection) })
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.place.join("lib.so")
    }

    /// From now on nothing is answered.
    pub fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// From now on each answer takes so long.
    pub fn slow(&self, delay: Duration) {
        self.delay.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// The kinds of the requests that are open since it hangs.
    #[must_use]
    pub fn unanswered(&self) -> Vec<u32> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // Aborts the connection; the server's read ends then, and so does all that waits.
        let _ = umount2(&self.place, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH);
        self.connection = None;
    }
}

struct Server {
    connection: Arc<File>,
    hangs: Arc<AtomicBool>,
    delay: Arc<AtomicU64>,
    unanswered: Arc<Mutex<Vec<u32>>>,
    contents: Vec<u8>,
}

impl Server {
    fn serve(&self) {
        let mut request = vec![0; REQUEST];
        while let Ok(length) = (&*self.connection).read(&mut request) {
            let Some(request) = Request::parse(&request[..length]) else { continue };
            // Nobody waits for an answer to these.
            if matches!(request.kind, op::FORGET | op::BATCH_FORGET | op::INTERRUPT) {
                continue;
            }
            if self.hangs.load(Ordering::SeqCst) {
                let mut all = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(request.kind);
                continue;
            }
            // The delay is what is tested.
            thread::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst)));
            let (error, answer) = match (self.answer(&request), request.kind) {
                (Some(answer), _) => (0, answer),
                (None, op::LOOKUP) => (-nix::libc::ENOENT, Vec::new()),
                (None, _) => (-nix::libc::ENOSYS, Vec::new()),
            };
            // A connection that has ended ends the loop.
            let _ = self.reply(&request, error, &answer);
        }
    }

    fn answer(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        match request.kind {
            // Version 7.31; no read ahead, no features, so that each request is waited for.
            op::INIT => {
                let mut answer = Vec::new();
                for word in [7_u32, 31, 0, 0, 0x0009_000c, 65_536, 1, 0, 0, 0] {
                    answer.extend(word.to_le_bytes());
                }
                answer.resize(64, 0);
                Some(answer)
            }
            op::LOOKUP if request.body.starts_with(b"lib.so\0") => {
                let mut answer: Vec<u8> = words(&[FILE, 0, VALID[0], VALID[0], 0]);
                answer.extend(self.attributes(FILE));
                Some(answer)
            }
            op::GETATTR => {
                let mut answer: Vec<u8> = words(&[VALID[0], 0]);
                answer.extend(self.attributes(request.node));
                Some(answer)
            }
            op::OPEN | op::OPENDIR => Some(words(&[0, 0])),
            op::READ => {
                let number = |at: usize| {
                    let bytes = request.body.get(at..at + 8)?.try_into().ok()?;
                    usize::try_from(u64::from_le_bytes(bytes)).ok()
                };
                let from = number(8)?.min(self.contents.len());
                let size = number(16)? & 0xffff_ffff;
                Some(self.contents[from..].iter().copied().take(size).collect())
            }
            // Nothing is free; names of up to 255 bytes.
            op::STATFS => Some(words(&[1, 0, 0, 1, 0, 255 << 32 | 4096, 4096, 0, 0, 0])),
            op::RELEASE | op::FLUSH => Some(Vec::new()),
            _ => None,
        }
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let size = if node == FILE { self.contents.len() as u64 } else { 0 };
        let mode: u32 = if node == FILE { 0o100_755 } else { 0o40_755 };
        let mut bytes = Vec::new();
        // Inode, size, blocks, times; their fractions; mode, names, owners, device, block size.
        for word in [node, size, size.div_ceil(512), 0, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn reply(&self, request: &Request<'_>, error: i32, answer: &[u8]) -> io::Result<()> {
        let mut bytes = (16 + answer.len() as u32).to_le_bytes().to_vec();
        bytes.extend(error.to_le_bytes());
        bytes.extend(request.number.to_le_bytes());
        bytes.extend(answer);
        (&*self.connection).write_all(&bytes)
    }
}

/// What the kernel asks.
struct Request<'a> {
    kind: u32,
    number: u64,
    node: u64,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        Some(Self {
            kind: (number(0)? >> 32) as u32,
            number: number(8)?,
            node: number(16)?,
            body: bytes.get(40..)?,
        })
    }
}

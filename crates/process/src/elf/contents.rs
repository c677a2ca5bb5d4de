//! A file that is read in pieces, and never in more memory than it may take.
//!
//! Headers and notes are kept as long as the file is open, up to [`MAX_KEPT`] bytes in all: ranges that overlap cost
//! memory each, whatever the file's size. Tables are read through a window, sections into memory of their own. Which
//! sizes are believed is decided by the callers, `read` and `relocations`.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt as _,
    sync::Arc,
};

use object::{
    Pod,
    pod::{bytes_of_slice, bytes_of_slice_mut, slice_from_all_bytes},
    read::{ReadCache, ReadRef},
};

use crate::guard;

/// Most bytes that are kept of one file: headers, notes and the dynamic section. 100,000 section headers take 6 MiB.
pub(super) const MAX_KEPT: u64 = 32 << 20;
/// Longest text that the `object` crate searches for an end of.
const MAX_TEXT: u64 = 4096;
/// Most bytes that are asked for at once: a disk that is busy still answers in time.
pub(super) const PIECE: usize = 1 << 20;
/// Bytes of a table that are read at once.
const WINDOW: u64 = 64 << 10;
/// Longest name that is examined; longer ones are not found.
pub(super) const MAX_NAME: usize = 32 * 1024;
/// Most bytes of one string table that are read, the same ones again included.
const MAX_STRINGS_READ: u64 = 512 << 20;

/// An open file.
pub(super) struct Contents {
    file: Arc<File>,
    kept: ReadCache<Watched>,
    /// What is kept: each range of its own.
    ranges: RefCell<HashSet<(u64, u64)>>,
    left: Cell<u64>,
    exhausted: Cell<bool>,
}

impl Contents {
    pub(super) fn new(file: File) -> Self {
        let file = Arc::new(file);
        Self {
            kept: ReadCache::new(Watched(Arc::clone(&file))),
            file,
            ranges: RefCell::default(),
            left: Cell::new(MAX_KEPT),
            exhausted: Cell::new(false),
        }
    }

    /// Whether something was not read because it would have taken more than [`MAX_KEPT`].
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.get()
    }

    fn pay(&self, range: (u64, u64)) -> Result<(), ()> {
        if range.1 == 0 || self.ranges.borrow().contains(&range) {
            return Ok(());
        }
        let Some(left) = self.left.get().checked_sub(range.1) else {
            self.exhausted.set(true);
            return Err(());
        };
        self.left.set(left);
        self.ranges.borrow_mut().insert(range);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(guard::ask(|| self.file.metadata())?.len())
    }

    /// Reads from `offset` on, as much of `bytes` as the file has; says how many bytes.
    pub(super) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset.saturating_add(done as u64);
            let end = bytes.len().min(done + PIECE);
            match guard::ask_file(|| self.file.read_at(&mut bytes[done..end], at)) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// `size` bytes from `offset` on. Nothing is allocated for what the file does not have.
    pub(super) fn bytes(&self, offset: u64, size: u64) -> io::Result<Vec<u8>> {
        let beyond = || io::Error::other("it reaches beyond the end of the file");
        if offset.checked_add(size).is_none_or(|end| self.length().is_ok_and(|all| end > all)) {
            return Err(beyond());
        }
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| beyond())?];
        if self.read_at(offset, &mut bytes)? < bytes.len() {
            return Err(beyond());
        }
        Ok(bytes)
    }

    /// A part of the file as a stream.
    pub(super) const fn stream(&self, offset: u64, size: u64) -> Stream<'_> {
        Stream { contents: self, offset, left: size }
    }

    /// Visits the entries of a table, in their order, with their numbers. An error of `visit` ends it.
    pub(super) fn entries<T: Pod>(
        &self,
        offset: u64,
        size: u64,
        mut visit: impl FnMut(usize, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let step = size_of::<T>() as u64;
        // Words, so that the entries are aligned.
        if step == 0 || !step.is_multiple_of(8) || !size.is_multiple_of(step) {
            return Err("its size is not that of whole entries".into());
        }
        let at_once = WINDOW / step * step;
        let mut window = vec![0_u64; (at_once / 8) as usize];
        let mut done = 0;
        while done < size {
            let bytes = at_once.min(size - done) as usize;
            let part = &mut bytes_of_slice_mut(&mut window)[..bytes];
            let read = self.read_at(offset.saturating_add(done), part);
            if read.map_err(|error| error.to_string())? < bytes {
                return Err("it reaches beyond the end of the file".into());
            }
            let entries: &[T] = slice_from_all_bytes(&bytes_of_slice(&window)[..bytes])
                .map_err(|()| "its entries cannot be read")?;
            for (at, entry) in entries.iter().enumerate() {
                visit((done / step) as usize + at, entry)?;
            }
            done += bytes as u64;
        }
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Contents {
    fn len(self) -> Result<u64, ()> {
        (&self.kept).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.pay((offset, size))?;
        self.kept.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.pay((range.start, MAX_TEXT))?;
        self.kept.read_bytes_at_until(range, delimiter)
    }
}

/// A file whose reads are watched.
struct Watched(Arc<File>);

impl io::Read for Watched {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        guard::ask_file(|| self.0.read(bytes))
    }
}

impl io::Seek for Watched {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        guard::ask(|| self.0.seek(to))
    }
}

/// A part of a file, read from its beginning to its end.
pub(super) struct Stream<'a> {
    contents: &'a Contents,
    offset: u64,
    left: u64,
}

impl io::Read for Stream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let read = self.contents.read_at(self.offset, &mut bytes[..most])?;
        self.offset += read as u64;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Names by their offsets.
pub(super) trait Names {
    /// The name at `at`; `None` for one without an end, or outside.
    fn at(&mut self, at: u32) -> Result<Option<&[u8]>, String>;
}

/// A string table in a file, of which a window is in memory. Quick where it is asked by rising offsets.
pub(super) struct Strings<'a> {
    contents: &'a Contents,
    offset: u64,
    size: u64,
    window: Vec<u8>,
    /// Where in the table the window begins.
    start: u64,
    read: u64,
}

impl<'a> Strings<'a> {
    /// The table of `size` bytes at `offset`.
    pub(super) const fn new(contents: &'a Contents, offset: u64, size: u64) -> Self {
        Self { contents, offset, size, window: Vec::new(), start: 0, read: 0 }
    }

    /// Where in the window the name at `at` is; `None`: its end is not in the window.
    fn in_window(&self, at: u64) -> Option<Range<usize>> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let rest = self.window.get(from..)?;
        let end = rest[..rest.len().min(MAX_NAME)].iter().position(|&byte| byte == 0)?;
        Some(from..from + end)
    }
}

impl Names for Strings<'_> {
    fn at(&mut self, at: u32) -> Result<Option<&[u8]>, String> {
        let at = u64::from(at);
        if at >= self.size {
            return Ok(None);
        }
        if self.in_window(at).is_none() {
            // A name without an end is not read again for each that ends with it.
            let ahead = self.start + self.window.len() as u64;
            let wanted = (at + MAX_NAME as u64).min(self.size);
            if at < self.start || wanted > ahead {
                let size = WINDOW.min(self.size - at);
                self.read += size;
                if self.read > MAX_STRINGS_READ {
                    return Err(format!("names in more than {} MiB", MAX_STRINGS_READ >> 20));
                }
                self.window.resize(size as usize, 0);
                let read = self.contents.read_at(self.offset.saturating_add(at), &mut self.window);
                self.window.truncate(read.map_err(|error| error.to_string())?);
                self.start = at;
            }
        }
        Ok(self.in_window(at).map(|range| &self.window[range]))
    }
}

//! Output that a slow reader cannot hold up: records wait for it in a bounded queue, and a thread writes them.
//!
//! What finds no room is dropped, and counted. The last record, which holds the result, is waited for: as long as the
//! reader takes anything at all.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Bytes that wait for the reader at most.
const ROOM: usize = 4 << 20;
/// Records are handed over once they are so many bytes together, or when they are due.
const CHUNK: usize = 8 << 10;
/// How long a reader that keeps up may take for what is queued when the observation ends.
const GRACE: Duration = Duration::from_millis(500);
/// The time without a byte taken after which a reader is given up.
const STALLED: Duration = Duration::from_secs(30);

/// Some whole records.
struct Chunk {
    bytes: Vec<u8>,
    records: u64,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// Whether the thread holds a chunk that is not wholly written.
    writing: bool,
    /// Bytes that the reader has taken.
    taken: u64,
    failed: Option<io::Error>,
    closed: bool,
}

impl Waiting {
    /// Whether the reader has everything.
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && !self.writing
    }
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, or for so long.
    fn wait<'a>(
        &self,
        waiting: MutexGuard<'a, Waiting>,
        timeout: Duration,
    ) -> MutexGuard<'a, Waiting> {
        self.changed.wait_timeout(waiting, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A queue of records in front of a writer.
pub(super) struct Queue {
    shared: Arc<Shared>,
    /// Records that were not handed over yet, and the part of the next one.
    next: Chunk,
    dropped: u64,
    stalled: Duration,
}

impl Queue {
    /// In front of a writer, which a thread of its own has from now on.
    pub(super) fn start(to: Box<dyn Write + Send>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::Builder::new().name("output".to_owned()).spawn(move || write_all(&own, to))?;
        let next = Chunk { bytes: Vec::new(), records: 0 };
        Ok(Self { shared, next, dropped: 0, stalled: STALLED })
    }

    /// A record is whole. It goes on its way with others, at once if it is `due`.
    pub(super) fn end_record(&mut self, due: bool) -> io::Result<()> {
        // Some formats have no record for some things.
        self.next.records += u64::from(!self.next.bytes.is_empty());
        if due || self.next.bytes.len() >= CHUNK { self.hand_over(true) } else { Ok(()) }
    }

    fn hand_over(&mut self, bounded: bool) -> io::Result<()> {
        let mut waiting = self.shared.lock();
        if let Some(error) = waiting.failed.take() {
            return Err(error);
        }
        let empty = Chunk { bytes: Vec::new(), records: 0 };
        let chunk = std::mem::replace(&mut self.next, empty);
        if chunk.bytes.is_empty() {
            return Ok(());
        }
        if bounded && waiting.bytes + chunk.bytes.len() > ROOM {
            self.dropped += chunk.records;
            return Ok(());
        }
        waiting.bytes += chunk.bytes.len();
        waiting.chunks.push_back(chunk);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Nothing but the last record is to come: gives the reader a moment for what is queued, and drops the rest. Returns
    /// how many records were dropped in all.
    pub(super) fn settle(&mut self) -> io::Result<u64> {
        self.hand_over(true)?;
        let until = Instant::now() + GRACE;
        let mut waiting = self.shared.lock();
        while waiting.failed.is_none() && !waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            waiting = self.shared.wait(waiting, left);
        }
        self.dropped += waiting.chunks.drain(..).map(|chunk| chunk.records).sum::<u64>();
        waiting.bytes = 0;
        Ok(self.dropped)
    }

    /// Hands the last record over, and waits until the reader has it.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.hand_over(false)?;
        let mut waiting = self.shared.lock();
        let (mut taken, mut since) = (waiting.taken, Instant::now());
        loop {
            if let Some(error) = waiting.failed.take() {
                return Err(error);
            }
            if waiting.is_empty() {
                return Ok(());
            }
            if waiting.taken != taken {
                (taken, since) = (waiting.taken, Instant::now());
            }
            let left = self.stalled.saturating_sub(since.elapsed());
            if left.is_zero() {
                let message = format!(
                    "the reader of the output has taken nothing for {} s; the rest of it is not written",
                    self.stalled.as_secs_f64()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            waiting = self.shared.wait(waiting, left);
        }
    }
}

impl Write for Queue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.next.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

/// Writes what is queued until the queue is closed, or the writer fails.
fn write_all(shared: &Shared, mut to: Box<dyn Write + Send>) {
    let mut waiting = shared.lock();
    loop {
        let Some(chunk) = waiting.chunks.pop_front() else {
            if waiting.closed {
                return;
            }
            waiting = shared.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        waiting.bytes = waiting.bytes.saturating_sub(chunk.bytes.len());
        waiting.writing = true;
        drop(waiting);
        let written = write_one(shared, &mut to, &chunk.bytes);
        waiting = shared.lock();
        waiting.writing = false;
        let failed = written.is_err();
        waiting.failed = written.err();
        shared.changed.notify_all();
        if failed {
            return;
        }
    }
}

/// Writes a chunk, and notes how far it has come.
fn write_one(shared: &Shared, to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for part in bytes.chunks(CHUNK) {
        to.write_all(part)?;
        to.flush()?;
        shared.lock().taken += part.len() as u64;
        shared.changed.notify_all();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, os::unix::net::UnixStream};

    use super::*;

    fn record(queue: &mut Queue, text: &[u8]) {
        queue.write_all(text).unwrap();
        queue.end_record(true).unwrap();
    }

    /// Who reads gets every record, in order, and the last one.
    #[test]
    fn a_reader_that_keeps_up() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut queue = Queue::start(Box::new(ours)).unwrap();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            theirs.read_to_string(&mut text).map(|_| text)
        });
        for number in 0..1_000 {
            record(&mut queue, format!("{number}\n").as_bytes());
        }
        assert_eq!(queue.settle().unwrap(), 0);
        queue.write_all(b"last\n").unwrap();
        queue.finish().unwrap();
        drop(queue);
        let text = reader.join().unwrap().unwrap();
        assert_eq!(text.lines().count(), 1_001);
        assert!(text.starts_with("0\n1\n") && text.ends_with("999\nlast\n"), "in order");
    }

    /// A reader that reads nothing holds nothing up: what has no room is counted, and at last the reader is given up.
    #[test]
    fn a_reader_that_stands_still() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut queue = Queue::start(Box::new(ours)).unwrap();
        queue.stalled = Duration::from_millis(100);
        let (large, began) = (vec![b'x'; 1 << 20], Instant::now());
        for _ in 0..50 {
            record(&mut queue, &large);
        }
        let dropped = queue.settle().unwrap();
        // One is being written; the others had no room, or were dropped at the end.
        assert_eq!(dropped, 49);
        queue.write_all(b"last\n").unwrap();
        assert_eq!(queue.finish().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        drop(theirs);
    }

    /// A reader that has gone away is an error of the next record.
    #[test]
    fn a_reader_that_is_gone() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let mut queue = Queue::start(Box::new(ours)).unwrap();
        record(&mut queue, b"one\n");
        assert_eq!(queue.finish().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}

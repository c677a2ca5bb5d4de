//! Writes the history: opening it, one transaction per state of the node, and what happens when that
//! fails.

use std::{
    fs,
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use drainprof_report::{Report, stored::MOST_BYTES};
use flate2::{Compression, write::GzEncoder};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::{
    error::{StoreError, beside, shown},
    file::{self, Found, PAGE_BYTES},
    integers::unsigned,
    moment::{Event, Moment},
    options::Options,
    put::{self, Known},
};
use crate::{WindowRecord, lock::Lock};

/// How long the writer waits for a reader that keeps the log from being emptied.
const WRITER_PATIENCE: Duration = Duration::from_millis(100);
/// A state of the node is followed by [`Writer::tidy`] every so many times.
const MOMENTS_BETWEEN_TIDIES: u32 = 64;
/// Bytes that a process or one of its profiles takes in a transaction, rounded up: row, page and index.
const ROW_BYTES: u64 = 300;

/// Writes the history. While it lives, no other writer can be opened on the file.
#[derive(Debug)]
pub struct Writer {
    pub(super) options: Options,
    pub(super) connection: Connection,
    boot: String,
    known: Known,
    before: Option<Moment>,
    next_window: u64,
    appended: u32,
    status: Status,
    _lock: Lock,
}

/// How the writing goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether the last attempt failed for want of room.
    pub full: bool,
    /// Moments, windows and events that were not written since the writer was opened.
    pub unwritten: u64,
}

impl Writer {
    /// Opens the history, or begins one. A damaged one is set aside, and the log says so; what is none, or a later
    /// version's, is refused and not touched.
    pub fn open(options: &Options) -> Result<Self, StoreError> {
        options.check()?;
        let path = &options.path;
        // What is no history is reported as that, and gets no lock beside it.
        file::inspect(path)?;
        let lock = file::lock(path)?;
        let connection = match file::inspect(path)? {
            Found::Nothing => fresh(options)?,
            Found::Damaged => renewed(options, "its header cannot be read")?,
            Found::History => match connect(options) {
                Err(StoreError::Corrupt { what, .. }) => renewed(options, &what)?,
                other => other?,
            },
        };
        let boot = options.boot.clone().unwrap_or_else(|| {
            let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            super::moment::cut(text.trim(), 64)
        });
        let next_window = put::next_window(&connection)
            .map_err(|error| StoreError::sqlite("read", path, error))?;
        Ok(Self {
            options: options.clone(),
            connection,
            boot,
            known: Known::default(),
            before: None,
            next_window,
            appended: 0,
            status: Status::default(),
            _lock: lock,
        })
    }

    /// Changes how much is kept, from now on.
    pub fn limit(&mut self, max_age: Duration, max_bytes: u64) -> Result<(), StoreError> {
        let options = Options { max_age, max_bytes, ..self.options.clone() };
        options.check()?;
        set_up(&self.connection, &options)
            .map_err(|error| StoreError::sqlite("bound", &options.path, error))?;
        self.options = options;
        self.tidy()
    }

    /// Keeps one state of the node: one transaction, with what has happened since the one before ([`Moment::events`]).
    /// On an error nothing of it is kept, and the next one is tried as if it had not been.
    pub fn append(&mut self, moment: &Moment) -> Result<(), StoreError> {
        let rows: usize = moment.processes.iter().map(|process| 1 + process.profiles.len()).sum();
        self.fits("a state of the node", rows as u64 * ROW_BYTES)?;
        let events = moment.events(self.before.as_ref());
        let boot = self.boot.clone();
        self.commit("write to", |transaction, known| {
            put::run(transaction, known, &boot)?;
            put::moment(transaction, known, &boot, moment)?;
            events.iter().try_for_each(|event| put::event(transaction, event))
        })?;
        self.before = Some(moment.clone());
        self.appended = self.appended.wrapping_add(1);
        if self.appended.is_multiple_of(MOMENTS_BETWEEN_TIDIES) || self.is_large() {
            match self.tidy() {
                Err(error @ StoreError::Corrupt { .. }) => self.mend(&error)?,
                Err(error) => tracing::debug!(%error, "the history is not tidied"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Keeps a window, or what has become of it, and its report. When this returns, both survive a power loss.
    pub fn window(
        &mut self,
        record: &WindowRecord,
        report: Option<&Report>,
    ) -> Result<(), StoreError> {
        let json =
            |error| StoreError::Options(format!("a window cannot be written as JSON: {error}"));
        let text = serde_json::to_string(record).map_err(json)?;
        self.fits("a window", text.len() as u64)?;
        let packed = match report {
            Some(report) => {
                let plain = serde_json::to_vec(report).map_err(json)?;
                let packed = packed(&plain).map_err(|error| {
                    StoreError::io("compress a report for", &self.options.path, error)
                })?;
                // What could not be read again is not kept.
                let readable = plain.len() <= MOST_BYTES;
                let bytes = if readable { packed.len() } else { usize::MAX };
                self.fits("a report", bytes as u64)?;
                Some(packed)
            }
            None => None,
        };
        let boot = self.boot.clone();
        self.synchronous("FULL")?;
        let written = self.commit("write a window to", |transaction, known| {
            put::run(transaction, known, &boot)?;
            put::window(transaction, record, &text, packed.as_deref())
        });
        self.synchronous("NORMAL")?;
        written?;
        self.next_window = self.next_window.max(record.id.saturating_add(1));
        Ok(())
    }

    /// Keeps something that has happened, besides what [`Writer::append`] finds by itself.
    pub fn event(&mut self, event: &Event) -> Result<(), StoreError> {
        let boot = self.boot.clone();
        self.commit("write an event to", |transaction, known| {
            put::run(transaction, known, &boot)?;
            put::event(transaction, event)
        })
    }

    /// A number for a window, never given before while this history is kept. On a full disk it is given all the
    /// same, and kept with the window.
    pub fn next_window_id(&mut self) -> u64 {
        let id = self.next_window;
        self.next_window = id.saturating_add(1);
        let next = self.next_window;
        if let Err(error) =
            self.commit("write to", |transaction, _| put::keep_next_window(transaction, next))
        {
            tracing::debug!(%error, "the number of a window is not kept yet");
        }
        id
    }

    /// How the writing goes.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// One transaction, tried again where something could be done about its failure.
    fn commit<T>(
        &mut self,
        step: &'static str,
        work: impl Fn(&Transaction<'_>, &mut Known) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let mut result = self.attempt(step, &work);
        match &result {
            Err(StoreError::Full { .. }) if self.shrink().is_ok() => {
                result = self.attempt(step, &work);
            }
            Err(error @ StoreError::Corrupt { .. }) => {
                let mended = self.mend(error);
                result = mended.and_then(|()| self.attempt(step, &work));
            }
            _ => {}
        }
        self.note(result.as_ref().err());
        result
    }

    fn attempt<T>(
        &mut self,
        step: &'static str,
        work: impl Fn(&Transaction<'_>, &mut Known) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.bound_log()?;
        let mut known = self.known.clone();
        let done = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .and_then(|transaction| {
                let value = work(&transaction, &mut known)?;
                transaction.commit()?;
                Ok(value)
            })
            .map_err(|error| StoreError::sqlite(step, &self.options.path, error))?;
        self.known = known;
        Ok(done)
    }

    /// A reader that does not end keeps the log from being emptied; then nothing is written before it is too long.
    pub(super) fn bound_log(&self) -> Result<(), StoreError> {
        let log = beside(&self.options.path, "-wal");
        if file::length(&log) < self.options.log_bytes() {
            return Ok(());
        }
        self.empty_log()?;
        if file::length(&log) < self.options.log_bytes() {
            return Ok(());
        }
        Err(StoreError::Full {
            path: shown(&self.options.path),
            what: "a reader that does not end keeps its log".to_owned(),
        })
    }

    /// Moves what the log holds into the file, and cuts it to nothing, if no reader needs it.
    pub(super) fn empty_log(&self) -> Result<(), StoreError> {
        self.connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(|error| StoreError::sqlite("empty the log of", &self.options.path, error))
    }

    /// Sets a damaged file aside while the daemon runs, and goes on in a new one.
    fn mend(&mut self, error: &StoreError) -> Result<(), StoreError> {
        let what = match error {
            StoreError::Corrupt { what, .. } => what.clone(),
            other => other.to_string(),
        };
        // The damaged file is closed before it is renamed.
        self.connection = Connection::open_in_memory()
            .map_err(|error| StoreError::sqlite("close", &self.options.path, error))?;
        self.known = Known::default();
        self.before = None;
        self.connection = renewed(&self.options, &what)?;
        Ok(())
    }

    /// Full, or not any more, is reported once.
    fn note(&mut self, error: Option<&StoreError>) {
        let full = matches!(error, Some(StoreError::Full { .. }));
        if error.is_some() {
            self.status.unwritten = self.status.unwritten.saturating_add(1);
        }
        if let (Some(error), true, false) = (error, full, self.status.full) {
            tracing::warn!(%error, "the history is not written");
        }
        if self.status.full && error.is_none() {
            let unwritten = self.status.unwritten;
            tracing::warn!(unwritten, path = %self.options.path.display(), "the history is written again");
        }
        self.status.full = full;
    }

    fn fits(&mut self, what: &'static str, bytes: u64) -> Result<(), StoreError> {
        let most = self.options.log_bytes() / 4;
        if bytes <= most {
            return Ok(());
        }
        self.status.unwritten = self.status.unwritten.saturating_add(1);
        Err(StoreError::TooLarge { path: shown(&self.options.path), what, bytes, most })
    }

    fn synchronous(&self, how: &str) -> Result<(), StoreError> {
        self.connection
            .pragma_update(None, "synchronous", how)
            .map_err(|error| StoreError::sqlite("set up", &self.options.path, error))
    }
}

impl Drop for Writer {
    /// What the log holds goes into the file, so that one who may only read can.
    fn drop(&mut self) {
        if let Err(error) = self.empty_log() {
            tracing::debug!(%error, "the log of the history stays");
        }
    }
}

/// A new history in the place of none.
fn fresh(options: &Options) -> Result<Connection, StoreError> {
    file::begin(&options.path)?;
    connect(options)
}

/// A new history in the place of a damaged one, which is kept under another name.
fn renewed(options: &Options, what: &str) -> Result<Connection, StoreError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let aside = file::set_aside(&options.path, now.as_millis() as u64)?;
    tracing::warn!(
        aside = %aside.display(),
        what,
        "the history was damaged: it is set aside, and a new one begins"
    );
    fresh(options)
}

fn connect(options: &Options) -> Result<Connection, StoreError> {
    let path = &options.path;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let sound = Connection::open_with_flags(path, flags).and_then(|connection| {
        set_up(&connection, options)?;
        let sound = if file::same_tables(&connection)? {
            connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))?
        } else {
            "its tables are others".to_owned()
        };
        Ok((connection, sound))
    });
    match sound.map_err(|error| StoreError::sqlite("open", path, error))? {
        (connection, sound) if sound == "ok" => {
            file::upgrade(&connection)
                .map_err(|error| StoreError::sqlite("upgrade", path, error))?;
            Ok(connection)
        }
        (_, what) => Err(StoreError::Corrupt { path: shown(path), what }),
    }
}

fn set_up(connection: &Connection, options: &Options) -> rusqlite::Result<()> {
    connection.busy_timeout(WRITER_PATIENCE)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // The log is emptied into the file long before it reaches its bound, and cut when it is begun again.
    let log = options.log_bytes();
    let pages = i64::try_from((log / 4 / PAGE_BYTES).min(1000)).unwrap_or(1000);
    connection.pragma_update_and_check(None, "wal_autocheckpoint", pages, |_| Ok(()))?;
    let limit = i64::try_from(log / 4).unwrap_or(i64::MAX);
    connection.pragma_update_and_check(None, "journal_size_limit", limit, |_| Ok(()))?;
    let most =
        i64::try_from(options.main_bytes() / PAGE_BYTES).unwrap_or(i64::MAX).min(0xffff_fffe);
    connection.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()))?;
    // KiB. What is written next lies together; a larger one would fill up over hours for nothing.
    connection.pragma_update(None, "cache_size", -256)
}

fn packed(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain)?;
    encoder.finish()
}

/// A pragma that answers with a number.
pub(super) fn number(connection: &Connection, pragma: &str) -> rusqlite::Result<u64> {
    connection.pragma_query_value(None, pragma, |row| row.get(0)).map(unsigned)
}

//! Reading the history: while it is written, after the daemon was killed, and without the right to write.

mod past;
mod queries;
mod rows;

use std::{
    fmt::Write as _,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use drainprof_report::{Report, stored, stored::MOST_BYTES};
use flate2::read::GzDecoder;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, params};

use self::queries::{add_counts, gather, lead_in, memory, processes, series};
pub use self::rows::{
    CountPoint, MemoryOfAll, MemoryPoint, ProcessChange, ProcessRow, ProfileChange, ProfileSeries,
    Readings, Series, Who,
};
use super::{
    Event, StoreError,
    error::{beside, shown},
    file::{self, Found},
    integers::{signed, unsigned},
};
use crate::WindowRecord;

/// How long a reader waits where `SQLite` wants it to.
const READER_PATIENCE: Duration = Duration::from_secs(2);

/// A history that is read. Every call sees one state of it, whatever is written meanwhile.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    connection: Connection,
}

impl History {
    /// Opens a history for reading. Nothing is changed by that.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        match file::inspect(path)? {
            Found::History => {}
            Found::Nothing => return Err(StoreError::None { path: shown(path) }),
            Found::Damaged => return Err(damaged(path, "its header cannot be read")),
        }
        let reported = |error| StoreError::sqlite("open", path, error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(reported)?;
        let (connection, same) = match checked(&connection) {
            Ok(same) => (connection, same),
            // Who may not write into the directory cannot make the files that readers and writer share. Where
            // there is no log, no daemon writes, and the file can be read as it lies there.
            Err(error) if cannot_share(&error) && file::length(&beside(path, "-wal")) == 0 => {
                let still =
                    Connection::open_with_flags(address(path), flags | OpenFlags::SQLITE_OPEN_URI)
                        .map_err(reported)?;
                let same = checked(&still).map_err(reported)?;
                (still, same)
            }
            Err(error) => return Err(reported(error)),
        };
        if !same {
            return Err(damaged(path, "its tables are others"));
        }
        Ok(Self { path: path.to_owned(), connection })
    }

    /// What has become of each process since a time, in milliseconds since 1970; those that grew most first.
    pub fn processes(&self, since: u64) -> Result<Vec<ProcessChange>, StoreError> {
        self.changes(None, since)
    }

    /// The same of one process id.
    pub fn process(&self, pid: u32, since: u64) -> Result<Vec<ProcessChange>, StoreError> {
        self.changes(Some(pid), since)
    }

    /// The time series of a process since a time, in milliseconds since 1970: one for each that had the process id.
    pub fn series(&self, who: Who, since: u64) -> Result<Vec<Series>, StoreError> {
        self.series_between(who, since, u64::MAX)
    }

    /// The same up to a time, itself included.
    pub fn series_between(
        &self,
        who: Who,
        since: u64,
        until: u64,
    ) -> Result<Vec<Series>, StoreError> {
        self.read(|transaction| {
            let from = lead_in(transaction, since)?;
            let mut all = Vec::new();
            for process in processes(transaction, Some(who))?.into_values() {
                let series = series(transaction, process, from, (since, until))?;
                if !series.memory.is_empty() {
                    all.push(series);
                }
            }
            Ok(all)
        })
    }

    /// Resident memory of all processes since a time, one point for each of so many parts of the time.
    pub fn memory(&self, since: u64, until: u64, parts: u64) -> Result<MemoryOfAll, StoreError> {
        self.read(|transaction| memory(transaction, (since, until), parts))
    }

    /// Windows that run or have ended, the latest first.
    pub fn windows(&self, limit: u32) -> Result<Vec<WindowRecord>, StoreError> {
        let rows: Vec<(String, bool)> = self.read(|transaction| {
            transaction
                .prepare("SELECT record, report IS NOT NULL FROM window ORDER BY id DESC LIMIT ?1")?
                .query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        rows.into_iter()
            .map(|(text, has_report)| {
                let record: WindowRecord = serde_json::from_str(&text)
                    .map_err(|error| damaged(&self.path, &format!("a window: {error}")))?;
                Ok(WindowRecord { has_report, ..record })
            })
            .collect()
    }

    /// The report that a window has left; `None` where there is none.
    pub fn window_report(&self, id: u64) -> Result<Option<Report>, StoreError> {
        let packed: Option<Option<Vec<u8>>> = self.read(|transaction| {
            transaction
                .query_row("SELECT report FROM window WHERE id = ?1", [signed(id)], |row| {
                    row.get(0)
                })
                .optional()
        })?;
        let Some(packed) = packed.flatten() else { return Ok(None) };
        let mut plain = Vec::new();
        GzDecoder::new(packed.as_slice())
            .take(MOST_BYTES as u64 + 1)
            .read_to_end(&mut plain)
            .map_err(|error| damaged(&self.path, &format!("the report of window {id}: {error}")))?;
        stored::read(&plain)
            .map(Some)
            .map_err(|error| damaged(&self.path, &format!("the report of window {id}: {error}")))
    }

    /// What has happened since a time, oldest first: of one process id, or of all and the node.
    pub fn events(&self, pid: Option<u32>, since: u64) -> Result<Vec<Event>, StoreError> {
        self.read(|transaction| {
            transaction
                .prepare(
                    "SELECT unix_ms, pid, kind, text FROM event
                     WHERE unix_ms >= ?1 AND (?2 IS NULL OR pid = ?2) ORDER BY id",
                )?
                .query_map(params![signed(since), pid], |row| {
                    Ok(Event {
                        unix_ms: unsigned(row.get(0)?),
                        pid: row.get(1)?,
                        kind: row.get(2)?,
                        text: row.get(3)?,
                    })
                })?
                .collect()
        })
    }

    /// The time of the latest state of the node, in milliseconds since 1970.
    pub fn latest(&self) -> Result<Option<u64>, StoreError> {
        self.read(|transaction| {
            let sql = "SELECT unix_ms FROM moment ORDER BY id DESC LIMIT 1";
            let time = transaction.query_row(sql, [], |row| row.get::<_, i64>(0)).optional()?;
            Ok(time.map(unsigned))
        })
    }

    fn changes(&self, pid: Option<u32>, since: u64) -> Result<Vec<ProcessChange>, StoreError> {
        let mut changes = self.read(|transaction| {
            let from = lead_in(transaction, since)?;
            let who = pid.map(Who::Pid);
            let mut gathered = gather(transaction, &processes(transaction, who)?, who, since)?;
            add_counts(transaction, &mut gathered, who, from, since)?;
            Ok(gathered.into_values().collect::<Vec<_>>())
        })?;
        let grown = |change: &ProcessChange| {
            let [first, last] = [change.rss_first_bytes, change.rss_last_bytes];
            signed(last.unwrap_or(0)).saturating_sub(signed(first.unwrap_or(0)))
        };
        changes.sort_by_key(|change| (std::cmp::Reverse(grown(change)), change.process.id));
        Ok(changes)
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.connection
            .unchecked_transaction()
            .and_then(|transaction| work(&transaction))
            .map_err(|error| StoreError::sqlite("read", &self.path, error))
    }
}

fn damaged(path: &Path, what: &str) -> StoreError {
    StoreError::Corrupt { path: shown(path), what: what.to_owned() }
}

fn checked(connection: &Connection) -> rusqlite::Result<bool> {
    connection.busy_timeout(READER_PATIENCE)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    file::same_tables(connection)
}

fn cannot_share(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
    )
}

/// The file as an address that says that it does not change.
fn address(path: &Path) -> String {
    let mut address = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            address.push(char::from(byte));
        } else {
            let _ = write!(address, "%{byte:02X}");
        }
    }
    address + "?immutable=1"
}

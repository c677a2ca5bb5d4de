//! The file of the history: whether it is one, who may write it, how it is begun and set aside.
//!
//! Nothing here trusts the file's name: what is no history of drainprof is never opened for writing, renamed or
//! removed.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use super::{
    error::{StoreError, beside, shown},
    integers::signed,
};
use crate::lock::{Attempt, Lock};

/// What `SQLite` files of drainprof carry as their `application_id`: `drpf`.
pub(super) const APPLICATION_ID: u32 = u32::from_be_bytes(*b"drpf");
/// The version of the tables, `user_version` in the file.
pub(super) const VERSION: u32 = 2;
/// What each version added to the tables, the first first.
const SCHEMAS: [&str; VERSION as usize] = [include_str!("schema.sql"), include_str!("heaps.sql")];
/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;

/// How every `SQLite` file begins.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// Where its header has `user_version`, and then `application_id`, in big-endian order.
const USER_VERSION_OFFSET: usize = 60;
const APPLICATION_OFFSET: usize = 68;
/// Bytes of the header.
const HEADER_BYTES: usize = 100;

/// Damaged files that are kept; the oldest go first.
const MAX_SET_ASIDE: usize = 3;

/// What stands at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or a file without content.
    Nothing,
    /// A history of this version or an earlier one.
    History,
    /// A history whose header is damaged.
    Damaged,
}

/// Looks at the header of the file, and refuses what drainprof has not written.
pub(super) fn inspect(path: &Path) -> Result<Found, StoreError> {
    let foreign = |found: &str| StoreError::Foreign { path: shown(path), found: found.to_owned() };
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => return Err(foreign("it is no regular file")),
        Ok(metadata) if metadata.len() == 0 => return Ok(Found::Nothing),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(StoreError::io("examine", path, error)),
    }
    let mut header = Vec::with_capacity(HEADER_BYTES);
    File::open(path)
        .and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut header))
        .map_err(|error| StoreError::io("read", path, error))?;
    let number = |at: usize| {
        header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
    };
    let ours = number(APPLICATION_OFFSET) == Some(APPLICATION_ID);
    match (header.starts_with(MAGIC), ours, number(USER_VERSION_OFFSET)) {
        (true, true, Some(1..=VERSION)) => Ok(Found::History),
        (true, true, Some(found)) if found > VERSION => {
            Err(StoreError::Newer { path: shown(path), found, known: VERSION })
        }
        (_, true, _) => Ok(Found::Damaged),
        (true, false, _) => Err(foreign("another program's SQLite file")),
        (false, false, _) => Err(foreign("it does not begin like one")),
    }
}

/// Takes the right to write, a lock on a file beside the history, or says who has it.
pub(super) fn lock(path: &Path) -> Result<Lock, StoreError> {
    if let Some(directory) = path.parent().filter(|path| !path.as_os_str().is_empty()) {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(directory)
            .map_err(|error| StoreError::io("make", directory, error))?;
    }
    let name = beside(path, ".lock");
    match Lock::attempt(&name, 0o640).map_err(|error| StoreError::io("lock", &name, error))? {
        Attempt::Taken(mut lock) => {
            // The holder's number only serves messages; on a full disk it is missing.
            let _ = lock.sign();
            Ok(lock)
        }
        Attempt::Held(pid) => {
            let holder = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
            Err(StoreError::Busy { path: shown(path), holder })
        }
    }
}

/// Begins a history: whole, or not at all.
pub(super) fn begin(path: &Path) -> Result<(), StoreError> {
    let new = beside(path, ".new");
    for left in [new.clone(), beside(&new, "-journal"), beside(&new, "-wal"), beside(&new, "-shm")]
    {
        remove(&left)?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(&new)
        .map_err(|error| StoreError::io("make", &new, error))?;
    fill(&new).map_err(|error| StoreError::sqlite("begin", &new, error))?;
    // What an earlier history has left does not belong to this one.
    for left in ["-wal", "-shm", "-journal"] {
        remove(&beside(path, left))?;
    }
    File::open(&new)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&new, path))
        .map_err(|error| StoreError::io("begin", path, error))
}

/// Header and tables, in the order in which `SQLite` wants them.
fn fill(path: &Path) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", signed(PAGE_BYTES))?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "application_id", i64::from(APPLICATION_ID))?;
    connection.execute_batch(&SCHEMAS.concat())?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.close().map_err(|(_, error)| error)
}

/// Adds the tables that an earlier version lacks: all of them, or none.
pub(super) fn upgrade(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let missing = SCHEMAS.iter().skip(version(&transaction)? as usize);
    for schema in missing {
        transaction.execute_batch(schema)?;
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()
}

/// The version of the tables.
pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Whether the tables are those of the file's version: a changed byte may have renamed a column, and a file from
/// elsewhere may bring views and triggers.
pub(super) fn same_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let expected = Connection::open_in_memory()?;
    for schema in SCHEMAS.iter().take(version(connection)? as usize) {
        expected.execute_batch(schema)?;
    }
    Ok(tables(connection)? == tables(&expected)?)
}

fn tables(connection: &Connection) -> rusqlite::Result<Vec<(String, Option<String>)>> {
    connection
        .prepare("SELECT name, sql FROM sqlite_schema ORDER BY name LIMIT 100")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Renames a damaged history, and says to what.
pub(super) fn set_aside(path: &Path, unix_ms: u64) -> Result<PathBuf, StoreError> {
    let aside = beside(path, &format!(".damaged-{unix_ms}"));
    // The log holds what was committed last; to save anything takes both.
    for part in ["-wal", ""] {
        match fs::rename(beside(path, part), beside(&aside, part)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("set aside", path, error)),
        }
    }
    remove(&beside(path, "-shm"))?;
    forget_oldest(path);
    Ok(aside)
}

/// Keeps [`MAX_SET_ASIDE`] damaged files. Where that fails, more are kept, which harms nothing.
fn forget_oldest(path: &Path) {
    let Some((directory, name)) = path.parent().zip(path.file_name()) else { return };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let prefix = format!("{}.damaged-", name.to_string_lossy());
    let Ok(entries) = fs::read_dir(directory) else { return };
    let mut times: Vec<u64> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok())
        .collect();
    times.sort_unstable_by(|one, other| other.cmp(one));
    for time in times.into_iter().skip(MAX_SET_ASIDE) {
        let aside = beside(path, &format!(".damaged-{time}"));
        let _ = remove(&aside);
        let _ = remove(&beside(&aside, "-wal"));
    }
}

/// Bytes of a file; 0 where there is none.
pub(super) fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}

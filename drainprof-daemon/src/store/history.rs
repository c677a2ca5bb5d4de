//! Reading the history: while it is written, after the daemon was killed, and without the right to write.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use flate2::read::GzDecoder;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension as _, Row, Transaction, params,
};
use serde::Serialize;

use super::{
    Event, ProfileCounts, SPACING, StoreError, Sums, Tally,
    error::{beside, shown},
    file::{self, Found},
    put, signed, unsigned,
};
use crate::{
    growth::MemoryReading,
    node::{Labels, WindowRecord},
    profile::Level,
    report::{
        Report,
        stored::{self, MOST_BYTES},
    },
};

/// How long a reader waits where `SQLite` wants it to.
const PATIENCE: Duration = Duration::from_secs(2);

/// A history that is read. Every call sees one state of it, whatever is written meanwhile.
#[derive(Debug)]
pub struct History {
    path: PathBuf,
    connection: Connection,
}

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// All that ever had this process id.
    Pid(u32),
    /// One, by [`ProcessRow::id`].
    Process(i64),
}

/// One process of the history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    /// Its number in this history.
    pub id: i64,
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it saw it.
    pub exe: String,
    /// Where it belonged.
    pub labels: Labels,
}

/// What has become of a process in a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessChange {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessRow,
    /// The first and the last look at it in that time, in milliseconds since 1970.
    pub first_unix_ms: u64,
    /// The last.
    pub last_unix_ms: u64,
    /// False if something that the counts need was lost in that time.
    pub complete: bool,
    /// How deep it was looked at last.
    pub level: Option<Level>,
    /// Resident memory at the first look that knows it.
    pub rss_first_bytes: Option<u64>,
    /// At the last one.
    pub rss_last_bytes: Option<u64>,
    /// The most.
    pub rss_peak_bytes: Option<u64>,
    /// Its allocators, by profile.
    pub profiles: Vec<ProfileChange>,
}

/// What has become of the allocators of one profile in that process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProfileChange {
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: String,
    /// What was added to the counters in that time.
    #[serde(flatten)]
    pub sums: Sums,
    /// The DSR of these closes; null without a decided one.
    pub dsr: Option<f64>,
    /// Granules open at the last look.
    pub open_now: u64,
    /// Granules retained at the first look that knows it.
    pub retained_granules_first: Option<u64>,
    /// At the last look; null where it does not know.
    pub retained_granules_last: Option<u64>,
    /// Their bytes at the first look that knows them.
    pub retained_bytes_first: Option<u64>,
    /// At the last look; null where it does not know.
    pub retained_bytes_last: Option<u64>,
}

/// The course of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessRow,
    /// Its memory, oldest first.
    pub memory: Vec<MemoryPoint>,
    /// Its allocators, by profile.
    pub profiles: Vec<ProfileSeries>,
}

/// A process at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryPoint {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// False if something that the counts need was lost by then.
    pub complete: bool,
    /// How deep it was looked at; null: no probe was in it.
    pub level: Option<Level>,
    /// Hits of its probes so far.
    pub hits: u64,
    /// What they had cost it so far, seconds of CPU time.
    pub cost_seconds: f64,
    /// Its memory; null where it could not be read.
    pub memory: Option<MemoryReading>,
}

/// The course of the allocators of one profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileSeries {
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: String,
    /// Its counts, oldest first.
    pub points: Vec<CountPoint>,
}

/// The counts of one profile at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CountPoint {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What was added to the counters since the point before.
    pub added: Sums,
    /// The counters as they stood.
    #[serde(flatten)]
    pub counts: ProfileCounts,
}

impl History {
    /// Opens a history for reading. Nothing is changed by that, whoever asks.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        match file::look(path)? {
            Found::History => {}
            Found::Nothing => return Err(StoreError::None { path: shown(path) }),
            Found::Damaged => return Err(damaged(path, "its header cannot be read")),
        }
        let told = |error| StoreError::sqlite("open", path, error);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(told)?;
        let (connection, same) = match checked(&connection) {
            Ok(same) => (connection, same),
            // Who may not write into the directory cannot make the files that readers and writer share. Where
            // there is no log, nobody writes, and the file can be read as it lies there.
            Err(error) if cannot_share(&error) && file::length(&beside(path, "-wal")) == 0 => {
                let still =
                    Connection::open_with_flags(address(path), flags | OpenFlags::SQLITE_OPEN_URI)
                        .map_err(told)?;
                let same = checked(&still).map_err(told)?;
                (still, same)
            }
            Err(error) => return Err(told(error)),
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

    /// The course of a process since a time, in milliseconds since 1970: one for each that had the process id.
    pub fn series(&self, who: Who, since: u64) -> Result<Vec<Series>, StoreError> {
        self.read(|transaction| {
            let from = lead_in(transaction, since)?;
            let mut all = Vec::new();
            for process in processes(transaction, Some(who))?.into_values() {
                let series = series(transaction, process, from, since)?;
                if !series.memory.is_empty() {
                    all.push(series);
                }
            }
            Ok(all)
        })
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

    /// The time of the latest look at the node, in milliseconds since 1970.
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
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    file::same_tables(connection)
}

fn cannot_share(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
    )
}

/// The file as an address that says that nobody changes it.
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

/// The number of a moment before the time, from which on every counter is found once before it.
fn lead_in(connection: &Connection, since: u64) -> rusqlite::Result<i64> {
    let spaces = u64::try_from(SPACING.as_millis()).unwrap_or(u64::MAX).saturating_mul(2);
    connection.query_row(
        "SELECT min(coalesce((SELECT min(id) FROM moment WHERE unix_ms >= ?1), 0),
                    coalesce((SELECT max(id) FROM moment WHERE unix_ms < ?2), 0))",
        params![signed(since.saturating_sub(spaces)), signed(since)],
        |row| row.get(0),
    )
}

fn processes(
    connection: &Connection,
    who: Option<Who>,
) -> rusqlite::Result<BTreeMap<i64, ProcessRow>> {
    let (clause, value) = match who {
        None => ("?1 = ?1", 0),
        Some(Who::Pid(pid)) => ("pid = ?1", i64::from(pid)),
        Some(Who::Process(id)) => ("id = ?1", id),
    };
    connection
        .prepare(&format!(
            "SELECT id, pid, start_time, comm, exe, labels FROM process WHERE {clause}"
        ))?
        .query_map([value], |row| {
            let labels: String = row.get(5)?;
            let process = ProcessRow {
                id: row.get(0)?,
                pid: row.get(1)?,
                start_time: unsigned(row.get(2)?),
                comm: row.get(3)?,
                exe: row.get(4)?,
                labels: serde_json::from_str(&labels).unwrap_or_default(),
            };
            Ok((process.id, process))
        })?
        .collect()
}

/// The part of a statement that chooses the process within the moment, for which the tables are in order.
const fn chosen(who: Option<Who>) -> &'static str {
    match who {
        None => "",
        Some(_) => "AND s.process IN (SELECT id FROM process WHERE pid = ?2 OR id = ?3)",
    }
}

const fn keys(who: Option<Who>) -> (Option<u32>, Option<i64>) {
    match who {
        None => (None, None),
        Some(Who::Pid(pid)) => (Some(pid), None),
        Some(Who::Process(id)) => (None, Some(id)),
    }
}

/// What the samples say.
fn gather(
    connection: &Connection,
    rows: &BTreeMap<i64, ProcessRow>,
    who: Option<Who>,
    since: u64,
) -> rusqlite::Result<BTreeMap<i64, ProcessChange>> {
    let mut changes: BTreeMap<i64, ProcessChange> = BTreeMap::new();
    let mut statement = connection.prepare(&format!(
        "SELECT s.process, m.unix_ms, m.complete, s.level, s.rss
         FROM moment m CROSS JOIN sample s ON s.moment = m.id {}
         WHERE m.unix_ms >= ?1 AND (?2 IS NULL OR true) AND (?3 IS NULL OR true) ORDER BY m.id",
        chosen(who)
    ))?;
    let (pid, id) = keys(who);
    let mut found = statement.query(params![signed(since), pid, id])?;
    while let Some(row) = found.next()? {
        let Some(process) = rows.get(&row.get(0)?) else { continue };
        let unix_ms = unsigned(row.get(1)?);
        let rss = row.get::<_, Option<i64>>(4)?.map(unsigned);
        let change = changes.entry(process.id).or_insert_with(|| ProcessChange {
            process: process.clone(),
            first_unix_ms: unix_ms,
            last_unix_ms: unix_ms,
            complete: true,
            level: None,
            rss_first_bytes: None,
            rss_last_bytes: None,
            rss_peak_bytes: None,
            profiles: Vec::new(),
        });
        change.last_unix_ms = unix_ms;
        change.complete &= row.get::<_, bool>(2)?;
        change.level = put::level(row.get(3)?);
        change.rss_first_bytes = change.rss_first_bytes.or(rss);
        change.rss_last_bytes = rss.or(change.rss_last_bytes);
        change.rss_peak_bytes = change.rss_peak_bytes.max(rss);
    }
    Ok(changes)
}

/// And the counters, from the moment before the time on.
fn add_counts(
    connection: &Connection,
    changes: &mut BTreeMap<i64, ProcessChange>,
    who: Option<Who>,
    from: i64,
    since: u64,
) -> rusqlite::Result<()> {
    let names = profiles(connection)?;
    let mut gathered: BTreeMap<(i64, i64), (Tally, ProfileChange)> = BTreeMap::new();
    let mut statement = connection.prepare(&format!(
        "SELECT {COUNTS}, s.process, s.profile
         FROM moment m CROSS JOIN count s ON s.moment = m.id {}
         WHERE m.id >= ?1 AND (?2 IS NULL OR true) AND (?3 IS NULL OR true) ORDER BY m.id",
        chosen(who)
    ))?;
    let (pid, id) = keys(who);
    let mut rows = statement.query(params![from, pid, id])?;
    while let Some(row) = rows.next()? {
        let key: (i64, i64) = (row.get(COUNT_COLUMNS)?, row.get(COUNT_COLUMNS + 1)?);
        let (run, unix_ms, counts) = counted(row)?;
        let (tally, change) = gathered.entry(key).or_default();
        let added = tally.add(run, counts);
        if unix_ms < since {
            continue;
        }
        if change.profile.is_empty() {
            (change.profile, change.kind) = names.get(&key.1).cloned().unwrap_or_default();
        }
        change.sums = change.sums.plus(added);
        change.open_now = counts.open_now;
        change.retained_granules_first =
            change.retained_granules_first.or(counts.retained_granules);
        change.retained_granules_last = counts.retained_granules;
        change.retained_bytes_first = change.retained_bytes_first.or(counts.retained_bytes);
        change.retained_bytes_last = counts.retained_bytes;
    }
    for ((process, _), (_, mut change)) in gathered {
        if let Some(of) = changes.get_mut(&process).filter(|_| !change.profile.is_empty()) {
            change.dsr = change.sums.dsr();
            of.profiles.push(change);
        }
    }
    for change in changes.values_mut() {
        change.profiles.sort_by(|one, other| one.profile.cmp(&other.profile));
    }
    Ok(())
}

/// The course of one process: of memory since the time, of counters from the moment before it on.
fn series(
    connection: &Connection,
    process: ProcessRow,
    from: i64,
    since: u64,
) -> rusqlite::Result<Series> {
    let memory = connection
        .prepare(
            "SELECT m.unix_ms, m.complete, s.level, s.hits, s.cost_seconds, s.rss, s.anon, s.file, s.shmem,
                    s.swap, s.vsz, s.pss, s.minor_faults, s.major_faults, s.cgroup, s.cgroup_limit
             FROM moment m CROSS JOIN sample s ON s.moment = m.id AND s.process = ?1
             WHERE m.unix_ms >= ?2 ORDER BY m.id",
        )?
        .query_map(params![process.id, signed(since)], memory_point)?
        .collect::<rusqlite::Result<_>>()?;
    let names = profiles(connection)?;
    let mut gathered: BTreeMap<i64, (Tally, Vec<CountPoint>)> = BTreeMap::new();
    let mut statement = connection.prepare(&format!(
        "SELECT {COUNTS}, s.profile
         FROM moment m CROSS JOIN count s ON s.moment = m.id AND s.process = ?1
         WHERE m.id >= ?2 ORDER BY m.id"
    ))?;
    let mut rows = statement.query(params![process.id, from])?;
    while let Some(row) = rows.next()? {
        let (run, unix_ms, counts) = counted(row)?;
        let (tally, points) = gathered.entry(row.get(COUNT_COLUMNS)?).or_default();
        let added = tally.add(run, counts);
        if unix_ms >= since {
            points.push(CountPoint { unix_ms, added, counts });
        }
    }
    let mut profiles: Vec<ProfileSeries> = gathered
        .into_iter()
        .filter(|(_, (_, points))| !points.is_empty())
        .map(|(id, (_, points))| {
            let (profile, kind) = names.get(&id).cloned().unwrap_or_default();
            ProfileSeries { profile, kind, points }
        })
        .collect();
    profiles.sort_by(|one, other| one.profile.cmp(&other.profile));
    Ok(Series { process, memory, profiles })
}

fn memory_point(row: &Row<'_>) -> rusqlite::Result<MemoryPoint> {
    let bytes = |at: usize| row.get::<_, Option<i64>>(at).map(|value| value.map(unsigned));
    let plain = |at: usize| bytes(at).map(Option::unwrap_or_default);
    let memory = match bytes(5)? {
        None => None,
        Some(rss_bytes) => Some(MemoryReading {
            rss_bytes,
            anon_bytes: plain(6)?,
            file_bytes: plain(7)?,
            shmem_bytes: plain(8)?,
            swap_bytes: plain(9)?,
            vsz_bytes: plain(10)?,
            pss_bytes: bytes(11)?,
            // Not kept: it changes as the proportional share does.
            uss_bytes: None,
            minor_faults: plain(12)?,
            major_faults: plain(13)?,
            cgroup_bytes: bytes(14)?,
            cgroup_limit_bytes: bytes(15)?,
            // Not kept: it follows from the two before it, but for groups above.
            cgroup_room_bytes: None,
        }),
    };
    Ok(MemoryPoint {
        unix_ms: unsigned(row.get(0)?),
        complete: row.get(1)?,
        level: put::level(row.get(2)?),
        hits: unsigned(row.get(3)?),
        cost_seconds: row.get(4)?,
        memory,
    })
}

/// The columns that [`counted`] reads, and how many they are.
const COUNTS: &str = "m.run, m.unix_ms, s.opened, s.drainable, s.pinned, s.unknown, s.open_now,
         s.retained_granules, s.retained_bytes";
const COUNT_COLUMNS: usize = 9;

fn counted(row: &Row<'_>) -> rusqlite::Result<(i64, u64, ProfileCounts)> {
    let plain = |at: usize| row.get::<_, i64>(at).map(unsigned);
    let maybe = |at: usize| row.get::<_, Option<i64>>(at).map(|value| value.map(unsigned));
    let counts = ProfileCounts {
        opened: plain(2)?,
        drainable: plain(3)?,
        pinned: plain(4)?,
        unknown: plain(5)?,
        open_now: plain(6)?,
        retained_granules: maybe(7)?,
        retained_bytes: maybe(8)?,
    };
    Ok((row.get(0)?, plain(1)?, counts))
}

fn profiles(connection: &Connection) -> rusqlite::Result<BTreeMap<i64, (String, String)>> {
    connection
        .prepare("SELECT id, name, kind FROM profile")?
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?
        .collect()
}

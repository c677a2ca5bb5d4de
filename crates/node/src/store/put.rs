//! What goes into which table: the statements of the writer, within its transaction.

use std::collections::HashMap;

use drainprof_profile::Level;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    integers::{signed, unsigned},
    moment::{Event, HeapPoint, MAX_SENTENCE_CHARS, Moment, ProcessMoment, cut},
};
use crate::{Outcome, WindowRecord};

/// The name of the fact that says which number the next window gets.
const NEXT_WINDOW_FACT: &str = "next_window";

/// What need not be asked of the file again. Belongs to what is committed: a transaction changes a copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// This run's number; `None` before its first transaction.
    run: Option<i64>,
    /// The moment that was written last.
    moment: Option<i64>,
    /// The processes in it.
    processes: HashMap<ProcessKey, KnownProcess>,
    /// Profiles by name and kind.
    profiles: HashMap<(String, String), i64>,
}

/// What makes a process another one, within a boot. An exec changes the executable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProcessKey {
    pid: u32,
    start_time: u64,
    exe: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownProcess {
    id: i64,
    comm: String,
    labels: String,
}

/// Begins this run, once: what the run before has left open ends.
pub(super) fn run(connection: &Connection, known: &mut Known, boot: &str) -> rusqlite::Result<()> {
    if known.run.is_some() {
        return Ok(());
    }
    connection.execute(
        "UPDATE process SET last = (SELECT coalesce(max(id), 0) FROM moment) WHERE last IS NULL",
        [],
    )?;
    interrupt(connection)?;
    connection.execute("INSERT INTO run (boot) VALUES (?1)", [boot])?;
    known.run = Some(connection.last_insert_rowid());
    Ok(())
}

/// Windows that ran when the daemon was killed do not run any more.
fn interrupt(connection: &Connection) -> rusqlite::Result<()> {
    let windows: Vec<(i64, String)> = connection
        .prepare("SELECT id, record FROM window WHERE record LIKE '%\"running\"%'")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, text) in windows {
        let Ok(mut record) = serde_json::from_str::<WindowRecord>(&text) else { continue };
        if record.outcome != Outcome::Running {
            continue;
        }
        record.outcome = Outcome::Interrupted;
        let Ok(text) = serde_json::to_string(&record) else { continue };
        connection.execute("UPDATE window SET record = ?2 WHERE id = ?1", params![id, text])?;
    }
    Ok(())
}

/// One state of the node.
pub(super) fn moment(
    connection: &Connection,
    known: &mut Known,
    boot: &str,
    moment: &Moment,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO moment (run, unix_ms, complete, killed, some_avg10, full_avg10, self_cpu_seconds,
                             self_rss_bytes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            known.run,
            signed(moment.unix_ms),
            moment.complete,
            moment.killed,
            finite(moment.some_avg10),
            finite(moment.full_avg10),
            finite(Some(moment.self_cpu_seconds)).unwrap_or(0.0),
            signed(moment.self_rss_bytes),
        ],
    )?;
    let id = connection.last_insert_rowid();
    let mut left = std::mem::take(&mut known.processes);
    let mut samples = connection.prepare(
        "INSERT OR REPLACE INTO sample VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?;
    let mut counts = connection
        .prepare("INSERT OR REPLACE INTO count VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    let mut heaps = connection.prepare(
        "INSERT OR IGNORE INTO heap VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    for process in &moment.processes {
        let key = ProcessKey {
            pid: process.pid,
            start_time: process.start_time,
            exe: process.exe.clone(),
        };
        let earlier = left.remove(&key);
        let row = row(connection, boot, process, earlier)?;
        let memory = process.memory.as_ref();
        let bytes = |value: Option<u64>| value.map(signed);
        samples.execute(params![
            id,
            row.id,
            level_number(process.level),
            signed(process.hits),
            finite(Some(process.cost_seconds)).unwrap_or(0.0),
            bytes(memory.map(|memory| memory.rss_bytes)),
            bytes(memory.map(|memory| memory.anon_bytes)),
            bytes(memory.map(|memory| memory.file_bytes)),
            bytes(memory.map(|memory| memory.shmem_bytes)),
            bytes(memory.map(|memory| memory.swap_bytes)),
            bytes(memory.map(|memory| memory.vsz_bytes)),
            bytes(memory.and_then(|memory| memory.pss_bytes)),
            bytes(memory.map(|memory| memory.minor_faults)),
            bytes(memory.map(|memory| memory.major_faults)),
            bytes(memory.and_then(|memory| memory.cgroup_bytes)),
            bytes(memory.and_then(|memory| memory.cgroup_limit_bytes)),
        ])?;
        for HeapPoint { unix_ms, heap } in &process.heaps {
            heaps.execute(params![
                row.id,
                signed(*unix_ms),
                heap.allocator,
                signed(heap.mapped_bytes),
                signed(heap.resident_bytes),
                signed(heap.held_bytes),
                signed(heap.live_objects),
                signed(heap.live_bytes),
                signed(heap.cached_bytes),
                signed(heap.free_bytes),
                signed(heap.unknown_bytes),
                bytes(heap.trimmable_bytes),
            ])?;
        }
        for part in &process.profiles {
            let profile = profile(connection, known, &part.profile, &part.kind)?;
            let of = &part.counts;
            counts.execute(params![
                id,
                row.id,
                profile,
                signed(of.granules.opened),
                signed(of.granules.drainable),
                signed(of.granules.pinned),
                signed(of.granules.unknown),
                signed(of.held.open_now),
                of.held.retained_granules.map(signed),
                of.held.retained_bytes.map(signed),
            ])?;
        }
        known.processes.insert(key, row);
    }
    let mut ended = connection.prepare("UPDATE process SET last = ?2 WHERE id = ?1")?;
    for process in left.values() {
        ended.execute(params![process.id, known.moment])?;
    }
    known.moment = Some(id);
    Ok(())
}

/// The row of a process: made, changed or known.
fn row(
    connection: &Connection,
    boot: &str,
    process: &ProcessMoment,
    earlier: Option<KnownProcess>,
) -> rusqlite::Result<KnownProcess> {
    let labels = serde_json::to_string(&process.labels)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    if let Some(earlier) = earlier
        && earlier.comm == process.comm
        && earlier.labels == labels
    {
        return Ok(earlier);
    }
    let id = connection.query_row(
        "INSERT INTO process (boot, pid, start_time, exe, comm, labels) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (boot, pid, start_time, exe)
         DO UPDATE SET comm = excluded.comm, labels = excluded.labels, last = NULL
         RETURNING id",
        params![
            boot,
            process.pid,
            signed(process.start_time),
            process.exe,
            process.comm,
            labels
        ],
        |row| row.get(0),
    )?;
    Ok(KnownProcess { id, comm: process.comm.clone(), labels })
}

fn profile(
    connection: &Connection,
    known: &mut Known,
    name: &str,
    kind: &str,
) -> rusqlite::Result<i64> {
    let key = (name.to_owned(), kind.to_owned());
    if let Some(&id) = known.profiles.get(&key) {
        return Ok(id);
    }
    connection
        .execute("INSERT OR IGNORE INTO profile (name, kind) VALUES (?1, ?2)", [name, kind])?;
    let id = connection.query_row(
        "SELECT id FROM profile WHERE name = ?1 AND kind = ?2",
        [name, kind],
        |row| row.get(0),
    )?;
    known.profiles.insert(key, id);
    Ok(id)
}

/// A window; a report that it has is not lost when its record is written again without.
pub(super) fn window(
    connection: &Connection,
    record: &WindowRecord,
    text: &str,
    report: Option<&[u8]>,
) -> rusqlite::Result<()> {
    connection.execute(
        "INSERT INTO window (id, began_ms, pid, record, report) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (id) DO UPDATE SET began_ms = excluded.began_ms, pid = excluded.pid,
           record = excluded.record, report = coalesce(excluded.report, report)",
        params![signed(record.id), signed(record.began_unix_ms), record.pid, text, report],
    )?;
    keep_next_window(connection, record.id.saturating_add(1))
}

/// Something that has happened.
pub(super) fn event(connection: &Connection, event: &Event) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO event (unix_ms, pid, kind, text) VALUES (?1, ?2, ?3, ?4)",
            params![
                signed(event.unix_ms),
                event.pid,
                cut(&event.kind, MAX_SENTENCE_CHARS),
                cut(&event.text, MAX_SENTENCE_CHARS)
            ],
        )
        .map(drop)
}

/// The number that the next window gets.
pub(super) fn next_window(connection: &Connection) -> rusqlite::Result<u64> {
    let kept: Option<i64> = fact(connection, NEXT_WINDOW_FACT)?;
    let last: Option<i64> =
        connection.query_row("SELECT max(id) FROM window", [], |row| row.get(0))?;
    let after_last = last.map_or(1, |last| unsigned(last).saturating_add(1));
    Ok(kept.map_or(1, unsigned).max(after_last))
}

/// Keeps it, unless a higher one is kept.
pub(super) fn keep_next_window(connection: &Connection, next: u64) -> rusqlite::Result<()> {
    set_fact(connection, NEXT_WINDOW_FACT, signed(next))
}

/// A number that is kept by name.
pub(super) fn fact(connection: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    connection
        .query_row("SELECT value FROM fact WHERE name = ?1", [name], |row| row.get(0))
        .optional()
}

/// Keeps a number by name; it never falls.
pub(super) fn set_fact(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT INTO fact (name, value) VALUES (?1, ?2)
             ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            params![name, value],
        )
        .map(drop)
}

/// Levels as the file has them, 0 for none.
fn level_number(level: Option<Level>) -> i64 {
    match level {
        None => 0,
        Some(Level::Boundary) => 1,
        Some(Level::Objects) => 2,
        Some(Level::Stacks) => 3,
        // Later than the others.
        Some(Level::Close) => 4,
    }
}

/// And back.
pub(super) fn level(number: i64) -> Option<Level> {
    Level::ALL.into_iter().find(|level| level_number(Some(*level)) == number)
}

/// `SQLite` takes NaN for null.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

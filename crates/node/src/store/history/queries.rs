//! The questions to the tables, each within one state of them.

use std::collections::BTreeMap;

use drainprof_census::HeapSummary;
use drainprof_process::memory::MemoryReading;
use drainprof_report::{Counts, Held, Kind};
use rusqlite::{Connection, Row, params};

use super::{
    super::{
        file,
        integers::{signed, unsigned},
        moment::{HeapPoint, ProfileCounts},
        options::SPACING,
        put,
        tally::Tally,
    },
    rows::{
        CountPoint, MemoryOfAll, MemoryPoint, ProcessChange, ProcessRow, ProfileChange,
        ProfileSeries, Series, Who,
    },
};

/// The number of a moment before the time, from which on every counter is found once before it.
pub(super) fn lead_in(connection: &Connection, since: u64) -> rusqlite::Result<i64> {
    let spaces = u64::try_from(SPACING.as_millis()).unwrap_or(u64::MAX).saturating_mul(2);
    connection.query_row(
        "SELECT min(coalesce((SELECT min(id) FROM moment WHERE unix_ms >= ?1), 0),
                    coalesce((SELECT max(id) FROM moment WHERE unix_ms < ?2), 0))",
        params![signed(since.saturating_sub(spaces)), signed(since)],
        |row| row.get(0),
    )
}

pub(super) fn processes(
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
pub(super) fn gather(
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
pub(super) fn add_counts(
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
        let added = tally.add(run, counts.granules);
        if unix_ms < since {
            continue;
        }
        if change.profile.is_empty() {
            (change.profile, change.kind) = names.get(&key.1).cloned().unwrap_or_default();
        }
        change.sums.add(added);
        change.open_now = counts.held.open_now;
        change.retained_granules_first =
            change.retained_granules_first.or(counts.held.retained_granules);
        change.retained_granules_last = counts.held.retained_granules;
        change.retained_bytes_first = change.retained_bytes_first.or(counts.held.retained_bytes);
        change.retained_bytes_last = counts.held.retained_bytes;
    }
    for ((process, _), (_, mut change)) in gathered {
        if let Some(of) = changes.get_mut(&process).filter(|_| !change.profile.is_empty()) {
            change.dsr = change.sums.dsr(Kind::Drain);
            of.profiles.push(change);
        }
    }
    for change in changes.values_mut() {
        change.profiles.sort_by(|one, other| one.profile.cmp(&other.profile));
    }
    Ok(())
}

/// Resident memory of all processes, one point for each part of the time: the last.
pub(super) fn memory(
    connection: &Connection,
    (since, until): (u64, u64),
    parts: u64,
) -> rusqlite::Result<MemoryOfAll> {
    let mut statement = connection.prepare(
        "SELECT p.pid, p.start_time, m.unix_ms, s.rss
         FROM (SELECT max(id) AS id, unix_ms FROM moment WHERE unix_ms BETWEEN ?1 AND ?2
               GROUP BY (unix_ms - ?1) / ?3) m
         CROSS JOIN sample s ON s.moment = m.id JOIN process p ON p.id = s.process
         WHERE s.rss IS NOT NULL ORDER BY m.id",
    )?;
    let part = (until.saturating_sub(since) / parts.max(1)).max(1);
    let mut rows = statement.query(params![signed(since), signed(until), signed(part)])?;
    let mut all = MemoryOfAll::new();
    while let Some(row) = rows.next()? {
        let key = (row.get(0)?, unsigned(row.get(1)?));
        all.entry(key).or_default().push((unsigned(row.get(2)?), unsigned(row.get(3)?)));
    }
    Ok(all)
}

/// The time series of one process: of memory in the time, of counters from the moment before it on.
pub(super) fn series(
    connection: &Connection,
    process: ProcessRow,
    from: i64,
    (since, until): (u64, u64),
) -> rusqlite::Result<Series> {
    let memory = connection
        .prepare(&format!(
            "SELECT {SAMPLE} FROM moment m CROSS JOIN sample s ON s.moment = m.id AND s.process = ?1
             WHERE m.unix_ms BETWEEN ?2 AND ?3 ORDER BY m.id",
        ))?
        .query_map(params![process.id, signed(since), signed(until)], memory_point)?
        .collect::<rusqlite::Result<_>>()?;
    let names = profiles(connection)?;
    let mut gathered: BTreeMap<i64, (Tally, Vec<CountPoint>)> = BTreeMap::new();
    let mut statement = connection.prepare(&format!(
        "SELECT {COUNTS}, s.profile
         FROM moment m CROSS JOIN count s ON s.moment = m.id AND s.process = ?1
         WHERE m.id >= ?2 AND m.unix_ms <= ?3 ORDER BY m.id"
    ))?;
    let mut rows = statement.query(params![process.id, from, signed(until)])?;
    while let Some(row) = rows.next()? {
        let (run, unix_ms, counts) = counted(row)?;
        let (tally, points) = gathered.entry(row.get(COUNT_COLUMNS)?).or_default();
        let added = tally.add(run, counts.granules);
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
    let heaps = heaps(connection, process.id, since, until)?;
    Ok(Series { process, memory, heaps, profiles })
}

/// What censuses found; a file of the first version has none.
fn heaps(
    connection: &Connection,
    process: i64,
    since: u64,
    until: u64,
) -> rusqlite::Result<Vec<HeapPoint>> {
    if file::version(connection)? < 2 {
        return Ok(Vec::new());
    }
    connection
        .prepare(&format!(
            "SELECT {HEAP} FROM heap WHERE process = ?1 AND unix_ms BETWEEN ?2 AND ?3 ORDER BY unix_ms, allocator",
        ))?
        .query_map(params![process, signed(since), signed(until)], heap_point)?
        .collect()
}

/// The columns that [`heap_point`] reads.
pub(super) const HEAP: &str =
    "unix_ms, allocator, mapped, resident, held, objects, live, cached, free, unknown, trimmable";

pub(super) fn heap_point(row: &Row<'_>) -> rusqlite::Result<HeapPoint> {
    let plain = |at: usize| row.get::<_, i64>(at).map(unsigned);
    let heap = HeapSummary {
        allocator: row.get(1)?,
        mapped_bytes: plain(2)?,
        resident_bytes: plain(3)?,
        held_bytes: plain(4)?,
        live_objects: plain(5)?,
        live_bytes: plain(6)?,
        cached_bytes: plain(7)?,
        free_bytes: plain(8)?,
        unknown_bytes: plain(9)?,
        trimmable_bytes: row.get::<_, Option<i64>>(10)?.map(unsigned),
    };
    Ok(HeapPoint { unix_ms: plain(0)?, heap })
}

/// The columns that [`memory_point`] reads.
pub(super) const SAMPLE: &str =
    "m.unix_ms, m.complete, s.level, s.hits, s.cost_seconds, s.rss, s.anon, s.file, s.shmem,
         s.swap, s.vsz, s.pss, s.minor_faults, s.major_faults, s.cgroup, s.cgroup_limit";

pub(super) fn memory_point(row: &Row<'_>) -> rusqlite::Result<MemoryPoint> {
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
pub(super) const COUNTS: &str =
    "m.run, m.unix_ms, s.opened, s.drainable, s.pinned, s.unknown, s.open_now,
         s.retained_granules, s.retained_bytes";
pub(super) const COUNT_COLUMNS: usize = 9;

pub(super) fn counted(row: &Row<'_>) -> rusqlite::Result<(i64, u64, ProfileCounts)> {
    let plain = |at: usize| row.get::<_, i64>(at).map(unsigned);
    let maybe = |at: usize| row.get::<_, Option<i64>>(at).map(|value| value.map(unsigned));
    let granules =
        Counts { opened: plain(2)?, drainable: plain(3)?, pinned: plain(4)?, unknown: plain(5)? };
    let held =
        Held { open_now: plain(6)?, retained_granules: maybe(7)?, retained_bytes: maybe(8)? };
    Ok((row.get(0)?, plain(1)?, ProfileCounts { granules, held }))
}

pub(super) fn profiles(
    connection: &Connection,
) -> rusqlite::Result<BTreeMap<i64, (String, String)>> {
    connection
        .prepare("SELECT id, name, kind FROM profile")?
        .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?
        .collect()
}

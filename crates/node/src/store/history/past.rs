//! The node as it was: states are read back as they were kept.

use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    super::{
        error::StoreError,
        file,
        integers::{signed, unsigned},
        moment::{HeapPoint, Moment, ProcessMoment, ProfileMoment},
    },
    History, Readings,
    queries::{
        COUNT_COLUMNS, COUNTS, HEAP, SAMPLE, counted, heap_point, memory_point, processes, profiles,
    },
};

impl History {
    /// The latest state of the node that is not later than a time, in milliseconds since 1970; `None`: nothing is so old.
    ///
    /// As it was written, but for what is not kept: the unique share of memory, and the room in groups above.
    pub fn moment_at(&self, unix_ms: u64) -> Result<Option<Moment>, StoreError> {
        self.read(|transaction| {
            let found = transaction
                .query_row(
                    "SELECT id, run, unix_ms, complete, killed, some_avg10, full_avg10, self_cpu_seconds,
                            self_rss_bytes
                     FROM moment WHERE unix_ms <= ?1 ORDER BY unix_ms DESC, id DESC LIMIT 1",
                    [signed(unix_ms)],
                    |row| {
                        let moment = Moment {
                            unix_ms: unsigned(row.get(2)?),
                            complete: row.get(3)?,
                            killed: row.get(4)?,
                            some_avg10: row.get(5)?,
                            full_avg10: row.get(6)?,
                            self_cpu_seconds: row.get(7)?,
                            self_rss_bytes: unsigned(row.get(8)?),
                            processes: Vec::new(),
                        };
                        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, moment))
                    },
                )
                .optional()?;
            let Some((id, run, mut moment)) = found else { return Ok(None) };
            let mut processes = samples(transaction, id)?;
            add_profiles(transaction, id, &mut processes)?;
            add_heaps(transaction, moment.unix_ms, &mut processes)?;
            add_told(transaction, run, (id, moment.unix_ms), &mut processes)?;
            moment.processes = processes.into_values().collect();
            moment.processes.sort_by_key(|process| (process.pid, process.start_time));
            Ok(Some(moment))
        })
    }

    /// The time of the first state that is later than a time; both in milliseconds since 1970.
    pub fn next_after(&self, unix_ms: u64) -> Result<Option<u64>, StoreError> {
        self.read(|transaction| {
            let sql = "SELECT min(unix_ms) FROM moment WHERE unix_ms > ?1";
            let time: Option<i64> =
                transaction.query_row(sql, [signed(unix_ms)], |row| row.get(0))?;
            Ok(time.map(unsigned))
        })
    }

    /// What was read of the memory of each process between two times, both included, oldest first.
    pub fn readings(&self, since: u64, until: u64) -> Result<Readings, StoreError> {
        self.read(|transaction| {
            let mut statement = transaction.prepare(&format!(
                "SELECT {SAMPLE}, p.pid, p.start_time
                 FROM moment m CROSS JOIN sample s ON s.moment = m.id JOIN process p ON p.id = s.process
                 WHERE m.unix_ms BETWEEN ?1 AND ?2 ORDER BY m.id"
            ))?;
            let mut rows = statement.query(params![signed(since), signed(until)])?;
            let mut all = Readings::new();
            while let Some(row) = rows.next()? {
                let point = memory_point(row)?;
                let Some(memory) = point.memory else { continue };
                let key = (row.get("pid")?, unsigned(row.get("start_time")?));
                all.entry(key).or_default().push((point.unix_ms, memory));
            }
            Ok(all)
        })
    }
}

/// The processes in a moment, by their numbers in the history.
fn samples(connection: &Connection, moment: i64) -> rusqlite::Result<BTreeMap<i64, ProcessMoment>> {
    let known = processes(connection, None)?;
    let mut statement = connection.prepare(&format!(
        "SELECT {SAMPLE}, s.process FROM moment m CROSS JOIN sample s ON s.moment = m.id WHERE m.id = ?1"
    ))?;
    let mut rows = statement.query([moment])?;
    let mut found = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let id: i64 = row.get("process")?;
        let Some(process) = known.get(&id) else { continue };
        let point = memory_point(row)?;
        let moment = ProcessMoment {
            pid: process.pid,
            start_time: process.start_time,
            comm: process.comm.clone(),
            exe: process.exe.clone(),
            labels: process.labels.clone(),
            level: point.level,
            memory: point.memory,
            hits: point.hits,
            cost_seconds: point.cost_seconds,
            ..ProcessMoment::default()
        };
        found.insert(id, moment);
    }
    Ok(found)
}

fn add_profiles(
    connection: &Connection,
    moment: i64,
    processes: &mut BTreeMap<i64, ProcessMoment>,
) -> rusqlite::Result<()> {
    let names = profiles(connection)?;
    let mut statement = connection.prepare(&format!(
        "SELECT {COUNTS}, s.process, s.profile FROM moment m CROSS JOIN count s ON s.moment = m.id WHERE m.id = ?1"
    ))?;
    let mut rows = statement.query([moment])?;
    while let Some(row) = rows.next()? {
        let Some(process) = processes.get_mut(&row.get(COUNT_COLUMNS)?) else { continue };
        let found = names.get(&row.get(COUNT_COLUMNS + 1)?).cloned();
        let (profile, kind) = found.unwrap_or_default();
        let (_, _, counts) = counted(row)?;
        process.profiles.push(ProfileMoment { profile, kind, counts });
    }
    for process in processes.values_mut() {
        process
            .profiles
            .sort_by(|one, other| (&one.profile, &one.kind).cmp(&(&other.profile, &other.kind)));
    }
    Ok(())
}

/// The heaps as the last census before the time has found them. A file of the first version has none.
fn add_heaps(
    connection: &Connection,
    until: u64,
    processes: &mut BTreeMap<i64, ProcessMoment>,
) -> rusqlite::Result<()> {
    if file::version(connection)? < 2 {
        return Ok(());
    }
    let mut statement = connection.prepare(&format!(
        "SELECT {HEAP} FROM heap WHERE process = ?1 AND unix_ms =
           (SELECT max(unix_ms) FROM heap WHERE process = ?1 AND unix_ms <= ?2) ORDER BY allocator"
    ))?;
    for (id, process) in processes {
        process.heaps = statement
            .query_map(params![id, signed(until)], heap_point)?
            .collect::<rusqlite::Result<Vec<HeapPoint>>>()?;
    }
    Ok(())
}

/// Why each process is at its level, and which rules fire: what events of this run have said of it so far.
fn add_told(
    connection: &Connection,
    run: i64,
    (moment, until): (i64, u64),
    processes: &mut BTreeMap<i64, ProcessMoment>,
) -> rusqlite::Result<()> {
    // What is kept of an earlier process with the same pid does not count, nor what an earlier daemon kept.
    let mut begin = connection.prepare(
        "SELECT coalesce(max(unix_ms), -1) FROM moment
         WHERE id IN (SELECT max(id) FROM moment WHERE run < ?1
                      UNION ALL SELECT max(last) FROM process WHERE pid = ?2 AND id <> ?3 AND last < ?4)",
    )?;
    let mut by_pid: HashMap<u32, Vec<(i64, &mut ProcessMoment)>> = HashMap::new();
    for (id, process) in processes {
        let since = begin.query_row(params![run, process.pid, id, moment], |row| row.get(0))?;
        by_pid.entry(process.pid).or_default().push((since, process));
    }
    let first = by_pid.values().flatten().map(|(since, _)| *since).min();
    let mut events = connection.prepare(
        "SELECT unix_ms, pid, kind, text FROM event
         WHERE unix_ms > ?1 AND unix_ms <= ?2 AND kind IN ('level', 'alert', 'alert_over') ORDER BY id",
    )?;
    let mut rows = events.query(params![first.unwrap_or_default(), signed(until)])?;
    while let Some(row) = rows.next()? {
        let (unix_ms, pid): (i64, Option<u32>) = (row.get(0)?, row.get(1)?);
        let known = pid.and_then(|pid| by_pid.get_mut(&pid)).into_iter().flatten();
        let (kind, text): (String, String) = (row.get(2)?, row.get(3)?);
        for (_, process) in known.filter(|(since, _)| unix_ms > *since) {
            match (kind.as_str(), text.split_once(": ")) {
                ("level", Some((_, reason))) => reason.clone_into(&mut process.reason),
                ("alert", Some((rule, message))) => {
                    process.firing.insert(rule.to_owned(), message.to_owned());
                }
                ("alert_over", _) => drop(process.firing.remove(&text)),
                _ => {}
            }
        }
    }
    Ok(())
}

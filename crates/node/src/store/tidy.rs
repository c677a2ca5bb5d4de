//! Keeping the history within its bounds: what is too old goes, what is old is thinned, and the file really shrinks.
//!
//! Every step is a small transaction of its own: a reader is never held up, and the log stays short.

use rusqlite::{Connection, params};

use super::{
    error::StoreError,
    file::PAGE_BYTES,
    integers::signed,
    options::{DENSE, SPACING},
    put,
    writer::{Writer, number},
};

/// Moments that are removed in one transaction.
const MOMENTS_A_TRANSACTION: i64 = 100;
/// Spaces of time ([`SPACING`]) that one call thins at most.
const MAX_SPACES_A_CALL: usize = 24;
/// Moments that are examined in one call.
const MAX_MOMENTS_A_CALL: i64 = 20_000;
/// A step of the clock between two moments, in milliseconds, that may be a mistake.
const LEAP_MS: i64 = 24 * 3600 * 1000;
/// Moments that have to come after such a step: ten minutes of them at the usual pace.
const MOMENTS_AFTER_LEAP: i64 = 60;
/// Pages that are given back in one step.
const PAGES_A_STEP: u64 = 200;
/// The name of the fact that says up to which moment the history is thinned.
const THINNED_FACT: &str = "thinned";

/// Moments of one run in one space of time: their first and last number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Space {
    run: i64,
    number: i64,
    first: i64,
    last: i64,
}

impl Writer {
    /// Removes what is too old, thins what is old, and gives pages back. [`Writer::append`] calls it every now and
    /// then; its time is counted from the latest moment, so no clock is read. A clock that leaps forward is believed when
    /// some moments have come after it: one that is set wrong for a moment costs no history.
    pub fn tidy(&mut self) -> Result<(), StoreError> {
        let path = self.options.path.clone();
        let reported = |error| StoreError::sqlite("tidy", &path, error);
        let Some((newest, now)) = newest(&self.connection).map_err(reported)? else {
            return Ok(());
        };
        let ago = |time: std::time::Duration| {
            now.saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
        };
        let oldest = ago(self.options.max_age);
        loop {
            self.bound_log()?;
            if remove_before(&mut self.connection, oldest, newest).map_err(reported)? == 0 {
                break;
            }
        }
        remove_told_before(&self.connection, oldest).map_err(reported)?;
        for space in spaces(&self.connection, ago(DENSE)).map_err(reported)? {
            self.bound_log()?;
            thin(&mut self.connection, space).map_err(reported)?;
        }
        remove_unseen(&self.connection).map_err(reported)?;
        if self.is_large() {
            self.shrink()?;
        }
        if self.give_back().map_err(reported)? {
            // The file is cut when the log is emptied into it.
            self.empty_log()?;
        }
        Ok(())
    }

    /// Whether the file is near its bound.
    pub(super) fn is_large(&self) -> bool {
        number(&self.connection, "page_count")
            .is_ok_and(|pages| pages.saturating_mul(PAGE_BYTES) > self.share(15))
    }

    /// Removes the oldest until an eighth of the file's bound is free.
    pub(super) fn shrink(&mut self) -> Result<(), StoreError> {
        let path = self.options.path.clone();
        let reported = |error| StoreError::sqlite("shrink", &path, error);
        while self.used().map_err(reported)? > self.share(14) {
            self.bound_log()?;
            if !remove_oldest(&mut self.connection).map_err(reported)? {
                break;
            }
        }
        remove_unseen(&self.connection).map_err(reported)?;
        self.give_back().map_err(reported)?;
        self.empty_log()
    }

    /// So many sixteenths of what the file may take.
    const fn share(&self, sixteenths: u64) -> u64 {
        self.options.main_bytes() / 16 * sixteenths
    }

    /// Bytes of pages that hold something.
    fn used(&self) -> rusqlite::Result<u64> {
        let pages = number(&self.connection, "page_count")?;
        let free = number(&self.connection, "freelist_count")?;
        Ok(pages.saturating_sub(free).saturating_mul(PAGE_BYTES))
    }

    /// Gives free pages back to the file system; says whether there were any.
    fn give_back(&self) -> rusqlite::Result<bool> {
        let mut free = number(&self.connection, "freelist_count")?;
        let any = free > 0;
        while free > 0 {
            let mut step =
                self.connection.prepare(&format!("PRAGMA incremental_vacuum({PAGES_A_STEP})"))?;
            let mut rows = step.query([])?;
            // Each step gives one page back; it has to be taken to its end.
            while rows.next()?.is_some() {}
            let left = number(&self.connection, "freelist_count")?;
            if left >= free {
                break;
            }
            free = left;
        }
        Ok(any)
    }
}

/// The latest moment, and the time that is believed to be now.
fn newest(connection: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    let mut statement =
        connection.prepare("SELECT id, unix_ms FROM moment ORDER BY id DESC LIMIT ?1")?;
    let rows =
        statement.query_map([MOMENTS_AFTER_LEAP + 1], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let latest: Vec<(i64, i64)> = rows.collect::<rusqlite::Result<_>>()?;
    let Some((newest, time)) = latest.first() else { return Ok(None) };
    let mut leaps = latest.windows(2).filter(|two| two[0].1.saturating_sub(two[1].1) > LEAP_MS);
    // The time before the first leap that is not believed yet.
    let now = leaps.next_back().map_or(*time, |two| two[1].1);
    Ok(Some((*newest, now)))
}

/// Removes some moments before a time, but not the latest; says how many.
fn remove_before(connection: &mut Connection, time: i64, newest: i64) -> rusqlite::Result<usize> {
    let ids: Vec<i64> = connection
        .prepare("SELECT id FROM moment WHERE unix_ms < ?1 AND id < ?2 ORDER BY id LIMIT ?3")?
        .query_map(params![time, newest, MOMENTS_A_TRANSACTION], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    remove(connection, &ids)?;
    Ok(ids.len())
}

fn remove(connection: &mut Connection, ids: &[i64]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for table in ["DELETE FROM sample WHERE moment = ?1", "DELETE FROM count WHERE moment = ?1"] {
        let mut statement = transaction.prepare(table)?;
        for id in ids {
            statement.execute([id])?;
        }
    }
    let mut statement = transaction.prepare("DELETE FROM moment WHERE id = ?1")?;
    for id in ids {
        statement.execute([id])?;
    }
    drop(statement);
    transaction.commit()
}

/// Events, censuses and windows that began before a time.
fn remove_told_before(connection: &Connection, time: i64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM event WHERE unix_ms < ?1", [time])?;
    connection.execute("DELETE FROM heap WHERE unix_ms < ?1", [time])?;
    connection.execute("DELETE FROM window WHERE began_ms < ?1", [time]).map(drop)
}

/// Removes the oldest of what there is, of all kinds by their time; false when only the latest moment is left.
fn remove_oldest(connection: &mut Connection) -> rusqlite::Result<bool> {
    let (moments, windows, events): (i64, i64, i64) = connection.query_row(
        "SELECT (SELECT count(*) FROM moment), (SELECT count(*) FROM window), (SELECT count(*) FROM event)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    // A sixteenth of the moments, and all else that is not younger than they.
    let step = (moments / 16).clamp(1, MOMENTS_A_TRANSACTION);
    if moments > 1 {
        let ids: Vec<i64> = connection
            .prepare("SELECT id FROM moment ORDER BY id LIMIT ?1")?
            .query_map([step.min(moments - 1)], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        remove(connection, &ids)?;
        let oldest =
            connection.query_row("SELECT min(unix_ms) FROM moment", [], |row| row.get(0))?;
        remove_told_before(connection, oldest)?;
        return Ok(true);
    }
    connection.execute(
        "DELETE FROM window WHERE id IN (SELECT id FROM window ORDER BY began_ms LIMIT ?1)",
        [(windows / 16).max(1)],
    )?;
    connection.execute(
        "DELETE FROM event WHERE id IN (SELECT id FROM event ORDER BY unix_ms LIMIT ?1)",
        [(events / 16).max(1)],
    )?;
    Ok(windows > 0 || events > 0)
}

/// Processes and runs of which no moment is left.
fn remove_unseen(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute(
        "DELETE FROM process WHERE last < (SELECT coalesce(min(id), 0) FROM moment)",
        [],
    )?;
    connection.execute("DELETE FROM heap WHERE process NOT IN (SELECT id FROM process)", [])?;
    connection
        .execute("DELETE FROM run WHERE id < (SELECT run FROM moment ORDER BY id LIMIT 1)", [])
        .map(drop)
}

/// Spaces of time that are over, older than a time, and not thinned yet.
fn spaces(connection: &Connection, before: i64) -> rusqlite::Result<Vec<Space>> {
    let from = put::fact(connection, THINNED_FACT)?.unwrap_or(0);
    let space_ms = i64::try_from(SPACING.as_millis()).unwrap_or(i64::MAX);
    let mut statement = connection
        .prepare("SELECT id, run, unix_ms FROM moment WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let mut rows = statement.query(params![from, MAX_MOMENTS_A_CALL])?;
    let mut spaces: Vec<Space> = Vec::new();
    while let Some(row) = rows.next()? {
        let (id, run, unix_ms): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let number = unix_ms.div_euclid(space_ms);
        if number.saturating_add(1).saturating_mul(space_ms) > before {
            break;
        }
        let full = spaces.len() == MAX_SPACES_A_CALL;
        match spaces.last_mut() {
            Some(space) if space.run == run && space.number == number => space.last = id,
            _ if full => break,
            _ => spaces.push(Space { run, number, first: id, last: id }),
        }
    }
    Ok(spaces)
}

/// Leaves, of each process and profile, the last sample in that time: counters lose nothing by that.
fn thin(connection: &mut Connection, space: Space) -> rusqlite::Result<()> {
    let range = params![space.first, space.last];
    let transaction = connection.transaction()?;
    transaction.execute(
        "WITH late AS MATERIALIZED (SELECT process, max(moment) AS moment FROM sample
                       WHERE moment BETWEEN ?1 AND ?2 GROUP BY process)
         DELETE FROM sample WHERE moment BETWEEN ?1 AND ?2
           AND moment < (SELECT late.moment FROM late WHERE late.process = sample.process)",
        range,
    )?;
    transaction.execute(
        "WITH late AS MATERIALIZED (SELECT process, profile, max(moment) AS moment FROM count
                       WHERE moment BETWEEN ?1 AND ?2 GROUP BY process, profile)
         DELETE FROM count WHERE moment BETWEEN ?1 AND ?2
           AND moment < (SELECT late.moment FROM late
                         WHERE late.process = count.process AND late.profile = count.profile)",
        range,
    )?;
    transaction.execute(
        "DELETE FROM moment WHERE id BETWEEN ?1 AND ?2 AND id <> ?2
           AND id NOT IN (SELECT moment FROM sample WHERE moment BETWEEN ?1 AND ?2)
           AND id NOT IN (SELECT moment FROM count WHERE moment BETWEEN ?1 AND ?2)",
        range,
    )?;
    put::set_fact(&transaction, THINNED_FACT, signed(u64::try_from(space.last).unwrap_or(0)))?;
    transaction.commit()
}

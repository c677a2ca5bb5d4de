//! Age, size, a full disk.

use std::{fs, time::Duration};

use rusqlite::Connection;
use tempfile::tempdir;

use super::{BEGIN, Dice, moment, options, process, report, window};
use crate::{
    Outcome,
    store::{
        DENSE, History, LEAST_BYTES, Options, SPACING, StoreError, Who, Writer, error::beside,
    },
};

fn bytes(options: &Options) -> u64 {
    [options.path.clone(), beside(&options.path, "-wal")]
        .iter()
        .filter_map(|path| fs::metadata(path).ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// File and log together stay below the bound at every moment, and the latest is always there.
#[test]
fn size_is_bounded() {
    let directory = tempdir().unwrap();
    let options = Options { max_bytes: LEAST_BYTES, ..options(directory.path()) };
    let mut writer = Writer::open(&options).unwrap();
    let mut dice = Dice(7);
    let mut most = 0;
    for step in 1..=1500 {
        // A look every half a minute; processes come and go.
        let now = BEGIN + step * 30_000;
        let processes = (0..40).map(|at| process(at + (step / 50) as u32, step)).collect();
        writer.append(&moment(now, processes)).unwrap();
        if step % 20 == 0 {
            let id = writer.next_window_id();
            let padding: String =
                (0..20_000).map(|_| char::from(b'a' + dice.roll(26) as u8)).collect();
            writer.window(&window(id, now, Outcome::Finished), Some(&report(&padding))).unwrap();
        }
        most = most.max(bytes(&options));
        assert!(most <= options.max_bytes, "{most} bytes at {step}");
    }
    // It is used, too.
    assert!(most > options.max_bytes / 2, "{most}");
    let history = History::open(&options.path).unwrap();
    assert_eq!(history.latest().unwrap(), Some(BEGIN + 1500 * 30_000));
    let windows = history.windows(1000).unwrap();
    assert!(windows.len() > 5 && windows.len() < 75, "{}", windows.len());
    // Processes of which nothing is left are forgotten.
    assert_eq!(history.process(0, 0).unwrap(), []);
    assert_eq!(writer.status().unwritten, 0);
}

/// What is older than a day has one point in five minutes, and no count is lost by that; what is too old goes.
#[test]
fn old_is_thinned_then_removed() {
    let directory = tempdir().unwrap();
    let options = Options { max_age: 3 * DENSE, ..options(directory.path()) };
    let mut writer = Writer::open(&options).unwrap();
    let day = DENSE.as_millis() as u64;
    let every = 30_000;
    for step in 1..=(2 * day / every) {
        let mut processes = vec![process(42, step)];
        // This one ends in the middle of five minutes.
        if step <= 33 {
            processes.push(process(43, 10 * step));
        }
        writer.append(&moment(BEGIN + step * every, processes)).unwrap();
    }
    for _ in 0..40 {
        writer.tidy().unwrap();
    }
    let history = History::open(&options.path).unwrap();
    let points = history.series(Who::Pid(42), 0).unwrap()[0].memory.clone();
    let old = points.iter().filter(|point| point.unix_ms < BEGIN + day).count();
    let spaces = DENSE.as_secs() / SPACING.as_secs();
    // The five minutes that the day ends in are not over for it, so they are dense.
    let dense = SPACING.as_millis() as u64 / every;
    let thinned = spaces - 1..=spaces + dense + 1;
    assert!(thinned.contains(&(old as u64)), "{old} points of the first day");
    assert_eq!((points.len() - old) as u64, day / every + 1);
    let opened = |pid| history.process(pid, 0).unwrap()[0].profiles[0].sums.opened;
    assert_eq!((opened(42), opened(43)), (2 * day / every, 330));
    // Since a time in the thinned part, the last cycle before it is what counts from.
    let since = BEGIN + day / 2;
    let change = &history.process(42, since).unwrap()[0];
    let steps = 2 * day / every - change.profiles[0].sums.opened;
    let before = since - SPACING.as_millis() as u64 - every;
    assert!(BEGIN + steps * every >= before && BEGIN + steps * every <= since, "{steps}");

    // A clock that is days ahead for a moment removes nothing.
    let before = history.series(Who::Pid(42), 0).unwrap()[0].memory.len();
    writer.append(&moment(BEGIN + 30 * day, vec![process(42, 1)])).unwrap();
    writer.tidy().unwrap();
    assert_eq!(history.series(Who::Pid(42), 0).unwrap()[0].memory.len(), before + 1);
    // If it stays so, only what came since is left.
    for step in 1..=60 {
        writer.append(&moment(BEGIN + 30 * day + step * every, vec![process(42, 1)])).unwrap();
    }
    writer.tidy().unwrap();
    assert_eq!(history.series(Who::Pid(42), 0).unwrap()[0].memory.len(), 61);
    assert_eq!(history.process(43, 0).unwrap(), []);
    assert_eq!(history.events(Some(43), 0).unwrap(), []);
    assert!(bytes(&options) < 200_000, "{}", bytes(&options));
}

/// A reader that never ends keeps the log from being emptied: writing stops at the bound, and goes on when it ends.
#[test]
fn reader_that_does_not_end() {
    let directory = tempdir().unwrap();
    let options = Options { max_bytes: LEAST_BYTES, ..options(directory.path()) };
    let mut writer = Writer::open(&options).unwrap();
    let look =
        |step: u64| moment(BEGIN + step * 1000, (0..200).map(|pid| process(pid, step)).collect());
    writer.append(&look(0)).unwrap();
    let reader = Connection::open(&options.path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM moment").unwrap();
    reader.query_row("SELECT count(*) FROM moment", [], |_| Ok(())).unwrap();
    let failed = (1..500).find_map(|step| writer.append(&look(step)).err());
    assert!(matches!(failed, Some(StoreError::Full { .. })), "{failed:?}");
    assert!(bytes(&options) <= options.max_bytes);
    assert!(writer.status().full && writer.status().unwritten == 1);
    drop(reader);
    writer.append(&look(1000)).unwrap();
    assert!(!writer.status().full);
    let history = History::open(&options.path).unwrap();
    assert_eq!(history.latest().unwrap(), Some(BEGIN + 1_000_000));
}

/// What is larger than a history of this size can take is refused as that, and does no harm.
#[test]
fn too_large() {
    let directory = tempdir().unwrap();
    let options = Options { max_bytes: LEAST_BYTES, ..options(directory.path()) };
    let mut writer = Writer::open(&options).unwrap();
    let mut dice = Dice(1);
    let padding: String = (0..2_000_000).map(|_| char::from(b'!' + dice.roll(90) as u8)).collect();
    let id = writer.next_window_id();
    let record = window(id, BEGIN, Outcome::Finished);
    let refused = writer.window(&record, Some(&report(&padding)));
    assert!(matches!(refused, Err(StoreError::TooLarge { what: "a report", .. })), "{refused:?}");
    writer.window(&record, None).unwrap();
    let crowd = moment(BEGIN, (0..2000).map(|pid| process(pid, 1)).collect());
    assert!(matches!(writer.append(&crowd), Err(StoreError::TooLarge { .. })));
    writer.append(&moment(BEGIN, vec![process(1, 1)])).unwrap();
    assert_eq!(writer.status().unwritten, 2);
}

/// Bounds that cannot be kept are refused.
#[test]
fn bounds_are_checked() {
    let small = Options { max_bytes: LEAST_BYTES - 1, ..Options::default() };
    let short = Options { max_age: Duration::from_secs(1), ..Options::default() };
    for (options, key) in [(small, "max_bytes"), (short, "max_age")] {
        let message = Writer::open(&options).unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}

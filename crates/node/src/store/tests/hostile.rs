//! Files that are damaged, foreign, or from another version.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use rusqlite::Connection;
use tempfile::{TempDir, tempdir};

use super::{BEGIN, Dice, moment, options, process, report, window};
use crate::{
    Outcome,
    store::{History, Options, StoreError, Who, Writer},
};

/// A history of some pages, closed.
fn written() -> (TempDir, Options) {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    for step in 0..200 {
        let processes = (1..=20).map(|pid| process(pid, step)).collect();
        writer.append(&moment(BEGIN + step * 5000, processes)).unwrap();
    }
    let id = writer.next_window_id();
    writer.window(&window(id, BEGIN, Outcome::Finished), Some(&report("6.18"))).unwrap();
    drop(writer);
    (directory, options)
}

fn aside(options: &Options) -> Vec<PathBuf> {
    let directory = options.path.parent().unwrap();
    let mut found: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".damaged-"))
        .collect();
    found.sort();
    found
}

/// Asks everything; what is damaged may be refused, and must not be more than that.
fn ask(path: &Path) -> Result<(), StoreError> {
    let history = History::open(path)?;
    history.processes(0)?;
    history.series(Who::Pid(1), 0)?;
    history.events(None, 0)?;
    for window in history.windows(10)? {
        history.window_report(window.id)?;
    }
    Ok(())
}

/// A file that was cut anywhere is set aside, whole as it was, and a new history begins; readers are notified.
#[test]
fn truncated() {
    let (_directory, options) = written();
    let whole = fs::read(&options.path).unwrap();
    for part in 1..16 {
        let cut = &whole[..whole.len() * part / 16];
        let directory = tempdir().unwrap();
        let options = super::options(directory.path());
        fs::write(&options.path, cut).unwrap();
        let read = ask(&options.path);
        assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{part}: {read:?}");
        let mut writer = Writer::open(&options).unwrap();
        writer.append(&moment(BEGIN, vec![process(7, 1)])).unwrap();
        let aside = aside(&options);
        assert_eq!(aside.len(), 1);
        assert_eq!(fs::read(&aside[0]).unwrap(), cut, "{part}");
        assert_eq!(History::open(&options.path).unwrap().processes(0).unwrap().len(), 1);
    }
}

/// With bytes changed anywhere, the writer ends up with a history that works, or refuses the file and leaves it.
#[test]
fn bytes_changed() {
    let (_directory, options) = written();
    let whole = fs::read(&options.path).unwrap();
    let (mut replaced, mut refused) = (0, 0);
    for seed in 0..60 {
        let mut dice = Dice(seed);
        let mut bytes = whole.clone();
        for _ in 0..=dice.roll(40) {
            let at = if seed % 3 == 0 { dice.roll(8192) } else { dice.roll(bytes.len() as u64) };
            bytes[at as usize] ^= 1 << dice.roll(8);
        }
        let directory = tempdir().unwrap();
        let options = super::options(directory.path());
        fs::write(&options.path, &bytes).unwrap();
        // Whatever comes, it comes as an answer.
        let _ = ask(&options.path);
        match Writer::open(&options) {
            Ok(mut writer) => {
                replaced += aside(&options).len();
                writer.append(&moment(BEGIN * 2, vec![process(7, 1)])).unwrap();
                drop(writer);
                let history = History::open(&options.path).unwrap();
                assert_eq!(history.process(7, BEGIN * 2).unwrap().len(), 1, "seed {seed}");
            }
            Err(StoreError::Foreign { .. } | StoreError::Newer { .. }) => {
                refused += 1;
                assert_eq!(fs::read(&options.path).unwrap(), bytes);
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(replaced > 10, "{replaced} set aside, {refused} refused");
}

/// Damage that shows only while the daemon writes is dealt with then.
#[test]
fn damaged_while_it_is_written() {
    let (_directory, options) = written();
    let mut writer = Writer::open(&options).unwrap();
    let file = OpenOptions::new().write(true).open(&options.path).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    for page in 1..pages {
        file.write_all_at(&[0xff; 4096], page * 4096).unwrap();
    }
    // What SQLite remembers is not read again.
    writer.connection.execute_batch("PRAGMA shrink_memory").unwrap();
    for step in 1..=70 {
        writer.append(&moment(BEGIN * 2 + step, vec![process(7, step)])).unwrap();
    }
    assert_eq!(aside(&options).len(), 1);
    assert_eq!(History::open(&options.path).unwrap().processes(0).unwrap().len(), 1);
}

/// Files that drainprof has not written are refused by readers and writers, and stay as they are.
#[test]
fn foreign_files() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let sqlite = {
        let path = directory.path().join("other.db");
        let other = Connection::open(&path).unwrap();
        other.execute_batch("CREATE TABLE t (a)").unwrap();
        drop(other);
        fs::read(path).unwrap()
    };
    for bytes in [&sqlite, b"hello".as_slice(), &[0; 5000]] {
        fs::write(&options.path, bytes).unwrap();
        for refused in [Writer::open(&options).err(), History::open(&options.path).err()] {
            assert!(matches!(refused, Some(StoreError::Foreign { .. })), "{refused:?}");
        }
        assert_eq!(fs::read(&options.path).unwrap(), bytes);
        let left: Vec<_> = fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "nothing else is made beside it");
    }
    fs::remove_file(&options.path).unwrap();
    fs::create_dir(&options.path).unwrap();
    assert!(matches!(Writer::open(&options), Err(StoreError::Foreign { .. })));
}

/// A later version's file is refused with what to do, and stays as it is.
#[test]
fn later_version() {
    let (_directory, options) = written();
    Connection::open(&options.path).unwrap().pragma_update(None, "user_version", 7).unwrap();
    let bytes = fs::read(&options.path).unwrap();
    for refused in [Writer::open(&options).err(), History::open(&options.path).err()] {
        let refused = refused.unwrap();
        assert!(matches!(refused, StoreError::Newer { found: 7, .. }));
        assert!(refused.to_string().contains("use the later drainprof"), "{refused}");
    }
    assert_eq!(fs::read(&options.path).unwrap(), bytes);
    assert_eq!(aside(&options), Vec::<PathBuf>::new());
}

/// A trigger from elsewhere does not run.
#[test]
fn other_tables() {
    let (_directory, options) = written();
    Connection::open(&options.path)
        .unwrap()
        .execute_batch("CREATE TRIGGER t AFTER INSERT ON moment BEGIN DELETE FROM window; END")
        .unwrap();
    assert!(matches!(History::open(&options.path), Err(StoreError::Corrupt { .. })));
    drop(Writer::open(&options).unwrap());
    assert_eq!(aside(&options).len(), 1);
}

/// A second writer is refused while the first one lives, told who it is, and may when it is gone.
#[test]
fn one_writer() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let first = Writer::open(&options).unwrap();
    let refused = Writer::open(&options).unwrap_err();
    assert!(matches!(refused, StoreError::Busy { .. }));
    let pid = format!("pid {}", std::process::id());
    assert!(refused.to_string().contains(&pid), "{refused}");
    drop(first);
    drop(Writer::open(&options).unwrap());
}

/// A file without content is none yet, and what a begin that was killed has left is no hindrance.
#[test]
fn begun_and_killed() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    fs::write(&options.path, "").unwrap();
    fs::write(directory.path().join("history.db.new"), "half").unwrap();
    assert!(matches!(History::open(&options.path), Err(StoreError::None { .. })));
    drop(Writer::open(&options).unwrap());
    assert_eq!(History::open(&options.path).unwrap().latest().unwrap(), None);
}

//! A writer that is killed at any moment.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use tempfile::tempdir;

use super::{BEGIN, Dice, moment, options, process, report, window};
use crate::{
    Outcome,
    store::{History, StoreError, Writer},
};

/// Where the writer below writes.
const DIRECTORY: &str = "DRAINPROF_TEST_STORE";
/// The writer's test, as the test binary names it.
const WRITER: &str = "store::tests::killed::writer";

/// No test by itself: the process that [`holds_what_was_acknowledged`] kills. Tells each window once it is kept.
#[test]
#[ignore = "run by another test"]
fn writer() {
    let Some(directory) = env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let mut writer = Writer::open(&options(&directory)).unwrap();
    let mut out = std::io::stdout();
    for step in 0.. {
        let now = BEGIN + step * 1000;
        writer.append(&moment(now, (1..=50).map(|pid| process(pid, step)).collect())).unwrap();
        let id = writer.next_window_id();
        let padding = id.to_string().repeat(500);
        writer.window(&window(id, now, Outcome::Finished), Some(&report(&padding))).unwrap();
        writeln!(out, "\nkept {id}").unwrap();
        out.flush().unwrap();
    }
}

/// Killed a hundred times at random moments, the history opens each time, for readers first, and holds every window
/// that was acknowledged, with its report; no number is given twice.
#[test]
fn holds_what_was_acknowledged() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut dice = Dice(42);
    let mut acknowledged: Vec<u64> = Vec::new();
    for round in 0..100 {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([WRITER, "--exact", "--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, reported) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(id) = line.strip_prefix("kept ") {
                    tell.send(id.parse::<u64>().unwrap()).unwrap();
                }
            }
        });
        // Every other time it is left alone until it has kept something.
        if round % 2 == 1 {
            acknowledged.push(reported.recv_timeout(Duration::from_secs(20)).unwrap());
        }
        let end = Instant::now() + Duration::from_micros(dice.roll(60_000));
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            acknowledged.extend(reported.recv_timeout(left));
        }
        child.kill().unwrap();
        reader.join().unwrap();
        acknowledged.extend(reported.iter());
        assert!(acknowledged.is_sorted_by(|one, next| one < next), "{acknowledged:?}");
        child.wait().unwrap();
        let history = match History::open(&options.path) {
            // Killed before it had begun one.
            Err(StoreError::None { .. }) if acknowledged.is_empty() => continue,
            other => other.unwrap(),
        };
        let windows = history.windows(u32::MAX).unwrap();
        for id in &acknowledged {
            assert!(windows.iter().any(|window| window.id == *id && window.has_report), "{id}");
        }
        if let Some(&id) = acknowledged.last() {
            let saved = history.window_report(id).unwrap().unwrap();
            assert_eq!(saved.host.kernel, id.to_string().repeat(500));
        }
    }
    assert!(acknowledged.len() >= 50, "{}", acknowledged.len());
    let files: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().contains("damaged")), "{files:?}");
}

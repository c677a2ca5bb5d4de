//! What is written is read again, as it was.

use drainprof_census::HeapSummary;
use drainprof_profile::Level;
use tempfile::tempdir;

use super::{BEGIN, moment, options, process, report, window};
use crate::{
    Outcome,
    store::{Event, HeapPoint, History, Moment, ProcessMoment, StoreError, Who, Writer},
};

/// Points, counters and memory come back as they were written, and a history that was never begun is reported as that.
#[test]
fn course_of_a_process() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    assert!(matches!(History::open(&options.path), Err(StoreError::None { .. })));
    let mut writer = Writer::open(&options).unwrap();
    for step in 0..10 {
        let time = BEGIN + step * 5000;
        writer.append(&moment(time, vec![process(42, 100 * step), process(43, 7)])).unwrap();
    }
    let history = History::open(&options.path).unwrap();
    let series = history.series(Who::Pid(42), 0).unwrap();
    assert_eq!(series.len(), 1);
    let one = &series[0];
    assert_eq!((one.process.pid, one.process.start_time), (42, 1042));
    assert_eq!(one.process.labels, process(42, 0).labels);
    assert_eq!(one.memory.len(), 10);
    assert_eq!(one.memory[9].memory, process(42, 900).memory);
    assert_eq!((one.memory[9].hits, one.memory[9].level), (1800, Some(Level::Boundary)));
    let points = &one.profiles[0].points;
    assert_eq!(points[9].counts, process(42, 900).profiles[0].counts);
    assert_eq!(
        points[9].added,
        drainprof_report::Counts { opened: 100, drainable: 90, pinned: 10, unknown: 0 }
    );
    assert_eq!(history.series(Who::Process(one.process.id), 0).unwrap(), series);
    assert_eq!(history.latest().unwrap(), Some(BEGIN + 45_000));
}

fn heap(unix_ms: u64, live_bytes: u64) -> HeapPoint {
    HeapPoint {
        unix_ms,
        heap: HeapSummary {
            allocator: "glibc".to_owned(),
            resident_bytes: 1 << 20,
            live_bytes,
            trimmable_bytes: Some(4096),
            ..HeapSummary::default()
        },
    }
}

/// A history of the first version is read as it is, and gets the newer tables from the first writer.
#[test]
fn first_version() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    Writer::open(&options).unwrap().append(&moment(BEGIN, vec![process(42, 100)])).unwrap();
    let connection = rusqlite::Connection::open(&options.path).unwrap();
    connection.execute_batch("DROP TABLE heap; PRAGMA user_version = 1").unwrap();
    drop(connection);
    let read = || History::open(&options.path).unwrap().series(Who::Pid(42), 0).unwrap();
    let before = read();
    assert_eq!((before[0].memory.len(), before[0].heaps.len()), (1, 0));
    let mut writer = Writer::open(&options).unwrap();
    assert_eq!(read(), before);
    let with_heap = ProcessMoment { heaps: vec![heap(BEGIN, 10)], ..process(42, 200) };
    writer.append(&moment(BEGIN + 5000, vec![with_heap])).unwrap();
    assert_eq!((read()[0].memory.len(), read()[0].heaps.len()), (2, 1));
}

/// A census is kept once, however often its moment is written, and goes with its time.
#[test]
fn censuses() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    let (first, second) = (heap(BEGIN, 10), heap(BEGIN + 60_000, 20));
    for (step, point) in [&first, &first, &second].into_iter().enumerate() {
        let one = ProcessMoment { heaps: vec![point.clone()], ..process(42, 1) };
        writer.append(&moment(BEGIN + 30_000 * step as u64, vec![one])).unwrap();
    }
    let history = History::open(&options.path).unwrap();
    let heaps = |since| history.series(Who::Pid(42), since).unwrap()[0].heaps.clone();
    assert_eq!(heaps(0), [first, second.clone()]);
    assert_eq!(heaps(BEGIN + 1), [second]);
}

/// What has changed since a time counts from the look before it, over restarts of the daemon and of the process.
#[test]
fn changes_since() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    for step in 1..=10 {
        writer.append(&moment(BEGIN + step * 1000, vec![process(42, 100 * step)])).unwrap();
    }
    let opened = |since| {
        let changes = History::open(&options.path).unwrap().process(42, since).unwrap();
        changes.iter().map(|change| change.profiles[0].sums.opened).collect::<Vec<_>>()
    };
    assert_eq!(opened(0), [1000]);
    assert_eq!(opened(BEGIN + 8000), [300]);
    assert_eq!(opened(BEGIN + 10_500), [0; 0]);
    // The next daemon counts from 0, more than the one before had: nothing of it is taken for the same.
    drop(writer);
    let mut writer = Writer::open(&options).unwrap();
    writer.append(&moment(BEGIN + 20_000, vec![process(42, 5000)])).unwrap();
    assert_eq!(opened(BEGIN + 15_000), [5000]);
    assert_eq!(opened(0), [6000]);
    // A counter that falls is a new one.
    writer.append(&moment(BEGIN + 30_000, vec![process(42, 50)])).unwrap();
    assert_eq!(opened(0), [6050]);
    // Another start time is another process.
    let mut other = process(42, 10);
    other.start_time = 1;
    writer.append(&moment(BEGIN + 40_000, vec![other])).unwrap();
    let mut all = opened(0);
    all.sort_unstable();
    assert_eq!(all, [10, 6050]);
}

/// Another boot of the machine has other processes, whatever their numbers.
#[test]
fn boots_are_told_apart() {
    let directory = tempdir().unwrap();
    let mut options = options(directory.path());
    for boot in ["one", "other"] {
        options.boot = Some(boot.to_owned());
        let mut writer = Writer::open(&options).unwrap();
        writer.append(&moment(BEGIN, vec![process(42, 10)])).unwrap();
    }
    assert_eq!(History::open(&options.path).unwrap().processes(0).unwrap().len(), 2);
}

/// Windows keep their reports, and numbers are not given twice, not even after a restart.
#[test]
fn windows_and_reports() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    let id = writer.next_window_id();
    writer.window(&window(id, BEGIN, Outcome::Running), None).unwrap();
    let saved = report(&"6.18 ".repeat(1000));
    writer.window(&window(id, BEGIN, Outcome::Finished), Some(&saved)).unwrap();
    // Written again without it, the report stays.
    writer.window(&window(id, BEGIN, Outcome::Finished), None).unwrap();
    let given = writer.next_window_id();
    writer.window(&window(given, BEGIN, Outcome::Running), None).unwrap();
    let unused = writer.next_window_id();
    drop(writer);
    let mut writer = Writer::open(&options).unwrap();
    assert!(writer.next_window_id() > unused);
    writer.append(&moment(BEGIN, Vec::new())).unwrap();
    let history = History::open(&options.path).unwrap();
    let windows = history.windows(10).unwrap();
    assert_eq!(windows.iter().map(|window| window.id).collect::<Vec<_>>(), [given, id]);
    assert!(windows[1].has_report && !windows[0].has_report);
    // What ran when the daemon went does not run any more.
    assert_eq!(windows[0].outcome, Outcome::Interrupted);
    assert_eq!(history.window_report(id).unwrap(), Some(saved));
    assert_eq!(history.window_report(given).unwrap(), None);
    assert_eq!(history.window_report(u64::MAX).unwrap(), None);
}

/// Levels, alerts and the kill switch are reported when they change, and once.
#[test]
fn events_are_told_once() {
    let quiet = moment(BEGIN, vec![process(42, 1)]);
    let mut loud = moment(BEGIN + 1, vec![process(42, 1)]);
    loud.killed = true;
    loud.processes[0].level = Some(Level::Stacks);
    loud.processes[0].firing.insert("dsr_low".to_owned(), "DSR 0.4".to_owned());
    let kinds = |now: &Moment, before| {
        now.events(before).into_iter().map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&quiet, None), ["level"]);
    assert_eq!(kinds(&quiet, Some(&quiet)), [""; 0]);
    assert_eq!(kinds(&loud, Some(&quiet)), ["kill", "level", "alert"]);
    assert_eq!(kinds(&quiet, Some(&loud)), ["kill", "level", "alert_over"]);

    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    for moment in [&quiet, &quiet, &loud, &loud, &quiet] {
        writer.append(moment).unwrap();
    }
    let own = Event {
        unix_ms: BEGIN + 2,
        pid: None,
        kind: "reload".to_owned(),
        text: "read again".to_owned(),
    };
    writer.event(&own).unwrap();
    let history = History::open(&options.path).unwrap();
    let events = history.events(None, 0).unwrap();
    assert_eq!(events.len(), 8);
    assert_eq!(events[7], own);
    assert_eq!(history.events(Some(42), 0).unwrap().len(), 5);
    assert_eq!(history.events(None, BEGIN + 3).unwrap(), []);
}

/// Readers see whole examines the node only, while one is written after the other.
#[test]
fn reads_while_it_is_written() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    writer.append(&moment(BEGIN, (1..=20).map(|pid| process(pid, 0)).collect())).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            loop {
                let last = done.load(std::sync::atomic::Ordering::Acquire);
                let changes = History::open(&options.path).unwrap().processes(0).unwrap();
                assert_eq!(changes.len(), 20);
                let opened = changes[0].profiles[0].sums.opened;
                assert!(changes.iter().all(|one| one.profiles[0].sums.opened == opened));
                reads += 1;
                if last {
                    return (reads, opened);
                }
            }
        });
        for step in 1..=300 {
            let processes = (1..=20).map(|pid| process(pid, step)).collect();
            writer.append(&moment(BEGIN + step * 1000, processes)).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Release);
        let (reads, opened) = reader.join().unwrap();
        assert!(reads >= 2);
        assert_eq!(opened, 300);
    });
}

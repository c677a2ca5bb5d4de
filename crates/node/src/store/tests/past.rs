//! States as they are read back.

use drainprof_census::HeapSummary;
use drainprof_profile::Level;
use tempfile::tempdir;

use super::{BEGIN, moment, options, process};
use crate::store::{HeapPoint, History, Moment, ProcessMoment, Writer};

/// A state with everything that is kept.
fn state(step: u64) -> Moment {
    let time = BEGIN + step * 5_000;
    let heap = HeapSummary {
        allocator: "glibc".to_owned(),
        resident_bytes: step << 20,
        trimmable_bytes: Some(step),
        ..HeapSummary::default()
    };
    let mut one = ProcessMoment {
        heaps: vec![HeapPoint { unix_ms: time - time % 20_000, heap }],
        level: if step < 3 { Some(Level::Boundary) } else { Some(Level::Stacks) },
        reason: if step < 3 { "as configured" } else { "a window: it runs" }.to_owned(),
        ..process(42, step * 100)
    };
    // Its census is taken every fourth time.
    one.heaps[0].heap.resident_bytes = (step / 4) << 20;
    one.heaps[0].heap.trimmable_bytes = Some(step / 4);
    if (4..7).contains(&step) {
        one.firing.insert("dsr_low".to_owned(), "DSR 0.4: too low".to_owned());
    }
    let mut processes = vec![one];
    // The second process has the pid of an earlier one, of which an alert has fired to its end.
    if step < 5 {
        let mut earlier = process(50, step);
        earlier.firing.insert("rss_growth".to_owned(), "it grows".to_owned());
        processes.push(earlier);
    } else if step > 5 {
        processes.push(ProcessMoment { start_time: 9_999_999, ..process(50, step) });
    }
    Moment { some_avg10: Some(0.25), full_avg10: Some(0.125), ..moment(time, processes) }
}

/// Every state is read back as it was written: of each time the last one before it, next to it the next.
#[test]
fn as_it_was() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    let states: Vec<Moment> = (0..12).map(state).collect();
    for state in &states {
        assert!(writer.append(state).is_ok());
    }
    let history = History::open(&options.path).unwrap();
    assert_eq!(history.moment_at(BEGIN - 1).unwrap(), None);
    for state in &states {
        assert_eq!(history.moment_at(state.unix_ms).unwrap().as_ref(), Some(state));
        assert_eq!(history.moment_at(state.unix_ms + 4_999).unwrap().as_ref(), Some(state));
        let next = history.next_after(state.unix_ms).unwrap();
        assert_eq!(next, (state.unix_ms < states[11].unix_ms).then_some(state.unix_ms + 5_000));
    }
    let readings = history.readings(BEGIN + 5_000, BEGIN + 15_000).unwrap();
    let own: Vec<_> =
        readings[&(42, 1042)].iter().map(|(time, memory)| (*time, memory.rss_bytes)).collect();
    let expected = |step: u64| (BEGIN + step * 5_000, (100 << 20) + step * 100);
    assert_eq!(own, [1, 2, 3].map(expected));
}

/// What an earlier daemon told of a process is not told of it any more once another has begun.
#[test]
fn another_run() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    for step in [4, 8] {
        let mut writer = Writer::open(&options).unwrap();
        assert!(writer.append(&state(step)).is_ok());
    }
    let history = History::open(&options.path).unwrap();
    let first = history.moment_at(BEGIN + 20_000).unwrap().unwrap();
    assert_eq!(first.processes[0].firing.len(), 1);
    let second = history.moment_at(BEGIN + 40_000).unwrap().unwrap();
    assert_eq!(second, state(8));
}

use std::{sync::mpsc, thread};

use super::*;

/// Work that gets its answers is waited for, however long it takes; what asks and gets none is left behind, named,
/// and its device given up until the answer comes.
#[test]
fn hanging_files() {
    let busy = guarded(|| {
        let until = Instant::now() + LIMIT + PAUSE * 3;
        while Instant::now() < until {
            ask(|| thread::sleep(PAUSE));
        }
        // On a watched thread, work is not handed on.
        guarded(|| thread::current().name().map(str::to_owned))
    });
    assert_eq!(busy, Ok(Ok(Some("readers".to_owned()))));
    assert_eq!(guarded(|| panic!("a defect")), Err::<(), _>(Stuck::NoThread));

    let (answer, waits) = mpsc::channel::<()>();
    let began = Instant::now();
    let stuck = guarded(move || {
        reads(Some(7), "x.so");
        let is_answered = ask(|| waits.recv()).is_ok();
        reads(Some(9), "another file");
        is_answered
    });
    assert_eq!(stuck, Err(Stuck::Hangs { file: "x.so".to_owned() }));
    assert!(began.elapsed() < LIMIT * 3);
    assert!(is_given_up(7) && !is_given_up(8) && !is_cautious());
    assert_eq!(given_up(), ["x.so"]);
    answer.send(()).unwrap();
    while is_given_up(7) {
        assert!(began.elapsed() < LIMIT * 10, "the answer has come");
        thread::yield_now();
    }
    assert_eq!(given_up(), Vec::<String>::new());
}

/// A thread that computes hangs nowhere, also if it asks for long.
#[test]
fn computing() {
    let busy = start(|| {
        let until = Instant::now() + PROCESS_LIMIT * 2;
        ask_process(1, || while Instant::now() < until {});
        7
    });
    assert!(matches!(busy.unwrap().wait(PROCESS_LIMIT), Ok(7)));
}

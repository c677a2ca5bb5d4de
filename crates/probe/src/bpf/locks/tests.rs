use super::*;

/// Where the kernel lets us: a file that is mapped has mappers, one that no process maps has none, and neither is in
/// anybody's way. (Locks that are held: `tests/tests/hostile_silent.rs`.)
#[test]
fn free_files() {
    let Some(checker) = CHECKER.as_ref() else { return };
    let own = File::open("/proc/self/exe").unwrap();
    let unmapped = tempfile::tempfile().unwrap();
    unmapped.set_len(4096).unwrap();
    let of = |file| mappers::of(file, &checker.programs, checker.fields).unwrap();
    assert!(!of(&own).is_empty());
    // The mapping that finds it is gone before the walk.
    assert_eq!(of(&unmapped), BTreeSet::new());
    assert_eq!(check(&own), Ok(()));
    assert!(checker.programs.peek(0).is_err());
}

/// What each check costs here.
#[test]
#[ignore = "a measurement"]
fn cost() {
    let began = Instant::now();
    let checker = CHECKER.as_ref().unwrap();
    eprintln!("load {:?}", began.elapsed());
    let own = File::open("/proc/self/exe").unwrap();
    let libc = File::open("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
    for _ in 0..5 {
        let began = Instant::now();
        let held = checker.programs.held().unwrap();
        let look = began.elapsed();
        let began = Instant::now();
        let _ = check(&own);
        let whole = began.elapsed();
        let began = Instant::now();
        let found = mappers::of(&libc, &checker.programs, checker.fields).unwrap();
        eprintln!(
            "look {look:?} ({}) check {whole:?} walk {:?} ({})",
            held.len(),
            began.elapsed(),
            found.len()
        );
    }
}

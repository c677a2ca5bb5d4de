//! Helpers that do what they may not, or more than they may: what that costs, and that the next one serves.

mod objects;

use std::{
    env, fs,
    fs::File,
    hint::black_box,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::{sys::signal::kill, unistd::Pid};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::{
    helper::{Helper, HelperError},
    wire::{self, MAX_REQUEST, Part, Request},
    worker,
};
use crate::testing::cc;

const LIMIT: Duration = Duration::from_secs(20);
/// What `becomes_a_helper` does; without it, it is no helper.
const WHAT: &str = "DRAINPROF_TEST_HELPER";
/// A first message that says nothing.
const HELLO: &str = r"printf '\002\000\000\000{}' >&0;";

fn script(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("helper");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A program that becomes a helper which does `first` over its first question, and serves from the second start on.
fn misbehaves(directory: &Path, first: &str) -> Helper {
    let this = env::current_exe().unwrap();
    let (this, marker) = (this.display(), directory.join("started"));
    let text = format!(
        "what=serve; [ -e {marker} ] || what={first}; : > {marker}\n\
         {WHAT}=$what exec {this} --exact symbolize::tests::becomes_a_helper --nocapture",
        marker = marker.display(),
    );
    Helper::new(script(directory, &text))
}

/// In a helper of these tests, this is the helper.
#[test]
fn becomes_a_helper() {
    let Ok(what) = env::var(WHAT) else { return };
    if what == "serve" {
        worker::serve().unwrap();
        return;
    }
    // So that the tests of limits are short. What is less already stays.
    for (resource, most) in [(Resource::Cpu, 1), (Resource::Data, 256 << 20)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most + 1) }).unwrap();
    }
    let mut stream = worker::confine().unwrap().unwrap();
    wire::receive::<Request>(&mut stream, MAX_REQUEST, None).unwrap();
    match &*what {
        "connect" => drop(UnixStream::pair()),
        "open" => drop(File::open("/etc/passwd")),
        "reopen" => drop(File::open("/proc/self/fd/0")),
        "stat" => drop(fs::metadata("/")),
        "execute" => drop(Command::new("/bin/true").spawn()),
        "thread" => drop(thread::Builder::new().spawn(|| {})),
        "signal" => drop(kill(Pid::from_raw(1), None)),
        "memory" => {
            let mut all = Vec::new();
            loop {
                all.push(black_box(vec![1_u8; 16 << 20]));
            }
        }
        "loop" => loop {
            black_box(());
        },
        other => panic!("{other}"),
    }
    // Only a helper that was not stopped gets here.
    let answer = wire::Answer { names: vec![None], trouble: None };
    wire::send(&mut stream, &answer, &[]).unwrap();
}

/// Each forbidden system call ends the helper, and so does each limit. That costs the names of one object; those of
/// the next come from a new helper.
#[test]
fn what_is_forbidden_costs_one_object() {
    let directory = tempfile::tempdir().unwrap();
    let source = "int entry(int x) { return x + 1; }\n";
    let path = cc(directory.path(), "sample", source, &["-g", "-shared", "-nostdlib"]);
    let elf = crate::Elf::open(&path, "sample", crate::DebugSearch::default()).unwrap();
    let entry = elf.resolve("entry")[0].vaddr;
    let file = File::open(&path).unwrap();
    let forbidden = "made a system call that it may not make";
    for (what, reported) in [
        ("connect", forbidden),
        ("open", forbidden),
        ("reopen", forbidden),
        ("stat", forbidden),
        ("execute", forbidden),
        ("thread", forbidden),
        ("signal", forbidden),
        ("memory", "was out of memory"),
        ("loop", "its processor time was used up"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut helper = misbehaves(directory.path(), what);
        let error = helper.ask(&[(Part::Object, &file)], &[entry], LIMIT).unwrap_err();
        assert!(matches!(error, HelperError::Died { .. }), "{what}: {error}");
        assert!(error.to_string().contains(reported), "{what}: {error}");
        let names = helper.ask(&[(Part::Object, &file)], &[entry], LIMIT).unwrap().names;
        let name = names[0].as_ref().unwrap();
        assert_eq!((name.function.as_str(), name.line), ("entry", Some(1)), "{what}");
    }
}

/// What drainprof sees of a helper is what the kernel says of it.
#[test]
fn confinement_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let mut helper = misbehaves(directory.path(), "serve");
    let seen = helper.confinement().unwrap();
    assert_eq!((seen.capabilities, seen.no_new_privileges, seen.filtered), (0, true, true));
    let own = nix::unistd::geteuid();
    let user = if own.is_root() { super::sandbox::NOBODY } else { own.as_raw() };
    assert_eq!(seen.user, user, "{seen:?}");
}

/// A helper that hangs is ended in time, one that dies or talks nonsense is no answer, and after a number
/// of deaths no other is started.
#[test]
fn bad_helpers() {
    let directory = tempfile::tempdir().unwrap();
    let file = tempfile::tempfile().unwrap();
    let files = [(Part::Object, &file)];
    let cases = [
        ("exec sleep 1000", "took longer"),
        ("exit 3", "died"),
        ("kill -SEGV $$", "died of signal 11"),
        ("printf '\\377\\377\\377\\377' >&0; exec sleep 1000", "not believed"),
        ("printf '\\014\\000\\000\\000{\"names\":[]}' >&0; exec sleep 1000", "does not fit"),
    ];
    for (text, reported) in cases {
        let mut helper = Helper::new(script(directory.path(), &format!("{HELLO} {text}")));
        let began = Instant::now();
        let error = helper.ask(&files, &[1], Duration::from_millis(500)).unwrap_err();
        assert!(matches!(error, HelperError::Died { .. }), "{text}: {error}");
        assert!(error.to_string().contains(reported), "{text}: {error}");
        assert!(began.elapsed() < LIMIT, "{text}");
    }
    // One that does not even start, and one that does and dies.
    for text in ["exit 0", &format!("{HELLO} exit 0")] {
        let mut helper = Helper::new(script(directory.path(), text));
        for _ in 0..8 {
            let error = helper.ask(&files, &[1], LIMIT).unwrap_err();
            assert!(error.to_string().contains("symbol helper"), "{error}");
            assert!(!matches!(error, HelperError::GivenUp), "{error}");
        }
        let error = helper.ask(&files, &[1], LIMIT).unwrap_err();
        assert!(matches!(error, HelperError::GivenUp), "{error}");
    }
}

/// A helper that cannot confine itself is asked nothing, and no other is started.
#[test]
fn unconfined_helpers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = tempfile::tempfile().unwrap();
    let count = directory.path().join("starts");
    let hello = r#"printf '\027\000\000\000{"refused":"no filter"}' >&0; cat"#;
    let text = format!("echo >> {}; {hello}", count.display());
    let mut helper = Helper::new(script(directory.path(), &text));
    for _ in 0..2 {
        let error = helper.ask(&[(Part::Object, &file)], &[1], LIMIT).unwrap_err();
        assert!(matches!(error, HelperError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("because no filter"), "{error}");
    }
    assert_eq!(fs::read_to_string(count).unwrap(), "\n");
}

/// A program that is not there is named.
#[test]
fn no_program() {
    let file = tempfile::tempfile().unwrap();
    let mut helper = Helper::new(PathBuf::from("/nowhere/drainprof"));
    let error = helper.ask(&[(Part::Object, &file)], &[1], LIMIT).unwrap_err();
    assert!(error.to_string().contains("/nowhere/drainprof"), "{error}");
}

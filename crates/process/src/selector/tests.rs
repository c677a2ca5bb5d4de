//! A procfs of files, with the groups that runtimes make.

use std::fs;

use tempfile::TempDir;

use super::*;

const ID: &str = "8f2c1d3a4b5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8";
const TWIN: &str = "8f2c1d3a4b5eff112233445566778899aabbccddeeff00112233445566778899";
const OTHER: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Numbers that no process of this machine has.
const BASE: u32 = 5_000_000;

/// State, flags, name and control group of each process; their numbers count from `BASE`.
fn proc(processes: &[(char, u32, &str, &str)]) -> TempDir {
    let proc = tempfile::tempdir().unwrap();
    for (pid, (state, flags, comm, group)) in (BASE..).zip(processes) {
        let own = proc.path().join(pid.to_string());
        fs::create_dir(&own).unwrap();
        let zeros = "0 ".repeat(12);
        let stat =
            format!("{pid} ({comm}) {state} 1 1 1 0 -1 {flags} {zeros}{} 0 0\n", 100 + pid - BASE);
        fs::write(own.join("stat"), stat).unwrap();
        fs::write(own.join("cgroup"), format!("0::{group}\n")).unwrap();
    }
    proc
}

fn found(proc: &TempDir, selector: &Selector) -> Vec<u32> {
    match selector.find_in(proc.path()) {
        Ok(found) => {
            for Selected { pid, start_time } in &found {
                assert_eq!(*start_time, u64::from(100 + pid - BASE), "{selector}");
            }
            found.iter().map(|process| process.pid - BASE).collect()
        }
        Err(SelectError::NoMatch { .. }) => Vec::new(),
        Err(error) => panic!("{selector}: {error}"),
    }
}

/// A name is that of programs that run, compared whole, in the bytes that the kernel keeps of it.
#[test]
fn names() {
    let proc = proc(&[
        ('S', 0, "worker", "/"),
        ('S', 0, "worker2", "/"),
        ('R', 0, "worker", "/"),
        ('Z', 0, "worker", "/"),
        ('S', 0x0020_0000, "worker", "/"),
        ('S', 0, "a very long nam", "/"),
        ('S', 0, ") S 1 (odd", "/"),
    ]);
    fs::create_dir(proc.path().join("self")).unwrap();
    fs::create_dir(proc.path().join((BASE + 99).to_string())).unwrap();
    let named = |name: &str| found(&proc, &Selector::Comm(name.to_owned()));
    assert_eq!(named("worker"), [0, 2]);
    assert_eq!(named("a very long name that was cut"), [5]);
    assert_eq!(named(") S 1 (odd"), [6]);
    assert_eq!(named("work"), [0; 0]);
    let error = Selector::Comm("no\x1b[2J".into()).find_in(proc.path()).unwrap_err().to_string();
    assert!(error.contains(r"--comm no\u{1b}[2J: `ps"), "{error}");
}

/// A unit has its own processes and those in groups below it, but not those of a user's services.
#[test]
fn units() {
    let proc = proc(&[
        ('S', 0, "a", "/system.slice/nginx.service"),
        ('S', 0, "b", "/system.slice/nginx.service/payload"),
        ('S', 0, "c", "/system.slice/nginx.service2"),
        ('S', 0, "d", "/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.socket"),
        ('S', 0, "e", "/user.slice/user-1000.slice/user@1000.service/init.scope"),
    ]);
    let of = |unit: &str| found(&proc, &Selector::Unit(unit.to_owned()));
    assert_eq!(of("nginx.service"), [0, 1]);
    assert_eq!(of("nginx"), [0, 1]);
    assert_eq!(of("nginx.socket"), [3]);
    assert_eq!(of("user@1000.service"), [0; 0]);
    assert_eq!(of("init.scope"), [4]);
    assert_eq!(of("system.slice"), [0; 0]);
}

/// The first digits of an id suffice, of any runtime; digits that fit two containers choose none.
#[test]
fn containers() {
    let docker = format!("/system.slice/docker-{ID}.scope/init.scope");
    let pod = format!("/kubepods/burstable/pod2d7e3f1c-5c1a-4f0e-9a55-0b1c2d3e4f50/{OTHER}");
    let inner = format!("/docker/{OTHER}/kubepods/crio-{ID}");
    let conmon = format!("/machine.slice/libpod-conmon-{ID}.scope");
    let one = proc(&[
        ('S', 0, "a", &docker),
        ('S', 0, "b", &pod),
        ('S', 0, "c", &inner),
        ('S', 0, "d", &conmon),
    ]);
    let of = |digits: &str| found(&one, &Selector::Container(digits.to_owned()));
    assert_eq!(of(ID), [0, 2]);
    assert_eq!(of(&ID[..12]), [0, 2]);
    assert_eq!(of(&OTHER[..12]), [1, 2]);
    assert_eq!(of(&ID[1..13]), [0; 0]);

    let two = proc(&[('S', 0, "a", &docker), ('S', 0, "b", &format!("/docker/{TWIN}"))]);
    let error = Selector::Container(ID[..12].to_owned()).find_in(two.path()).unwrap_err();
    assert!(error.to_string().contains(&format!("{ID}, {TWIN}")), "{error}");
    assert_eq!(found(&two, &Selector::Container(ID[..13].to_owned())), [0]);
}

/// A group has its processes and those below it; names are compared whole.
#[test]
fn groups() {
    let proc = proc(&[
        ('S', 0, "a", "/apps"),
        ('S', 0, "b", "/apps/web (deleted)"),
        ('S', 0, "c", "/apps2/web"),
        ('S', 0, "d", "/"),
    ]);
    let of = |group: &str| found(&proc, &Selector::Cgroup(group.to_owned()));
    assert_eq!(of("/apps"), [0, 1]);
    assert_eq!(of("apps/"), [0, 1]);
    assert_eq!(of("/apps/web"), [1]);
    assert_eq!(of("/"), [0, 1, 2, 3]);
    assert_eq!(of("/app"), [0; 0]);
}

/// Without procfs nothing can be said, which is not the same as no process.
#[test]
fn no_procfs() {
    let gone = Path::new("/nonexistent");
    let error = Selector::Comm("a".into()).find_in(gone).unwrap_err();
    assert!(matches!(error, SelectError::List(_)), "{error}");
}

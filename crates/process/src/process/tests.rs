use std::{path::Path, process::Command};

use super::*;
use crate::testing::Waiting;

/// A living child is opened with all that identifies it, and is seen to end through its pidfd.
#[test]
fn open_and_end() {
    let child = Waiting::start(Path::new("/bin/cat"));
    let process = Process::open(child.pid()).unwrap();
    assert_eq!(process.comm, "cat");
    assert!(
        process.exe.ends_with("cat") || process.exe.ends_with("coreutils"),
        "{:?}",
        process.exe
    );
    assert_eq!(process.uid, nix::unistd::geteuid().as_raw());
    assert!(process.rss_bytes().unwrap() > 0);
    assert_eq!(process.threads().unwrap(), [child.pid()]);
    assert!(process.is_alive());
    let fd = process.pidfd().unwrap();
    let mut poll =
        [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&fd), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut poll, 0_u8).unwrap(), 0, "it still runs");
    drop(child);
    assert_eq!(nix::poll::poll(&mut poll, 0_u8).unwrap(), 1, "it has ended");
    assert!(!process.is_alive());
    assert!(matches!(process.pidfd(), Err(ProcessError::Ended { .. })));
    assert!(matches!(process.rss_bytes(), Err(ProcessError::Ended { .. })));
    assert!(matches!(Process::open(process.pid), Err(ProcessError::NoSuchProcess { .. })));
}

/// Another start time makes another process of the same number.
#[test]
fn a_reused_number_is_another_process() {
    let mut process = Process::myself().unwrap();
    assert!(process.is_alive());
    process.start_time += 1;
    assert!(!process.is_alive());
    assert!(matches!(process.pidfd(), Err(ProcessError::Ended { .. })));
}

/// drainprof refuses itself, but can examine itself on purpose.
#[test]
fn not_myself() {
    let pid = std::process::id();
    assert!(matches!(Process::open(pid), Err(ProcessError::Myself { pid: found }) if found == pid));
    assert_eq!(Process::myself().unwrap().pid, pid);
}

/// A thread's number is answered with its process's number.
#[test]
fn a_thread_is_no_process() {
    let (tid_out, tid_in) = std::sync::mpsc::channel();
    let (done_out, done_in) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tid_out.send(nix::unistd::gettid().as_raw().unsigned_abs()).unwrap();
        let _ = done_in.recv();
    });
    let tid = tid_in.recv().unwrap();
    let error = Process::open(tid).unwrap_err();
    assert!(
        matches!(error, ProcessError::IsThread { tid: t, pid } if t == tid && pid == std::process::id()),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("use -p {}", std::process::id())));
    assert!(Process::myself().unwrap().threads().unwrap().contains(&tid));
    drop(done_out);
    thread.join().unwrap();
}

/// A process that has exited and was not reaped is called what it is.
#[test]
fn zombie() {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let mut child = Command::new("/bin/true").spawn().unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    // Returns once it has exited, and leaves it unreaped.
    waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
    let error = Process::open(child.id()).unwrap_err();
    assert!(matches!(&error, ProcessError::Zombie { comm, .. } if comm == "true"), "{error}");
    child.wait().unwrap();
}

/// Kernel threads are refused as such, where there are any in sight.
#[test]
fn kernel_thread() {
    let Ok(stat) = read_stat(2) else { return };
    if stat.flags & PF_KTHREAD == 0 {
        // In a container number 2 is an ordinary process.
        return;
    }
    assert!(matches!(Process::open(2), Err(ProcessError::KernelThread { .. })));
}

/// Numbers that no process can have are answered without a check of anything else.
#[test]
fn impossible_numbers() {
    for pid in [0, u32::MAX, i32::MAX.unsigned_abs()] {
        assert!(matches!(Process::open(pid), Err(ProcessError::NoSuchProcess { .. })), "{pid}");
    }
}

/// The state line is parsed whatever the process calls itself, and damage is no panic.
#[test]
fn hostile_stat_lines() {
    let tail = " S 1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
    for name in ["a b", ") R 1 (", "x)\n(y", "\u{1b}[31m", ""] {
        let stat = parse_stat(format!("42 ({name}){tail}").as_bytes()).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state, stat.start_time), (name, b'S', 777));
    }
    let cut = [b"42 (\xc3)".as_slice(), tail.as_bytes()].concat();
    assert_eq!(parse_stat(&cut).unwrap().comm, "\u{fffd}", "half a character");
    for bad in ["", "(", ")(", "42 (x", "42 (x)", "42 (x) S 1 2", "42 (x) S a b c d e f g h i"] {
        assert!(parse_stat(bad.as_bytes()).is_none(), "{bad}");
    }
}

/// A 32-bit process is known by the vector that the kernel has given it; damage and nothing are no such vector.
#[test]
fn narrow_processes() {
    let own = fs::read("/proc/self/auxv").unwrap();
    assert!(!is_narrow(&own));
    let vector =
        |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    // AT_SYSINFO, AT_PHDR, AT_PHENT.
    let narrow = vector(&[32, 0xf7f0_0000, 3, 0x0804_8034, 4, 32, 0, 0]);
    assert!(is_narrow(&narrow));
    for cut in 0..24 {
        assert!(!is_narrow(&narrow[..cut]), "{cut}");
    }
    assert!(!is_narrow(&vector(&[0, 0, 4, 32])));
}

/// A process that executes the same program again has another image, one that does not has the same, one that ended none.
#[test]
fn images() {
    use std::{
        io::{Read as _, Write as _},
        process::Stdio,
    };
    let own = std::process::id();
    assert!(executed_image(own).is_some());
    assert_eq!(executed_image(own), executed_image(own));
    let mut sh = Command::new("sh");
    sh.args(["-c", "echo; read x; exec sh -c 'read x'"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut sh = sh.spawn().unwrap();
    sh.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let before = executed_image(sh.id());
    assert!(before.is_some());
    let mut stdin = sh.stdin.take().unwrap();
    stdin.write_all(b"\n").unwrap();
    while executed_image(sh.id()) == before {
        std::thread::yield_now();
    }
    drop(stdin);
    // It ends, and is not reaped yet.
    while executed_image(sh.id()).is_some() {
        std::thread::yield_now();
    }
    sh.wait().unwrap();
}

//! One machine: boot it, follow its serial line, and end it in time.
//!
//! The line carries marks of the init script and, between them, what a test binary prints. Only the qemu
//! process started here is ever killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::matrix::Run;
use crate::busy::Stretch;
use crate::tally::{Reader, Style, Tally};
use crate::{test, work};

/// Begins a line that the init script writes for this side.
pub(super) const MARK: &str = "@@drainprof";

/// With KVM a machine says its first word within seconds; where nested virtualisation is broken, never.
const KVM_FIRST_WORD: Duration = Duration::from_secs(20);

/// What to boot.
pub(super) struct Machine<'a> {
    pub(super) name: &'a str,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// The first is the root file system, where there is one; none is written to.
    pub(super) disks: &'a [&'a Path],
    pub(super) seconds: u64,
    /// Whether to show the serial line from the script's first word on.
    pub(super) verbose: bool,
    /// Whether to try KVM; becomes false once it has not worked. All machines share it.
    pub(super) kvm: &'a AtomicBool,
    pub(super) runs: &'a [Run],
}

/// Boots the machine, runs its tests, and returns their sum.
pub(super) fn boot(machine: &Machine<'_>) -> Result<Tally> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if machine.kvm.load(Ordering::Relaxed) && device.is_ok() {
        match attempt(machine, Some(KVM_FIRST_WORD))? {
            Outcome::Ran(tally) => return Ok(tally),
            Outcome::Silent => work::note("KVM is there but does not work; emulating instead"),
        }
    }
    machine.kvm.store(false, Ordering::Relaxed);
    match attempt(machine, None)? {
        Outcome::Ran(tally) => Ok(tally),
        Outcome::Silent => {
            bail!("it never came up; boot {} by hand to see", machine.kernel.display())
        }
    }
}

/// How an attempt ended.
enum Outcome {
    /// The init script ran.
    Ran(Tally),
    /// It never said a word.
    Silent,
}

/// One boot; with `first_word` by KVM, which must bring the script up in that time.
fn attempt(machine: &Machine<'_>, first_word: Option<Duration>) -> Result<Outcome> {
    let how = if first_word.is_some() { "KVM" } else { "emulation" };
    work::step(format!("vm: boot kernel {} ({how}, at most {} s)", machine.name, machine.seconds));
    let mut qemu = Command::new("qemu-system-x86_64");
    match first_word {
        // What qemu says of a KVM that does not work would only worry: emulation follows.
        Some(_) => qemu.args(["-accel", "kvm", "-cpu", "host"]).stderr(Stdio::null()),
        None => {
            // In one thread: with several, emulated processors can run into instructions that the kernel is just
            // patching (it does when the first probe comes and the last one goes), and panic.
            qemu.args(["-accel", "tcg,thread=single"])
        }
    };
    qemu.args([
        "-m",
        "1536",
        "-smp",
        "2",
        "-nographic",
        "-nodefaults",
        "-nic",
        "none",
        "-no-reboot",
    ]);
    qemu.args(["-serial", "stdio", "-monitor", "none"]);
    qemu.arg("-kernel").arg(machine.kernel).arg("-initrd").arg(machine.initrd);
    for disk in machine.disks {
        let disk = disk.display();
        qemu.args(["-drive", &format!("file={disk},format=raw,if=virtio,snapshot=on")]);
    }
    let root =
        if machine.disks.is_empty() { "" } else { " root=/dev/vda rw systemd.show_status=no" };
    let line = format!("console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off{root}");
    qemu.args(["-append", &line]);
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child =
        qemu.spawn().context("run qemu-system-x86_64; `cargo xtask setup` installs it")?;
    let lines = follow(&mut child)?;
    let (started, stretch) = (Instant::now(), Stretch::begin());
    let outcome = listen(machine, &lines, started, first_word);
    // It has powered off, or it is too late: in both cases it must be gone before this returns.
    let _ = child.kill();
    child.wait().context("wait for qemu")?;
    if let Outcome::Ran(tally) = &outcome {
        test::tell(&format!("kernel {}", machine.name), tally, &stretch);
    }
    Ok(outcome)
}

/// The serial line, line by line.
fn follow(child: &mut Child) -> Result<Receiver<String>> {
    let serial = child.stdout.take().context("qemu has no stdout")?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(serial).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()).is_err()
            {
                break;
            }
        }
    });
    Ok(lines)
}

/// Reads until the machine is done, silent for too long, or out of time.
fn listen(
    machine: &Machine<'_>,
    lines: &Receiver<String>,
    started: Instant,
    first_word: Option<Duration>,
) -> Outcome {
    let whole = Duration::from_secs(machine.seconds);
    let mut session = Session::new(machine.name);
    loop {
        let limit = first_word.filter(|_| !session.up).unwrap_or(whole).min(whole);
        match lines.recv_timeout(limit.saturating_sub(started.elapsed())) {
            Ok(line) => {
                // Before the script's first word the line carries the firmware's and the kernel's talk.
                if machine.verbose && (session.up || line.contains(MARK)) {
                    println!("[{}] {line}", machine.name);
                }
                session.line(&line);
                if session.done {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    if session.up { Outcome::Ran(session.finish(machine.runs)) } else { Outcome::Silent }
}

/// What the serial line has said so far.
struct Session<'a> {
    machine: &'a str,
    up: bool,
    done: bool,
    reader: Option<Reader>,
    ended: usize,
    tally: Tally,
}

impl<'a> Session<'a> {
    fn new(machine: &'a str) -> Self {
        Self { machine, up: false, done: false, reader: None, ended: 0, tally: Tally::default() }
    }

    fn line(&mut self, line: &str) {
        // A test's last output may lack its line end, so a mark may stand anywhere.
        let Some((before, mark)) = line.split_once(MARK) else {
            if let Some(reader) = &mut self.reader {
                reader.line(line);
            }
            return;
        };
        if let Some(reader) = self.reader.as_mut().filter(|_| !before.is_empty()) {
            reader.line(before);
        }
        let words: Vec<&str> = mark.split_whitespace().collect();
        match words[..] {
            ["kernel", ..] => self.up = true,
            ["begin", name] => {
                let name = format!("kernel {}: {name}", self.machine);
                self.reader = Some(Reader::new(name, Style::Sequential));
            }
            ["end", name, status] => {
                let Some(reader) = self.reader.take() else { return };
                let tally = reader.finish(status == "0");
                if tally.passed + tally.failed + tally.skipped == 0 {
                    let what = "no test ran; does tests/matrix.txt name tests that exist?";
                    self.tally
                        .add(Tally::failure(format!("kernel {}: {name}: {what}", self.machine)));
                }
                self.tally.add(tally);
                self.ended += 1;
            }
            ["done"] => self.done = true,
            _ => {}
        }
    }

    /// Ends the session; what did not come to its end is a failure.
    fn finish(mut self, runs: &[Run]) -> Tally {
        if let Some(reader) = self.reader.take() {
            self.tally.add(reader.finish(false));
            self.ended += 1;
        }
        for run in runs.iter().skip(self.ended) {
            let what = "never began: the machine stopped or ran out of time";
            let failure = format!("kernel {}: {}: {what}", self.machine, run.binary.name);
            self.tally.add(Tally::failure(failure));
        }
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::{Run, Session};
    use crate::artifacts::TestBinary;
    use crate::tally::Tally;

    fn session(text: &str, names: &[&str]) -> Tally {
        let mut session = Session::new("6.1");
        for line in text.lines() {
            session.line(line);
        }
        let runs: Vec<Run> = names
            .iter()
            .map(|name| Run {
                binary: TestBinary { name: (*name).to_owned(), ..TestBinary::default() },
                tests: Vec::new(),
            })
            .collect();
        session.finish(&runs)
    }

    /// Two binaries that end well are summed, a mark behind unfinished output included.
    #[test]
    fn sums_what_ran() {
        let text = "@@drainprof kernel 6.1.0\n@@drainprof begin a\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored\n@@drainprof end a 0\n\
                    @@drainprof begin b\ntest result: ok. 1 passed; 0 failed; 0 ignored\n\
                    noise@@drainprof end b 0\n@@drainprof done";
        let tally = session(text, &["a", "b"]);
        assert_eq!((tally.passed, tally.failed), (3, 0));
    }

    /// A machine that dies in a binary fails that one and every later one.
    #[test]
    fn what_did_not_end_failed() {
        let tally =
            session("@@drainprof kernel 6.1.0\n@@drainprof begin a\ntest x ... ", &["a", "b"]);
        assert_eq!((tally.passed, tally.failed), (0, 2));
    }

    /// A filter that fits no test is a failure, not an empty success.
    #[test]
    fn nothing_ran_is_a_failure() {
        let text = "@@drainprof begin a\ntest result: ok. 0 passed; 0 failed; 0 ignored\n@@drainprof end a 0";
        assert_eq!(session(text, &["a"]).failed, 1);
    }
}

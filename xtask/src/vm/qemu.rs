//! One machine: boot it, follow its serial lines, and end it in time.
//!
//! The first line carries what the tests say, the second the kernel's log, so that neither cuts the other's words. Only
//! the qemu process started here is ever killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fs_err as fs;

use super::lists::Run;
use super::log;
use super::session::{MARK, Session};
use crate::busy::Stretch;
use crate::tally::Tally;
use crate::work;

/// With KVM a machine says its first word within seconds; where nested virtualisation is broken, never.
const KVM_FIRST_WORD_TIMEOUT: Duration = Duration::from_secs(20);

/// A machine may take this long to power off.
const POWER_OFF_TIMEOUT: Duration = Duration::from_secs(60);

/// The kernel stops at whatever is wrong, which ends qemu, and writes down all that is a warning or worse. What lasts
/// too long is judged later than usual: an emulated processor may itself wait for a real one for many seconds.
const KERNEL_ARGUMENTS: &str = "console=ttyS1 loglevel=5 panic=-1 oops=panic panic_on_warn=1 softlockup_panic=1 \
    watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=180 mitigations=off";

/// What to boot.
pub(super) struct Boot<'a> {
    pub(super) name: &'a str,
    pub(super) kernel: &'a Path,
    pub(super) initrd: &'a Path,
    /// The first is the root file system, where there is one; none is written to.
    pub(super) disks: &'a [&'a Path],
    /// Where the kernel's log goes.
    pub(super) log: &'a Path,
    /// More of the kernel's command line.
    pub(super) append: &'a str,
    /// The preemption model that the kernel must report, if it matters.
    pub(super) preempt: Option<&'a str>,
    pub(super) processors: u8,
    /// In MiB.
    pub(super) memory: u32,
    pub(super) seconds: u64,
    /// Whether to use only processors that nothing else wants.
    pub(super) idle: bool,
    /// Whether to show the serial line from the script's first word on.
    pub(super) verbose: bool,
    /// Whether to try KVM; becomes false once it has not worked. All machines share it.
    pub(super) kvm: &'a AtomicBool,
    pub(super) runs: &'a [Run],
}

/// Boots the machine, runs its tests, and returns their sum.
pub(super) fn boot(boot: &Boot<'_>) -> Result<Tally> {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if boot.kvm.load(Ordering::Relaxed) && device.is_ok() {
        match attempt(boot, Some(KVM_FIRST_WORD_TIMEOUT))? {
            Outcome::Ran(tally) => return Ok(tally),
            Outcome::Silent => work::note("KVM is there but does not work; emulating instead"),
        }
    }
    boot.kvm.store(false, Ordering::Relaxed);
    match attempt(boot, None)? {
        Outcome::Ran(tally) => Ok(tally),
        Outcome::Silent => bail!("it never came up; its log is {}", boot.log.display()),
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
fn attempt(boot: &Boot<'_>, first_word: Option<Duration>) -> Result<Outcome> {
    let how = if first_word.is_some() { "KVM" } else { "emulation" };
    work::step(format!("vm: boot kernel {} ({how}, at most {} s)", boot.name, boot.seconds));
    let mut qemu = command(boot, first_word.is_some());
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    let (started, stretch) = (Instant::now(), Stretch::begin());
    let mut child =
        qemu.spawn().context("run qemu-system-x86_64; `cargo xtask setup` installs it")?;
    let lines = work::lines(child.stdout.take().context("qemu has no stdout")?);
    let session = listen(boot, &lines, started, first_word);
    // It has powered off, or it is too late: in both cases it must be gone before this returns.
    let _ = child.kill();
    child.wait().context("wait for qemu")?;
    if !session.is_up() {
        return Ok(Outcome::Silent);
    }
    let mut tally = judge_log(boot);
    tally.add(session.finish(boot.runs));
    tally.show(&format!("kernel {}", boot.name), &stretch);
    Ok(Outcome::Ran(tally))
}

fn command(boot: &Boot<'_>, kvm: bool) -> Command {
    const QEMU: &str = "qemu-system-x86_64";
    let mut qemu = if boot.idle { Command::new("chrt") } else { Command::new(QEMU) };
    if boot.idle {
        qemu.args(["--idle", "0", QEMU]);
    }
    if kvm {
        // What qemu says of a KVM that does not work would only worry: emulation follows.
        qemu.args(["-accel", "kvm", "-cpu", "host"]).stderr(Stdio::null());
    } else {
        // In one thread: with several, emulated processors can run into instructions that the kernel is just
        // patching (it does when the first probe comes and the last one goes), and panic.
        qemu.args(["-accel", "tcg,thread=single"]);
    }
    qemu.args(["-m", &boot.memory.to_string(), "-smp", &boot.processors.to_string()]);
    qemu.args(["-nographic", "-nodefaults", "-nic", "none", "-no-reboot", "-monitor", "none"]);
    qemu.args(["-serial", "stdio", "-serial", &format!("file:{}", boot.log.display())]);
    qemu.arg("-kernel").arg(boot.kernel).arg("-initrd").arg(boot.initrd);
    for disk in boot.disks {
        let disk = disk.display();
        qemu.args(["-drive", &format!("file={disk},format=raw,if=virtio,snapshot=on")]);
    }
    qemu.args(["-append", &format!("{KERNEL_ARGUMENTS} {}", boot.append)]);
    qemu
}

/// What the kernel has complained of, as a failure; what else it has remarked is only shown.
fn judge_log(boot: &Boot<'_>) -> Tally {
    let log = match fs::read(boot.log) {
        Ok(log) => String::from_utf8_lossy(&log).into_owned(),
        Err(error) => {
            return Tally::failure(format!("kernel {}: cannot read its log: {error}", boot.name));
        }
    };
    let Some(found) = log::complaint(&log) else {
        for remark in log::remarks(&log) {
            work::note(format!("kernel {}: logged during {remark}", boot.name));
        }
        return Tally::default();
    };
    Tally::failure_that_said(
        format!("kernel {}: {}", boot.name, found.what),
        found.lines.into_iter().map(str::to_owned).collect(),
    )
}

/// Reads until the machine is off, silent for too long, or out of time.
fn listen<'a>(
    boot: &Boot<'a>,
    lines: &Receiver<String>,
    started: Instant,
    first_word: Option<Duration>,
) -> Session<'a> {
    let whole = Duration::from_secs(boot.seconds);
    let mut session = Session::new(boot.name, boot.preempt);
    let mut end = first_word.unwrap_or(whole).min(whole);
    // The line ends with qemu.
    while let Ok(line) = lines.recv_timeout(end.saturating_sub(started.elapsed())) {
        let line = line.trim_end_matches('\r');
        // Before the script's first word the line carries what the firmware prints.
        if boot.verbose && (session.is_up() || line.contains(MARK)) {
            println!("[{}] {line}", boot.name);
        }
        let was_up = session.is_up();
        session.line(line);
        if session.is_up() && !was_up {
            end = whole;
            let seconds = started.elapsed().as_secs_f64();
            work::note(format!("kernel {}: up after {seconds:.0} s: {session}", boot.name));
        }
        if session.is_done() {
            end = end.min(started.elapsed() + POWER_OFF_TIMEOUT);
        }
    }
    session
}

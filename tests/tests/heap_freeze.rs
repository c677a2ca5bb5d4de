//! `census --freeze`: what threads hold at work is exact, and the process runs on as it was.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    process::{Child, Command, Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    http,
    process::Process,
};
use nix::{
    sys::{ptrace, signal::Signal, wait::waitpid},
    unistd::Pid,
};
use serde_json::Value;

/// Censuses until none of the threads was inside of malloc.
const ATTEMPTS: usize = 100;

/// The target, and where its counts are.
struct Busy {
    process: Process,
    threads: usize,
    counts: u64,
}

/// What a thread of the target says of itself.
#[derive(Clone, Copy)]
struct Count {
    busy: u64,
    objects: u64,
    bytes: u64,
    rounds: u64,
}

impl Busy {
    fn start() -> Result<Self> {
        let command = Command::new(environment::target("busy_heap")?);
        let mut process = Process::start("busy_heap", command)?;
        let ready = process.expect_out("READY ")?;
        let mut words = ready.split(' ').skip(1);
        let threads = words.next().context("threads")?.parse()?;
        let counts = words.next().and_then(|word| word.strip_prefix("0x")).context("an address")?;
        Ok(Self { process, threads, counts: u64::from_str_radix(counts, 16)? })
    }

    fn counts(&self) -> Result<Vec<Count>> {
        let memory = File::open(format!("/proc/{}/mem", self.process.pid()))?;
        let mut bytes = vec![0; self.threads * 32];
        memory.read_exact_at(&mut bytes, self.counts)?;
        let word = |at: &[u8]| u64::from_le_bytes(at.try_into().unwrap_or_default());
        let count = |one: &[u8]| Count {
            busy: word(&one[..8]),
            objects: word(&one[8..16]),
            bytes: word(&one[16..24]),
            rounds: word(&one[24..]),
        };
        Ok(bytes.chunks_exact(32).map(count).collect())
    }

    /// The states of its threads, as `ps` shows them.
    fn states(&self) -> Result<String> {
        let mut states = String::new();
        for entry in fs::read_dir(format!("/proc/{}/task", self.process.pid()))? {
            let stat = fs::read_to_string(entry?.path().join("stat"))?;
            let (_, rest) = stat.rsplit_once(") ").context("a stat")?;
            states.extend(rest.chars().next());
        }
        Ok(states)
    }

    fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
        http::until(what, || Ok(wanted(&self.states()?)))
    }

    /// Waits until its threads are in such states; false: the census had ended before.
    fn until_met(&self, child: &mut Child, wanted: impl Fn(&str) -> bool) -> Result<bool> {
        let mut met = false;
        http::until("a census holds the threads, or has ended", || {
            met = wanted(&self.states()?);
            Ok(met || child.try_wait()?.is_some())
        })?;
        Ok(met)
    }

    /// Waits until all of its threads have worked on.
    fn until_it_works(&self) -> Result<()> {
        let before = self.counts()?;
        http::until("all threads work on", || {
            let now = self.counts()?;
            Ok(now.iter().zip(&before).all(|(now, before)| now.rounds > before.rounds))
        })
    }
}

fn begin(pid: u32) -> Result<Child> {
    let mut command = Command::new(environment::drainprof()?);
    command.args(["census", "--freeze", "-o", "json", "-p", &pid.to_string()]);
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

fn end(child: Child) -> Result<Value> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    ensure!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    Ok(serde_json::from_slice(&stdout)?)
}

/// Live objects and bytes of glibc's heap.
fn live(census: &Value) -> Result<(u64, u64)> {
    let heap = &census["heaps"][0];
    assert_eq!(
        (&heap["allocator"], &heap["unknown_bytes"]),
        (&"glibc".into(), &0.into()),
        "{heap}"
    );
    let seconds = census["frozen_seconds"].as_f64().context("how long it stood still")?;
    assert!(seconds > 0.0 && seconds >= census["seconds"].as_f64().context("seconds")?);
    let number = |key: &str| heap[key].as_u64().with_context(|| format!("{key} in {heap}"));
    Ok((number("live_objects")?, number("live_bytes")?))
}

/// A census of the process at work, with what its threads say of the same moment: it is stopped while it stands still,
/// so it does not take another step. `None`: the stop came too late.
fn census_and_truth(busy: &Busy) -> Result<Option<(Value, Vec<Count>)>> {
    let mut child = begin(busy.process.pid())?;
    let is_frozen = |states: &str| states.chars().all(|state| state == 't');
    busy.until_met(&mut child, is_frozen)?;
    busy.process.signal(Signal::SIGSTOP)?;
    let in_time = is_frozen(&busy.states()?);
    let census = end(child)?;
    busy.until("it is stopped", |states| states.chars().all(|state| state == 'T'))?;
    let counts = busy.counts()?;
    busy.process.signal(Signal::SIGCONT)?;
    Ok(in_time.then_some((census, counts)))
}

/// Two threads allocate and free without end: live objects and bytes are exact, and the threads work on afterwards.
#[test]
fn exact_at_work() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut busy = Busy::start()?;
    let (objects, bytes) = live(&end(begin(busy.process.pid())?)?)?;
    busy.process.send_line("go")?;
    busy.process.expect_out("WORKS")?;
    busy.until_it_works()?;
    let mut compared = 0;
    for _ in 0..ATTEMPTS {
        let Some((census, counts)) = census_and_truth(&busy)? else { continue };
        busy.until_it_works()?;
        if counts.iter().any(|count| count.busy != 0) {
            continue;
        }
        let own = counts
            .iter()
            .fold((objects, bytes), |sum, one| (sum.0 + one.objects, sum.1 + one.bytes));
        assert_eq!(live(&census)?, own);
        compared += 1;
        if compared == 3 {
            break;
        }
    }
    assert_eq!(compared, 3, "at rest in {ATTEMPTS} attempts");
    busy.process.send_line("end")?;
    busy.process.finish()?;
    Ok(())
}

/// A drainprof that is told to end, or killed, lets go of the process.
#[test]
fn is_let_go() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut busy = Busy::start()?;
    busy.process.send_line("go")?;
    busy.process.expect_out("WORKS")?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut child = begin(busy.process.pid())?;
        while !busy.until_met(&mut child, |states| states.contains('t'))? {
            child = begin(busy.process.pid())?;
        }
        nix::sys::signal::kill(Pid::from_raw(child.id().cast_signed()), signal)?;
        child.wait()?;
        busy.until("no thread is held", |states| !states.contains('t'))?;
        busy.until_it_works()?;
    }
    busy.process.send_line("end")?;
    busy.process.finish()?;
    Ok(())
}

/// A process that was stopped stays stopped, and goes on when it is told to.
#[test]
fn stays_stopped() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut busy = Busy::start()?;
    busy.process.send_line("go")?;
    busy.process.expect_out("WORKS")?;
    busy.process.signal(Signal::SIGSTOP)?;
    busy.until("it is stopped", |states| states.chars().all(|state| state == 'T'))?;
    let rounds = |busy: &Busy| -> Result<Vec<u64>> {
        Ok(busy.counts()?.iter().map(|count| count.rounds).collect())
    };
    let before = rounds(&busy)?;
    end(begin(busy.process.pid())?)?;
    busy.until("it is stopped again", |states| states.chars().all(|state| state == 'T'))?;
    assert_eq!(rounds(&busy)?, before, "it has not moved");
    busy.process.signal(Signal::SIGCONT)?;
    busy.until_it_works()?;
    busy.process.send_line("end")?;
    busy.process.finish()?;
    Ok(())
}

/// A process that a debugger holds is refused, with its number, and is left to it.
#[test]
fn traced_already() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let mut busy = Busy::start()?;
    let pid = Pid::from_raw(busy.process.pid().cast_signed());
    ptrace::seize(pid, ptrace::Options::empty())?;
    let refused = begin(busy.process.pid())?.wait_with_output()?;
    let talk = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{talk}");
    let words = format!("process {} traces it already", std::process::id());
    assert!(talk.contains(&words), "{talk}");
    ptrace::interrupt(pid)?;
    waitpid(pid, None)?;
    ptrace::detach(pid, None)?;
    busy.process.send_line("go")?;
    busy.process.expect_out("WORKS")?;
    busy.process.send_line("end")?;
    busy.process.finish()?;
    Ok(())
}

//! Censuses of the watched processes: one at a time, on a reader thread, as the budget allows.
//!
//! A census reads each page of a heap, so it takes a tenth of a second for 100 MB: too long for the loop. Where the
//! kernel does not answer for the process it is given up, and the next one begins.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use drainprof_census::{CensusError, Options, Summary, take};
use drainprof_process::{
    Process, ProcessError, Stuck, is_silent,
    readers::{Asked, may_read, start},
};
use drainprof_report::Report;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::{tracked::Tracked, turns::Turns};
use crate::{Heaps, clock::unix_ms, config::Config};

/// A census that takes longer is reported.
const LONG_CENSUS: Duration = Duration::from_secs(120);
/// What was not read after this time is unknown.
const CENSUS_DEADLINE: Duration = Duration::from_secs(30);
/// Debt of one census that delays all others, as seconds of the time in which the budget pays it. What one process costs
/// beyond that, delays the next census of that process alone.
const MAX_DEBT_SECONDS: f64 = 60.0;

/// A census that has ended.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) pid: u32,
    pub(super) start_time: u64,
    /// What was read; `None`: the process has ended.
    pub(super) heaps: Option<Heaps>,
    /// CPU time that it took.
    cost: Duration,
}

struct Running {
    pid: u32,
    start_time: u64,
    began: Instant,
    end: oneshot::Receiver<Taken>,
    /// The work on the reader thread.
    asked: Asked<()>,
}

/// All censuses.
#[derive(Default)]
pub(super) struct Censuses {
    turns: Turns,
    running: Option<Running>,
    /// Processes that cost much, and until when they have no other census.
    costly: BTreeMap<(u32, u64), f64>,
    /// The present share of a CPU.
    share: f64,
    seconds: f64,
}

impl Censuses {
    /// Begins the next census, if none runs, one is due, and the budget has room. `seconds` is a time since any fixed
    /// moment.
    pub(super) fn begin(
        &mut self,
        config: &Config,
        tracked: &mut BTreeMap<u32, Tracked>,
        seconds: f64,
    ) -> io::Result<()> {
        let config = &config.census;
        self.turns.refill(seconds, config.budget.0);
        (self.seconds, self.share) = (seconds, config.budget.0);
        self.costly.retain(|_, until| *until > seconds);
        if config.budget.0 <= 0.0 {
            for one in tracked.values_mut() {
                one.count_heaps(None);
            }
            return Ok(());
        }
        if self.running.is_some() || !self.turns.is_affordable() {
            return Ok(());
        }
        for _ in 0..tracked.len() {
            let Some(pid) = self.turns.next(tracked) else { break };
            let Some(one) = tracked.get_mut(&pid) else { continue };
            let process = (pid, one.process.start_time);
            let is_due = one.wants_census(seconds, config.interval.as_seconds());
            if is_due && !self.costly.contains_key(&process) && !is_silent(pid) {
                one.census_begins(seconds);
                return self.start(process, options(config));
            }
        }
        Ok(())
    }

    fn start(&mut self, (pid, start_time): (u32, u64), options: Options) -> io::Result<()> {
        let (ends, end) = oneshot::channel();
        // Not a thread of the runtime: that would wait for it at the daemon's end.
        let asked = start(move || {
            // The census may have been given up meanwhile.
            let _ = ends.send(census(pid, start_time, &options));
        });
        let asked = asked.map_err(io::Error::other)?;
        self.running = Some(Running { pid, start_time, began: Instant::now(), end, asked });
        Ok(())
    }

    /// Gives the census up that runs, if the kernel does not answer for the process.
    pub(super) fn check(&mut self) -> Option<Taken> {
        let running = self.running.as_mut()?;
        let Some(Err(stuck)) = running.asked.poll() else { return None };
        let Running { pid, start_time, .. } = *running;
        self.running = None;
        Some(Taken {
            pid,
            start_time,
            heaps: Some(failed(stuck.to_string())),
            cost: Duration::ZERO,
        })
    }

    /// Waits for the end of the census that runs; for ever, if none does.
    pub(super) async fn next(&mut self) -> Taken {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let taken = (&mut running.end).await;
        let Running { pid, start_time, began, .. } = running;
        let taken = taken.unwrap_or_else(|_| Taken {
            pid: *pid,
            start_time: *start_time,
            heaps: Some(failed("the census broke off".to_owned())),
            cost: began.elapsed(),
        });
        self.running = None;
        self.spend((taken.pid, taken.start_time), taken.cost);
        taken
    }

    /// Takes what the census of a process has cost.
    fn spend(&mut self, process: (u32, u64), cost: Duration) {
        if !self.turns.spend_within(cost, self.share * MAX_DEBT_SECONDS) {
            self.costly.insert(process, self.seconds + cost.as_secs_f64() / self.share);
        }
    }

    /// Whether a window may read heaps now: those of processes of at most so many bytes.
    pub(super) fn affords(&self, config: &Config) -> Option<u64> {
        let affords = config.census.budget.0 > 0.0 && self.turns.is_affordable();
        affords.then_some(config.census.largest.0)
    }

    /// Takes what the censuses of a window have cost.
    pub(super) fn charge(&mut self, report: &Report) {
        let censuses = report.targets.iter().filter_map(|target| target.census.as_ref());
        let all = censuses.flat_map(|census| [&census.begin, &census.end]).flatten();
        let seconds: f64 = all.map(|summary| summary.seconds).sum();
        // What comes from another process need not be a time.
        let cost = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.turns.spend_within(cost, self.share * MAX_DEBT_SECONDS);
    }

    /// A census that does not end, in a sentence.
    pub(super) fn degraded(&self) -> Option<String> {
        let running = self.running.as_ref().filter(|one| one.began.elapsed() > LONG_CENSUS)?;
        let (pid, seconds) = (running.pid, running.began.elapsed().as_secs());
        Some(format!("no other heap is read: the census of process {pid} takes {seconds} s so far"))
    }
}

fn failed(why: String) -> Heaps {
    Heaps { unix_ms: unix_ms(), failure: Some(why), ..Heaps::default() }
}

fn options(config: &crate::config::Census) -> Options {
    Options {
        largest_bytes: Some(config.largest.0),
        memory: Some(config.memory.0 / 2),
        deadline: Some(CENSUS_DEADLINE),
        ..Options::default()
    }
}

/// Takes a census of one process incarnation.
fn census(pid: u32, start_time: u64, options: &Options) -> Taken {
    if !may_read(pid) {
        let heaps = Some(failed(Stuck::Silent { pid }.to_string()));
        return Taken { pid, start_time, heaps, cost: Duration::ZERO };
    }
    let before = thread_cpu_time();
    let result = take(pid, options).and_then(|census| {
        // The number may have become another process's.
        if Process::open(pid)?.start_time == start_time {
            Ok(census)
        } else {
            Err(ProcessError::Ended { pid }.into())
        }
    });
    let heaps = match result {
        Ok(census) => {
            let summary = Summary::of(&census);
            Some(Heaps { unix_ms: unix_ms(), summary, failure: None })
        }
        Err(CensusError::Process(error)) if error.is_gone() => None,
        Err(error) => Some(failed(error.to_string())),
    };
    let cost = thread_cpu_time().saturating_sub(before);
    Taken { pid, start_time, heaps, cost }
}

/// CPU time of this thread since it began.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        process::{Child, Command, Stdio},
    };

    use drainprof_report::values::{Bytes, Share, Time};

    use super::*;
    use crate::Labels;

    /// A process that waits, and is ended.
    struct Sleeper(Child);

    impl Sleeper {
        fn new() -> Self {
            let mut command = Command::new("cat");
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            // When it answers, its memory is there.
            child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            Self(child)
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn tracked(pid: u32) -> Tracked {
        let process = Process::open(pid).unwrap();
        let mut one = Tracked::new(process, Labels::default(), String::new(), 0);
        one.remember(0.0, 60.0, Some(Default::default()));
        one
    }

    fn config(share: f64, largest: u64) -> Config {
        let mut config = Config::default();
        config.census.budget = Share(share);
        config.census.interval = Time::minutes(5);
        config.census.largest = Bytes(largest);
        config
    }

    /// One census at a time, in turns; each process again after the interval, and none without a budget.
    #[tokio::test]
    async fn in_turns() {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let pids = sleepers.each_ref().map(|one| one.0.id());
        let mut all: BTreeMap<u32, Tracked> = pids.map(|pid| (pid, tracked(pid))).into();
        let mut censuses = Censuses::default();
        censuses.begin(&config(0.0, 1 << 40), &mut all, 0.0).unwrap();
        assert!(censuses.running.is_none(), "without a budget");
        let config = config(1.0, 1 << 40);
        let mut seen = Vec::new();
        for seconds in [10.0, 20.0] {
            censuses.begin(&config, &mut all, seconds).unwrap();
            let first = censuses.running.as_ref().unwrap().pid;
            censuses.begin(&config, &mut all, seconds).unwrap();
            assert_eq!(censuses.running.as_ref().unwrap().pid, first, "one at a time");
            let taken = censuses.next().await;
            assert!(taken.heaps.is_some_and(|heaps| heaps.failure.is_none()));
            seen.push(taken.pid);
        }
        seen.sort_unstable();
        assert_eq!(seen, pids);
        censuses.begin(&config, &mut all, 300.0).unwrap();
        assert!(censuses.running.is_none(), "none is due");
        censuses.begin(&config, &mut all, 310.0).unwrap();
        assert!(censuses.running.is_some());
    }

    /// What a census takes is spent: the next one waits until it has come in again.
    #[tokio::test]
    async fn within_the_budget() {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let mut all: BTreeMap<u32, Tracked> =
            sleepers.iter().map(|one| (one.0.id(), tracked(one.0.id()))).collect();
        let mut censuses = Censuses::default();
        let config = config(1e-9, 1 << 40);
        censuses.begin(&config, &mut all, 0.0).unwrap();
        assert!(censuses.running.is_none(), "nothing has come in");
        censuses.begin(&config, &mut all, 1.0).unwrap();
        assert!(censuses.next().await.cost > Duration::ZERO);
        censuses.begin(&config, &mut all, 2.0).unwrap();
        assert!(censuses.running.is_none(), "there is a debt");
    }

    /// A census that costs much delays others by a minute at most, and the next one of its process by what it cost.
    #[tokio::test]
    async fn costly() {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let [costly, other] = sleepers.each_ref().map(|one| one.0.id());
        let mut all: BTreeMap<u32, Tracked> = [costly, other].map(|pid| (pid, tracked(pid))).into();
        let mut censuses = Censuses::default();
        let config = config(0.001, 1 << 40);
        for seconds in [0.0, 20.0] {
            censuses.turns.refill(seconds, 0.001);
        }
        (censuses.seconds, censuses.share) = (20.0, 0.001);
        let start_time = all[&costly].process.start_time;
        censuses.spend((costly, start_time), Duration::from_secs(12));
        assert!(!censuses.turns.is_affordable());
        all.get_mut(&costly).unwrap().census_begins(20.0);
        for seconds in [82.0, 400.0, 12_000.0] {
            censuses.begin(&config, &mut all, seconds).unwrap();
            let running = censuses.running.as_ref().map(|one| one.pid);
            assert!(running.is_none_or(|pid| pid == other), "at {seconds}");
            assert!(running.is_some() || seconds < 100.0 || censuses.turns.is_affordable());
            if running.is_some() {
                censuses.next().await;
            }
        }
        all.remove(&other);
        for seconds in [12_030.0, 12_100.0] {
            censuses.begin(&config, &mut all, seconds).unwrap();
        }
        assert_eq!(censuses.running.as_ref().map(|one| one.pid), Some(costly));
    }

    /// A process that is too large has no heaps, but the reason; one that is gone has nothing.
    #[test]
    fn refused() {
        let sleeper = Sleeper::new();
        let pid = sleeper.0.id();
        let start_time = Process::open(pid).unwrap().start_time;
        let of = |largest| Options { largest_bytes: Some(largest), ..Options::default() };
        let too_large = census(pid, start_time, &of(4096)).heaps.unwrap();
        let why = too_large.failure.unwrap_or_default();
        assert!(why.contains("the limit is 4096"), "{why}");
        assert_eq!(census(pid, start_time + 1, &of(1 << 40)).heaps, None, "another process");
        drop(sleeper);
        assert_eq!(census(pid, start_time, &of(1 << 40)).heaps, None);
    }
}

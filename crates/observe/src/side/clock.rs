//! When an observation and its window began, when counting stopped, and what drainprof used meanwhile.

use std::time::Duration;

use drainprof_report::facts::SelfUse;
use nix::time::{ClockId, clock_gettime};

/// A periodic reading takes at most this part of one CPU: where it takes long, it is done more rarely.
pub(super) const SHARE: u32 = 100;

/// `CLOCK_MONOTONIC` nanoseconds, the clock of the kernel side.
pub(super) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| Duration::from(time).as_nanos().try_into().unwrap_or(u64::MAX))
}

/// CPU time that this process has used.
pub(super) fn own_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The times of an observation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    began_ns: Option<u64>,
    /// When this window began.
    window_ns: Option<u64>,
    /// When counting was stopped.
    stopped_ns: Option<u64>,
    cpu_at_start: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { began_ns: None, window_ns: None, stopped_ns: None, cpu_at_start: own_cpu() }
    }

    /// A process was armed: with the first, the time begins.
    pub(super) fn begin(&mut self) {
        if self.began_ns.is_none() {
            self.cpu_at_start = own_cpu();
        }
        self.begin_window();
    }

    /// The same in a window, which need not be the first.
    pub(super) fn begin_window(&mut self) {
        let window_ns = *self.window_ns.get_or_insert_with(now_ns);
        self.began_ns.get_or_insert(window_ns);
    }

    /// The window is over; the next has not begun.
    pub(super) const fn end_window(&mut self) {
        (self.window_ns, self.stopped_ns) = (None, None);
    }

    /// The next window is the first again.
    pub(super) const fn forget_begin(&mut self) {
        self.began_ns = None;
    }

    pub(super) fn stop(&mut self) {
        self.stopped_ns.get_or_insert_with(now_ns);
    }

    pub(super) const fn is_stopped(&self) -> bool {
        self.stopped_ns.is_some()
    }

    pub(super) fn began_ns(&self) -> u64 {
        self.began_ns.unwrap_or_default()
    }

    /// Now, or the moment at which counting stopped.
    pub(super) fn at_ns(&self) -> u64 {
        self.stopped_ns.unwrap_or_else(now_ns)
    }

    /// When this window began; `or` before that.
    pub(super) fn window_ns(&self, or: u64) -> u64 {
        self.window_ns.unwrap_or(or)
    }

    /// How long this window has been.
    pub(super) fn window_length(&self) -> Duration {
        let end = self.at_ns();
        Duration::from_nanos(end.saturating_sub(self.window_ns(end)))
    }

    /// The time from the begin to a moment.
    pub(super) fn since_begin(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns)))
    }

    /// What drainprof has used since the begin, with so many bytes of maps.
    pub(super) fn self_use(&self, map_bytes: u64) -> SelfUse {
        self_use(self.cpu_at_start, map_bytes)
    }
}

/// What drainprof itself uses: CPU time since so much of it was used (`at_start`), memory, and `map_bytes` of maps.
#[must_use]
pub fn self_use(at_start: Duration, map_bytes: u64) -> SelfUse {
    let (rss_bytes, peak_rss_bytes) = own_memory();
    let cpu_seconds = own_cpu().saturating_sub(at_start).as_secs_f64();
    SelfUse { cpu_seconds, cpu_ratio: None, rss_bytes, peak_rss_bytes, map_bytes }
}

/// Resident memory of this process now and at most, bytes.
fn own_memory() -> (u64, u64) {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return (0, 0) };
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024)
    };
    (field("VmRSS:"), field("VmHWM:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time begins once, with the first process; each window has its own length, and none goes on when counting has
    /// stopped.
    #[test]
    fn windows() {
        let mut clock = Clock::new();
        assert_eq!((clock.window_length(), clock.since_begin(7)), (Duration::ZERO, Duration::ZERO));
        clock.begin();
        let began = clock.began_ns();
        assert!(began > 0 && clock.window_ns(0) == began);
        clock.stop();
        let length = clock.window_length();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.is_stopped() && clock.window_length() == length);
        clock.end_window();
        clock.begin_window();
        assert!(clock.began_ns() == began && clock.window_ns(0) > began && !clock.is_stopped());
        clock.end_window();
        clock.forget_begin();
        clock.begin_window();
        assert!(clock.began_ns() > began);
    }
}

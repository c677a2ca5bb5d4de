//! The daemon's tick: it wakes the loop five times a second, all day, so each wake-up must be only one.
//!
//! A timer of the runtime would cause two or three: it keeps time in a wheel and turns its coarse steps first. This timer
//! is the kernel's.

use std::{io, os::fd::OwnedFd, time::Duration};

use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A timer that comes again and again.
pub(super) struct Tick(AsyncFd<OwnedFd>);

impl Tick {
    /// The first tick comes after one period. Must be called inside the runtime.
    pub(super) fn every(period: Duration) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let expiration = Expiration::Interval(TimeSpec::from(period));
        timer.set(expiration, TimerSetTimeFlags::empty())?;
        let timer = OwnedFd::from(timer);
        // SAFETY: the descriptor is owned by the `AsyncFd`, and nothing else closes it.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Self(timer))
    }

    /// Waits for the next tick. Missed ticks count as one. Cancelling this loses nothing.
    pub(super) async fn next(&self) {
        // An error would be the runtime's end.
        let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
        // Their number does not matter; a spurious wake-up reads nothing.
        let _ = nix::unistd::read(self.0.get_ref(), &mut [0; 8]);
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Ticks are a period apart, and those that were missed are one.
    #[tokio::test]
    async fn ticks() {
        const PERIOD: Duration = Duration::from_millis(20);
        let began = Instant::now();
        let tick = Tick::every(PERIOD).unwrap();
        for _ in 0..3 {
            tick.next().await;
        }
        assert!(began.elapsed() >= 3 * PERIOD, "{:?}", began.elapsed());
        // The kernel's timer goes on while nothing waits.
        std::thread::sleep(10 * PERIOD);
        let late = Instant::now();
        for _ in 0..3 {
            tick.next().await;
        }
        assert!(late.elapsed() >= PERIOD, "{:?}", late.elapsed());
    }
}

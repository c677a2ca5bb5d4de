//! Waiting for programs that were running when counting stopped.

use std::{thread, time::Duration};

use drainprof_probe::bpf::programs_have_ended;

/// Longest time for the programs that were under way: threads that get no CPU time take longer.
const LIMIT: Duration = Duration::from_secs(2);
/// Between two reads of the counters that must agree before they are taken as final.
const PAUSE: Duration = Duration::from_millis(2);
const TRIES: u32 = 50;

/// Waits until all programs have ended that were running when counting stopped, and two readings of what is counted agree.
/// `false`: they do not end, so that the counts may miss what these programs were about to count.
#[must_use]
pub fn quiesce(totals: impl Fn() -> Vec<u64>) -> bool {
    programs_have_ended(LIMIT) && stand_still(totals)
}

fn stand_still(totals: impl Fn() -> Vec<u64>) -> bool {
    let mut before = totals();
    for _ in 0..TRIES {
        thread::sleep(PAUSE);
        let now = totals();
        if now == before {
            return true;
        }
        before = now;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{TRIES, stand_still};

    /// What moves is read until it does not, and no longer than so often.
    #[test]
    fn until_nothing_moves() {
        for (still_after, reads) in [(0, 2), (5, 7), (u32::MAX, TRIES + 1)] {
            let read = Cell::new(0);
            let still = stand_still(|| {
                let number = read.replace(read.get() + 1);
                vec![u64::from(number.min(still_after))]
            });
            assert_eq!(still, still_after != u32::MAX);
            assert_eq!(read.get(), reads, "still after {still_after}");
        }
    }
}

//! Waiting for programs that were running when counting stopped.

use std::{thread, time::Duration};

/// Between two reads of the counters that must agree before they are taken as final.
const PAUSE: Duration = Duration::from_millis(2);
const TRIES: u32 = 50;

/// Waits until two readings of what is counted agree: until programs that were running when counting stopped have ended.
pub fn quiesce(totals: impl Fn() -> Vec<u64>) {
    let mut before = totals();
    for _ in 0..TRIES {
        thread::sleep(PAUSE);
        let now = totals();
        if now == before {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{TRIES, quiesce};

    /// What moves is read until it does not, and no longer than so often.
    #[test]
    fn until_nothing_moves() {
        for (still_after, reads) in [(0, 2), (5, 7), (u32::MAX, TRIES + 1)] {
            let read = Cell::new(0);
            quiesce(|| {
                let number = read.replace(read.get() + 1);
                vec![u64::from(number.min(still_after))]
            });
            assert_eq!(read.get(), reads, "still after {still_after}");
        }
    }
}

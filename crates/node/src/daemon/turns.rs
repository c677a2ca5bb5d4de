//! Whose turn it is where all cannot be read at once, and what is left of the budget.

use std::{collections::BTreeMap, ops::Bound, time::Duration};

use drainprof_observe::Account;

/// Budget that can be saved, seconds of the time in which it comes in: what was not needed is not spent at once.
const MAX_SAVED_SECONDS: f64 = 20.0;

/// Whose turn it is, and what is left of the budget.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The process that had the last turn.
    last: u32,
    /// Seconds of CPU time; a turn that took more than there was leaves a debt.
    account: Account,
    refilled: Option<f64>,
}

impl Turns {
    /// Adds what has come in since the last time; `share` is a share of one CPU.
    pub(super) fn refill(&mut self, seconds: f64, share: f64) {
        let passed = self.refilled.map_or(0.0, |before| (seconds - before).max(0.0));
        self.refilled = Some(seconds);
        self.account.earn(passed * share, MAX_SAVED_SECONDS * share, f64::INFINITY);
    }

    /// Whether there is anything to spend.
    pub(super) fn is_affordable(&self) -> bool {
        self.account.has_credit()
    }

    /// All processes, the next one first.
    pub(super) fn order<T>(&self, all: &BTreeMap<u32, T>) -> Vec<u32> {
        let after = all.range((Bound::Excluded(self.last), Bound::Unbounded));
        after.chain(all.range(..=self.last)).map(|(pid, _)| *pid).collect()
    }

    /// A process had its turn.
    pub(super) fn had(&mut self, pid: u32) {
        self.last = pid;
    }

    /// What there is to spend.
    pub(super) fn credit(&self) -> Duration {
        Duration::try_from_secs_f64(self.account.balance()).unwrap_or_default()
    }

    /// Takes what a turn has cost.
    pub(super) fn spend(&mut self, time: Duration) {
        self.account.spend(time.as_secs_f64());
    }

    /// Takes what a turn has cost, down to a debt of so many seconds; whether that was all.
    pub(super) fn spend_within(&mut self, time: Duration, debt: f64) -> bool {
        let cost = time.as_secs_f64();
        self.account.spend_within(cost, debt) >= cost
    }

    /// The next process in order of pids, after the last one the first again.
    pub(super) fn next<T>(&mut self, all: &BTreeMap<u32, T>) -> Option<u32> {
        let after = all.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        let (pid, _) = after.or_else(|| all.first_key_value())?;
        self.last = *pid;
        Some(*pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has its turn before any has the next, also where processes come and go.
    #[test]
    fn in_turns() {
        let mut turns = Turns::default();
        let mut all: BTreeMap<u32, char> = [(3, 'a'), (7, 'b'), (9, 'c')].into();
        let mut round = |all: &BTreeMap<u32, char>, count: usize| -> Vec<u32> {
            (0..count).filter_map(|_| turns.next(all)).collect()
        };
        assert_eq!(round(&all, 4), [3, 7, 9, 3]);
        all.remove(&7);
        all.insert(8, 'd');
        assert_eq!(round(&all, 3), [8, 9, 3]);
        let mut turns = Turns { last: 8, ..Turns::default() };
        assert_eq!(turns.order(&all), [9, 3, 8]);
        turns.had(9);
        assert_eq!(turns.order(&all), [3, 8, 9]);
        assert_eq!(round(&BTreeMap::new(), 1), [0; 0]);
    }

    /// However long a turn takes, over time no more is spent than comes in, and what was saved is bounded.
    #[test]
    fn within_the_budget() {
        let mut turns = Turns::default();
        let (mut spent, share) = (Duration::ZERO, 0.0002);
        for cycle in 0..1_000_u32 {
            turns.refill(f64::from(cycle) * 10.0, share);
            while turns.is_affordable() {
                let turn = Duration::from_micros(if cycle % 100 == 0 { 90_000 } else { 300 });
                turns.spend(turn);
                spent += turn;
            }
        }
        let budget = 10_000.0 * share;
        assert!((budget - 0.1..=budget + 0.1).contains(&spent.as_secs_f64()), "{spent:?}");
        turns.refill(1e9, share);
        assert!(turns.account.balance() <= MAX_SAVED_SECONDS * share);
        let mut none = Turns::default();
        none.refill(0.0, 0.0);
        none.refill(1e9, 0.0);
        assert!(!none.is_affordable());
    }
}

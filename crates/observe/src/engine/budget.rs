//! What the probes may cost, as an account: the budget comes in, the cost goes out.

use std::time::{Duration, Instant};

/// The budget of so much time may be spent at once.
const BURST: Duration = Duration::from_secs(10);
/// What probes cost is only known once they are in place: what they cost in so much time is the prediction.
const OPENING: Duration = Duration::from_secs(1);
/// If that is so many times the budget, nothing is spent in advance.
const CLEARLY: f64 = 5.0;
/// A trap also slows what the program does after it, which no price of a single hit has: three hits per request, at 1.9 µs
/// by their costs, took 4.8 µs of each of nginx's requests (`docs/overhead.md`).
pub(super) const BESIDE: f64 = 2.5;
/// How often the account is checked.
pub(super) const CHECK: Duration = Duration::from_millis(100);

/// What the probes may cost, and what they have cost so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// A share of one CPU.
    share: f64,
    /// Seconds of CPU time that are left.
    balance: f64,
    /// When it was checked last.
    checked: Option<Instant>,
    /// What the probes had cost by then; `None` while none is in place.
    cost: Option<f64>,
    /// Time with probes and their cost, seconds, since they were placed.
    spent: (f64, f64),
}

impl Budget {
    pub(super) fn new(share: f64) -> Self {
        Self {
            share,
            balance: share * BURST.as_secs_f64(),
            checked: None,
            cost: None,
            spent: (0.0, 0.0),
        }
    }

    pub(super) const fn share(self) -> f64 {
        self.share
    }

    /// Checks the account at a moment at which the probes in place have cost `cost` seconds. If it is overdrawn, or surely
    /// will be where they are to stay all the time: what they cost since they were placed, as a share of one CPU.
    pub(super) fn check(&mut self, now: Instant, cost: f64, stay: bool) -> Option<f64> {
        let checked = self.checked.replace(now);
        let seconds = checked.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let most = self.share * BURST.as_secs_f64();
        self.balance = self.share.mul_add(seconds, self.balance).min(most);
        let before = self.cost.replace(cost);
        let more = (cost - before.unwrap_or_default()).max(0.0);
        self.balance -= more;
        let since = if before.is_some() { self.spent } else { (-seconds, 0.0) };
        self.spent = (since.0 + seconds, since.1 + more);
        let (time, spent) = self.spent;
        let is_first = time > 0.0 && time <= OPENING.as_secs_f64();
        let clearly = stay && is_first && spent > CLEARLY * self.share * time;
        ((self.balance < 0.0 || clearly) && time > 0.0).then(|| spent / time)
    }

    /// The probes are gone: time passes without a cost.
    pub(super) const fn rest(&mut self) {
        self.cost = None;
    }

    /// Less is observed from now on: what was spent too much is not held against that.
    pub(super) const fn forgive(&mut self) {
        self.rest();
        self.balance = self.balance.max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: f64) -> Instant {
        start + Duration::from_secs_f64(seconds)
    }

    /// What clearly costs too much is found at once, and what costs a little too much when ten seconds' budget is spent;
    /// what costs less never is. Windows, in which probes do not stay, are not judged before that.
    #[test]
    fn an_account() {
        let start = Instant::now();
        let over = |share: f64, stay: bool| {
            let mut budget = Budget::new(0.05);
            (0..3_000).map(|tick| f64::from(tick) / 10.0).find_map(|at| {
                budget.check(after(start, at), share * at, stay).map(|cost| (at, cost))
            })
        };
        let first_over = |share| over(share, true);
        let (at, cost) = first_over(0.6).unwrap();
        assert!(at <= 0.2 && (cost - 0.6).abs() < 1e-6, "{at} {cost}");
        let (at, _) = over(0.6, false).unwrap();
        assert!((0.9..=1.1).contains(&at), "{at}");
        let (at, _) = first_over(0.06).unwrap();
        assert!((49.0..=51.0).contains(&at), "a cent too much is found too: {at}");
        assert_eq!(first_over(0.05), None);
    }

    /// A burst after hours of rest is not paid by these hours: only ten seconds are saved.
    #[test]
    fn little_is_saved() {
        let start = Instant::now();
        let mut budget = Budget::new(0.1);
        assert_eq!(budget.check(start, 0.0, true), None);
        assert_eq!(budget.check(after(start, 3600.0), 0.0, true), None);
        assert_eq!(budget.check(after(start, 3601.0), 0.9, true), None);
        assert!(budget.check(after(start, 3602.0), 1.9, true).is_some());
    }

    /// New probes begin at cost zero; a debt stays unless it is forgiven.
    #[test]
    fn other_probes() {
        let start = Instant::now();
        let mut budget = Budget::new(0.1);
        budget.check(start, 0.0, true);
        assert!(budget.check(after(start, 1.0), 3.0, true).is_some());
        budget.rest();
        assert_eq!(
            budget.check(after(start, 2.0), 0.0, true),
            None,
            "nothing is known of them yet"
        );
        assert!(budget.check(after(start, 3.0), 0.05, true).is_some(), "still in debt");
        budget.forgive();
        assert_eq!(budget.check(after(start, 4.0), 0.0, true), None);
        assert_eq!(budget.check(after(start, 5.0), 0.05, true), None);
    }
}

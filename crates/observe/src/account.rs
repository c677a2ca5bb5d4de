//! What may be spent: a budget comes in, costs go out.

/// An account of seconds of CPU time, or of anything else. What is saved is bounded, and so is what is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Negative: a debt.
    balance: f64,
}

impl Account {
    /// An account that holds this much.
    #[must_use]
    pub const fn holding(balance: f64) -> Self {
        Self { balance }
    }

    /// What it holds; negative: what it owes.
    #[must_use]
    pub const fn balance(&self) -> f64 {
        self.balance
    }

    /// Whether it holds anything.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        self.balance > 0.0
    }

    /// Takes an income in. It saves at most `max_saved`; a debt beyond `max_debt` is forgotten.
    pub fn earn(&mut self, income: f64, max_saved: f64, max_debt: f64) {
        self.balance = (self.balance + income).min(max_saved).max(-max_debt);
    }

    /// Pays a cost, whatever that leaves.
    pub fn spend(&mut self, cost: f64) {
        self.balance -= cost;
    }

    /// Pays a cost as far as the debt stays below `max_debt`; returns what was paid.
    pub fn spend_within(&mut self, cost: f64, max_debt: f64) -> f64 {
        let paid = cost.min((self.balance + max_debt).max(0.0));
        self.spend(paid);
        paid
    }
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "sums of halves are exact")]
mod tests {
    use super::*;

    /// Savings and debts stay within their bounds; what is beyond the debt is not paid.
    #[test]
    fn bounds() {
        let mut account = Account::default();
        assert!(!account.has_credit());
        account.earn(5.0, 2.0, 1.0);
        assert_eq!(account.balance(), 2.0);
        assert_eq!(account.spend_within(1.5, 1.0), 1.5);
        assert_eq!(account.spend_within(9.0, 1.0), 1.5);
        assert_eq!((account.balance(), account.spend_within(1.0, 1.0)), (-1.0, 0.0));
        account.spend(9.0);
        account.earn(0.5, 2.0, 1.0);
        assert_eq!(account.balance(), -1.0);
    }
}

//! Sums over instances and processes, and rates of them.

/// Adds what is known; a sum of which nothing is known is not known. A stored report may hold any number.
pub(super) fn add(sum: &mut Option<u64>, value: Option<u64>) {
    if let Some(value) = value {
        *sum = Some(sum.unwrap_or_default().saturating_add(value));
    }
}

/// A rate; none where nothing was observed, or a stored report holds what is no time.
pub(super) fn per_second(count: u64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| count as f64 / seconds).filter(|rate| rate.is_finite())
}

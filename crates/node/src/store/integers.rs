//! Numbers as the file has them.

/// `SQLite`'s integers are signed; what does not fit stays at the largest.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// And back; what a damaged file has below zero is zero.
pub(super) fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

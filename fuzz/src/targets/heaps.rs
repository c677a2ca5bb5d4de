//! Heaps of processes that lie.

use drainprof_census::testing::walk;

/// A memory that a text describes, walked as that of a process.
pub(super) fn heaps(bytes: &[u8]) -> bool {
    !walk(&String::from_utf8_lossy(bytes)).is_empty()
}

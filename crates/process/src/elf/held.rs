//! How much memory the contents of files may take together.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Most bytes that what is kept of one file may take.
pub(super) const MAX_OF_FILE: u64 = 128 << 20;
/// Most bytes that what is kept of all files may take.
const MAX_OF_ALL: u64 = 256 << 20;

/// What files may take together.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicU64);

impl Held {
    /// The bytes that one more file may take.
    pub(super) fn room(&self) -> u64 {
        MAX_OF_ALL.saturating_sub(self.0.load(Ordering::Relaxed)).min(MAX_OF_FILE)
    }

    /// Whether others leave less room than one file may take.
    pub(crate) fn is_tight(&self) -> bool {
        self.room() < MAX_OF_FILE
    }

    /// Takes `bytes` until what is returned is dropped; `None`: there is no room.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let more = |held: u64| held.checked_add(bytes).filter(|held| *held <= MAX_OF_ALL);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Share { of: Arc::clone(self), bytes })
    }
}

/// A part of what files take together.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Held>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is taken is given back, and no more is given than there is.
    #[test]
    fn shares() {
        let all = Arc::new(Held::default());
        let most = all.take(MAX_OF_ALL - 1);
        assert!(most.is_some() && all.take(2).is_none() && all.take(u64::MAX).is_none());
        assert_eq!(all.room(), 1);
        drop(most);
        assert_eq!(all.room(), MAX_OF_FILE);
    }
}

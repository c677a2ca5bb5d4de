//! How a history is kept.

use std::{path::PathBuf, time::Duration};

use super::error::StoreError;

/// Where the history is, unless another place is named.
pub const DEFAULT_PATH: &str = "/var/lib/drainprof/history.db";
/// The least that [`Options::max_bytes`] may be.
pub const LEAST_BYTES: u64 = 4 << 20;
/// What is older than this is thinned.
pub const DENSE: Duration = Duration::from_secs(24 * 3600);
/// To one point in this time.
pub const SPACING: Duration = Duration::from_secs(300);

/// How a history is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The file. Its directory is made if it is not there.
    pub path: PathBuf,
    /// What is older goes.
    pub max_age: Duration,
    /// Bytes of the file and its log together; the oldest go when they would be more. At least [`LEAST_BYTES`].
    pub max_bytes: u64,
    /// What distinguishes this boot of the machine from others, because a pid and a start time do not; `None`: what the
    /// kernel says.
    pub boot: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: PathBuf::from(DEFAULT_PATH),
            max_age: Duration::from_secs(30 * 24 * 3600),
            max_bytes: 256 << 20,
            boot: None,
        }
    }
}

impl Options {
    /// Whether they can be met.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.max_bytes < LEAST_BYTES {
            return Err(StoreError::Options(format!(
                "max_bytes is {}, and a history takes {LEAST_BYTES} at least",
                self.max_bytes
            )));
        }
        if self.max_age < SPACING {
            return Err(StoreError::Options(format!(
                "max_age is {} s, and a history spans {} s at least",
                self.max_age.as_secs(),
                SPACING.as_secs()
            )));
        }
        Ok(())
    }

    /// Bytes that the log may take: a quarter.
    pub(super) const fn log_bytes(&self) -> u64 {
        self.max_bytes / 4
    }

    /// Bytes that the file itself may take.
    pub(super) const fn main_bytes(&self) -> u64 {
        self.max_bytes - self.log_bytes()
    }
}

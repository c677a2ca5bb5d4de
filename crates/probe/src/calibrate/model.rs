//! What calibration is asked for, and what comes of it.

use std::{io, path::PathBuf};

use drainprof_process::ProcessError;

use super::host::HostKey;
use crate::{bpf::BpfError, plan::cost::Costs};

/// Where costs come from.
#[derive(Clone, Debug, Default)]
pub struct CalibrateOptions {
    /// The cache's directory ([`super::cache_directory`]); `None`: nothing is read or remembered.
    pub cache: Option<PathBuf>,
    /// Measure even if there is something in the cache.
    pub fresh: bool,
}

/// Costs, and where they are from.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The costs.
    pub costs: Costs,
    /// What they belong to.
    pub host: HostKey,
    /// Whether they come from the cache.
    pub cached: bool,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// There are no samples for this architecture.
    #[error("calibration is not available on {0}: it measures x86-64 instructions")]
    Architecture(&'static str),
    /// The empty programs could not be loaded or attached.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// Our own mappings could not be read.
    #[error(transparent)]
    Target(#[from] ProcessError),
    /// Something about this very process failed.
    #[error("calibration could not {step}; is /proc mounted?")]
    Own {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        #[source]
        source: Option<io::Error>,
    },
    /// No costs can be like this.
    #[error("calibration measured impossible costs; run `drainprof calibrate --fresh` again")]
    Implausible,
}

impl CalibrateError {
    pub(super) const fn own(step: &'static str, source: Option<io::Error>) -> Self {
        Self::Own { step, source }
    }
}

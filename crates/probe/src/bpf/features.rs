//! Whether the kernel side loads and works here: asked of the kernel, never inferred from a version.

use std::time::Duration;

use super::{
    BpfError, Session, Sizes,
    config::{Offsets, SessionConfig},
};
use crate::kernel::ProgramStatistics;

/// Loads the kernel side with the smallest maps and every program, and throws it away.
///
/// Every close is asked for as an event: what is not wanted, the verifier removes without a look at it.
///
/// `Ok` says what the kernel made of each program, by name; `Err` says what failed.
pub fn self_test(offsets: Offsets) -> Result<Vec<ProgramStatistics>, BpfError> {
    let sizes = Sizes {
        granules: 64,
        objects: 64,
        instances: 4,
        threads: 4,
        places: 4,
        probes: 4,
        targets: 4,
        call_paths: 64,
        growth: false,
        kernel_stacks: false,
        ring_bytes: 4_096,
    };
    let mut session = Session::load(&SessionConfig {
        sizes,
        events: true,
        sample: 2,
        offsets,
        growth: None,
        growth_paths: false,
        calls: true,
        patience: Duration::from_secs(10),
    })?;
    session.load_all()
}

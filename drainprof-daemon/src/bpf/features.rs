//! Whether the kernel side loads and works here: asked of the kernel, never inferred from a version.

use super::{Offsets, Session, SessionConfig, Sizes};

/// Loads the kernel side with the smallest maps and every program, and throws it away.
///
/// `Ok` says how many programs loaded; `Err` says what failed.
pub fn self_test(offsets: Offsets) -> Result<usize, super::BpfError> {
    let sizes = Sizes {
        granules: 64,
        objects: 64,
        instances: 4,
        threads: 4,
        places: 4,
        probes: 4,
        targets: 4,
        ring_bytes: 4_096,
    };
    let mut session = Session::load(&SessionConfig { sizes, events: false, sample: 1, offsets })?;
    session.load_all()
}

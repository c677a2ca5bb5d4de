//! Waiting for programs that have begun: a thread can be preempted in one, for seconds where others have a higher
//! priority, so that two readings which agree prove nothing.
//!
//! The kernel itself waits for all programs that are under way when an array of maps is changed, so that the
//! old map is certain not to be used any more. Programs of uprobes are read-side critical sections of RCU; one
//! thread waits at a time, and the caller no longer than it says.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    sync::mpsc::RecvTimeoutError,
    time::Duration,
};

use aya_obj::generated::bpf_map_type;
use drainprof_process::Workers;

use super::syscall;

static WAITER: Workers = Workers::new("grace", 1);

/// Waits until every program that was under way has ended; `false` if that takes longer than `limit`, or cannot be known.
#[must_use]
pub fn programs_have_ended(limit: Duration) -> bool {
    let outcome = WAITER.start(wait).map(|waiting| waiting.recv_timeout(limit));
    match outcome {
        Ok(Ok(Ok(()))) => true,
        Ok(Ok(Err(error))) | Err(error) => {
            tracing::debug!(%error, "whether programs are under way is not known");
            false
        }
        Ok(Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected)) => false,
    }
}

fn wait() -> io::Result<()> {
    let (outer, inner) = maps()?;
    syscall::set(outer.as_fd(), 0, inner.as_fd())
}

/// An array of one map, and that map.
fn maps() -> io::Result<(OwnedFd, OwnedFd)> {
    let inner = syscall::create_map(bpf_map_type::BPF_MAP_TYPE_ARRAY, 4, 8, 1)?;
    Ok((syscall::create_array_of_maps(inner.as_fd())?, inner))
}

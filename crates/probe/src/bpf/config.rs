//! What a session and its targets are asked to be.

use std::time::Duration;

use super::Sizes;

/// What a session needs to know before it is loaded.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// Sizes of the maps.
    pub sizes: Sizes,
    /// Whether every close and late drain is to be sent.
    pub events: bool,
    /// One of so many granules is looked at; 1: all.
    pub sample: u32,
    /// Where tracepoint fields stand on this kernel.
    pub offsets: Offsets,
    /// Where the fields of growth's tracepoints stand; `None`: growth is not wanted, and nothing of it is loaded.
    pub growth: Option<GrowthOffsets>,
    /// Whether growth is counted by call stack; only as a sum otherwise, which costs a fault less.
    pub growth_paths: bool,
    /// Whether calls are followed from entry to return, as probes need it. It takes a tracepoint of a system call, and such
    /// a one slows every system call of the machine.
    pub calls: bool,
    /// For how long a caller waits for the kernel to put one probe in place. A few milliseconds are enough as a rule.
    pub patience: Duration,
}

/// Offsets of tracepoint fields, as tracefs gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// `pid` of `task:task_newtask`.
    pub newtask_pid: u32,
    /// `clone_flags` of `task:task_newtask`.
    pub newtask_flags: u32,
    /// `old_pid` of `sched:sched_process_exec`.
    pub exec_old_pid: u32,
}

/// How a process is entered as a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arming {
    /// It has not run a single instruction of its own yet.
    pub from_start: bool,
    /// Its children are followed.
    pub follow: bool,
}

/// Offsets of tracepoint fields that are needed where growth is wanted, as tracefs gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthOffsets {
    /// `mm_id` of `kmem:rss_stat`.
    pub mm_id: u32,
    /// `curr` of `kmem:rss_stat`.
    pub curr: u32,
    /// `member` of `kmem:rss_stat`.
    pub member: u32,
    /// `size` of `kmem:rss_stat`.
    pub size: u32,
    /// `__syscall_nr` of the tracepoints of system calls.
    pub syscall: u32,
}

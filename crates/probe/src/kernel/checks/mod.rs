//! The checks, in the order in which they are shown.

mod features;
mod privileges;
mod resources;
mod system;

pub use features::{
    Events, MAPPING_BEGINS, MAPPING_ENDS, NEEDED_TRACEPOINTS, RSS_CHANGES, growth_tracepoints,
};
pub use resources::{MemoryLimit, memory_limit};
pub use system::cpus_online;

use super::{Check, HostView, caps::Effective};

/// The names of all checks that [`run`] returns, in its order.
pub const CHECK_NAMES: [&str; 27] = [
    "kernel",
    "architecture",
    "cpus",
    "user_namespace",
    "pid_namespace",
    "cap_bpf",
    "cap_perfmon",
    "cap_sys_ptrace",
    "cap_checkpoint_restore",
    "cap_dac_read_search",
    "cap_sys_admin",
    "cap_setuid",
    "cap_setgid",
    "cap_sys_resource",
    "lockdown",
    "perf_event_paranoid",
    "ptrace_scope",
    "bpf_syscall",
    "bpf_jit",
    "bpf_stats",
    "uprobe_pmu",
    "tracefs",
    "tracepoints",
    "growth_tracepoints",
    "psi",
    "memory",
    "memlock",
];

/// The name of a check that `doctor` adds to these: it needs the loader, which stands to our right.
pub const SELF_TEST: &str = "self-test";
/// Another one, for the same reason.
pub const PRIVATE_STACKS: &str = "private_stacks";
/// Another one, for the same reason.
pub const ADDRESS_SPACE_LOCKS: &str = "address_space_locks";
/// Another one: it starts a process.
pub const SYMBOL_HELPER: &str = "symbol-helper";

/// Checks everything, and changes nothing. A caller that may mount tracefs does so before, through
/// [`ensure_mounted`](crate::kernel::ensure_mounted); else it is reported as missing.
#[must_use]
pub fn run(host: &dyn HostView) -> Vec<Check> {
    let effective = Effective::of(host);
    let mut checks = vec![system::kernel(host), system::architecture(host), system::cpus(host)];
    checks.push(privileges::user_namespace(host));
    checks.push(privileges::pid_namespace(host));
    checks.extend(privileges::capabilities(host, effective));
    checks.push(privileges::lockdown(host));
    checks.push(privileges::perf_event_paranoid(host, effective));
    checks.push(privileges::ptrace_scope(host, effective));
    checks.extend([features::bpf_syscall(host), features::bpf_jit(host)]);
    checks.extend([features::bpf_stats(host), features::uprobe_pmu(host)]);
    checks.extend(features::tracing(host));
    checks.push(resources::psi(host));
    checks.extend([resources::memory(host), resources::memlock(host)]);
    checks
}

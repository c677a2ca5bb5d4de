//! Takes away from this process all that a symbol helper does not need.
//!
//! What is left: the socket to drainprof, the descriptors that come through it, and memory. A must are: no
//! capabilities, `no_new_privs`, limits, a list of allowed system calls, and user `nobody` where we may change it.
//! Without any of these there is no helper. What else cannot be taken away is reported. Called by `worker`, once, first.

use std::{collections::BTreeMap, fs, io};

use nix::{
    libc,
    unistd::{Gid, Uid, geteuid, getpid, setgroups, setresgid, setresuid},
};
use rustix::{
    process::{
        DumpableBehavior, Resource, Rlimit, chdir, getrlimit, set_dumpable_behavior, setrlimit,
    },
    thread::{
        CapabilitySet, CapabilitySets, UnshareFlags, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, unshare_unsafe,
    },
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter_all_threads,
};

use super::lent;

/// The user and the group that own nothing.
pub(super) const NOBODY: u32 = 65_534;
/// Memory of the helper beyond the files that it maps.
pub(super) const MAX_MEMORY: u64 = 2 << 30;
/// Processor time of a helper, seconds. drainprof replaces it before, unless one question takes all of it.
const MAX_PROCESSOR_TIME: u64 = 60;
/// Its own descriptors, those of one question, and copies of these.
const MAX_DESCRIPTORS: u64 = 16;

/// What it may use at most: the soft and the hard limit.
const LIMITS: [(Resource, u64, u64); 8] = [
    (Resource::Data, MAX_MEMORY, MAX_MEMORY),
    // At the soft one the signal names the reason.
    (Resource::Cpu, MAX_PROCESSOR_TIME, MAX_PROCESSOR_TIME + 1),
    (Resource::Nofile, MAX_DESCRIPTORS, MAX_DESCRIPTORS),
    (Resource::Nproc, 0, 0),
    (Resource::Fsize, 0, 0),
    (Resource::Core, 0, 0),
    (Resource::Memlock, 0, 0),
    (Resource::Msgqueue, 0, 0),
];

/// The system calls that it may make with any arguments: it talks through a socket, reads what is mapped, and has
/// memory. There is none that opens, finds, changes or starts anything. Those with a path are answered by `lent`.
const ALLOWED: [libc::c_long; 25] = [
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// How far the process is confined.
#[derive(Debug, Default)]
pub(super) struct Confined {
    /// What could not be taken away, and why.
    pub(super) missing: Vec<String>,
    /// Whether it still is root, though without capabilities.
    pub(super) keeps_root: bool,
}

/// Closes what was inherited, except stdin, stdout and stderr.
pub(super) fn close_inherited() -> io::Result<()> {
    // SAFETY: nothing in this process uses a descriptor beyond these three yet; it has just started.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
    if closed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Confines this process. An error says which step failed: then nothing of a stranger may be read here.
pub(super) fn enter() -> Result<Confined, String> {
    let mut confined = Confined::default();
    // Where memory is short, this process goes first.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    must("leave its working directory", chdir("/"))?;
    keep_memory();
    for (resource, soft, hard) in LIMITS {
        let now = getrlimit(resource);
        let least = |now: Option<u64>, most| Some(now.map_or(most, |now| now.min(most)));
        let limit = Rlimit { current: least(now.current, soft), maximum: least(now.maximum, hard) };
        must("limit itself", setrlimit(resource, limit))?;
    }
    // SAFETY: the table of descriptors stays shared; only namespaces change.
    if let Err(error) = unsafe {
        unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS)
    } {
        confined.missing.push(format!("it has no network namespace of its own: {error}"));
    }
    drop_capabilities(&mut confined)?;
    must("forbid itself new privileges", set_no_new_privs(true))?;
    must("hide its memory", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    must("answer system calls", lent::answer_calls())?;
    // Of two filters the stricter decides, and the second forbids to add another.
    for filter in [trap(), filter()] {
        let filter = filter.map_err(|error| format!("it cannot filter system calls: {error}"))?;
        // Also in threads that other code may have started.
        must("filter system calls", apply_filter_all_threads(&filter))?;
    }
    Ok(confined)
}

/// Keeps glibc from shrinking the heaps of threads: it opens a file of `/proc` then, which is forbidden here.
fn keep_memory() {
    // SAFETY: it sets a number of glibc's malloc, under its lock.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

fn must<E: std::fmt::Display>(step: &str, result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| format!("it cannot {step}: {error}"))
}

/// Becomes `nobody` where that is allowed, and gives up all capabilities.
fn drop_capabilities(confined: &mut Confined) -> Result<(), String> {
    // Without `CAP_SETPCAP` the bounding set stays. It binds what programs may get, and none can be started.
    let mut all = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    let _ = all.try_for_each(remove_capability_from_bounding_set);
    let _ = clear_ambient_capability_set();
    let ours = capabilities(None).map_err(|error| format!("it cannot see its rights: {error}"))?;
    if ours.effective.contains(CapabilitySet::SETUID | CapabilitySet::SETGID) {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        must("leave its groups", setgroups(&[]))?;
        must("change its group", setresgid(group, group, group))?;
        must("change its user", setresuid(user, user, user))?;
    } else if geteuid().is_root() {
        confined.keeps_root = true;
        let why =
            "it stays user root, without capabilities: drainprof lacks CAP_SETUID and CAP_SETGID";
        confined.missing.push(why.to_owned());
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    must("drop its capabilities", set_capabilities(None, none))
}

/// The allowed system calls; any other one ends the process.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(lent::CALLS).map(|&call| (call, Vec::new())).collect();
    let only = |argument, operator, value| {
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    // Memory never becomes code.
    let executable = libc::PROT_EXEC.cast_unsigned().into();
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![only(2, SeccompCmpOp::MaskedEq(executable), 0)?]);
    }
    // The standard library asks so whether a descriptor is open that it closes, in builds with assertions.
    let get = only(1, SeccompCmpOp::Eq, libc::F_GETFD.cast_unsigned().into())?;
    let copy = only(1, SeccompCmpOp::Eq, libc::F_DUPFD_CLOEXEC.cast_unsigned().into())?;
    rules.insert(libc::SYS_fcntl, vec![get, copy]);
    // It may abort, but signal no other process.
    let own = getpid().as_raw().cast_unsigned().into();
    rules.insert(libc::SYS_tgkill, vec![only(0, SeccompCmpOp::Eq, own)?]);
    compile(rules, SeccompAction::KillProcess, SeccompAction::Allow)
}

/// Gives the calls with a path to the handler that answers them.
fn trap() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = lent::CALLS.iter().map(|&call| (call, Vec::new())).collect();
    compile(rules, SeccompAction::Allow, SeccompAction::Trap)
}

/// A filter that does `otherwise` unless the call is one of `rules`.
fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matched, architecture)?.try_into()
}

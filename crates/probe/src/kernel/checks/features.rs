//! What the kernel can do, as far as it can be seen without loading anything.

use std::io;

use super::super::host::word;
use crate::kernel::{Check, Class, HostView, Tracefs, TracefsError};

/// The tracepoints that no session does without, with the fields that the kernel side reads.
pub const NEEDED_TRACEPOINTS: [(&str, &str, &[&str]); 4] = [
    ("task", "task_newtask", &["pid", "clone_flags"]),
    ("sched", "sched_process_exec", &["pid", "old_pid"]),
    ("sched", "sched_process_exit", &["pid"]),
    ("syscalls", "sys_enter_exit", &[]),
];

/// A category of tracepoints, and some of its events.
pub type Events = (&'static str, &'static [&'static str]);

/// Raised at page faults.
const PAGE_FAULTS: Events = ("exceptions", &["page_fault_user", "page_fault_kernel"]);
/// Raised when resident memory changes.
pub const RSS_CHANGES: Events = ("kmem", &["rss_stat"]);
/// Raised before a system call changes mappings.
pub const MAPPING_BEGINS: Events = (
    "syscalls",
    &[
        "sys_enter_brk",
        "sys_enter_mmap",
        "sys_enter_munmap",
        "sys_enter_mremap",
        "sys_enter_madvise",
    ],
);
/// Raised after it.
pub const MAPPING_ENDS: Events = (
    "syscalls",
    &["sys_exit_brk", "sys_exit_mmap", "sys_exit_munmap", "sys_exit_mremap", "sys_exit_madvise"],
);

/// All tracepoints through which memory growth is followed: category, event.
pub fn growth_tracepoints() -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = [PAGE_FAULTS, RSS_CHANGES, MAPPING_BEGINS, MAPPING_ENDS];
    all.into_iter()
        .flat_map(|(category, events)| events.iter().map(move |event| (category, *event)))
}

pub(super) fn bpf_syscall(host: &dyn HostView) -> Check {
    const PATH: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
    let check = Check::new("bpf_syscall", Class::Feature).required();
    match word(host, PATH) {
        Ok(text) if text == "0" => check.ok("there, for everybody"),
        Ok(_) => check.ok("there, with CAP_BPF"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check.fail(
            "absent",
            "the kernel is built without BPF, or /proc/sys is hidden",
            "use a kernel with CONFIG_BPF_SYSCALL; in a container, show it the host's /proc/sys",
        ),
        Err(error) => Check::unreadable("bpf_syscall", Class::Feature, PATH, &error),
    }
}

pub(super) fn bpf_jit(host: &dyn HostView) -> Check {
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    let check = Check::new("bpf_jit", Class::Feature).required();
    match word(host, PATH) {
        Ok(text) if text == "0" => check.fail(
            "off",
            "the kernel's interpreter does not take programs that have functions and a tail call",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(_) => check.ok("on"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check.off(
            "not visible",
            "in a network namespace of our own this cannot be seen; calibrate reports what a hit costs",
        ),
        Err(error) => Check::unreadable("bpf_jit", Class::Feature, PATH, &error),
    }
}

pub(super) fn bpf_stats(host: &dyn HostView) -> Check {
    const PATH: &str = "/proc/sys/kernel/bpf_stats_enabled";
    let check = Check::new("bpf_stats", Class::Info);
    match word(host, PATH) {
        Ok(text) if text == "1" => check.warn(
            "on",
            "the kernel reads the clock twice around every BPF program: each hit costs more",
            "sysctl kernel.bpf_stats_enabled=0",
        ),
        Ok(_) => check.ok("off, as it should be"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check.off("not in this kernel", "nothing is lost")
        }
        Err(error) => Check::unreadable("bpf_stats", Class::Info, PATH, &error),
    }
}

pub(super) fn uprobe_pmu(host: &dyn HostView) -> Check {
    const PATH: &str = "/sys/bus/event_source/devices/uprobe/type";
    let check = Check::new("uprobe_pmu", Class::Feature).required();
    match word(host, PATH) {
        Ok(text) if text.parse::<u32>().is_ok() => check.ok(format!("there, type {text}")),
        Ok(_) => check.fail(
            "its type is no number",
            "probes cannot be placed",
            format!("check {PATH}: is /sys the kernel's own?"),
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check.fail(
            "absent",
            "the kernel is built without user probes, or /sys is not mounted",
            "use a kernel with CONFIG_UPROBE_EVENTS; in a container, show it the host's /sys",
        ),
        Err(error) => Check::unreadable("uprobe_pmu", Class::Feature, PATH, &error),
    }
}

/// Tracefs and the tracepoints that it describes.
pub(super) fn tracing(host: &dyn HostView) -> [Check; 3] {
    let tracefs = Tracefs::find(host);
    let needed = Check::new("tracepoints", Class::Feature).required();
    let growth = Check::new("growth_tracepoints", Class::Feature);
    let Ok(tracefs) = tracefs else {
        let not_examined = "not examined";
        let because = "tracefs cannot be read";
        return [
            no_tracefs(tracefs.err().as_ref()),
            needed.off(not_examined, because),
            growth.off(not_examined, because),
        ];
    };
    let place = Check::new("tracefs", Class::Privilege)
        .required()
        .ok(format!("at {}", tracefs.root().display()));
    [place, needed_tracepoints(host, &tracefs, needed), check_growth(host, &tracefs, growth)]
}

fn no_tracefs(error: Option<&TracefsError>) -> Check {
    let check = Check::new("tracefs", Class::Privilege).required();
    let means = "tracepoints cannot be found, so starts and ends of processes would be missed";
    match error {
        Some(TracefsError::Denied) => check.fail(
            "there, and not readable for this user",
            means,
            "run as root or with CAP_DAC_READ_SEARCH",
        ),
        // Commands that attach mount it themselves if they may.
        _ => {
            check.fail("not mounted", means, "as root: mount -t tracefs nodev /sys/kernel/tracing")
        }
    }
}

fn needed_tracepoints(host: &dyn HostView, tracefs: &Tracefs, check: Check) -> Check {
    let mut problems = Vec::new();
    for (category, event, fields) in NEEDED_TRACEPOINTS {
        match tracefs.format(host, category, event) {
            Ok(format) => problems.extend(
                fields
                    .iter()
                    .filter(|field| format.field(field).is_none())
                    .map(|field| format!("{category}:{event} has no field {field}")),
            ),
            Err(error) => problems.push(error.to_string()),
        }
    }
    if problems.is_empty() {
        return check.ok(format!("all {} that are needed", NEEDED_TRACEPOINTS.len()));
    }
    check.fail(
        problems.join("; "),
        "starts and ends of processes would be missed",
        "use a kernel with CONFIG_TRACEPOINTS and CONFIG_FTRACE_SYSCALLS; if it has both, report this",
    )
}

fn check_growth(host: &dyn HostView, tracefs: &Tracefs, check: Check) -> Check {
    let missing: Vec<String> = growth_tracepoints()
        .filter(|(category, event)| tracefs.format(host, category, event).is_err())
        .map(|(category, event)| format!("{category}:{event}"))
        .collect();
    if missing.is_empty() {
        return check.ok(format!("all {}", growth_tracepoints().count()));
    }
    check.warn(
        format!("missing: {}", missing.join(", ")),
        "memory growth can be joined with granules only in part",
        "use a kernel with CONFIG_FTRACE_SYSCALLS",
    )
}

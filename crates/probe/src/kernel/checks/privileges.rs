//! What we may do here.

use std::{io, path::Path};

use super::super::host::word;
use crate::kernel::{
    Capability, Check, Class, HostView,
    caps::{Effective, how_to_get, in_initial_user_namespace},
};

/// The inode of the initial PID namespace (`PROC_PID_INIT_INO` in the kernel's UAPI).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(super) fn user_namespace(host: &dyn HostView) -> Check {
    let check = Check::new("user_namespace", Class::Privilege).required();
    match in_initial_user_namespace(host) {
        Some(true) => check.ok("the initial one"),
        Some(false) => check.fail(
            "not the initial one",
            "capabilities of a user namespace (a rootless container) do not allow tracing",
            "run drainprof outside of it, or in a container of the root user",
        ),
        None => check.warn(
            "/proc/self/ns/user cannot be read",
            "whether our capabilities count is not known",
            "mount /proc",
        ),
    }
}

pub(super) fn pid_namespace(host: &dyn HostView) -> Check {
    let check = Check::new("pid_namespace", Class::Privilege).required();
    match host.link(Path::new("/proc/self/ns/pid")) {
        Ok(link) if link == INITIAL_PID_NAMESPACE => check.ok("the initial one"),
        Ok(link) => check.fail(
            format!("{link}, not the initial one"),
            "the kernel side sees the host's process numbers and we see others, so nothing would match",
            "run with the host's PID namespace (docker run --pid=host, hostPID: true)",
        ),
        Err(error) => check.warn(
            format!("/proc/self/ns/pid cannot be read: {error}"),
            "whether process numbers mean the same to the kernel side is not known",
            "mount /proc",
        ),
    }
}

/// One check per capability, with what it is for.
pub(super) fn capabilities(host: &dyn HostView, effective: Option<Effective>) -> Vec<Check> {
    Capability::ALL.iter().map(|&capability| one(host, effective, capability)).collect()
}

fn one(host: &dyn HostView, effective: Option<Effective>, capability: Capability) -> Check {
    let check = Check::new(capability.name(), Class::Privilege);
    let needed = matches!(capability, Capability::Bpf | Capability::Perfmon);
    let check = if needed { check.required() } else { check };
    let Some(effective) = effective else {
        return check.warn(
            "/proc/self/status cannot be read",
            "our capabilities are not known",
            "mount /proc",
        );
    };
    if effective.has(capability) {
        return check.ok("there");
    }
    if effective.may(capability) {
        return check.ok("through CAP_SYS_ADMIN");
    }
    let missing = "missing";
    match capability {
        Capability::Bpf => check.fail(
            missing,
            "attach, run, daemon, top, diagnose and calibrate cannot load their kernel side",
            how_to_get(host),
        ),
        Capability::Perfmon => check.fail(
            missing,
            "attach, run, daemon, top, diagnose and calibrate cannot place probes",
            how_to_get(host),
        ),
        Capability::SysPtrace => check.warn(
            missing,
            "only processes of our own user can be examined; discover and daemon see no others",
            how_to_get(host),
        ),
        Capability::CheckpointRestore => check.off(
            missing,
            "libraries that were replaced or deleted on disk cannot be opened through \
             /proc/PID/map_files; others are opened through /proc/PID/root",
        ),
        Capability::DacReadSearch => check.warn(
            missing,
            "only programs, libraries and tracing files that our user may read can be opened",
            how_to_get(host),
        ),
        Capability::SysAdmin => check.warn(
            missing,
            "many kernels place uprobes for nobody without it, whatever CAP_PERFMON should allow; on \
             these every attach is refused (exit code 77)",
            how_to_get(host),
        ),
        Capability::SetUid | Capability::SetGid => check.warn(
            missing,
            "the helper that reads symbols keeps our user and group, without capabilities",
            how_to_get(host),
        ),
        Capability::SysResource => check.off(missing, "not needed"),
    }
}

pub(super) fn lockdown(host: &dyn HostView) -> Check {
    const PATH: &str = "/sys/kernel/security/lockdown";
    let check = Check::new("lockdown", Class::Feature).required();
    let text = match word(host, PATH) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return check.ok("not in this kernel, or securityfs is not mounted");
        }
        Err(error) => return Check::unreadable("lockdown", Class::Feature, PATH, &error),
    };
    // The mode in force stands in brackets: `none [integrity] confidentiality`.
    let mode = text.split(['[', ']']).nth(1).unwrap_or("");
    match mode {
        "none" => check.ok("none"),
        "integrity" => check.ok("integrity, which allows probes that only read"),
        "confidentiality" => check.fail(
            "confidentiality",
            "the kernel shows its tracing files to nobody, root included",
            "boot with lockdown=integrity or without lockdown",
        ),
        _ => check.warn(
            "the mode is not understood",
            "if tracing is locked down, attaching will fail",
            format!("check {PATH}"),
        ),
    }
}

pub(super) fn perf_event_paranoid(host: &dyn HostView, effective: Option<Effective>) -> Check {
    const PATH: &str = "/proc/sys/kernel/perf_event_paranoid";
    let check = Check::new("perf_event_paranoid", Class::Feature);
    let text = match word(host, PATH) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return check.required().fail(
                "absent",
                "the kernel is built without performance events, through which probes are placed",
                "use a kernel with CONFIG_PERF_EVENTS",
            );
        }
        Err(error) => {
            return Check::unreadable("perf_event_paranoid", Class::Feature, PATH, &error);
        }
    };
    let Ok(level) = text.parse::<i32>() else {
        return check.warn(
            "the level is no number",
            "whether performance events are restricted is not known",
            format!("check {PATH}"),
        );
    };
    // Debian, Ubuntu and Android add levels above 2, and ask CAP_SYS_ADMIN for them in some versions.
    if level > 2 && !effective.is_some_and(|effective| effective.has(Capability::SysAdmin)) {
        return check.warn(
            format!("{level}"),
            "a distribution's level that may ask for CAP_SYS_ADMIN where CAP_PERFMON should do",
            "if attaching is refused, run as root or set kernel.perf_event_paranoid to 2",
        );
    }
    check.ok(format!("{level}, which does not bind us"))
}

pub(super) fn ptrace_scope(host: &dyn HostView, effective: Option<Effective>) -> Check {
    const PATH: &str = "/proc/sys/kernel/yama/ptrace_scope";
    let check = Check::new("ptrace_scope", Class::Privilege);
    let text = match word(host, PATH) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return check.ok("Yama is not in force");
        }
        Err(error) => return Check::unreadable("ptrace_scope", Class::Privilege, PATH, &error),
    };
    let may = effective.is_some_and(|effective| effective.has(Capability::SysPtrace));
    let found = format!("{text:.16}");
    match text.as_str() {
        "0" | "1" => check.ok(found),
        "2" if may => check.ok(found),
        "2" => check.warn(found, "run cannot stop its command before main", how_to_get(host)),
        "3" => check.warn(
            found,
            "run cannot stop its command before main; attach is not concerned",
            "start the command by itself and attach to it; the level holds until the next boot",
        ),
        _ => check.warn(
            "the level is not understood",
            "run may be unable to stop its command before main",
            format!("check {PATH}"),
        ),
    }
}

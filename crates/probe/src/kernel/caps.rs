//! Which capabilities we have, and which each thing needs.

use std::path::Path;

use super::HostView;

/// The inode of the initial user namespace (`PROC_USER_INIT_INO` in the kernel's UAPI).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// A capability that some command needs, or is often believed to need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Reads files regardless of their permissions.
    DacReadSearch,
    /// Takes the helper that reads symbols out of our group.
    SetGid,
    /// Makes the helper that reads symbols another user.
    SetUid,
    /// Looks into processes of other users.
    SysPtrace,
    /// Places uprobes, whatever the kernel; replaces several of the others.
    SysAdmin,
    /// Raises resource limits.
    SysResource,
    /// Loads tracing programs, and on some kernels places uprobes.
    Perfmon,
    /// Creates maps and loads programs.
    Bpf,
    /// Opens `/proc/PID/map_files`.
    CheckpointRestore,
}

impl Capability {
    /// All of them, in the order in which they are reported.
    pub const ALL: [Self; 9] = [
        Self::Bpf,
        Self::Perfmon,
        Self::SysPtrace,
        Self::CheckpointRestore,
        Self::DacReadSearch,
        Self::SysAdmin,
        Self::SetUid,
        Self::SetGid,
        Self::SysResource,
    ];

    /// Its number, from `linux/capability.h`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::DacReadSearch => 2,
            Self::SetGid => 6,
            Self::SetUid => 7,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::SysResource => 24,
            Self::Perfmon => 38,
            Self::Bpf => 39,
            Self::CheckpointRestore => 40,
        }
    }

    /// Its name, which is the name of the check on it too.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DacReadSearch => "cap_dac_read_search",
            Self::SetGid => "cap_setgid",
            Self::SetUid => "cap_setuid",
            Self::SysPtrace => "cap_sys_ptrace",
            Self::SysAdmin => "cap_sys_admin",
            Self::SysResource => "cap_sys_resource",
            Self::Perfmon => "cap_perfmon",
            Self::Bpf => "cap_bpf",
            Self::CheckpointRestore => "cap_checkpoint_restore",
        }
    }
}

/// The effective capabilities of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effective(u64);

impl Effective {
    pub(super) fn of(host: &dyn HostView) -> Option<Self> {
        let status = host.read(Path::new("/proc/self/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        u64::from_str_radix(line.trim(), 16).ok().map(Self)
    }

    /// Exactly this one.
    pub(super) fn has(self, capability: Capability) -> bool {
        self.0 >> capability.number() & 1 == 1
    }

    /// This one, or the one that stands for it: the kernel lets `CAP_SYS_ADMIN` do what the younger,
    /// narrower capabilities allow.
    pub(super) fn may(self, capability: Capability) -> bool {
        use Capability::{Bpf, CheckpointRestore, Perfmon, SysAdmin};
        self.has(capability)
            || matches!(capability, Bpf | Perfmon | CheckpointRestore) && self.has(SysAdmin)
    }
}

/// Whether capabilities count for the whole machine; None: it could not be found out.
pub(super) fn in_initial_user_namespace(host: &dyn HostView) -> Option<bool> {
    host.link(Path::new("/proc/self/ns/user")).ok().map(|link| link == INITIAL_USER_NAMESPACE)
}

/// The capabilities for a binary that runs without root: those that `tests/tests/capabilities.rs` finds to be enough,
/// each of which it finds to be needed, the last two for the symbol helper.
pub(super) const SETCAP: &str =
    "cap_sys_admin,cap_sys_ptrace,cap_dac_read_search,cap_setuid,cap_setgid=ep";

/// How to get the capabilities.
pub(super) fn how_to_get(host: &dyn HostView) -> String {
    let exe = host.link(Path::new("/proc/self/exe")).unwrap_or_else(|_| "drainprof".to_owned());
    // Other users choose the text of a path, and this line is made to be copied into a shell.
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    let exe = if exe.chars().all(plain) { exe } else { "\"$(command -v drainprof)\"".to_owned() };
    format!("run it with sudo, or once: sudo setcap {SETCAP} {exe}")
}

/// Names what is missing for attaching to a process, and how to get it; None when nothing is.
#[must_use]
pub fn missing_privileges(host: &dyn HostView) -> Option<String> {
    if in_initial_user_namespace(host) == Some(false) {
        return Some(
            "capabilities inside a user namespace (a rootless container) do not allow tracing: \
             run drainprof outside of it"
                .to_owned(),
        );
    }
    let Some(effective) = Effective::of(host) else {
        return Some(
            "our own capabilities cannot be read from /proc/self/status: is /proc mounted?"
                .to_owned(),
        );
    };
    // Where these two do not place probes, the kernel says so at the first one.
    let may = [Capability::Bpf, Capability::Perfmon].iter().all(|&one| effective.may(one));
    (!may).then(|| {
        let name = Capability::SysAdmin.name().to_uppercase();
        format!("missing {name}: {}", how_to_get(host))
    })
}

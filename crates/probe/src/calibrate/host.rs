//! What a measurement belongs to: costs of one kernel, processor and tool say nothing about another.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::kernel::HostView;

/// Longest text that is kept of a file of the kernel.
const MAX_CHARS: usize = 256;

/// What costs depend on. Two hosts that are equal in it have the same costs, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostKey {
    /// The kernel's release, as `uname -r` has it.
    pub kernel_release: String,
    /// The kernel's build, as `uname -v` has it.
    pub kernel_version: String,
    /// The processor's model; empty where the kernel does not say.
    pub cpu_model: String,
    /// Whether a hypervisor is beneath: a trap may then cost many times as much on the same processor.
    pub virtual_machine: bool,
    /// drainprof's version: which instructions are measured, and how.
    pub tool_version: String,
}

impl HostKey {
    /// The key of the host that is looked at. What cannot be read is empty.
    #[must_use]
    pub fn of(host: &dyn HostView) -> Self {
        let read = |path: &str| host.read(Path::new(path)).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let field = |name: &str| {
            processor
                .lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(field, _)| field.trim() == name)
                .map(|(_, value)| value)
                .unwrap_or_default()
        };
        Self {
            kernel_release: tame(&read("/proc/sys/kernel/osrelease")),
            kernel_version: tame(&read("/proc/sys/kernel/version")),
            cpu_model: tame(field("model name")),
            virtual_machine: field("flags").split_whitespace().any(|flag| flag == "hypervisor"),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Without what a terminal would obey, and not too long.
fn tame(text: &str) -> String {
    text.trim().chars().take(MAX_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io};

    use super::*;

    struct Fake(BTreeMap<&'static str, String>);

    impl HostView for Fake {
        fn read(&self, path: &Path) -> io::Result<String> {
            let text = path.to_str().and_then(|path| self.0.get(path));
            text.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        fn link(&self, _: &Path) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn architecture(&self) -> &'static str {
            "x86_64"
        }
    }

    fn with(cpuinfo: &str) -> HostKey {
        HostKey::of(&Fake(BTreeMap::from([
            ("/proc/sys/kernel/osrelease", "6.18.0\n".to_owned()),
            ("/proc/sys/kernel/version", "#1 SMP\n".to_owned()),
            ("/proc/cpuinfo", cpuinfo.to_owned()),
        ])))
    }

    /// Kernel, processor and hypervisor are distinguished.
    #[test]
    fn fields() {
        let key = with("processor : 0\nmodel name\t: A CPU @ 2 GHz\nflags\t: fpu hypervisor sse\n");
        assert_eq!(
            (key.kernel_release.as_str(), key.kernel_version.as_str()),
            ("6.18.0", "#1 SMP")
        );
        assert_eq!((key.cpu_model.as_str(), key.virtual_machine), ("A CPU @ 2 GHz", true));
        assert_ne!(key, with("model name\t: A CPU @ 2 GHz\nflags\t: fpu sse\n"));
        assert_ne!(key, with("model name\t: B CPU\nflags\t: hypervisor\n"));
    }

    /// Files that are not there, and bytes that a terminal would obey, make a key all the same.
    #[test]
    fn odd_hosts() {
        let nothing = HostKey::of(&Fake(BTreeMap::new()));
        assert!(nothing.kernel_release.is_empty() && !nothing.virtual_machine);
        let odd = with(&format!("model name: \x1b[31m{}", "x".repeat(10_000)));
        assert_eq!(odd.cpu_model.chars().count(), MAX_CHARS);
        assert!(!odd.cpu_model.contains('\x1b'));
    }
}

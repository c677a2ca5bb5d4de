//! Checks on machines that do not exist, and formats of kernels that do.

mod checks;
mod formats;
mod render;
mod tracefs;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use nix::libc;

use super::{HostView, growth_tracepoints};

/// A machine made of texts and error numbers.
#[derive(Clone)]
pub(super) struct FakeHost {
    files: BTreeMap<PathBuf, Result<String, i32>>,
    links: BTreeMap<PathBuf, String>,
    architecture: &'static str,
}

/// All capabilities of Linux 5.15 and later.
const ALL_CAPABILITIES: u64 = (1 << 41) - 1;

impl FakeHost {
    /// Root on a machine where everything is as it should be.
    pub(super) fn healthy() -> Self {
        let mut host =
            Self { files: BTreeMap::new(), links: BTreeMap::new(), architecture: "x86_64" }
                .link("/proc/self/ns/user", "user:[4026531837]")
                .link("/proc/self/ns/pid", "pid:[4026531836]")
                .link("/proc/self/exe", "/usr/bin/drainprof")
                .capabilities(ALL_CAPABILITIES);
        for (path, text) in [
            ("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n"),
            ("/sys/devices/system/cpu/online", "0-3\n"),
            ("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
            ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("/proc/sys/kernel/yama/ptrace_scope", "1\n"),
            ("/proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
            ("/proc/sys/net/core/bpf_jit_enable", "1\n"),
            ("/proc/sys/kernel/bpf_stats_enabled", "0\n"),
            ("/sys/bus/event_source/devices/uprobe/type", "9\n"),
            ("/sys/kernel/tracing/events/header_page", "\tfield: u64 timestamp;\n"),
            ("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"),
            ("/proc/self/cgroup", "0::/user.slice/session-1.scope\n"),
            ("/proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
            ("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n"),
            ("/proc/self/limits", "Max locked memory         unlimited unlimited bytes\n"),
        ] {
            host = host.file(path, text);
        }
        let growth = growth_tracepoints().map(|(category, event)| (category, event, formats::ANY));
        let events = formats::V6_12.into_iter().chain(growth);
        for (category, event, text) in events {
            host = host.file(&event_path(category, event), text);
        }
        host
    }

    pub(super) fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), Ok(text.into()));
        self
    }

    /// Reading `path` fails with this error number.
    pub(super) fn error(mut self, path: &str, errno: i32) -> Self {
        self.files.insert(path.into(), Err(errno));
        self
    }

    pub(super) fn without(mut self, path: &str) -> Self {
        assert!(self.files.remove(Path::new(path)).is_some(), "{path} was not there");
        self
    }

    pub(super) fn link(mut self, path: &str, to: &str) -> Self {
        self.links.insert(path.into(), to.into());
        self
    }

    pub(super) fn without_link(mut self, path: &str) -> Self {
        assert!(self.links.remove(Path::new(path)).is_some(), "{path} was not there");
        self
    }

    pub(super) fn architecture(mut self, name: &'static str) -> Self {
        self.architecture = name;
        self
    }

    /// Our effective capabilities, as a mask.
    pub(super) fn capabilities(self, mask: u64) -> Self {
        let text = format!("Name:\tdrainprof\nCapPrm:\t0000000000000000\nCapEff:\t{mask:016x}\n");
        self.file("/proc/self/status", &text)
    }
}

fn event_path(category: &str, event: &str) -> String {
    format!("/sys/kernel/tracing/events/{category}/{event}/format")
}

impl HostView for FakeHost {
    fn read(&self, path: &Path) -> io::Result<String> {
        match self.files.get(path) {
            Some(Ok(text)) => Ok(text.clone()),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(*errno)),
            None => Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
    }

    fn link(&self, path: &Path) -> io::Result<String> {
        let gone = || io::Error::from_raw_os_error(libc::ENOENT);
        self.links.get(path).cloned().ok_or_else(gone)
    }

    fn architecture(&self) -> &str {
        self.architecture
    }
}

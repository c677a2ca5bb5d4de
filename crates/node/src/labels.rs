//! Where a process belongs: from the paths of its control groups to unit, container and pod.
//!
//! A process says nothing of that itself; the control groups that systemd, container runtimes and the kubelet put
//! it into have telling names. What a path does not say stays null: the Kubernetes namespace is in none of them.
//! Any process that may make control groups chooses names: they are bounded and escaped here, once.

use std::{io, path::Path};

use drainprof_process::{Place, cgroup_paths, printable, read_cgroups};

use super::Labels;
use crate::config::Label;

/// Characters of a label; what is longer is cut and ends in `…`.
pub const MAX_LABEL_CHARS: usize = 512;
/// Characters of a label in metrics.
const MAX_METRIC_CHARS: usize = 200;

impl Labels {
    /// From the executable's path and the text of `/proc/PID/cgroup`.
    #[must_use]
    pub fn parse(exe: &str, cgroup: &[u8]) -> Self {
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(exe);
        let exe = label(exe.rsplit('/').next().unwrap_or(exe).as_bytes());
        let paths = cgroup_paths(cgroup);
        let found: Vec<Place<'_>> = paths.iter().map(|path| Place::of(path)).collect();
        // The root of a hierarchy says nothing as long as another hierarchy says more.
        let shown = paths.iter().find(|path| **path != b"/").or(paths.first());
        let first = |get: fn(&Place<'_>) -> Option<String>| found.iter().find_map(get);
        Self {
            exe,
            cgroup: shown.map(|path| label(path)),
            container: first(|found| found.container.map(str::to_owned)),
            unit: first(|found| found.unit.map(str::to_owned)),
            pod: first(|found| found.pod.clone()),
            namespace: None,
        }
    }

    /// Those of a process; `proc` is where procfs is mounted.
    pub fn read(proc: &Path, pid: u32, exe: &str) -> io::Result<Self> {
        Ok(Self::parse(exe, &read_cgroups(proc, pid)?))
    }

    /// The labels of the counts that have no set of their own.
    #[must_use]
    pub(crate) fn other() -> Self {
        Self { exe: "other".to_owned(), ..Self::default() }
    }

    /// These labels as metrics show them: only those that are `wanted`, cut at 200 characters.
    #[must_use]
    pub(crate) fn only(&self, wanted: &[Label]) -> Self {
        let keep = |label: Label, value: Option<&str>| {
            value
                .filter(|_| wanted.contains(&label))
                .map(|value| value.chars().take(MAX_METRIC_CHARS).collect())
        };
        Self {
            exe: keep(Label::Exe, Some(&self.exe)).unwrap_or_default(),
            cgroup: keep(Label::Cgroup, self.cgroup.as_deref()),
            container: keep(Label::Container, self.container.as_deref()),
            unit: keep(Label::Unit, self.unit.as_deref()),
            pod: keep(Label::Pod, self.pod.as_deref()),
            namespace: keep(Label::Namespace, self.namespace.as_deref()),
        }
    }
}

/// A name as a label: bounded, and safe to show. Names that are plain stay as they are, systemd's escapes
/// (`\x2d`) included, so that they can be compared with what `systemctl` says.
fn label(name: &[u8]) -> String {
    let text = match std::str::from_utf8(name) {
        Ok(text) if is_plain(text) => text.to_owned(),
        _ => printable(name),
    };
    match text.char_indices().nth(MAX_LABEL_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Whether a name is printable ASCII whose backslashes are those of systemd's escapes. These stand for ASCII, so
/// no other name looks the same when it is escaped.
fn is_plain(text: &str) -> bool {
    let escape = |rest: &str| {
        let mut bytes = rest.bytes();
        bytes.next() == Some(b'x')
            && bytes.next().is_some_and(|digit| (b'0'..=b'7').contains(&digit))
            && bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit())
    };
    text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        && text.match_indices('\\').all(|(at, _)| escape(&text[at + 1..]))
}

#[cfg(test)]
mod tests;

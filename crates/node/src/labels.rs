//! Where a process belongs: from the paths of its control groups to unit, container and pod.
//!
//! A process says nothing of that itself; the control groups that systemd, container runtimes and the kubelet put
//! it into have names that tell. What a path does not tell stays null: the Kubernetes namespace is in none of them.
//! Names come from whoever may make control groups: they are bounded and escaped here, once.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use drainprof_process::{container_id, printable};

use super::Labels;
use crate::config::Label;

/// Bytes of `/proc/PID/cgroup` that are read. Lines beyond are not looked at.
const MAX_BYTES: u64 = 64 * 1024;
/// Characters of a label; what is longer is cut and ends in `…`.
pub const MAX_LABEL_CHARS: usize = 512;
/// Characters of a label in metrics.
const MAX_METRIC_CHARS: usize = 200;
/// Bytes that a systemd unit's name can have.
const MAX_UNIT_BYTES: usize = 255;
/// What names of units end in.
const UNIT_KINDS: [&str; 11] = [
    ".service",
    ".scope",
    ".socket",
    ".mount",
    ".swap",
    ".automount",
    ".timer",
    ".path",
    ".target",
    ".device",
    ".slice",
];

impl Labels {
    /// From the executable's path and the text of `/proc/PID/cgroup`.
    #[must_use]
    pub fn parse(exe: &str, cgroup: &[u8]) -> Self {
        let exe = exe.strip_suffix(" (deleted)").unwrap_or(exe);
        let exe = label(exe.rsplit('/').next().unwrap_or(exe).as_bytes());
        let paths = paths(cgroup);
        let found: Vec<Found<'_>> = paths.iter().map(|path| Found::of(path)).collect();
        // The root of a hierarchy says nothing as long as another hierarchy says more.
        let shown = paths.iter().find(|path| **path != b"/").or(paths.first());
        let first = |get: fn(&Found<'_>) -> Option<String>| found.iter().find_map(get);
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
        let mut text = Vec::new();
        let file = File::open(proc.join(pid.to_string()).join("cgroup"))?;
        file.take(MAX_BYTES).read_to_end(&mut text)?;
        Ok(Self::parse(exe, &text))
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

/// The paths of the hierarchies that tell most, those first: the unified one, systemd's own, that of memory, and
/// then the other ones of version 1.
fn paths(text: &[u8]) -> Vec<&[u8]> {
    let mut rated: Vec<(u8, &[u8])> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if !path.starts_with(b"/") {
            continue;
        }
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let mut controllers = controllers.split(|byte| *byte == b',');
        let rate = if number == b"0" {
            0
        } else if controllers.clone().any(|name| name == b"name=systemd") {
            1
        } else if controllers.any(|name| name == b"memory") {
            2
        } else {
            3
        };
        rated.push((rate, path));
    }
    rated.sort_by_key(|(rate, _)| *rate);
    rated.into_iter().map(|(_, path)| path).collect()
}

/// What one path tells.
#[derive(Default)]
struct Found<'a> {
    unit: Option<&'a str>,
    container: Option<&'a str>,
    pod: Option<String>,
}

impl<'a> Found<'a> {
    /// Goes down the path. A container begins a tree of its own: units that are found below it are those that run
    /// in it, and a container below is one in a container. The innermost is where the process is.
    fn of(path: &'a [u8]) -> Self {
        let mut found = Self::default();
        // Below a service, groups are its own business, except for the manager of a user's services.
        let mut in_service = false;
        for segment in path.split(|byte| *byte == b'/') {
            // systemd writes an underscore before names that would clash with files of the kernel.
            let segment = segment.strip_prefix(b"_").unwrap_or(segment);
            // `..`: the process is outside of our own control group namespace; the rest tells as always.
            let Some(segment) = std::str::from_utf8(segment).ok().filter(|name| *name != "..")
            else {
                continue;
            };
            if let Some(uid) = pod_uid(segment) {
                found.pod = Some(uid);
            }
            if let Some(id) = container_id(segment) {
                found.container = Some(id);
                in_service = false;
            } else if !in_service && is_unit(segment) && segment.strip_suffix(".slice").is_none() {
                found.unit = Some(segment);
                in_service = !(segment.starts_with("user@") && segment.ends_with(".service"));
            }
        }
        found
    }
}

/// Whether systemd could have a unit of this name. `memory.stat.service` and the like are not distinguished.
fn is_unit(name: &str) -> bool {
    let Some(stem) = UNIT_KINDS.iter().find_map(|kind| name.strip_suffix(kind)) else {
        return false;
    };
    let taken = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    !stem.is_empty() && name.len() <= MAX_UNIT_BYTES && name.bytes().all(taken)
}

/// The uid of the Kubernetes pod that a control group was made for: `pod01234567-89ab-…`, or
/// `kubepods-burstable-pod01234567_89ab_….slice`. Static pods have 32 digits without dashes.
fn pod_uid(segment: &str) -> Option<String> {
    // containerd without systemd's help: `kubepods-burstable-podUID.slice:cri-containerd:ID`.
    let name = segment.split(':').next().unwrap_or(segment);
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let at = name.rfind("pod")?;
    let (before, uid) = (name.get(..at)?, name.get(at + 3..)?);
    if !(before.is_empty() || before.ends_with('-')) {
        return None;
    }
    if is_hex(uid, 32) {
        return Some(uid.to_owned());
    }
    let uid = uid.replace('_', "-");
    let parts: Vec<&str> = uid.split('-').collect();
    let lengths = [8, 4, 4, 4, 12];
    let fits = parts.len() == lengths.len()
        && parts.iter().zip(lengths).all(|(part, length)| is_hex(part, length));
    fits.then_some(uid)
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length
        && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
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

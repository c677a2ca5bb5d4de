//! Where a process belongs, by the paths of its control groups: unit, container and pod.
//!
//! systemd, container runtimes and the kubelet name control groups after what they hold. Users who may make
//! control groups choose names too.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use crate::{container, container::container_id, guard::ask_process};

/// Bytes of `/proc/PID/cgroup` that are read.
const MAX_BYTES: u64 = 64 << 10;
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

/// The text of `/proc/PID/cgroup`; `proc` is where procfs is mounted. Lines beyond 64 KiB are left out.
pub fn read_cgroups(proc: &Path, pid: u32) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let path = proc.join(pid.to_string()).join("cgroup");
    ask_process(pid, || File::open(path)?.take(MAX_BYTES).read_to_end(&mut text))?;
    Ok(text)
}

/// The innermost container of a process; `None` where it is in none, or cannot be read.
#[must_use]
pub fn container_of(pid: u32) -> Option<String> {
    let text = read_cgroups(Path::new("/proc"), pid).ok()?;
    container::of_text(&String::from_utf8_lossy(&text)).map(str::to_owned)
}

/// Of the text of `/proc/PID/cgroup`, the paths of all hierarchies, the most useful first: the unified one, systemd's
/// own, that of memory, then the others of version 1.
#[must_use]
pub fn cgroup_paths(text: &[u8]) -> Vec<&[u8]> {
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

/// What the path of a control group says. Names are bounded, and hostile: show them with
/// [`printable()`](crate::printable()).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place<'a> {
    /// The systemd unit: a service, a scope and so on, but no slice.
    pub unit: Option<&'a str>,
    /// The id of the innermost container: 64 hexadecimal digits.
    pub container: Option<&'a str>,
    /// The uid of the Kubernetes pod, with dashes.
    pub pod: Option<String>,
}

impl<'a> Place<'a> {
    /// Goes down the path. A container begins a tree of its own: units that are found below it are those that run
    /// in it, and a container below is one in a container. The innermost is where the process is.
    #[must_use]
    pub fn of(path: &'a [u8]) -> Self {
        let mut found = Self::default();
        // Below a service, groups are its own business, except for the manager of a user's services.
        let mut in_service = false;
        for segment in path.split(|byte| *byte == b'/') {
            // systemd writes an underscore before names that would clash with files of the kernel.
            let segment = segment.strip_prefix(b"_").unwrap_or(segment);
            // `..`: the process is outside of our own control group namespace; the rest is valid.
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
pub(crate) fn is_unit(name: &str) -> bool {
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

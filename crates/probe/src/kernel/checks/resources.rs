//! What there is enough of.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

use nix::libc;

use super::super::host::word;
use crate::kernel::{Check, Class, HostView};

/// Below this much room the maps of the kernel side and the ledger do not fit comfortably.
const COMFORTABLE: u64 = 128 << 20;
/// Version 1 has no word for "no limit", only a number near `i64::MAX` rounded to pages.
const UNLIMITED: u64 = 1 << 62;
/// Deeper than any hierarchy of control groups.
const MAX_DEPTH: usize = 64;

pub(super) fn psi(host: &dyn HostView) -> Check {
    const PATH: &str = "/proc/pressure/memory";
    let check = Check::new("psi", Class::Info);
    let means = "memory pressure cannot trigger a diagnostic window; growth and pins still can";
    match word(host, PATH) {
        Ok(text) if text.starts_with("some ") => check.ok("there"),
        Ok(_) => check.warn("not understood", means, format!("check {PATH}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check.off("not in this kernel (CONFIG_PSI)", means)
        }
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            check.warn("switched off", means, "boot with psi=1")
        }
        Err(error) => Check::unreadable("psi", Class::Info, PATH, &error),
    }
}

/// The narrowest memory limit of the control groups that we are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The directory of the group that sets it.
    pub group: PathBuf,
    /// The limit in bytes.
    pub limit: u64,
    /// How much of it is in use.
    pub used: u64,
}

impl MemoryLimit {
    /// What is left.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Where memory control groups are mounted, our own group, and the names of the two files.
struct Hierarchy {
    mount: PathBuf,
    group: PathBuf,
    files: [&'static str; 2],
}

const V1_FILES: [&str; 2] = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
const V2_FILES: [&str; 2] = ["memory.max", "memory.current"];

/// Finds the group that leaves the least room; None: there is no limit, or it cannot be seen.
#[must_use]
pub fn memory_limit(host: &dyn HostView) -> Option<MemoryLimit> {
    let groups = host.read(Path::new("/proc/self/cgroup")).ok()?;
    let mounts = host.read(Path::new("/proc/self/mounts")).ok()?;
    hierarchies(&groups, &mounts)
        .iter()
        .flat_map(|hierarchy| limits(host, hierarchy))
        .min_by_key(MemoryLimit::room)
}

/// Both versions can be mounted side by side, and the memory controller is in one of them.
fn hierarchies(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, fs, options) = (words.next()?, words.next()?, words.next()?);
            let matches =
                fs == kind && (option.is_empty() || options.split(',').any(|o| o == option));
            matches.then(|| PathBuf::from(place))
        })
    };
    let mut found = Vec::new();
    for line in groups.lines().take(MAX_DEPTH) {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(group)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (mount, files) = if number == "0" && controllers.is_empty() {
            (mounted("cgroup2", ""), V2_FILES)
        } else if controllers.split(',').any(|name| name == "memory") {
            (mounted("cgroup", "memory"), V1_FILES)
        } else {
            continue;
        };
        if let Some(mount) = mount {
            found.push(Hierarchy { mount, group: PathBuf::from(group), files });
        }
    }
    found
}

/// The limits of our group and of all groups around it: the narrowest binds.
fn limits(host: &dyn HostView, hierarchy: &Hierarchy) -> Vec<MemoryLimit> {
    let inside = hierarchy.group.strip_prefix("/").unwrap_or(&hierarchy.group);
    // Seen from another namespace a group lies at `/../..`: only the mount itself can be read then.
    let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
    let inside = if plain { inside } else { Path::new("") };
    let number = |group: &Path, file: &str| {
        let text = host.read(&hierarchy.mount.join(group).join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    inside
        .ancestors()
        .take(MAX_DEPTH)
        .filter_map(|group| {
            let limit = number(group, hierarchy.files[0]).filter(|&limit| limit < UNLIMITED)?;
            let used = number(group, hierarchy.files[1]).unwrap_or(0);
            // Joining an empty path would end in a slash.
            let group = hierarchy.mount.join(group).components().collect();
            Some(MemoryLimit { group, limit, used })
        })
        .collect()
}

pub(super) fn memory(host: &dyn HostView) -> Check {
    let check = Check::new("memory", Class::Resource);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let available = word(host, "/proc/meminfo").ok().and_then(|text| available_bytes(&text));
    let limit = memory_limit(host);
    let (room, found) = match (&limit, available) {
        (Some(limit), available) => (
            limit.room().min(available.unwrap_or(u64::MAX)),
            format!(
                "limit {}, used {} ({})",
                mib(limit.limit),
                mib(limit.used),
                limit.group.display()
            ),
        ),
        (None, Some(available)) => {
            (available, format!("no limit of our own, {} available", mib(available)))
        }
        (None, None) => {
            return check.warn(
                "neither a limit nor the available memory can be read",
                "the maps of the kernel side are made in their default sizes",
                "mount /proc",
            );
        }
    };
    if room < COMFORTABLE {
        return check.warn(
            format!("{found}; room for {}", mib(room)),
            "maps are made smaller, so that they fill sooner; what does not fit is counted as lost",
            format!("give drainprof {} of memory, or fewer targets", mib(COMFORTABLE)),
        );
    }
    check.ok(found)
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

pub(super) fn memlock(host: &dyn HostView) -> Check {
    let check = Check::new("memlock", Class::Info);
    let means =
        "since Linux 5.11 BPF memory is charged to the control group; this limit does not bind";
    let text = host.read(Path::new("/proc/self/limits")).unwrap_or_default();
    let limit = text.lines().find_map(|line| {
        line.strip_prefix("Max locked memory")?.split_whitespace().next().map(str::to_owned)
    });
    match limit {
        Some(limit) if limit == "unlimited" => check.ok(limit),
        Some(limit) => check.off(format!("{limit:.20} bytes"), means),
        None => check.off("not known", means),
    }
}

//! Which processes are meant: all of a name, a systemd unit, a container or a control group.
//!
//! Reads `/proc` once, at the moment of the call; processes that come later are not chosen. Called by `cli`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::Path,
};

use crate::{
    Place,
    cgroup::{is_unit, read_cgroups},
    cgroup_paths, container_id,
    family::incarnations_in,
    printable,
    process::Stat,
    readers::each,
};

/// Bytes of a name that the kernel keeps (`TASK_COMM_LEN` without its zero).
const COMM_BYTES: usize = 15;
/// Fewest digits of a container's id: `docker ps` shows so many.
pub const MIN_CONTAINER_DIGITS: usize = 12;
/// Containers that an error lists.
const LISTED: usize = 4;

/// What processes have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The exact name (`comm`). The kernel keeps 15 bytes of a name, so 15 bytes of this one are compared.
    Comm(String),
    /// The systemd unit. `nginx` is `nginx.service`.
    Unit(String),
    /// The container: its id or at least 12 first digits of it. Containers inside of it belong to it.
    Container(String),
    /// The path of the control group, from the root of its hierarchy on; groups below it belong to it.
    Cgroup(String),
}

/// A process that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selected {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
}

/// Why no process could be chosen. Names in messages are escaped already.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// No running process that we see is meant.
    #[error("no process matches {selector}: {remedy}")]
    NoMatch {
        /// What was asked for.
        selector: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The digits fit several containers.
    #[error("{selector} fits several containers: give more digits of one of {}", .containers.join(", "))]
    Ambiguous {
        /// What was asked for.
        selector: String,
        /// Ids of some of them.
        containers: Vec<String>,
    },
    /// The processes cannot be listed.
    #[error("cannot list the processes in /proc")]
    List(#[source] io::Error),
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (option, value) = match self {
            Self::Comm(name) => ("--comm", name),
            Self::Unit(unit) => ("--unit", unit),
            Self::Container(id) => ("--container", id),
            Self::Cgroup(path) => ("--cgroup", path),
        };
        write!(f, "{option} {}", printable(value))
    }
}

impl Selector {
    /// All running programs that are meant now, but this very process; sorted by number, never empty.
    ///
    /// # Errors
    /// If there is none, if the digits of a container fit several, and if `/proc` cannot be listed.
    pub fn find(&self) -> Result<Vec<Selected>, SelectError> {
        self.find_in(Path::new("/proc"))
    }

    /// The same, where procfs is mounted at `proc`.
    fn find_in(&self, proc: &Path) -> Result<Vec<Selected>, SelectError> {
        let own = std::process::id();
        let mut containers = BTreeSet::new();
        let mut found = BTreeMap::new();
        let (place, by_name) = (proc.to_owned(), matches!(self, Self::Comm(_)));
        let listed = incarnations_in(proc).map_err(SelectError::List)?;
        let all = each(listed.map(|(pid, _)| (pid, ())), move |pid, ()| {
            let stat = Stat::read(&place, pid).filter(Stat::is_running_program)?;
            let groups = if by_name { Vec::new() } else { read_cgroups(&place, pid).ok()? };
            // The number may have got another owner between the two files.
            let again = Stat::read(&place, pid)?;
            (again.start_time == stat.start_time).then_some((stat, groups))
        });
        for (pid, read) in all {
            let Some((stat, groups)) = read else { continue };
            let is_meant = match self {
                Self::Comm(name) => is_named(&stat.comm, name),
                _ => self.fits_groups(&groups, &mut containers),
            };
            if is_meant && pid != own {
                found.insert(pid, stat.start_time);
            }
        }
        if containers.len() > 1 {
            let containers = containers.into_iter().take(LISTED).collect();
            return Err(SelectError::Ambiguous { selector: self.to_string(), containers });
        }
        if found.is_empty() {
            return Err(SelectError::NoMatch { selector: self.to_string(), remedy: self.remedy() });
        }
        Ok(found.into_iter().map(|(pid, start_time)| Selected { pid, start_time }).collect())
    }

    /// Whether a process with this text of `/proc/PID/cgroup` is meant; adds the ids that a container's digits fit.
    fn fits_groups(&self, text: &[u8], containers: &mut BTreeSet<String>) -> bool {
        let paths = cgroup_paths(text);
        match self {
            Self::Comm(_) => false,
            Self::Unit(unit) => {
                let found = paths.iter().find_map(|path| Place::of(path).unit);
                found.is_some_and(|found| {
                    found == unit
                        || (!is_unit(unit) && found.strip_suffix(".service") == Some(unit))
                })
            }
            Self::Container(digits) => {
                let segments = paths.iter().flat_map(|path| path.split(|byte| *byte == b'/'));
                let ids = segments.filter_map(|name| container_id(std::str::from_utf8(name).ok()?));
                let fitting: BTreeSet<_> = ids.filter(|id| id.starts_with(digits)).collect();
                containers.extend(fitting.iter().map(|id| (*id).to_owned()));
                !fitting.is_empty()
            }
            Self::Cgroup(group) => paths.iter().any(|path| is_below(path, group.as_bytes())),
        }
    }

    const fn remedy(&self) -> &'static str {
        match self {
            Self::Comm(_) => "`ps -e -o pid,comm` shows the names",
            Self::Unit(_) => "`systemctl status UNIT` shows whether it runs",
            Self::Container(_) => {
                "take the id of a running container, as `docker ps --no-trunc` or `crictl ps --no-trunc` shows it"
            }
            Self::Cgroup(_) => {
                "`systemd-cgls` shows the groups; /proc/PID/cgroup has that of a process"
            }
        }
    }
}

fn is_named(comm: &str, name: &str) -> bool {
    let kept = name.as_bytes().get(..COMM_BYTES).unwrap_or(name.as_bytes());
    // A name cut inside of a character is read as the kernel shows it.
    comm == String::from_utf8_lossy(kept)
}

/// Whether a path is `group` or lies below it. Slashes around `group` do not count.
fn is_below(path: &[u8], group: &[u8]) -> bool {
    let segments = |path| <[u8]>::split(path, |byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut path = segments(path);
    segments(group).all(|name| path.next() == Some(name))
}

#[cfg(test)]
mod tests;

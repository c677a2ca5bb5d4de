//! The memory control group of a process: what it uses, and the limits on the way up.
//!
//! Both versions can be mounted side by side, and the memory controller is in one of them. Called by `read`, which keeps
//! what was found for as long as it examines many processes.

use std::{
    collections::HashMap,
    fs::File,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use super::{GroupPressure, pressure};

/// Version 1 has no word for "no limit", only a number near `i64::MAX` rounded to pages.
const UNLIMITED: u64 = 1 << 62;
/// Groups on the way up that are examined. Hierarchies are a few levels deep.
const MAX_DEPTH: usize = 64;
/// Lines that are examined. A machine with many containers has thousands of mounts.
const MAX_LINES: usize = 65_536;
/// A number and a newline.
const MAX_NUMBER: u64 = 64;

/// The memory of a group, bytes, and the pressure on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    /// What it uses: the nearest group on the way up that counts.
    pub(super) used: Option<u64>,
    /// The lowest limit of it and of those above it.
    pub(super) limit: Option<u64>,
    /// What is left until the first of these limits is reached.
    pub(super) room: Option<u64>,
    /// Pressure on the group itself. Only version 2 has it, whichever version has the memory controller.
    pub(super) pressure: Option<GroupPressure>,
}

/// One hierarchy that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// The group whose subtree it shows.
    root: PathBuf,
    /// Where.
    place: PathBuf,
}

/// Where the memory controller's groups are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mounts {
    v1: Option<Mount>,
    v2: Option<Mount>,
}

impl Mounts {
    /// From the text of `/proc/self/mountinfo`; places are searched for below `root`.
    pub(super) fn parse(text: &str, root: &Path) -> Self {
        let mut mounts = Self::default();
        for line in text.lines().take(MAX_LINES) {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let mut before = before.split(' ').skip(3);
            let (Some(top), Some(place)) = (before.next(), before.next()) else { continue };
            let mut after = after.split(' ');
            let kind = after.next();
            let slot = match kind {
                Some("cgroup2") => &mut mounts.v2,
                Some("cgroup")
                    if after.nth(1).is_some_and(|o| o.split(',').any(|o| o == "memory")) =>
                {
                    &mut mounts.v1
                }
                _ => continue,
            };
            // The same hierarchy may be mounted again elsewhere, for a container: the first is the machine's.
            slot.get_or_insert_with(|| {
                let place = unescaped(place);
                let place = root.join(place.strip_prefix("/").unwrap_or(&place));
                Mount { root: unescaped(top), place }
            });
        }
        mounts
    }

    /// The directory of the group that `/proc/PID/cgroup` names, and whether it is of version 2.
    fn directory(&self, groups: &str) -> Option<(Place, bool)> {
        let mut v2 = None;
        for line in groups.lines().take(MAX_LINES) {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(group)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            if number == "0" && controllers.is_empty() {
                v2 = self.v2.as_ref().and_then(|mount| mount.place(group));
            } else if controllers.split(',').any(|name| name == "memory") {
                // A controller is in one hierarchy only: if it is here, version 2 has none.
                return Some((self.v1.as_ref()?.place(group)?, false));
            }
        }
        Some((v2?, true))
    }

    /// The process's group of version 2, and its directory.
    fn unified<'a>(&self, groups: &'a str) -> Option<(&'a str, Place)> {
        let group = groups.lines().take(MAX_LINES).find_map(|line| line.strip_prefix("0::"))?;
        Some((group, self.v2.as_ref()?.place(group)?))
    }
}

/// A group below its mount.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    mount: PathBuf,
    inside: PathBuf,
}

impl Mount {
    /// Where a group is; `None` where this mount does not show it.
    fn place(&self, group: &str) -> Option<Place> {
        let group = Path::new(group.strip_suffix(" (deleted)").unwrap_or(group));
        let inside = group.strip_prefix(&self.root).ok()?;
        // Seen from another cgroup namespace a group lies at `/../..`, which no path here leads to.
        let plain = inside.components().all(|part| matches!(part, Component::Normal(_)));
        plain.then(|| Place { mount: self.place.clone(), inside: inside.to_owned() })
    }
}

/// Groups that were examined, by the text that names them.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups(HashMap<String, Group>);

impl Groups {
    /// The figures of the group that `/proc/PID/cgroup` names; read once until [`Groups::forget`].
    pub(super) fn look(&mut self, mounts: &Mounts, groups: &str) -> Group {
        if let Some(known) = self.0.get(groups) {
            return known.clone();
        }
        let mut group =
            mounts.directory(groups).map(|(place, v2)| read(&place, v2)).unwrap_or_default();
        group.pressure = mounts.unified(groups).and_then(|(name, place)| {
            let pressure = pressure::of_group(&place.mount.join(&place.inside))?;
            Some(GroupPressure { group: name.into(), pressure })
        });
        self.0.insert(groups.to_owned(), group.clone());
        group
    }

    /// Forgets all figures: they are of another moment.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

fn read(place: &Place, v2: bool) -> Group {
    let [limit_file, use_file] = if v2 {
        ["memory.max", "memory.current"]
    } else {
        ["memory.limit_in_bytes", "memory.usage_in_bytes"]
    };
    let mut group = Group::default();
    for inside in place.inside.ancestors().take(MAX_DEPTH) {
        let directory = place.mount.join(inside);
        let used = number(&directory.join(use_file));
        let limit = number(&directory.join(limit_file)).filter(|&limit| limit < UNLIMITED);
        group.used = group.used.or(used);
        group.limit = least(group.limit, limit);
        let room = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
        group.room = least(group.room, room);
    }
    group
}

fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// A number from a file; `None` for `max`, and where there is none.
fn number(path: &Path) -> Option<u64> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_NUMBER).read_to_string(&mut text).ok()?;
    text.trim_end().parse().ok()
}

/// A path as mountinfo writes it: space, tab, newline and backslash in octal.
fn unescaped(path: &str) -> PathBuf {
    let mut plain = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            plain.push(char::from(code));
            rest = &after[3..];
        } else {
            plain.push('\\');
            rest = after;
        }
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BOTH: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        50 31 0:32 /pod /var/lib/pod rw - cgroup cgroup rw,memory\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn look(root: &Path, mounts: &str, groups: &str) -> Group {
        Groups::default().look(&Mounts::parse(mounts, root), groups)
    }

    /// With both versions mounted, the one that has the memory controller tells; a huge number is no limit.
    #[test]
    fn version_1_beside_2() {
        let root = tempfile::tempdir().unwrap();
        let at = |file: &str| format!("sys/fs/cgroup/memory/{file}");
        write(root.path(), &at("a/b/memory.usage_in_bytes"), "1000\n");
        write(root.path(), &at("a/b/memory.limit_in_bytes"), "9223372036854771712\n");
        write(root.path(), &at("a/memory.usage_in_bytes"), "4000\n");
        write(root.path(), &at("a/memory.limit_in_bytes"), "5000\n");
        write(root.path(), "sys/fs/cgroup/unified/a/b/memory.current", "77\n");
        let groups = "4:memory:/a/b\n1:cpu:/x\n0::/a/b\n";
        let group =
            Group { used: Some(1000), limit: Some(5000), room: Some(1000), ..Group::default() };
        assert_eq!(look(root.path(), BOTH, groups), group);
        let none = Group { used: Some(77), ..Group::default() };
        assert_eq!(look(root.path(), BOTH, "1:cpu:/x\n0::/a/b\n"), none);
    }

    /// The lowest limit need not be the first that is reached: what is left counts each group's own use.
    #[test]
    fn limits_on_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        let at = |file: &str| format!("sys/fs/cgroup/{file}");
        // No memory controller in the innermost: its memory is counted one level up.
        write(root.path(), &at("a/b/c/cgroup.procs"), "");
        write(root.path(), &at("a/b/memory.current"), "100\n");
        write(root.path(), &at("a/b/memory.max"), "1000\n");
        write(root.path(), &at("a/memory.current"), "1950\n");
        write(root.path(), &at("a/memory.max"), "2000\n");
        let group =
            Group { used: Some(100), limit: Some(1000), room: Some(50), ..Group::default() };
        assert_eq!(look(root.path(), V2, "0::/a/b/c\n"), group);
        write(root.path(), &at("a/b/memory.max"), "max\n");
        let group =
            Group { used: Some(100), limit: Some(2000), room: Some(50), ..Group::default() };
        assert_eq!(look(root.path(), V2, "0::/a/b/c\n"), group);
        write(root.path(), &at("a/memory.current"), "2100\n");
        assert_eq!(look(root.path(), V2, "0::/a/b/c\n").room, Some(0), "above its limit");
        assert_eq!(look(root.path(), V2, "0::/\n"), Group::default());
    }

    /// Pressure is that of the process's own group of version 2, also where version 1 has the memory controller.
    #[test]
    fn pressure_of_the_own_group() {
        let root = tempfile::tempdir().unwrap();
        let text = "some avg10=25.00 avg60=1.00 avg300=0.00 total=7\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        write(root.path(), "sys/fs/cgroup/unified/a/memory.pressure", text);
        write(root.path(), "sys/fs/cgroup/unified/a/b/cgroup.procs", "");
        let share = |groups: &str| {
            let found = look(root.path(), BOTH, groups).pressure;
            found.map(|found| (found.group.to_string(), found.pressure.some.avg10))
        };
        assert_eq!(share("4:memory:/x\n0::/a\n"), Some(("/a".to_owned(), 0.25)));
        assert_eq!(share("0::/a\n"), Some(("/a".to_owned(), 0.25)));
        for none in ["0::/a/b\n", "4:memory:/a\n", "0::/../a\n"] {
            assert_eq!(share(none), None, "{none}");
        }
    }

    /// A mount of a part of the hierarchy shows that part only, and a group of another namespace is nowhere.
    #[test]
    fn parts_and_namespaces() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "cg/x/memory.current", "7\n");
        let mounts = "1 2 0:3 /pod\\0401 /cg rw - cgroup2 cgroup2 rw\n";
        assert_eq!(look(root.path(), mounts, "0::/pod 1/x\n").used, Some(7));
        assert_eq!(look(root.path(), mounts, "0::/pod 1/x (deleted)\n").used, Some(7));
        for outside in ["0::/pod 2/x\n", "0::/x\n", "0::/../x\n", "0::/pod 1/../../etc\n", "0::x\n"]
        {
            assert_eq!(look(root.path(), mounts, outside), Group::default(), "{outside}");
        }
        let whole = "1 2 0:3 / /cg rw - cgroup2 cgroup2 rw\n";
        assert_eq!(look(root.path(), whole, "0::/../x\n"), Group::default());
    }

    /// Texts that are cut off or nonsense lead nowhere; a file without a number has none.
    #[test]
    fn broken_texts() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "sys/fs/cgroup/a/memory.current", "99999999999999999999999\n");
        write(root.path(), "sys/fs/cgroup/a/memory.max", &"9".repeat(1 << 20));
        assert_eq!(look(root.path(), V2, "0::/a\n"), Group::default());
        for text in ["", ":", "::", "0:", "0::", "4:memory", "4:memory:", "\u{0}", ":::::"] {
            assert_eq!(look(root.path(), V2, text), Group::default(), "{text}");
            assert_eq!(Mounts::parse(text, root.path()), Mounts::default(), "{text}");
        }
        for end in 0..BOTH.len() {
            let _ = Mounts::parse(&BOTH[..end], root.path());
        }
        for path in ["\\", "\\04", "\\999", "a\\", "\\040\\", "é\\é"] {
            let _ = unescaped(path);
        }
        assert_eq!(unescaped("/a\\040b\\134c\\377"), Path::new("/a b\\c\\377"));
    }

    /// A group is read once for all of its processes, until the figures are forgotten.
    #[test]
    fn read_once() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "sys/fs/cgroup/a/memory.current", "5\n");
        let mounts = Mounts::parse(V2, root.path());
        let mut groups = Groups::default();
        assert_eq!(groups.look(&mounts, "0::/a\n").used, Some(5));
        write(root.path(), "sys/fs/cgroup/a/memory.current", "6\n");
        assert_eq!(groups.look(&mounts, "0::/a\n").used, Some(5));
        groups.forget();
        assert_eq!(groups.look(&mounts, "0::/a\n").used, Some(6));
    }
}

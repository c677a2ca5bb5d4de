//! Equal processes become one entry, with the one command that attaches to all of them.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, sync::Arc};

use drainprof_process::{Image, Kinship, Process, printable};

use super::{
    fitting::Fitting,
    model::{Fit, Hint, ProcessGroup},
    requests,
};

/// Most processes that one proposed command names.
const MAX_NAMED: usize = 32;

/// A process that is added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub(super) process: &'a Process,
    pub(super) image: &'a Image,
    pub(super) rss_bytes: u64,
    /// It has several threads.
    pub(super) threaded: bool,
}

/// What equal processes have in common: what they execute, and which profiles fit where.
type Key = (String, Vec<(String, Vec<String>)>, Vec<(String, String)>, bool);

/// Processes that are put together.
#[derive(Debug, Default)]
pub(super) struct Grouper {
    /// With whether each of the processes has several threads.
    groups: BTreeMap<Key, (ProcessGroup, bool)>,
}

impl Grouper {
    /// Adds a process to those that are like it.
    pub(super) fn add(&mut self, member: Member<'_>, fitting: &Arc<Fitting>) {
        let other = elsewhere(member.process.pid);
        let objects = |fit: &Fit| (fit.profile.clone(), fit.objects.clone());
        let missing = |hint: &Hint| (hint.profile.clone(), hint.object.clone());
        let key = (
            member.image.exe_path.clone(),
            fitting.fits.iter().map(objects).collect(),
            fitting.hints.iter().map(missing).collect(),
            other,
        );
        let new = || ProcessGroup {
            comm: printable(&member.process.comm),
            exe: printable(member.process.exe.as_os_str().as_encoded_bytes()),
            pids: Vec::new(),
            rss_bytes: 0,
            other_mount_namespace: other,
            fits: fitting.fits.clone(),
            hints: fitting.hints.clone(),
            attach: None,
        };
        let (group, threaded) = self.groups.entry(key).or_insert_with(|| (new(), true));
        *threaded &= member.threaded;
        group.pids.push(member.process.pid);
        group.rss_bytes = group.rss_bytes.saturating_add(member.rss_bytes);
    }

    /// The groups: first what `attach` examines unasked, and what holds most memory of it.
    pub(super) fn finish(self, kinship: &Kinship, asked: &[String]) -> Vec<ProcessGroup> {
        let mut groups: Vec<_> = self
            .groups
            .into_values()
            .map(|(mut group, threaded)| {
                group.pids.sort_unstable();
                group.attach = command(&group, threaded, kinship, asked);
                group
            })
            .collect();
        groups.sort_by_key(|group| {
            let best = group.fits.first();
            (
                best.is_none_or(|fit| fit.unusable.is_some()),
                best.is_some_and(|fit| fit.on_request),
                std::cmp::Reverse(group.rss_bytes),
                group.pids.first().copied(),
            )
        });
        groups
    }
}

/// The command that attaches to all processes of a group.
fn command(
    group: &ProcessGroup,
    threaded: bool,
    kinship: &Kinship,
    asked: &[String],
) -> Option<String> {
    let usable: Vec<&Fit> = group.fits.iter().filter(|fit| fit.unusable.is_none()).collect();
    // A profile that is named is useful.
    let best = match usable.first()? {
        first if asked.is_empty() && first.on_request => requests::most_useful(&usable, threaded)?,
        first => first,
    };
    let parent = |pid: u32| kinship.parent(pid).filter(|parent| group.pids.contains(parent));
    let tops: Vec<u32> = group.pids.iter().copied().filter(|&pid| parent(pid).is_none()).collect();
    let family = tops.len() < group.pids.len();
    let pids = tops.iter().take(MAX_NAMED).map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut command =
        format!("drainprof attach{} -p {pids}", if family { " --family" } else { "" });
    let names: Vec<String> = if !asked.is_empty() {
        asked.iter().map(|asked| quoted(asked)).collect()
    } else if best.on_request {
        vec![best.profile.clone()]
    } else {
        Vec::new()
    };
    if !names.is_empty() {
        command.push_str(" --profile ");
        command.push_str(&names.join(","));
    }
    Some(command)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let word = printable(word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Whether a process lives in another mount namespace than we do; `false` where that cannot be seen.
fn elsewhere(pid: u32) -> bool {
    let of = |who: &str| fs::metadata(format!("/proc/{who}/ns/mnt")).ok().map(|found| found.ino());
    match (of(&pid.to_string()), of("self")) {
        (Some(theirs), Some(ours)) => theirs != ours,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(pids: &[u32], on_request: bool) -> ProcessGroup {
        let fit = Fit {
            profile: "server".into(),
            kind: "bulk",
            summary: String::new(),
            objects: vec!["/usr/sbin/server".into()],
            on_request,
            default_level: "objects",
            levels: Vec::new(),
            findings: Vec::new(),
            unusable: None,
        };
        ProcessGroup {
            comm: "server".into(),
            exe: "/usr/sbin/server".into(),
            pids: pids.to_vec(),
            rss_bytes: 1,
            other_mount_namespace: false,
            fits: vec![fit],
            hints: Vec::new(),
            attach: None,
        }
    }

    /// Relatives are attached to as a family, by their eldest; strangers each by its number; and what is used
    /// only on request is asked for.
    #[test]
    fn commands() {
        let none = Kinship::default();
        let single = command(&group(&[7], false), false, &none, &[]).unwrap();
        assert_eq!(single, "drainprof attach -p 7");
        let strangers = command(&group(&[7, 9], false), false, &none, &[]).unwrap();
        assert_eq!(strangers, "drainprof attach -p 7,9");
        let kin = Kinship::of(&[(7, 1), (8, 7), (9, 7), (20, 1)]);
        let family = command(&group(&[7, 8, 9, 20], false), false, &kin, &[]).unwrap();
        assert_eq!(family, "drainprof attach --family -p 7,20");
        let asked = command(&group(&[7], true), false, &none, &[]).unwrap();
        assert_eq!(asked, "drainprof attach -p 7 --profile server");
        let file = command(&group(&[7], false), false, &none, &["./my file.toml".into()]).unwrap();
        assert_eq!(file, "drainprof attach -p 7 --profile './my file.toml'");
        let mut unusable = group(&[7], false);
        unusable.fits[0].unusable = Some("no".into());
        assert_eq!(command(&unusable, false, &none, &[]), None);
    }
}

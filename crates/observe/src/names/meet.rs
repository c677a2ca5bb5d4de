//! Examines processes while they live: what they have mapped, and where their files are.
//!
//! Asks for no names. Called by `names`, and by `early` where call paths are found.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use drainprof_process::{Process, Space, identity, readers::ask, symbolize::Root};
use drainprof_report::facts::{Began, TargetFacts};

use super::{MAX_EARLIER, MAX_ROOTS, MAX_TARGETS, Symbols, Target};

impl Symbols {
    /// Examines targets that are new: they may be gone when their first place comes.
    pub fn meet(&mut self, targets: &[TargetFacts]) {
        for facts in targets {
            self.meet_one(facts);
        }
    }

    pub(super) fn meet_one(&mut self, facts: &TargetFacts) {
        if self.targets.contains_key(&facts.target) || self.targets.len() >= MAX_TARGETS {
            return;
        }
        let parent = match facts.began {
            Began::Forked { from_target } => Some(from_target),
            Began::Attached | Began::FromStart | Began::Exec { .. } => None,
        };
        let inherited = parent.and_then(|parent| self.targets.get(&parent));
        let root = match inherited {
            Some(parent) => Arc::clone(&parent.root),
            None if self.roots >= MAX_ROOTS => Arc::default(),
            None => Arc::new(Root::of(facts.pid)),
        };
        self.roots += usize::from(root.path().is_some() && inherited.is_none());
        let mut target = Target {
            pid: facts.pid,
            start_time: facts.start_time,
            parent,
            uid: u32::MAX,
            pid_inside: facts.pid,
            exe: None,
            root,
            spaces: Vec::new(),
            places: BTreeMap::new(),
            modules: BTreeSet::new(),
            spots: BTreeMap::new(),
            next_reading: None,
        };
        // A child's mappings are its parent's, until it has places of its own.
        if facts.ended.is_none() && parent.is_none() {
            target.read_mappings();
        }
        self.targets.insert(facts.target, target);
    }
}

impl Target {
    /// Remembers its mappings as they are now. If it is gone, what is known already stays.
    pub(super) fn read_mappings(&mut self) {
        let pid = self.pid;
        let read = ask(pid, move || {
            let process = Process::open(pid).ok()?;
            let space = Space::of(&process).ok();
            // After the mappings: an exec in between then shows.
            let exe = identity(Path::new(&format!("/proc/{pid}/exe"))).ok();
            Some((process, space, exe))
        });
        let Ok(Some((process, space, exe))) = read else { return };
        if self.start_time != 0 && process.start_time != self.start_time {
            return;
        }
        (self.uid, self.pid_inside) = (process.uid, process.pid_inside);
        let (Some(space), Some(exe)) = (space, exe) else { return };
        if *self.exe.get_or_insert(exe) != exe {
            return;
        }
        match self.spaces.last_mut() {
            Some(last) if last.same_objects(&space) => *last = space,
            _ => self.spaces.push(space),
        }
        if self.spaces.len() > MAX_EARLIER {
            // The first holds what was there when all began.
            self.spaces.remove(1);
        }
    }
}

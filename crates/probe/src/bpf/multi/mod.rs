//! Probes that go quickly: one `uprobe_multi` link each (Linux 6.6 and later). The kernel removes many of them at once in
//! under a tenth of a second, where it needs that long for every single one that aya attaches. A hit costs the same.
//!
//! In all processes that map a file they are what other probes are. In one process they are for windows of a duty cycle
//! only: a child that it forks meanwhile keeps their breakpoints as long as they are in place, and pays for each hit (about
//! 650 ns), where other probes leave it at its first.
//!
//! Such a link takes a program that was loaded for it, which aya 0.14 cannot do. So the object is read once more, with the
//! crate that aya reads it with, for the maps that aya has created. Called by `attach`.

mod programs;
mod trial;

use std::{
    collections::HashSet,
    fs::File,
    io,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
    sync::{Arc, OnceLock},
    time::Duration,
};

use aya::{Ebpf, maps::Map};
use aya_obj::Object;

use self::programs::Programs;
use super::{
    load::OBJECT,
    location::Location,
    obstacles::Placed,
    placing::{self, Refused},
    syscall,
};

/// Programs for such links: all of the object, loaded when they are first needed, or ahead of that.
pub(super) struct Multi {
    programs: Programs,
    /// Whether probes of one process may be such links.
    single: bool,
}

/// Which probes of a session are such links, where the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quick {
    None,
    /// Those in all processes that map a file.
    Files,
    /// Those in one process, too.
    All,
}

impl Multi {
    /// For the maps of `ebpf`, from which none was taken yet; `None` where none is wanted, or the kernel has no such links,
    /// or counts with those of one process in one thread only (before Linux 6.10, in some).
    pub(super) fn prepare(ebpf: &Ebpf, wanted: Quick) -> Option<Self> {
        static KNOWN: OnceLock<bool> = OnceLock::new();
        static COUNT: OnceLock<bool> = OnceLock::new();
        let works = match wanted {
            Quick::None => false,
            Quick::Files => *KNOWN.get_or_init(|| tried(trial::are_known())),
            Quick::All => *COUNT.get_or_init(|| tried(trial::counts_in_all_threads())),
        };
        if !works {
            return None;
        }
        let prepared = Self::relocated(ebpf, wanted == Quick::All);
        prepared.inspect_err(|error| tracing::debug!(error, "no links that go quickly")).ok()
    }

    /// Whether probes of this process, or of all, may be such links.
    pub(super) const fn is_for(&self, pid: Option<NonZeroU32>) -> bool {
        pid.is_none() || self.single
    }

    fn relocated(
        ebpf: &Ebpf,
        single: bool,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut object = Object::parse(OBJECT)?;
        let features = aya::features();
        let types = match features.btf() {
            Some(features) => object.fixup_and_sanitize_btf(features)?,
            None => None,
        };
        let types = types.map(|types| syscall::load_types(&types.to_bytes())).transpose()?;
        let sections: HashSet<usize> =
            object.functions.keys().map(|(section, _)| *section).collect();
        let maps = std::mem::take(&mut object.maps);
        let no_program = syscall::no_program()?;
        let mut descriptors = Vec::new();
        for (name, map) in &maps {
            let held = match ebpf.map(name) {
                Some(Map::ProgramArray(_)) => Some(no_program.as_fd()),
                map => map.and_then(descriptor),
            };
            let held = held.ok_or_else(|| format!("the map {name} is missing"))?;
            descriptors.push((name.as_str(), held.as_raw_fd(), map));
        }
        object.relocate_maps(descriptors.into_iter(), &sections)?;
        object.relocate_calls(&sections)?;
        object.sanitize_functions(features);
        Ok(Self { programs: Programs::new(object, types, no_program), single })
    }

    /// Puts a program in its place, as `placing::place` does; it goes when what is returned is dropped.
    pub(super) fn attach(
        &mut self,
        name: &str,
        file: &Arc<File>,
        location: Location,
        (patience, uses): (Duration, impl Send + 'static),
    ) -> Result<Placed, Refused> {
        let at_return = self.programs.is_at_return(name);
        let program = self.programs.get(name)?.try_clone_to_owned()?;
        let work = move || syscall::link(program.as_fd(), at_return, &location);
        placing::place(file, patience, uses, work)
    }

    /// Begins to load programs, in the order in which they are attached.
    pub(super) fn begin(&mut self, names: impl IntoIterator<Item = String>) {
        self.programs.begin(names);
    }
}

/// What a trial has shown.
fn tried(trial: io::Result<bool>) -> bool {
    tracing::debug!(?trial, "links that go quickly");
    trial.unwrap_or(false)
}

/// The descriptor of a map, of the kinds that the object has.
fn descriptor(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::PerCpuArray(map)
        | Map::Queue(map)
        | Map::RingBuf(map)
        | Map::StackTraceMap(map) => Some(map.fd().as_fd()),
        _ => None,
    }
}

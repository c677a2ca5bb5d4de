//! Probes that go quickly: one `uprobe_multi` link each (Linux 6.6 and later). The kernel removes many of them at once in
//! under a tenth of a second, where it needs that long for every single one that aya attaches. A hit costs the same.
//!
//! In all processes that map a file they are what other probes are. In one process they are for windows of a duty cycle
//! only: a child that it forks meanwhile keeps their breakpoints as long as they are in place, and pays for each hit (about
//! 650 ns), where other probes leave it at its first.
//!
//! Such a link takes a program that was loaded for it, which aya 0.14 cannot do. So the object is read once more, with the
//! crate that aya reads it with, for the maps that aya has created. Called by `attach`.

mod syscall;
mod trial;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
    sync::OnceLock,
    thread,
};

use aya::{Ebpf, maps::Map};
use aya_obj::{Object, ProgramSection};

use super::load::OBJECT;

/// Where a probe is put.
pub(super) struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// The offset in it.
    pub offset: u64,
    /// The offset of the counter that the kernel raises meanwhile.
    pub counter: Option<u32>,
    pub cookie: u64,
    /// The only process that it is put into; `None`: all that map the file.
    pub pid: Option<NonZeroU32>,
}

/// Programs for such links: all of the object, loaded when they are first needed.
pub(super) struct Multi {
    object: Object,
    /// What the types of the object are known by.
    types: Option<OwnedFd>,
    loaded: BTreeMap<String, OwnedFd>,
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
        let mut descriptors = Vec::new();
        for (name, map) in &maps {
            let held = ebpf
                .map(name)
                .and_then(descriptor)
                .ok_or_else(|| format!("the map {name} is missing"))?;
            descriptors.push((name.as_str(), held.as_raw_fd(), map));
        }
        object.relocate_maps(descriptors.into_iter(), &sections)?;
        object.relocate_calls(&sections)?;
        object.sanitize_functions(features);
        Ok(Self { object, types, loaded: BTreeMap::new(), single })
    }

    /// Puts a program in its place; it goes when what is returned is closed.
    pub(super) fn attach(&mut self, name: &str, place: &Place<'_>) -> io::Result<OwnedFd> {
        if !self.loaded.contains_key(name) {
            let program = self.load(name)?;
            self.loaded.insert(name.to_owned(), program);
        }
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let program = self.loaded.get(name).ok_or_else(missing)?;
        let section = &self.object.programs.get(name).ok_or_else(missing)?.section;
        let at_return = matches!(section, ProgramSection::URetProbe { .. });
        syscall::link(program.as_fd(), at_return, place)
    }

    /// Loads programs side by side, but for those that fail.
    pub(super) fn load_all(&mut self, names: &BTreeSet<String>) {
        let missing: Vec<&String> =
            names.iter().filter(|name| !self.loaded.contains_key(*name)).collect();
        let this = &*self;
        let loaded: Vec<_> = thread::scope(|scope| {
            let start = |name: &'_ String| {
                let name = name.clone();
                let load = move || this.load(&name).ok().map(|program| (name, program));
                thread::Builder::new().spawn_scoped(scope, load).ok()
            };
            let loads: Vec<_> = missing.into_iter().filter_map(start).collect();
            loads.into_iter().filter_map(|load| load.join().ok().flatten()).collect()
        });
        self.loaded.extend(loaded);
    }

    fn load(&self, name: &str) -> io::Result<OwnedFd> {
        let program = self.object.programs.get(name);
        let function =
            program.and_then(|program| self.object.functions.get(&program.function_key()));
        let (Some(program), Some(function)) = (program, function) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let types = self.types.as_ref().map(OwnedFd::as_fd);
        let functions =
            types.map(|types| (types, &function.func_info, function.func_info_rec_size));
        syscall::load(&program.license, &function.instructions, functions)
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

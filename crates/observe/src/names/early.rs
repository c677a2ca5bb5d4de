//! Call paths that were just found: where their code lies is noted at once, before names are asked for.
//!
//! A path is known milliseconds after its first allocation, the name is wanted with the next line or at the end; in
//! between a library can be unloaded, and its file deleted. So each new address is normalised once, to its file
//! and offset, and the file is held open. No name is asked for here. Called by `cli` when stacks were unwound.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    sync::Arc,
    time::Instant,
};

use drainprof_process::{MappedObject, Spot, symbolize};
use drainprof_report::facts::CallPath;

use super::{MAX_PLACES, MAX_TARGETS, Symbols, Target};

/// Files that are held open, over all targets; and as many perf maps.
const MAX_HELD: usize = 64;
/// Reading mappings takes one part in so many of the time, however often paths come.
const READING_SHARE: u32 = 10;

/// What is known early.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Addresses by target that were not found yet.
    queue: BTreeMap<u32, BTreeSet<u64>>,
    pub(super) queued: usize,
    /// Addresses that were.
    pub(super) placed: usize,
    /// Files that they lie in, by device and inode.
    held: BTreeMap<(u64, u64), File>,
    /// Perf maps of targets that have generated code.
    maps: BTreeMap<u32, File>,
}

impl Early {
    /// The object's file, if it is held.
    pub(super) fn file(&self, object: &MappedObject) -> Option<File> {
        self.held.get(&object.inode)?.try_clone().ok()
    }

    /// The perf map of a target, if it is held. Where it is read from is shared with others that were returned.
    pub(super) fn map(&self, target: u32) -> Option<File> {
        self.maps.get(&target)?.try_clone().ok()
    }

    /// Holds what a place lies in.
    fn hold(&mut self, number: u32, target: &Target, spot: &Spot) {
        match spot {
            Spot::File(object, _) if self.held.len() < MAX_HELD => {
                if let Entry::Vacant(free) = self.held.entry(object.inode)
                    && let Ok(file) = symbolize::open(object, &target.root)
                {
                    free.insert(file);
                }
            }
            Spot::Generated if self.maps.len() < MAX_HELD => {
                if let Entry::Vacant(free) = self.maps.entry(number)
                    && let Ok(map) =
                        symbolize::open_perf_map(&target.root, target.pid_inside, target.uid)
                {
                    free.insert(map);
                }
            }
            Spot::File(..) | Spot::Generated | Spot::Vdso(_) => {}
        }
    }
}

impl Symbols {
    /// Notes call paths that were found in targets, and where their code lies, or, if their
    /// mappings were read a very short time ago, at one of the next calls. Meant to be called now and then without paths
    /// too.
    pub fn place(&mut self, paths: &[(u32, Arc<CallPath>)]) {
        for (number, path) in paths {
            let known = self.targets.get(number);
            for &place in &path.addresses {
                let is_known = known.is_some_and(|known| {
                    known.places.contains_key(&place) || known.spots.contains_key(&place)
                });
                let early = &mut self.early;
                if place != 0 && !is_known && early.placed + early.queued < MAX_PLACES {
                    let is_new = early.queue.entry(*number).or_default().insert(place);
                    early.queued += usize::from(is_new);
                }
            }
        }
        let waiting: Vec<u32> = self.early.queue.keys().copied().collect();
        for number in waiting {
            self.place_waiting(number);
        }
    }

    fn place_waiting(&mut self, number: u32) {
        let Some(target) = self.targets.get_mut(&number) else {
            // A child that was not met yet; or one of too many.
            if self.targets.len() >= MAX_TARGETS
                && let Some(places) = self.early.queue.remove(&number)
            {
                self.early.queued -= places.len();
            }
            return;
        };
        let began = Instant::now();
        if target.next_reading.is_some_and(|next| began < next) {
            return;
        }
        target.read_mappings();
        target.next_reading = Some(Instant::now() + began.elapsed() * READING_SHARE);
        let places = self.early.queue.remove(&number).unwrap_or_default();
        self.early.queued -= places.len();
        for place in places {
            // What lies nowhere now is searched for again when its name is wanted.
            let Some(spot) = self.find(number, place - 1) else { continue };
            if let Some(target) = self.targets.get_mut(&number) {
                self.early.hold(number, target, &spot);
                target.spots.insert(place, spot);
                self.early.placed += 1;
            }
        }
    }
}

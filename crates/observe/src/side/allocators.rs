//! The allocators of a kernel side: profiles, each at a level, under the numbers that the kernel side knows.

use std::sync::Arc;

use drainprof_probe::bpf::Session;
use drainprof_profile::{Kind, Level, Profile, follows_objects, judging_levels};
use drainprof_report::series::{HeldBytes, held_bytes};

/// A profile at a level.
#[derive(Clone, Debug)]
pub(super) struct Allocator {
    profile: Arc<Profile>,
    level: Level,
}

impl Allocator {
    pub(super) const fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub(super) const fn level(&self) -> Level {
        self.level
    }

    pub(super) fn kind(&self) -> Kind {
        self.profile.kind
    }

    /// Whether its objects are known by their ids.
    pub(super) fn follows_objects(&self) -> bool {
        follows_objects(&self.profile, self.level)
    }

    /// How the bytes that it holds are known.
    pub(super) fn held_bytes(&self) -> HeldBytes {
        held_bytes(&self.profile)
    }

    /// The deepest level that costs less and still judges granules.
    pub(super) fn cheaper_level(&self) -> Option<Level> {
        judging_levels(&self.profile).filter(|level| *level < self.level).max()
    }
}

/// All of them, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocators(Vec<Allocator>);

impl Allocators {
    /// The number of a profile at a level, a new one for a new pair.
    pub(super) fn number(&mut self, profile: &Arc<Profile>, level: Level) -> u32 {
        let is_same =
            |known: &Allocator| Arc::ptr_eq(&known.profile, profile) && known.level == level;
        let index = self.0.iter().position(is_same).unwrap_or_else(|| {
            self.0.push(Allocator { profile: Arc::clone(profile), level });
            self.0.len() - 1
        });
        index as u32
    }

    pub(super) fn get(&self, number: u32) -> Option<&Allocator> {
        self.0.get(number as usize)
    }

    /// The allocator of a series.
    pub(super) fn of_series(&self, session: &Session, series: u32) -> Option<&Allocator> {
        self.get(session.series_key(series)?.allocator)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Allocator> {
        self.0.iter()
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether granules lie in one another.
    pub(super) fn has_nested(&self) -> bool {
        self.iter().any(|allocator| allocator.profile.nested)
    }

    /// Whether one takes a census, which has to see all of the time.
    pub(super) fn has_census(&self) -> bool {
        self.iter().any(|allocator| allocator.profile.implicit)
    }
}

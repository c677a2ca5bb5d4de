//! Call paths and sites: teaching the kernel side how to unwind, and reading what it has found.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsFd as _, OwnedFd},
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{
    Ebpf,
    maps::{HashMap, MapData, RingBuf},
};
use bytemuck::Zeroable as _;
use drainprof_common::{
    maps::{Bucket, ObjectEntry, ObjectValue, Slot, WAYS, cursor, tag},
    paths::{
        NO_WORDS, PathSlot, PinPair, PinSites, SPACE_SLOTS, SPACES, SiteSlot, SnapshotHead,
        SpaceRanges, end, pin_word,
    },
    state,
    unwind::{MAX_PATH, RULE_WAYS, Rule, RuleBucket, rule_bucket},
};

use super::{
    BpfError, Session, Sizes,
    memory::Mapped,
    names,
    session::{Plain, mapped, take},
};

/// Words of a granule's slot before its label.
const SLOT_HEAD: usize = offset_of!(Slot, label) / 8;
/// Records taken from the ring in one go.
const SNAPSHOTS_AT_ONCE: usize = 64;

/// The maps of level `stacks`; elsewhere they are of the smallest size, and nothing is in them.
pub(super) struct PathMaps {
    rules: Mapped<RuleBucket>,
    spaces: Mapped<u64>,
    ranges: Mapped<SpaceRanges>,
    paths: Mapped<PathSlot>,
    words: Mapped<u64>,
    sites: Mapped<SiteSlot>,
    pins: Mapped<PinSites>,
    pairs: HashMap<MapData, Plain<PinPair>, u32>,
    snapshots: RingBuf<MapData>,
}

impl PathMaps {
    pub(super) fn take(ebpf: &mut Ebpf, sizes: &Sizes) -> Result<Self, BpfError> {
        let slots = sizes.path_slots() as usize;
        let (spaces, ranges) = sizes.spaces();
        Ok(Self {
            rules: mapped(ebpf, names::RULES, sizes.rule_buckets() as usize)?,
            spaces: mapped(ebpf, names::SPACES, spaces as usize)?,
            ranges: mapped(ebpf, names::SPACE_RANGES, ranges as usize)?,
            paths: mapped(ebpf, names::PATHS, slots)?,
            words: mapped(ebpf, names::PATH_WORDS, sizes.path_words() as usize)?,
            sites: mapped(ebpf, names::SITES, slots)?,
            pins: mapped(ebpf, names::PIN_SITES, sizes.pin_sites() as usize)?,
            pairs: take(ebpf, names::PIN_PAIRS)?,
            snapshots: take(ebpf, names::SNAPSHOTS)?,
        })
    }
}

/// A stack that the kernel side could not unwind by itself.
#[derive(Clone, Debug)]
pub struct StackSnapshot {
    /// What it is.
    pub head: SnapshotHead,
    /// The stack's bytes, from the head's stack pointer on.
    pub stack: Vec<u8>,
}

/// A call path as the kernel side knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Return addresses, innermost first; `None` where there was no room for them.
    pub addresses: Option<Vec<u64>>,
    /// One of [`drainprof_common::paths::end`].
    pub end: u32,
}

/// An object that is live, with its granule's slot.
#[derive(Clone, Copy, Debug)]
pub struct LiveObject {
    /// The object.
    pub object: ObjectValue,
    /// Its granule, without the label; all zero where it has none that is followed.
    pub granule: Slot,
}

impl Session {
    /// A descriptor that becomes readable when stacks have come.
    pub fn snapshots_fd(&self) -> io::Result<OwnedFd> {
        self.paths.snapshots.as_fd().try_clone_to_owned()
    }

    /// The stacks that have come; records that make no sense are left out.
    pub fn drain_snapshots(&mut self) -> Vec<StackSnapshot> {
        let mut snapshots = Vec::new();
        while snapshots.len() < SNAPSHOTS_AT_ONCE {
            let Some(record) = self.paths.snapshots.next() else { break };
            let Some((head, stack)) = record.split_at_checked(size_of::<SnapshotHead>()) else {
                continue;
            };
            let head: SnapshotHead = bytemuck::pod_read_unaligned(head);
            let bytes = usize::try_from(head.bytes).unwrap_or(usize::MAX).min(stack.len());
            snapshots.push(StackSnapshot { head, stack: stack[..bytes].to_vec() });
        }
        snapshots
    }

    /// Teaches how to unwind one code address (`key` is a [`drainprof_common::unwind::rule_key`]). Where there is no
    /// room another rule of its bucket goes, which stacks that look new will ask for again.
    pub fn teach(&mut self, key: u64, rule: Rule) {
        let buckets = self.sizes.rule_buckets();
        let bucket = rule_bucket(key, buckets) as usize;
        let word = |at: usize| self.paths.rules.word(bucket, at);
        let key_at = |way: usize| word(way).map_or(0, |key| key.load(Ordering::Acquire));
        let way = (0..RULE_WAYS)
            .find(|way| key_at(*way) == key)
            .or_else(|| (0..RULE_WAYS).find(|way| key_at(*way) == 0))
            // Any other; which one depends on bits of the key that differ within a bucket, so that two need not
            // drive each other out for ever.
            .unwrap_or((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as usize % RULE_WAYS);
        let store = |at: usize, value: u64| {
            if let Some(word) = word(at) {
                word.store(value, Ordering::SeqCst);
            }
        };
        // A reader looks at the key, the rule, and the key again.
        store(way, 0);
        store(RULE_WAYS + way, rule.0);
        store(way, key);
    }

    /// Forgets all rules of an address space (its number's low 16 bits): other code lies there now.
    pub fn unteach(&mut self, space: u32) {
        for bucket in 0..self.paths.rules.len() {
            for way in 0..RULE_WAYS {
                let Some(word) = self.paths.rules.word(bucket, way) else { continue };
                let key = word.load(Ordering::Acquire);
                if key != 0 && key >> 48 == u64::from(space & 0xffff) {
                    word.store(0, Ordering::SeqCst);
                }
            }
        }
    }

    /// Has the stack of a path sent once more when it is met again: rules that it needs are gone.
    pub fn ask_again(&mut self, path: u32) {
        // `end` and `reserved`, which is 0, share a word.
        if let Some(word) = self.paths.paths.word(path as usize, offset_of!(PathSlot, end) / 8) {
            let (sent, not_sent) = (u64::from(end::SENT), u64::from(end::NOT_SENT));
            // Any other end is none that was sent.
            let _ = word.compare_exchange(sent, not_sent, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Says which address space a target works in; without that it is its own.
    pub fn set_space(&mut self, target: u32, space: u32) {
        let at = target as usize & (SPACES - 1);
        if let Some(word) = self.paths.spaces.word(at, 0) {
            word.store(u64::from(space), Ordering::SeqCst);
        }
    }

    /// The address space of a target.
    #[must_use]
    pub fn space(&self, target: u32) -> u32 {
        let own = target as usize & (SPACES - 1);
        match self.paths.spaces.get(own) as u32 {
            0 => own as u32,
            space => space,
        }
    }

    /// Says where code lies in an address space: at most [`drainprof_common::paths::CODE_RANGES`] ranges.
    pub fn set_ranges(&mut self, space: u32, ranges: &SpaceRanges) {
        let at = space as usize & (SPACE_SLOTS - 1);
        for (index, value) in bytemuck::cast_slice::<_, u64>(&[*ranges]).iter().enumerate().rev() {
            if let Some(word) = self.paths.ranges.word(at, index) {
                word.store(*value, Ordering::SeqCst);
            }
        }
    }

    /// One path by its number; `None` where there is none, or it is not complete yet.
    #[must_use]
    pub fn read_path(&self, path: u32) -> Option<PathRecord> {
        let slot = self.paths.paths.get(path as usize);
        if slot.end == 0 {
            return None;
        }
        let frames = slot.frames.min(MAX_PATH as u32);
        let addresses = (slot.at != NO_WORDS).then(|| {
            (slot.at..slot.at.saturating_add(frames))
                .map(|at| self.paths.words.get(at as usize))
                .collect()
        });
        Some(PathRecord { addresses, end: slot.end })
    }

    /// All sites, with their numbers.
    #[must_use]
    pub fn read_sites(&self) -> Vec<(u32, SiteSlot)> {
        (0..self.paths.sites.len())
            .filter(|index| {
                // Most places are empty: one word tells.
                let head: Option<&AtomicU64> = self.paths.sites.word(*index, 0);
                head.is_some_and(|word| word.load(Ordering::Acquire) >> 32 != 0)
            })
            .map(|index| (index as u32, self.paths.sites.get(index)))
            .collect()
    }

    /// One site by its number; all zero where there is none.
    #[must_use]
    pub fn read_site(&self, site: u32) -> SiteSlot {
        self.paths.sites.get(site as usize)
    }

    /// Whether a granule is counted already among those that a site pins.
    #[must_use]
    pub fn is_counted(&self, pair: &PinPair) -> bool {
        let own = pin_word(pair.site, pair.generation);
        let beside = self.paths.pins.get(pair.slot as usize);
        beside.words.contains(&own) || self.paths.pairs.get(&Plain(*pair), 0).is_ok()
    }

    /// Shows every live object that has a site. While programs run, some that come or go meanwhile are missed.
    pub fn each_object(&self, mut show: impl FnMut(LiveObject)) {
        // Most words of slots and of buckets are not looked at: labels, keys, empty entries.
        let mut show = |object: ObjectValue| {
            if object.site != 0 {
                let mut granule = Slot::zeroed();
                let known: [u64; SLOT_HEAD] = self.slots.part(object.slot as usize, 0);
                bytemuck::cast_slice_mut(std::slice::from_mut(&mut granule))[..SLOT_HEAD]
                    .copy_from_slice(&known);
                show(LiveObject { object, granule });
            }
        };
        for index in 0..self.buckets.len() {
            let tags: [u64; WAYS] = self.buckets.part(index, 0);
            for (way, seen) in tags.into_iter().enumerate() {
                if seen & tag::STATE != tag::FULL {
                    continue;
                }
                let entry = (offset_of!(Bucket, entries) + way * size_of::<ObjectEntry>()) / 8;
                let value = entry + offset_of!(ObjectEntry, value) / 8;
                let object: ObjectValue = self.buckets.part(index, value);
                // Where the tag has changed the object went, and another may stand in its place.
                let tag = self.buckets.word(index, way);
                if tag.is_some_and(|tag| tag.load(Ordering::Acquire) == seen) {
                    show(object);
                }
            }
        }
        if self.cursors.get(cursor::OBJECTS as usize) != 0 {
            for (_, object) in self.objects.iter().filter_map(Result::ok) {
                show(object.0);
            }
        }
    }

    /// Forgets pairs of granules and sites that nobody will ask for again, if there are many.
    pub(super) fn relieve_pairs(&mut self) -> usize {
        let held = self.cursors.get(cursor::PIN_PAIRS as usize);
        if held <= u64::from(self.sizes.pin_pairs()) / 8 {
            return 0;
        }
        let is_over = |pair: &PinPair| {
            let slot = self.slots.get(pair.slot as usize);
            state::generation(slot.state) != pair.generation || !state::has_pins(slot.state)
        };
        let over: Vec<PinPair> = self
            .paths
            .pairs
            .keys()
            .filter_map(Result::ok)
            .map(|pair| pair.0)
            .filter(is_over)
            .collect();
        let mut removed = 0;
        for pair in over {
            // A generation that is over does not come back.
            if self.paths.pairs.remove(&Plain(pair)).is_ok() {
                removed += 1;
            }
        }
        if let Some(word) = self.cursors.word(cursor::PIN_PAIRS as usize, 0) {
            word.fetch_sub(removed as u64, Ordering::SeqCst);
        }
        removed
    }
}

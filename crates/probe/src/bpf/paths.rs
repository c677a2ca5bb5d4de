//! Call stacks and sites: teaching the kernel side how to unwind, and reading what it has found.

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
use drainprof_common::{
    granule::SlotNumber,
    maps::{ObjectValue, Slot, cursor},
    paths::{
        NO_WORDS, PathSlot, PinPair, PinSites, SPACE_SLOTS, SPACES, SiteSlot, SnapshotHead,
        SpaceRanges, end, pin_word,
    },
    state::State,
    unwind::{MAX_PATH, RULE_WAYS, Rule, RuleBucket, rule_bucket},
};

use super::{
    BpfError, Sizes,
    load::{Plain, mapped, take},
    memory::{Cursors, Mapped},
    names,
};

/// Records taken from the ring in one go.
const SNAPSHOTS_AT_ONCE: usize = 64;

/// The maps of level `stacks`; elsewhere they are of the smallest size, and nothing is in them.
pub struct Stacks {
    rules: Mapped<RuleBucket>,
    spaces: Mapped<u64>,
    ranges: Mapped<SpaceRanges>,
    paths: Mapped<PathSlot>,
    words: Mapped<u64>,
    sites: Mapped<SiteSlot>,
    pins: Mapped<PinSites>,
    pairs: HashMap<MapData, Plain<PinPair>, u32>,
    snapshots: RingBuf<MapData>,
    /// Pairs that their map has room for.
    most_pairs: u32,
    cursors: Cursors,
}

impl Stacks {
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sizes: &Sizes,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
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
            most_pairs: sizes.pin_pairs(),
            cursors: cursors.clone(),
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

/// A call stack as the kernel side knows it.
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
    /// Its id as the target has it.
    pub id: u64,
    /// The object.
    pub object: ObjectValue,
    /// Its granule, without the label; all zero where it has none that is followed.
    pub granule: Slot,
}

impl Stacks {
    /// A descriptor that becomes readable when stacks have come.
    pub fn snapshots_fd(&self) -> io::Result<OwnedFd> {
        self.snapshots.as_fd().try_clone_to_owned()
    }

    /// The stacks that have come; records that make no sense are left out.
    pub fn drain_snapshots(&mut self) -> Vec<StackSnapshot> {
        let mut snapshots = Vec::new();
        while snapshots.len() < SNAPSHOTS_AT_ONCE {
            let Some(record) = self.snapshots.next() else { break };
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
        let buckets = self.rules.len() as u32;
        let bucket = rule_bucket(key, buckets) as usize;
        let word = |at: usize| self.rules.word(bucket, at);
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
        for bucket in 0..self.rules.len() {
            for way in 0..RULE_WAYS {
                let Some(word) = self.rules.word(bucket, way) else { continue };
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
        if let Some(word) = self.paths.word(path as usize, offset_of!(PathSlot, end) / 8) {
            let (sent, not_sent) = (u64::from(end::SENT), u64::from(end::NOT_SENT));
            // Any other end is none that was sent.
            let _ = word.compare_exchange(sent, not_sent, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Says which address space a target works in; without that it is its own.
    pub fn set_space(&mut self, target: u32, space: u32) {
        let at = target as usize & (SPACES - 1);
        if let Some(word) = self.spaces.word(at, 0) {
            word.store(u64::from(space), Ordering::SeqCst);
        }
    }

    /// The address space of a target.
    #[must_use]
    pub fn space(&self, target: u32) -> u32 {
        let own = target as usize & (SPACES - 1);
        match self.spaces.get(own) as u32 {
            0 => own as u32,
            space => space,
        }
    }

    /// Says where code lies in an address space: at most [`drainprof_common::paths::CODE_RANGES`] ranges.
    pub fn set_ranges(&mut self, space: u32, ranges: &SpaceRanges) {
        let at = space as usize & (SPACE_SLOTS - 1);
        for (index, value) in bytemuck::cast_slice::<_, u64>(&[*ranges]).iter().enumerate().rev() {
            if let Some(word) = self.ranges.word(at, index) {
                word.store(*value, Ordering::SeqCst);
            }
        }
    }

    /// One path by its number; `None` where there is none, or it is not complete yet.
    #[must_use]
    pub fn read_path(&self, path: u32) -> Option<PathRecord> {
        let slot = self.paths.get(path as usize);
        if slot.end == 0 {
            return None;
        }
        let frames = slot.frames.min(MAX_PATH as u32);
        let addresses = (slot.at != NO_WORDS).then(|| {
            (slot.at..slot.at.saturating_add(frames))
                .map(|at| self.words.get(at as usize))
                .collect()
        });
        Some(PathRecord { addresses, end: slot.end })
    }

    /// All sites, with their numbers.
    #[must_use]
    pub fn read_sites(&self) -> Vec<(u32, SiteSlot)> {
        (0..self.sites.len())
            .filter(|index| {
                // Most places are empty: one word shows it.
                let head: Option<&AtomicU64> = self.sites.word(*index, 0);
                head.is_some_and(|word| word.load(Ordering::Acquire) >> 32 != 0)
            })
            .map(|index| (index as u32, self.sites.get(index)))
            .collect()
    }

    /// One site by its number; all zero where there is none.
    #[must_use]
    pub fn read_site(&self, site: u32) -> SiteSlot {
        self.sites.get(site as usize)
    }

    /// Whether a granule is counted already among those that a site pins.
    #[must_use]
    pub fn is_counted(&self, pair: &PinPair) -> bool {
        let own = pin_word(pair.site, pair.generation);
        let beside = self.pins.get(pair.slot.index());
        beside.words.contains(&own) || self.pairs.get(&Plain(*pair), 0).is_ok()
    }

    /// Forgets pairs of granules and sites that no probe will ask for again, if there are many. `state_of` gives the
    /// state word of a granule's slot.
    pub(super) fn reclaim_pairs(&mut self, state_of: impl Fn(SlotNumber) -> State) -> usize {
        if self.cursors.level(cursor::PIN_PAIRS) <= u64::from(self.most_pairs) / 8 {
            return 0;
        }
        let is_over = |pair: &PinPair| {
            let state = state_of(pair.slot);
            state.generation() != pair.generation || !state.has_pins()
        };
        let pairs = self.pairs.keys().filter_map(Result::ok).map(|pair| pair.0);
        let over: Vec<PinPair> = pairs.filter(is_over).collect();
        // A generation that is over does not come back.
        let removed =
            over.into_iter().filter(|pair| self.pairs.remove(&Plain(*pair)).is_ok()).count();
        self.cursors.add(cursor::PIN_PAIRS, (removed as u64).wrapping_neg());
        removed
    }
}

//! Sites: from the kernel side's counters, and the objects that are live, to facts.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use drainprof_common::{
    hist::Hist,
    maps::Slot,
    paths::{Late, PinPair, SITE_THREADS, SiteSlot, late},
    spec::Kind,
    state,
};

use super::observer::Observer;
use crate::account::{CallPath, Lateness, SiteFacts};

/// What is live of one site.
#[derive(Default)]
struct Live {
    objects: u64,
    bytes: u64,
    pins: u64,
    pin_bytes: u64,
    /// Granules with pins of the site, by slot and generation: closed when, opened when, bytes, pins of the site, objects
    /// live at the close.
    granules: HashMap<(u32, u32), Pinned>,
}

/// A granule that a site pins.
struct Pinned {
    closed_ns: u64,
    opened_ns: u64,
    bytes: u64,
    pins: u64,
    /// Whether some of its pins were freed.
    drains: bool,
}

impl Live {
    fn add(&mut self, slot: u32, generation: u32, size: u64, granule: &Slot, kind: Kind) {
        self.objects += 1;
        self.bytes += size;
        if kind != Kind::Drain || !state::has_pins(granule.state) {
            return;
        }
        self.pins += 1;
        self.pin_bytes += size;
        let pinned = self.granules.entry((slot, generation)).or_insert_with(|| Pinned {
            closed_ns: granule.closed_ns,
            opened_ns: granule.opened_ns,
            bytes: granule.bytes,
            pins: 0,
            drains: state::live(granule.state) < granule.pinned_objects,
        });
        pinned.pins += 1;
    }
}

/// All sites, by series.
pub(super) type Sites = BTreeMap<u32, Vec<SiteFacts>>;

/// Series, call path, place of opening.
type Key = (u32, Arc<CallPath>, u64);

/// A site under all its numbers: a path has several until its code is known.
struct Site {
    facts: SiteFacts,
    numbers: Vec<u32>,
    live: Live,
}

impl Observer {
    /// The sites with what belongs to them; `delays` by site.
    pub(super) fn sites(&self, now_ns: u64, mut delays: BTreeMap<u32, Hist>) -> Sites {
        let Some(paths) = &self.paths else { return Sites::new() };
        let mut known: HashMap<u32, Arc<CallPath>> = HashMap::new();
        let mut sites: BTreeMap<Key, Site> = BTreeMap::new();
        let mut keys: HashMap<u32, Key> = HashMap::new();
        for (number, slot) in self.session.read_sites() {
            let path = slot.path.wrapping_sub(1);
            let path = known.entry(path).or_insert_with(|| paths.path(&self.session, path)).clone();
            let key = (slot.series, path, slot.place);
            let site = sites.entry(key.clone()).or_insert_with(|| Site {
                facts: SiteFacts::new(Arc::clone(&key.1), slot.place),
                numbers: Vec::new(),
                live: Live::default(),
            });
            site.numbers.push(number);
            site.facts.join(&counted(&slot));
            if let Some(delays) = delays.remove(&number) {
                site.facts.delays.merge(&delays);
            }
            keys.insert(number, key);
        }
        self.add_live(&keys, &mut sites);
        let mut by_series = Sites::new();
        for ((series, ..), site) in sites {
            by_series.entry(series).or_default().push(self.settle(series, site, now_ns));
        }
        by_series
    }

    /// Adds the objects that are live.
    fn add_live(&self, keys: &HashMap<u32, Key>, sites: &mut BTreeMap<Key, Site>) {
        let mut kinds: HashMap<u32, Option<Kind>> = HashMap::new();
        self.session.each_object(|found| {
            let (object, granule) = (found.object, &found.granule);
            let kind_of = || self.allocator_of(object.series).map(|own| own.profile.kind);
            let Some(kind) = *kinds.entry(object.series).or_insert_with(kind_of) else { return };
            // What a bulk close has freed stays entered until its id comes again.
            let is_gone = state::generation(granule.state) != object.generation
                || granule.state & state::CLOSED != 0;
            if kind == Kind::Bulk && is_gone {
                return;
            }
            let key = keys.get(&object.site.wrapping_sub(1));
            if let Some(site) = key.and_then(|key| sites.get_mut(key)) {
                site.live.add(object.slot, object.generation, object.size, granule, kind);
            }
        });
    }

    fn allocator_of(&self, series: u32) -> Option<&super::observer::Allocator> {
        self.allocators.get(self.session.series_key(series)?.allocator as usize)
    }

    /// The facts of a site, with what is live of it.
    fn settle(&self, series: u32, site: Site, now_ns: u64) -> SiteFacts {
        let Site { mut facts, numbers, live } = site;
        let ended = self.session.series_key(series).is_some_and(|key| {
            self.targets.iter().any(|known| known.target == key.target && known.ended.is_some())
        });
        let has_ids = self
            .allocator_of(series)
            .is_some_and(|own| crate::profile::follows_objects(&own.profile, own.level));
        facts.live = has_ids.then_some(live.objects);
        facts.live_bytes = live.bytes;
        facts.pins += live.pins;
        facts.pin_bytes += live.pin_bytes;
        facts.pins_live = live.pins;
        facts.pins_live_bytes = live.pin_bytes;
        for (&(slot, generation), pinned) in &live.granules {
            let is_counted = |&site: &u32| {
                self.session.is_counted(&PinPair { site, slot, generation, reserved: 0 })
            };
            // Where a pin of the site was freed already, the granule is counted.
            if !pinned.drains || !numbers.iter().any(is_counted) {
                facts.granules_pinned += 1;
            }
            facts.granules_retained += 1;
            facts.retained_bytes += pinned.bytes;
            if facts.oldest_close_ns == 0 || pinned.closed_ns < facts.oldest_close_ns {
                facts.oldest_close_ns = pinned.closed_ns;
            }
            // How late they will be is not known; but what is later than any other class, or was not freed when its
            // process ended, is of the last.
            let so_far = now_ns.saturating_sub(pinned.closed_ns);
            let lifetime = pinned.closed_ns.saturating_sub(pinned.opened_ns);
            let is_late = pinned.opened_ns != 0 && late(so_far, lifetime) == Late::Fundamental;
            if is_late || ended {
                facts.lateness.fundamental += pinned.pins;
            } else {
                facts.lateness.undecided += pinned.pins;
            }
        }
        facts
    }
}

/// What the kernel side has counted.
fn counted(slot: &SiteSlot) -> SiteFacts {
    let classed = slot.near + slot.moderate + slot.fundamental;
    SiteFacts {
        allocated: slot.allocated,
        allocated_bytes: slot.allocated_bytes,
        granules_pinned: slot.granules,
        pins: slot.pins_freed,
        pin_bytes: slot.pin_bytes_freed,
        lateness: Lateness {
            near: slot.near,
            moderate: slot.moderate,
            fundamental: slot.fundamental,
            undecided: slot.pins_freed.saturating_sub(classed),
        },
        first_ns: slot.first_ns,
        last_ns: slot.last_ns,
        threads: threads(slot),
        more_threads: slot.threads > SITE_THREADS as u64,
        ..SiteFacts::new(Arc::default(), slot.place)
    }
}

fn threads(slot: &SiteSlot) -> Vec<String> {
    let mut names: Vec<String> = slot
        .names
        .iter()
        .map(|name| {
            let bytes: &[u8] = bytemuck::cast_slice(name);
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            crate::target::printable(&bytes[..end])
        })
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    names.dedup();
    names
}

//! Sites: from the kernel side's counters, and the objects that are live, to facts.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use drainprof_common::{
    granule::{Generation, SlotNumber},
    hist::Hist,
    maps::ObjectValue,
    paths::{Late, PinPair, SITE_THREADS, SiteSlot, late},
    state::{CLOSED, USED},
};
use drainprof_probe::bpf::{self, Session};
use drainprof_profile::Kind;
use drainprof_report::{
    facts::{CallPath, Lateness, LiveObject, SiteFacts, Survivors},
    series::{FIRST_INTERVAL, HeldBytes, LivePoint, SiteNow, SiteSeriesSet},
};

use super::{
    allocators::{Allocator, Allocators},
    clock::{Clock, SHARE, now_ns, own_cpu},
    paths::Paths,
    targets::Targets,
};

/// The first sweep comes so late: until then stacks are unwound one after the other, and nothing shall be in the way.
/// The shortest time series that is judged has no gap as long as this and a sweep.
const FIRST: Duration = Duration::from_millis(450);
/// However slowly the time series grow, sites that are new are noticed after this time.
const LONGEST: Duration = Duration::from_secs(1);
/// A process whose sites were followed for less time is not swept for once more at its end: nothing would be said of
/// their time series, and a program may have thousands of such children.
const WORTH_AN_END: Duration = Duration::from_secs(5);

/// What is live of one site.
struct Live {
    objects: u64,
    bytes: u64,
    /// The same of all pages, where they are sampled.
    all_objects: u64,
    all_bytes: u64,
    survivors: Survivors,
    /// Where the oldest are noted; nothing else of it is used.
    noted: SiteFacts,
    pins: u64,
    pin_bytes: u64,
    /// Granules that the site holds back, by slot and generation: those with pins of it, or (other kinds than `drain`)
    /// those that are open.
    granules: HashMap<(SlotNumber, Generation), Granule>,
}

/// A granule that a site holds back.
struct Granule {
    /// 0 while open.
    closed_ns: u64,
    opened_ns: u64,
    bytes: u64,
    /// Objects of the site in it.
    objects: u64,
    /// Their bytes.
    own_bytes: u64,
    /// All objects in it.
    live: u64,
    /// Whether some of its pins were freed.
    drains: bool,
}

impl Live {
    /// Nothing, of a time that begins and ends so.
    fn over(begin_ns: u64, end_ns: u64) -> Self {
        Self {
            objects: 0,
            bytes: 0,
            all_objects: 0,
            all_bytes: 0,
            survivors: Survivors::between(begin_ns, end_ns),
            noted: SiteFacts::default(),
            pins: 0,
            pin_bytes: 0,
            granules: HashMap::new(),
        }
    }

    /// Adds an object, which stands for `weight` of them.
    fn add(&mut self, found: &bpf::LiveObject, weight: u64, kind: Kind) {
        let bpf::LiveObject { id, object, granule } = found;
        let ObjectValue { slot, generation, size, born_ns, .. } = *object;
        self.objects += 1;
        self.bytes += size;
        self.all_objects += weight;
        self.all_bytes = self.all_bytes.saturating_add(size.saturating_mul(weight));
        self.survivors.add(born_ns, weight, size.saturating_mul(weight));
        self.noted.note(LiveObject { born_ns, id: *id, bytes: size });
        let is_held = match kind {
            Kind::Drain => granule.state.has_pins(),
            Kind::Bulk | Kind::Slab => {
                granule.state.only(USED | CLOSED) == USED
                    && granule.state.generation() == generation
            }
        };
        if !is_held {
            return;
        }
        if kind == Kind::Drain {
            self.pins += 1;
            self.pin_bytes += size;
        }
        let held = self.granules.entry((slot, generation)).or_insert_with(|| Granule {
            closed_ns: granule.closed_ns,
            opened_ns: granule.opened_ns,
            bytes: granule.bytes,
            objects: 0,
            own_bytes: 0,
            live: granule.state.live(),
            drains: granule
                .pinned_objects
                .of(granule.state.generation())
                .is_some_and(|pinned| granule.state.live() < pinned),
        });
        held.objects += 1;
        held.own_bytes += size;
    }

    /// The same as a point of a time series.
    fn now(&self, last_ns: u64, bytes: HeldBytes, kind: Option<Kind>) -> SiteNow {
        let granules = self.granules.len() as u64;
        let began = |held: &Granule| held.closed_ns.max(held.opened_ns);
        let own = self.granules.values().fold(0, |sum: u64, held| sum.saturating_add(held.bytes));
        SiteNow {
            granules,
            bytes: match bytes {
                HeldBytes::Counter | HeldBytes::Own => own,
                HeldBytes::Each(size) => size.saturating_mul(granules),
                HeldBytes::Unknown => 0,
            },
            live: LivePoint {
                objects: self.all_objects,
                bytes: self.all_bytes,
                ..LivePoint::default()
            },
            // Objects that are larger than a granule hold none.
            weight: match kind {
                Some(Kind::Slab) => self.all_bytes.max(self.all_objects),
                _ => granules,
            },
            fresh: self.granules.values().filter(|held| began(held) > last_ns).count() as u64,
            ..SiteNow::default()
        }
    }
}

/// All sites, by series.
pub(super) type SitesBySeries = BTreeMap<u32, Vec<SiteFacts>>;

/// Histograms by the number of a site.
pub(super) type BySite = BTreeMap<u32, Hist>;

/// Series, call path, place of opening.
type Key = (u32, Arc<CallPath>, u64);

/// A site under all its numbers: a path has several until its code is known.
struct Site {
    key: Key,
    /// `None` where its allocator is not known.
    kind: Option<Kind>,
    /// What the kernel side has counted, by number; the lowest stands for the site.
    slots: Vec<(u32, SiteSlot)>,
    live: Live,
}

/// What sites hold back over time, and when they are swept over again.
#[derive(Default)]
pub(super) struct Sites {
    over_time: SiteSeriesSet,
    /// `CLOCK_MONOTONIC` nanoseconds.
    due_ns: u64,
}

impl Sites {
    /// The sites with what belongs to them; `delays` of their pins, and `lives` of other objects. This is a sweep, and a
    /// point of all time series.
    pub(super) fn facts(
        &mut self,
        from: &Sources<'_>,
        now_ns: u64,
        mut delays: BySite,
        mut lives: BySite,
    ) -> SitesBySeries {
        let mut by_series = SitesBySeries::new();
        for site in self.sweep(from) {
            let mut facts = from.settle(&site, now_ns, &mut delays, &mut lives);
            let number = site.slots.first().map(|(number, _)| *number);
            facts.over_time = number.and_then(|number| self.over_time.of(number)).cloned();
            by_series.entry(site.key.0).or_default().push(facts);
        }
        by_series
    }

    /// Sweeps if it is time to.
    pub(super) fn sample(&mut self, from: &Sources<'_>) {
        if self.due_ns == 0 {
            self.due_ns = now_ns() + FIRST.as_nanos() as u64;
        }
        if self.due_ns <= now_ns() {
            self.sweep(from);
        }
    }

    /// A target is about to end, and with it the time series of its sites.
    pub(super) fn end(&mut self, from: &Sources<'_>, target: u32) {
        let length = WORTH_AN_END.as_nanos() as u64;
        let is_own =
            |series| from.session.series_key(series).is_some_and(|key| key.target == target);
        if self.over_time.is_long(length, is_own) {
            self.sweep(from);
        }
    }

    /// Examines all sites and every object that is live, and adds a point to the time series. The next one is due when
    /// this one's cost is at most the hundredth part of the time.
    fn sweep(&mut self, from: &Sources<'_>) -> Vec<Site> {
        let began = own_cpu();
        let at_ns = from.clock.at_ns();
        let (mut sites, index) = from.all(at_ns);
        from.add_live(&index, &mut sites);
        let now = from.now(&sites, self.over_time.last_ns());
        self.over_time.add(at_ns, now);
        let until_due = self.over_time.due_ns().saturating_sub(at_ns);
        let wait = Duration::from_nanos(until_due).clamp(FIRST_INTERVAL, LONGEST);
        let wait = wait.max(own_cpu().saturating_sub(began) * SHARE);
        self.due_ns = now_ns().saturating_add(wait.as_nanos() as u64);
        sites
    }
}

/// What sites are made of.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    session: &'a Session,
    paths: &'a Paths,
    allocators: &'a Allocators,
    targets: &'a Targets,
    clock: &'a Clock,
    /// One of so many granules is examined.
    sample: u32,
}

impl<'a> Sources<'a> {
    pub(super) const fn new(
        session: &'a Session,
        paths: &'a Paths,
        allocators: &'a Allocators,
        targets: &'a Targets,
        clock: &'a Clock,
        sample: u32,
    ) -> Self {
        Self { session, paths, allocators, targets, clock, sample }
    }

    /// The sites without what is live of them, and where in the list each number stands.
    fn all(&self, at_ns: u64) -> (Vec<Site>, HashMap<u32, usize>) {
        let begin_ns = self.clock.window_ns(at_ns);
        let mut known: HashMap<u32, Arc<CallPath>> = HashMap::new();
        let mut places: BTreeMap<Key, usize> = BTreeMap::new();
        let (mut sites, mut index) = (Vec::new(), HashMap::new());
        for (number, slot) in self.session.stacks.read_sites() {
            if self.session.is_forgotten(slot.series) {
                continue;
            }
            let path = slot.path.wrapping_sub(1);
            let path = known.entry(path).or_insert_with(|| self.paths.path(self.session, path));
            let key = (slot.series, Arc::clone(path), slot.place);
            let at = *places.entry(key.clone()).or_insert_with(|| {
                let kind = self.allocator_of(slot.series).map(Allocator::kind);
                let live = Live::over(begin_ns, at_ns);
                sites.push(Site { key, kind, slots: Vec::new(), live });
                sites.len() - 1
            });
            sites[at].slots.push((number, slot));
            index.insert(number, at);
        }
        (sites, index)
    }

    /// What sites hold back now, for their time series (the last point of which was at `last_ns`): those of processes
    /// that have not ended.
    fn now(&self, sites: &[Site], last_ns: u64) -> Vec<(u32, SiteNow)> {
        let ended = self.targets.ended();
        let mut now = Vec::new();
        for Site { key: (series, ..), kind, slots, live } in sites {
            let Some(state) = self.session.series_state(*series) else { continue };
            let (Some(&(number, _)), Some(own)) = (slots.first(), self.allocator_of(*series))
            else {
                continue;
            };
            if ended.contains(&state.key.target) {
                continue;
            }
            // Who allocates in a granule that is open holds it, if only for a moment.
            let is_open = *kind != Some(Kind::Drain);
            let first_ns = slots.iter().map(|(_, slot)| slot.first_ns).min();
            let mut live = live.now(last_ns, own.held_bytes(), *kind);
            live.live.allocated = slots.iter().map(|(_, slot)| slot.allocated).sum();
            now.push((
                number,
                SiteNow {
                    series: *series,
                    first_ns: first_ns.unwrap_or_default(),
                    destroyed_ns: state.destroyed_ns,
                    ever: is_open || slots.iter().any(|(_, slot)| slot.granules > 0),
                    ..live
                },
            ));
        }
        now
    }

    /// Adds the objects that are live.
    fn add_live(&self, index: &HashMap<u32, usize>, sites: &mut [Site]) {
        let one_in = u64::from(self.sample.max(1));
        self.session.each_object(|found| {
            let (object, granule) = (found.object, &found.granule);
            let at = index.get(&object.site.wrapping_sub(1));
            let Some(site) = at.and_then(|at| sites.get_mut(*at)) else { return };
            let Some(kind) = site.kind else { return };
            // What a bulk close has freed stays entered until its id comes again.
            let is_gone =
                granule.state.generation() != object.generation || granule.state.is_closed();
            if kind == Kind::Bulk && is_gone {
                return;
            }
            // What is in no page is always in the sample; so is everything of other granules.
            let weight = if kind == Kind::Slab && object.slot.is_some() { one_in } else { 1 };
            site.live.add(&found, weight, kind);
        });
    }

    fn allocator_of(&self, series: u32) -> Option<&Allocator> {
        self.allocators.of_series(self.session, series)
    }

    /// The facts of a site, with what is live of it.
    fn settle(
        &self,
        Site { key: (series, path, place), kind, slots, live }: &Site,
        now_ns: u64,
        delays: &mut BySite,
        lives: &mut BySite,
    ) -> SiteFacts {
        let series = *series;
        let mut facts = SiteFacts::new(Arc::clone(path), *place);
        for (number, slot) in slots {
            facts.join(&counted(slot, &delays.remove(number).unwrap_or_default()));
            facts.lives.merge(&lives.remove(number).unwrap_or_default());
        }
        facts.granules_unsure = unsure(slots);
        let has_ids = self.allocator_of(series).is_some_and(Allocator::follows_objects);
        facts.live = has_ids.then_some(live.objects);
        facts.live_bytes = live.bytes;
        facts.survivors = live.survivors.clone();
        facts.oldest.clone_from(&live.noted.oldest);
        facts.pins += live.pins;
        facts.pin_bytes += live.pin_bytes;
        facts.pins_live = live.pins;
        facts.pins_live_bytes = live.pin_bytes;
        if *kind == Some(Kind::Slab) {
            facts.granules_held = live.granules.len() as u64;
            let alone = live.granules.values().filter(|held| held.objects >= held.live);
            facts.granules_held_alone = alone.count() as u64;
            for held in live.granules.values() {
                facts.held_objects.add(held.objects);
                facts.held_bytes.add(held.own_bytes);
            }
        }
        if *kind == Some(Kind::Drain) {
            self.add_pinned(series, slots, live, now_ns, &mut facts);
        }
        facts
    }

    /// Adds the granules that are pinned now, and how late their pins are.
    fn add_pinned(
        &self,
        series: u32,
        slots: &[(u32, SiteSlot)],
        live: &Live,
        now_ns: u64,
        facts: &mut SiteFacts,
    ) {
        let begin_ns = self.clock.window_ns(now_ns);
        facts.retained_since = Survivors::between(begin_ns, now_ns);
        let key = self.session.series_key(series);
        let ended = key.is_some_and(|key| self.targets.has_ended(key.target));
        for (&(slot, generation), pinned) in &live.granules {
            let is_counted = |&(site, _): &(u32, SiteSlot)| {
                self.session.stacks.is_counted(&PinPair { site, slot, generation, reserved: 0 })
            };
            // Where a pin of the site was freed already, the granule is counted.
            if !pinned.drains || !slots.iter().any(is_counted) {
                facts.granules_pinned += 1;
            }
            facts.granules_retained += 1;
            facts.retained_since.add(pinned.closed_ns, 1, pinned.bytes);
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
                facts.lateness.fundamental += pinned.objects;
            } else {
                facts.lateness.undecided += pinned.objects;
            }
        }
    }
}

/// Granules that may count twice: a path has several numbers until it is learnt, and the kernel side counts a granule once
/// per number.
fn unsure(slots: &[(u32, SiteSlot)]) -> u64 {
    let counts = || slots.iter().map(|(_, slot)| slot.granules);
    counts().sum::<u64>() - counts().max().unwrap_or_default()
}

/// What the kernel side has counted.
fn counted(slot: &SiteSlot, delays: &Hist) -> SiteFacts {
    let classed = slot.near + slot.moderate + slot.fundamental;
    SiteFacts {
        allocated: slot.allocated,
        allocated_bytes: slot.allocated_bytes,
        granules_pinned: slot.granules,
        pins: slot.pins_freed,
        pin_bytes: slot.pin_bytes_freed,
        delays: *delays,
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
            drainprof_process::printable(&bytes[..end])
        })
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    names.dedup();
    names
}

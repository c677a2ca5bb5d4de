//! Events with call paths: which sites pin the granules that were closed.
//!
//! At the instant of a pinned close the kernel side knows how many objects are live, but not whose. So events are held
//! back for a while (until the next tick, at most), and then it is known: a pin was freed since, which is an event of
//! its own, or it is live still, which a sweep over the objects finds. At other levels than `stacks` events are reported
//! at once.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
};

use drainprof_common::{
    event::{Event, EventKind},
    granule::SlotNumber,
    state::Verdict,
};
use drainprof_probe::bpf::Session;
use drainprof_profile::Level;
use drainprof_report::facts::CallPath;

use super::allocators::Allocators;

/// Events that are held back at most, about; then they are reported.
const HELD_BACK: usize = 65_536;
/// A granule: slot and generation.
pub(super) type Granule = (u32, u32);

/// Events that are held back.
#[derive(Default)]
pub(super) struct Pins {
    events: Vec<(EventKind, Event)>,
    /// Pins whose close was not among the events that were reported with them: it was reported before, or it comes next,
    /// because a close is reported a moment after it is decided.
    early: HashMap<Granule, Vec<u32>>,
    /// Ids of granules that were pinned at their close, by slot: the kernel side does not have it any more where the
    /// last pin goes.
    ids: HashMap<u32, (u32, u64)>,
}

/// Numbers of call paths in a stream of events; the first is 1.
#[derive(Debug, Default)]
pub(crate) struct PathNumbers(HashMap<(u32, Arc<CallPath>), u64>);

impl PathNumbers {
    /// The number of a target's call path, and whether it is new.
    pub(super) fn of(&mut self, target: u32, path: &Arc<CallPath>) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        match self.0.entry((target, Arc::clone(path))) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(new) => (*new.insert(next), true),
        }
    }
}

/// A pinned close: whose objects its pins are.
#[derive(Debug, Default)]
pub(super) struct Close {
    /// How many there are.
    pins: u64,
    /// Pins by site: freed before the sweep, live at the sweep.
    freed: BTreeMap<u32, u64>,
    live: BTreeMap<u32, u64>,
    /// Sites of pins that were freed since the sweep began, in this order: the sweep has seen them, or not.
    since: Vec<u32>,
}

impl Close {
    /// Pins that are neither freed nor seen.
    fn missing(&self) -> u64 {
        let known: u64 = self.freed.values().chain(self.live.values()).sum();
        self.pins.saturating_sub(known)
    }

    /// Whether each pin is known.
    pub(super) fn is_settled(&self) -> bool {
        let missing = self.missing();
        missing == 0 || missing == self.since.len() as u64
    }

    /// Pins by site. Of those that were freed since, those that went first are the likeliest that the sweep has missed.
    pub(super) fn sites(&self) -> BTreeMap<u32, u64> {
        let mut sites = self.freed.clone();
        let missed = usize::try_from(self.missing()).unwrap_or(usize::MAX);
        let missed = self.since.iter().take(missed).map(|site| (*site, 1));
        for (site, pins) in self.live.iter().map(|(site, pins)| (*site, *pins)).chain(missed) {
            *sites.entry(site).or_default() += pins;
        }
        sites
    }
}

/// Adds the pins that are live: one sweep.
pub(super) fn add_live(session: &Session, closes: &mut HashMap<Granule, Close>) {
    session.each_object(|found| {
        let (object, granule) = (found.object, found.granule.state);
        if !granule.has_pins() || granule.generation() != object.generation {
            return;
        }
        if let Some(close) = closes.get_mut(&(object.slot.number(), object.generation.number())) {
            *close.live.entry(object.site.wrapping_sub(1)).or_default() += 1;
        }
    });
}

impl Pins {
    pub(super) fn hold_back(&mut self, kind: EventKind, event: &Event) {
        self.events.push((kind, *event));
    }

    /// How many are held back.
    pub(super) const fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether so many are held back that they should be reported now.
    pub(super) const fn are_many(&self) -> bool {
        self.len() >= HELD_BACK
    }

    /// The closes among the first `count` events of which it can be known who pins; `allocators` know which have ids.
    pub(super) fn closes_of(
        &self,
        count: usize,
        session: &Session,
        allocators: &Allocators,
    ) -> HashMap<Granule, Close> {
        let mut with_ids: HashMap<u32, bool> = HashMap::new();
        let has_ids = |series| {
            let own = allocators.of_series(session, series);
            own.is_some_and(|own| own.level() == Level::Stacks && own.follows_objects())
        };
        for (_, event) in self.events.iter().take(count) {
            with_ids.entry(event.series).or_insert_with(|| has_ids(event.series));
        }
        self.closes(count, |series| with_ids.get(&series) == Some(&true))
    }

    /// Adds pins that were freed among the events from `first` on, which came after the sweep began.
    pub(super) fn add_freed_since(&self, first: usize, closes: &mut HashMap<Granule, Close>) {
        for (granule, site) in self.freed(first) {
            if let Some(close) = closes.get_mut(&granule) {
                close.since.push(site);
            }
        }
    }

    /// Takes the first `count` events, to report them.
    pub(super) fn take(&mut self, count: usize) -> Vec<(EventKind, Event)> {
        self.early.clear();
        self.events.drain(..count).collect()
    }

    /// Completes an event that is reported: a freed pin names its granule, as long as that is known.
    pub(super) fn complete(&mut self, kind: EventKind, event: &mut Event, is_known_close: bool) {
        if kind == EventKind::Close && is_known_close {
            self.ids.insert(event.slot, (event.generation, event.granule));
        } else if kind == EventKind::PinFreed {
            if !is_known_close {
                let granule = (event.slot, event.generation);
                self.early.entry(granule).or_default().push(event.site);
            }
            if let Some((generation, id)) = self.ids.get(&event.slot)
                && *generation == event.generation
            {
                (event.granule, event.live) = (*id, 1);
            }
        }
    }

    /// The closes among the first `count` events of which it can be known who pins, with the pins that are freed by
    /// now.
    fn closes(&self, count: usize, has_ids: impl Fn(u32) -> bool) -> HashMap<Granule, Close> {
        let mut closes = HashMap::new();
        for (kind, event) in self.events.iter().take(count) {
            let is_pinned = *kind == EventKind::Close && event.verdict == Verdict::Pinned as u32;
            if is_pinned && event.slot != SlotNumber::NONE.number() && has_ids(event.series) {
                let granule = (event.slot, event.generation);
                closes.insert(granule, Close { pins: event.live, ..Close::default() });
            }
        }
        for (granule, sites) in &self.early {
            if let Some(close) = closes.get_mut(granule) {
                for site in sites {
                    *close.freed.entry(*site).or_default() += 1;
                }
            }
        }
        for (granule, site) in self.freed(0) {
            if let Some(close) = closes.get_mut(&granule) {
                *close.freed.entry(site).or_default() += 1;
            }
        }
        closes
    }

    /// Freed pins among the events from `first` on: granule and site.
    fn freed(&self, first: usize) -> impl Iterator<Item = (Granule, u32)> + '_ {
        let events = self.events.get(first..).unwrap_or_default().iter();
        events
            .filter(|(kind, _)| *kind == EventKind::PinFreed)
            .map(|(_, event)| ((event.slot, event.generation), event.site))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(slot: u32, live: u64) -> (EventKind, Event) {
        let verdict = Verdict::Pinned as u32;
        (EventKind::Close, Event { verdict, slot, generation: 7, live, ..Event::default() })
    }

    fn freed(slot: u32, site: u32) -> (EventKind, Event) {
        (EventKind::PinFreed, Event { slot, generation: 7, site, ..Event::default() })
    }

    /// Pins that are freed before or after their close is reported, in this batch or in the one before, are the close's;
    /// those of other granules are not, and a close whose allocator has no object ids is not examined.
    #[test]
    fn freed_pins_belong_to_closes() {
        let events = vec![freed(1, 30), close(1, 4), freed(1, 31), close(2, 1), freed(1, 31)];
        let mut pins = Pins { events, ..Pins::default() };
        pins.early.insert((1, 7), vec![32]);
        pins.early.insert((3, 7), vec![33]);
        let closes = pins.closes(4, |_| true);
        let one = &closes[&(1, 7)];
        assert!(one.is_settled());
        assert_eq!(one.sites(), BTreeMap::from([(30, 1), (31, 2), (32, 1)]));
        assert!(!closes[&(2, 7)].is_settled() && closes.len() == 2);
        assert!(pins.closes(4, |_| false).is_empty());
        assert_eq!(pins.closes(2, |_| true).len(), 1, "the other is reported later");
    }

    /// Pins that go while the sweep is under way were seen by it, or not; the close's own number says how many.
    #[test]
    fn each_pin_counts_once() {
        let with = |pins, live: &[(u32, u64)], since: &[u32]| Close {
            pins,
            freed: BTreeMap::from([(1, 2)]),
            live: live.iter().copied().collect(),
            since: since.to_vec(),
        };
        let seen = with(5, &[(1, 1), (2, 2)], &[2, 2]);
        assert!(seen.is_settled());
        assert_eq!(seen.sites(), BTreeMap::from([(1, 3), (2, 2)]));
        let missed = with(5, &[(1, 1)], &[2, 2]);
        assert!(missed.is_settled());
        assert_eq!(missed.sites(), BTreeMap::from([(1, 3), (2, 2)]));
        let either = with(5, &[(1, 1), (2, 1)], &[2, 3]);
        assert!(!either.is_settled());
        assert_eq!(either.sites(), BTreeMap::from([(1, 3), (2, 2)]), "the first, most likely");
        let elsewhere = with(5, &[], &[2]);
        assert!(!elsewhere.is_settled(), "between a call's entry and its return");
        assert_eq!(elsewhere.sites(), BTreeMap::from([(1, 2), (2, 1)]));
        let more = with(2, &[(3, 1)], &[]);
        assert!(more.is_settled(), "allocated after the close");
        assert_eq!(more.sites(), BTreeMap::from([(1, 2), (3, 1)]));
    }

    /// A path has one number per target, from 1 on.
    #[test]
    fn numbers() {
        let path = |address| Arc::new(CallPath { addresses: vec![address], ..Default::default() });
        let mut numbers = PathNumbers::default();
        let given =
            [(0, 8), (0, 9), (0, 8), (1, 8)].map(|(target, at)| numbers.of(target, &path(at)));
        assert_eq!(given, [(1, true), (2, true), (1, false), (3, true)]);
    }
}

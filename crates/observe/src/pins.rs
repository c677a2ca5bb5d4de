//! Events with call paths: which sites pin the granules that were closed.
//!
//! At the instant of a pinned close the kernel side knows how many objects are live, but not whose. So events are held
//! back for a while (until the next tick, at most), and then it is known: a pin was freed since, which is an event of
//! its own, or it is live still, which a sweep over the objects finds. The loop calls [`Observer::report_pins`]; at other
//! levels than `stacks` events are passed on at once.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    io,
    sync::Arc,
};

use drainprof_common::{
    event::{Event, EventKind},
    granule::SlotNumber,
    state::Verdict,
};
use drainprof_profile::{Level, follows_objects};
use drainprof_report::facts::{CallPath, EventFacts, PathPins};

use super::{observation::Sink, observer::Observer};

/// Events that are held back at most, about; then they are reported.
const HELD_BACK: usize = 65_536;
/// Sweeps at most, where pins are freed between a sweep and what is read of the ring.
const ROUNDS: usize = 3;

/// A granule: slot and generation.
type Granule = (u32, u32);

/// Events that are held back.
#[derive(Default)]
pub(super) struct Pins {
    events: Vec<(EventKind, Event)>,
    /// Pins whose close was not among the events that were told with them: it was told before, or it comes next,
    /// because a close is reported a moment after it is decided.
    early: HashMap<Granule, Vec<u32>>,
    /// Ids of granules that were pinned at their close, by slot: the kernel side does not have it any more where the
    /// last pin goes.
    ids: HashMap<u32, (u32, u64)>,
}

/// Numbers of call paths in a stream of events; the first is 1.
#[derive(Debug, Default)]
pub(super) struct PathNumbers(HashMap<(u32, Arc<CallPath>), u64>);

impl PathNumbers {
    /// The number of a target's call path, and whether it is new.
    fn of(&mut self, target: u32, path: &Arc<CallPath>) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        match self.0.entry((target, Arc::clone(path))) {
            Entry::Occupied(known) => (*known.get(), false),
            Entry::Vacant(new) => (*new.insert(next), true),
        }
    }
}

/// A pinned close: whose objects its pins are.
#[derive(Debug, Default)]
struct Close {
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
    fn is_settled(&self) -> bool {
        let missing = self.missing();
        missing == 0 || missing == self.since.len() as u64
    }

    /// Pins by site. Of those that were freed since, those that went first are the likeliest that the sweep has missed.
    fn sites(&self) -> BTreeMap<u32, u64> {
        let mut sites = self.freed.clone();
        let missed = usize::try_from(self.missing()).unwrap_or(usize::MAX);
        let missed = self.since.iter().take(missed).map(|site| (*site, 1));
        for (site, pins) in self.live.iter().map(|(site, pins)| (*site, *pins)).chain(missed) {
            *sites.entry(site).or_default() += pins;
        }
        sites
    }
}

impl Pins {
    pub(super) fn hold_back(&mut self, kind: EventKind, event: &Event) {
        self.events.push((kind, *event));
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

impl Observer {
    fn pins(&mut self) -> Option<&mut Pins> {
        self.paths.as_mut()?.pins.as_mut()
    }

    /// Whether events are held back until [`Observer::report_pins`] is called.
    pub(super) fn holds_back(&self) -> bool {
        self.paths.as_ref().is_some_and(|paths| paths.pins.is_some())
    }

    /// Whether so many events are held back that they should be reported now.
    pub(super) fn holds_many_back(&self) -> bool {
        let pins = self.paths.as_ref().and_then(|paths| paths.pins.as_ref());
        pins.is_some_and(|pins| pins.events.len() >= HELD_BACK)
    }

    /// Reports the events that were held back, in the order in which they came, the pinned closes with the stacks that
    /// pin. `take` has to take all events that have come ([`Observer::events`]): more come meanwhile, and are
    /// reported the next time.
    pub(super) fn report_pins(
        &mut self,
        numbers: &mut PathNumbers,
        mut take: impl FnMut(&mut Self),
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.learn_paths();
        let Some(pins) = self.pins() else { return Ok(()) };
        let count = pins.events.len();
        let mut closes = HashMap::new();
        for _ in 0..ROUNDS {
            closes = self.look_at_closes(count);
            if closes.values().all(Close::is_settled) {
                break;
            }
            let Some(before) = self.pins().map(|pins| pins.events.len()) else { break };
            self.add_live_pins(&mut closes);
            take(self);
            let Some(pins) = self.pins() else { break };
            for (granule, site) in pins.freed(before) {
                if let Some(close) = closes.get_mut(&granule) {
                    close.since.push(site);
                }
            }
            if closes.values().all(Close::is_settled) {
                break;
            }
        }
        self.learn_paths();
        let Some(pins) = self.pins() else { return Ok(()) };
        let events: Vec<_> = pins.events.drain(..count).collect();
        pins.early.clear();
        for (kind, event) in events {
            self.report_event(kind, event, &closes, numbers, sink)?;
        }
        Ok(())
    }

    fn look_at_closes(&self, count: usize) -> HashMap<Granule, Close> {
        let mut with_ids: HashMap<u32, bool> = HashMap::new();
        let has_ids = |series| {
            let own = self.allocator_of(series);
            own.is_some_and(|own| {
                own.level == Level::Stacks && follows_objects(&own.profile, own.level)
            })
        };
        let Some(pins) = self.paths.as_ref().and_then(|paths| paths.pins.as_ref()) else {
            return HashMap::new();
        };
        for (_, event) in pins.events.iter().take(count) {
            with_ids.entry(event.series).or_insert_with(|| has_ids(event.series));
        }
        pins.closes(count, |series| with_ids.get(&series) == Some(&true))
    }

    /// Adds the pins that are live: one sweep.
    fn add_live_pins(&self, closes: &mut HashMap<Granule, Close>) {
        self.session.each_object(|found| {
            let (object, granule) = (found.object, found.granule.state);
            if !granule.has_pins() || granule.generation() != object.generation {
                return;
            }
            if let Some(close) = closes.get_mut(&(object.slot.number(), object.generation.number()))
            {
                *close.live.entry(object.site.wrapping_sub(1)).or_default() += 1;
            }
        });
    }

    fn report_event(
        &mut self,
        kind: EventKind,
        mut event: Event,
        closes: &HashMap<Granule, Close>,
        numbers: &mut PathNumbers,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let granule = (event.slot, event.generation);
        let close = closes.get(&granule);
        let sites = match kind {
            EventKind::Close => close.map(Close::sites),
            EventKind::PinFreed => Some(BTreeMap::from([(event.site, 1)])),
            EventKind::LateDrain | EventKind::Fork | EventKind::Exec | EventKind::Exit => None,
        };
        if let Some(pins) = self.pins() {
            if kind == EventKind::Close && close.is_some() {
                pins.ids.insert(event.slot, (event.generation, event.granule));
            } else if kind == EventKind::PinFreed {
                if close.is_none() {
                    pins.early.entry(granule).or_default().push(event.site);
                }
                if let Some((generation, id)) = pins.ids.get(&event.slot)
                    && *generation == event.generation
                {
                    (event.granule, event.live) = (*id, 1);
                }
            }
        }
        let mut by_path: BTreeMap<u64, u64> = BTreeMap::new();
        for (site, pins) in sites.iter().flatten() {
            let path = self.path_of(*site);
            let (number, is_new) = numbers.of(event.target, &path);
            if is_new {
                sink.path(number, event.target, &path, self)?;
            }
            *by_path.entry(number).or_default() += pins;
        }
        let by_path: Vec<PathPins> =
            by_path.into_iter().map(|(path, pins)| PathPins { path, pins }).collect();
        let pinned_by = sites.is_some().then_some(&by_path[..]);
        sink.event(&EventFacts { kind, event: &event, pinned_by }, self)
    }

    /// The call path of a site, by the site's number.
    fn path_of(&self, site: u32) -> Arc<CallPath> {
        let slot = self.session.stacks.read_site(site);
        match (&self.paths, slot.path.checked_sub(1)) {
            (Some(paths), Some(path)) => paths.path(&self.session, path),
            _ => Arc::default(),
        }
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

    /// Pins that are freed before or after their close is told, in this batch or in the one before, are the close's;
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

    /// Pins that go while the sweep is under way were seen by it, or not; the close's own number tells how many.
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

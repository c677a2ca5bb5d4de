//! Taking the events of a kernel side: at once, or held back until it is known which stacks pin.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    sync::Arc,
};

use drainprof_common::event::{Event, EventKind};
use drainprof_report::facts::{CallPath, EventFacts, PathPins};

use super::{
    Ending, Side, lifecycle,
    pins::{Close, Granule, PathNumbers, Pins, add_live},
};
use crate::engine::Sink;

/// Sweeps at most, where pins are freed between a sweep and what is read of the ring.
const ROUNDS: usize = 3;

impl Side {
    /// Takes the events that have come; each is passed on after the kernel side's own parts have taken notice of it. Where
    /// events are held back, the loop reports them later.
    pub fn events(&mut self, on_event: impl FnMut(&mut Self, EventKind, &Event, Ending)) -> usize {
        self.some_events(usize::MAX, on_event)
    }

    /// The same for at most so many events.
    pub fn some_events(
        &mut self,
        most: usize,
        mut on_event: impl FnMut(&mut Self, EventKind, &Event, Ending),
    ) -> usize {
        self.examine_later();
        let events = self.session.drain_events(most);
        let mut children = lifecycle::open_children(&events);
        for (kind, event) in &events {
            let ending = self.notice(*kind, event, &mut children);
            if let Some(pins) = &mut self.pins {
                pins.hold_back(*kind, event);
            }
            on_event(self, *kind, event, ending);
        }
        events.len()
    }

    /// Whether events are held back until [`Side::report_pins`] is called.
    pub(crate) const fn holds_back(&self) -> bool {
        self.pins.is_some()
    }

    /// Whether so many events are held back that they should be reported now.
    pub(crate) fn holds_many_back(&self) -> bool {
        self.pins.as_ref().is_some_and(Pins::are_many)
    }

    /// Reports the events that were held back, in the order in which they came, the pinned closes with the stacks that
    /// pin. `take` has to take all events that have come ([`Side::events`]): more come meanwhile, and are
    /// reported the next time.
    pub(crate) fn report_pins(
        &mut self,
        numbers: &mut PathNumbers,
        mut take: impl FnMut(&mut Self),
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        self.learn_paths();
        let Some(count) = self.pins.as_ref().map(Pins::len) else { return Ok(()) };
        let mut closes = HashMap::new();
        for _ in 0..ROUNDS {
            let Some(pins) = &self.pins else { break };
            closes = pins.closes_of(count, &self.session, self.planner.allocators());
            if closes.values().all(Close::is_settled) {
                break;
            }
            let before = pins.len();
            add_live(&self.session, &mut closes);
            take(self);
            let Some(pins) = &self.pins else { break };
            pins.add_freed_since(before, &mut closes);
            if closes.values().all(Close::is_settled) {
                break;
            }
        }
        self.learn_paths();
        let events = self.pins.as_mut().map(|pins| pins.take(count)).unwrap_or_default();
        for (kind, event) in events {
            self.report_event(kind, event, &closes, numbers, sink)?;
        }
        Ok(())
    }

    fn report_event(
        &mut self,
        kind: EventKind,
        mut event: Event,
        closes: &HashMap<Granule, Close>,
        numbers: &mut PathNumbers,
        sink: &mut impl Sink,
    ) -> io::Result<()> {
        let close = closes.get(&(event.slot, event.generation));
        let sites = match kind {
            EventKind::Close => close.map(Close::sites),
            EventKind::PinFreed => Some(BTreeMap::from([(event.site, 1)])),
            EventKind::LateDrain | EventKind::Fork | EventKind::Exec | EventKind::Exit => None,
        };
        if let Some(pins) = &mut self.pins {
            pins.complete(kind, &mut event, close.is_some());
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

//! What an observation shows while it runs: pinned closes with their late drains, and readings of counters.
//!
//! Bounded: of more pinned closes than [`MAX_PINNED_CLOSES`] the rest is counted, of more readings than [`READINGS`] every second one
//! goes. `pieces` uses the closes of an allocator only if they add up to what the report says.

use std::collections::{BTreeMap, HashMap};

use drainprof_common::{event::EventKind, state::Verdict};

use crate::{
    Report,
    facts::{CallPath, EventFacts, Names},
};

/// Pinned closes that are kept.
const MAX_PINNED_CLOSES: usize = 200_000;
/// Call stacks that are kept.
const PATHS: usize = 65_536;
/// Readings that are kept.
const READINGS: usize = 2_048;

/// An allocator of a target: target, profile and instance as a report has them.
pub(super) type Key = (u32, String, Option<String>);

/// A granule that was closed with pins.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Pinned {
    /// Its id.
    pub(super) granule: u64,
    pub(super) bytes: u64,
    /// Objects that pinned it.
    pub(super) pins: u64,
    /// Seconds on the scale of the report.
    pub(super) closed: f64,
    pub(super) drained: Option<f64>,
    /// The stack with most of the pins.
    pub(super) path: Option<u64>,
}

/// The pinned closes of one allocator.
#[derive(Debug, Default)]
pub(super) struct Closes {
    pub(super) pinned: Vec<Pinned>,
    /// Where a granule's close is, by id and generation.
    places: HashMap<(u64, u32), usize>,
    /// Late drains that came before their close.
    early: HashMap<(u64, u32), f64>,
    /// Pinned closes that found no room.
    pub(super) left_out: u64,
}

/// Counters of all targets at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub(super) at: f64,
    /// Resident memory by target.
    pub(super) rss: BTreeMap<u32, u64>,
    /// Drain success rate so far.
    pub(super) dsr: BTreeMap<Key, f64>,
}

#[derive(Debug, Default)]
pub(super) struct Recording {
    began_ns: u64,
    closes: BTreeMap<Key, Closes>,
    kept: usize,
    paths: HashMap<u64, CallPath>,
    readings: Vec<Reading>,
}

impl Recording {
    /// Forgets what an observation showed that has begun again since.
    fn since(&mut self, names: &dyn Names) {
        let began_ns = names.began_ns();
        if began_ns != self.began_ns {
            *self = Self { began_ns, ..Self::default() };
        }
    }

    /// Takes in an event.
    pub(super) fn event(&mut self, facts: &EventFacts<'_>, names: &dyn Names) {
        let EventFacts { kind, event, pinned_by } = *facts;
        let is_pinned = kind == EventKind::Close && event.verdict == Verdict::Pinned as u32;
        if !is_pinned && kind != EventKind::LateDrain {
            return;
        }
        self.since(names);
        let Some((profile, instance)) = names.series(event.series) else { return };
        let instance = (instance != 0).then(|| format!("{instance:#x}"));
        let closes = self.closes.entry((event.target, profile.to_owned(), instance)).or_default();
        let at = event.ns.saturating_sub(self.began_ns) as f64 / 1e9;
        let granule = (event.granule, event.generation);
        if !is_pinned {
            match closes.places.get(&granule) {
                Some(&place) => closes.pinned[place].drained = Some(at),
                None if closes.left_out == 0 => drop(closes.early.insert(granule, at)),
                None => {}
            }
            return;
        }
        if self.kept == MAX_PINNED_CLOSES {
            closes.left_out += 1;
            return;
        }
        self.kept += 1;
        closes.places.insert(granule, closes.pinned.len());
        closes.pinned.push(Pinned {
            granule: event.granule,
            bytes: event.bytes,
            pins: event.live,
            closed: at,
            drained: closes.early.remove(&granule),
            path: pinned_by
                .unwrap_or_default()
                .iter()
                .rev()
                .max_by_key(|by| by.pins)
                .map(|by| by.path),
        });
    }

    /// Takes in what a number stands for.
    pub(super) fn path(&mut self, number: u64, path: &CallPath, names: &dyn Names) {
        self.since(names);
        if self.paths.len() < PATHS {
            self.paths.insert(number, path.clone());
        }
    }

    /// Takes in an interim report.
    pub(super) fn reading(&mut self, report: &Report) {
        if self.readings.len() == READINGS {
            let mut keep = false;
            self.readings.retain(|_| {
                keep = !keep;
                keep
            });
        }
        let allocators = report.targets.iter().flat_map(|target| {
            target.allocators.iter().filter_map(|own| {
                Some(((target.target, own.profile.clone(), own.instance.clone()), own.dsr?))
            })
        });
        let rss = report.targets.iter().filter_map(|own| Some((own.target, own.rss_bytes?)));
        self.readings.push(Reading {
            at: report.window.seconds,
            rss: rss.collect(),
            dsr: allocators.collect(),
        });
    }

    pub(super) fn closes(&self, key: &Key) -> Option<&Closes> {
        self.closes.get(key)
    }

    pub(super) fn call_path(&self, number: u64) -> Option<&CallPath> {
        self.paths.get(&number)
    }

    pub(super) fn readings(&self) -> &[Reading] {
        &self.readings
    }
}

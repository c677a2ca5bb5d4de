//! Samples what is held back over time, one curve per allocator instance.
//!
//! Called at the pace that they ask for; what the curves mean is judged in `report`.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_probe::bpf::{SeriesRecord, Session};
use drainprof_profile::Kind;
use drainprof_report::{
    facts::GranuleFacts,
    series::{HeldBytes, HeldPoint, HeldSeries, LivePoint, LiveSeries},
};

use super::allocators::Allocators;

/// All curves, by series.
pub(super) struct Curves {
    /// Points of one that are kept at most.
    points: usize,
    /// Whether only some of the pages are examined.
    sampled: bool,
    /// What was held back over time.
    held: BTreeMap<u32, HeldSeries>,
    /// What was live over time, of kind `slab`.
    live: BTreeMap<u32, LiveSeries>,
}

impl Curves {
    /// None yet; one of so many granules is examined.
    pub(super) const fn new(points: usize, sample: u32) -> Self {
        Self { points, sampled: sample > 1, held: BTreeMap::new(), live: BTreeMap::new() }
    }

    /// Takes a point of every curve but those of targets that have `ended`; returns when the next is due.
    pub(super) fn sample(
        &mut self,
        session: &Session,
        allocators: &Allocators,
        ended: &BTreeSet<u32>,
        at_ns: u64,
    ) -> u64 {
        let records = session.read_series();
        let mut bytes = open_bytes(session, allocators, &records);
        let mut due_ns = if records.is_empty() { at_ns } else { u64::MAX };
        for record in records.iter().filter(|one| !ended.contains(&one.state.key.target)) {
            let own = bytes.remove(&record.series).unwrap_or_default();
            if let Some(point) = self.live_point(allocators, record, at_ns) {
                let empty = || LiveSeries::of_at_most(self.points);
                let curve = self.live.entry(record.series).or_insert_with(empty);
                extend_live(curve, record, point);
            }
            let empty = || HeldSeries::of_at_most(self.points);
            let curve = self.held.entry(record.series).or_insert_with(empty);
            extend(curve, record, point(allocators, record, own), at_ns);
            if record.state.destroyed_ns == 0 {
                due_ns = due_ns.min(curve.due_ns());
            }
        }
        due_ns
    }

    /// The curve of a series, with what is held now (`at_ns`), unless its target has ended; `granules` are those of the
    /// series.
    pub(super) fn held(
        &self,
        allocators: &Allocators,
        record: &SeriesRecord,
        granules: &[GranuleFacts],
        at_ns: Option<u64>,
    ) -> HeldSeries {
        let mut curve = self.held.get(&record.series).cloned().unwrap_or_default();
        if let Some(at_ns) = at_ns {
            let open = granules.iter().filter(|granule| !granule.closed);
            let own = open.fold(0, |sum: u64, granule| sum.saturating_add(granule.bytes));
            extend(&mut curve, record, point(allocators, record, own), at_ns);
        }
        curve
    }

    /// The same of what is live.
    pub(super) fn live(
        &self,
        allocators: &Allocators,
        record: &SeriesRecord,
        at_ns: Option<u64>,
    ) -> LiveSeries {
        let mut curve = self.live.get(&record.series).cloned().unwrap_or_default();
        if let Some(point) = at_ns.and_then(|at_ns| self.live_point(allocators, record, at_ns)) {
            extend_live(&mut curve, record, point);
        }
        curve
    }

    /// What is live of a series of kind `slab`; `None` for other kinds, where objects are not counted, and where only some
    /// of the pages are examined.
    fn live_point(
        &self,
        allocators: &Allocators,
        record: &SeriesRecord,
        at_ns: u64,
    ) -> Option<LivePoint> {
        let own = allocators.get(record.state.key.allocator)?;
        if own.kind() != Kind::Slab || !own.level().has_objects() || self.sampled {
            return None;
        }
        let totals = &record.totals;
        Some(LivePoint {
            at_ns,
            objects: totals.allocated.saturating_sub(totals.gone()),
            bytes: totals.allocated_bytes.saturating_sub(totals.freed_bytes),
            allocated: totals.allocated,
        })
    }

    /// Forgets the curves of all but these series.
    pub(super) fn retain(&mut self, is_known: impl Fn(u32) -> bool) {
        self.held.retain(|series, _| is_known(*series));
        self.live.retain(|series, _| is_known(*series));
    }
}

/// Bytes of the open granules by series, for those of which they have to be added up.
fn open_bytes(
    session: &Session,
    allocators: &Allocators,
    records: &[SeriesRecord],
) -> BTreeMap<u32, u64> {
    let mut sums: BTreeMap<u32, u64> = records
        .iter()
        .filter(|record| held(allocators, record).1 == HeldBytes::Own)
        .map(|record| (record.series, 0))
        .collect();
    if sums.is_empty() {
        return sums;
    }
    for granule in session.read_granules() {
        if !granule.slot.state.is_closed()
            && let Some(sum) = sums.get_mut(&granule.slot.series)
        {
            *sum = sum.saturating_add(granule.slot.bytes);
        }
    }
    sums
}

/// What counts as held back in a series.
fn held(allocators: &Allocators, record: &SeriesRecord) -> (Kind, HeldBytes) {
    let allocator = allocators.get(record.state.key.allocator);
    allocator.map_or((Kind::Drain, HeldBytes::Unknown), |own| (own.kind(), own.held_bytes()))
}

/// The state of a series as a point without its time; `own` are its open granules' own bytes.
fn point(allocators: &Allocators, record: &SeriesRecord, own: u64) -> HeldPoint {
    let state = &record.state;
    let (kind, bytes) = held(allocators, record);
    // What an instance retained went with it.
    let retained = if state.destroyed_ns == 0 { state.retained_granules } else { 0 };
    let granules = if kind == Kind::Drain { retained } else { state.open_now };
    let bytes = match bytes {
        HeldBytes::Counter if state.destroyed_ns == 0 => state.retained_bytes,
        HeldBytes::Counter | HeldBytes::Unknown => 0,
        HeldBytes::Each(size) => size.saturating_mul(granules),
        HeldBytes::Own => own,
    };
    HeldPoint { at_ns: 0, granules, bytes, appeared: record.totals.opened_before }
}

/// Adds a point of what is live.
fn extend_live(curve: &mut LiveSeries, record: &SeriesRecord, point: LivePoint) {
    let state = &record.state;
    if curve.is_empty() {
        curve.add(LivePoint { at_ns: state.created_ns, ..LivePoint::default() });
    }
    if state.destroyed_ns == 0 {
        curve.add(point);
    }
}

/// Adds a point. A curve begins with nothing when its instance was first seen, and ends with it.
fn extend(curve: &mut HeldSeries, record: &SeriesRecord, point: HeldPoint, at_ns: u64) {
    let state = &record.state;
    if curve.is_empty() {
        curve.add(HeldPoint { at_ns: state.created_ns, ..HeldPoint::default() });
    }
    let at_ns = match state.destroyed_ns {
        0 => at_ns,
        end => end.max(curve.newest().map_or(0, |newest| newest.at_ns)),
    };
    curve.add(HeldPoint { at_ns, ..point });
}

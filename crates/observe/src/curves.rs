//! Samples what is held back over time, one curve per allocator instance.
//!
//! Called at the pace that [`Observer::sample`] asks for itself; what the curves mean is judged in
//! `report`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use drainprof_probe::bpf::SeriesRecord;
use drainprof_profile::Kind;
use drainprof_report::{
    facts::GranuleFacts,
    series::{FIRST_INTERVAL, HeldBytes, HeldPoint, HeldSeries, LivePoint, LiveSeries, held_bytes},
};

use super::{
    observer::Observer,
    snapshot::{now_ns, own_cpu},
};

/// However slowly the curves grow, new instances are noticed after this time.
const LONGEST: Duration = Duration::from_millis(200);
/// Sampling takes at most this part of one CPU: where it takes long, it is done more rarely.
pub(super) const SHARE: u32 = 100;

impl Observer {
    /// Takes a point of every curve that is not at its end, those of sites too where it is time; returns the time
    /// until the next is due.
    pub fn sample(&mut self) -> Duration {
        // Not the time of day: while other programs have the CPU, nothing is spent.
        let began = own_cpu();
        let at_ns = self.stopped_ns.unwrap_or_else(now_ns);
        self.end_nested();
        let records = self.session.read_series();
        let mut bytes = self.open_bytes(&records);
        let ended = self.ended_targets();
        let mut due_ns = if records.is_empty() { at_ns } else { u64::MAX };
        for record in &records {
            if !ended.contains(&record.state.key.target) {
                let own = bytes.remove(&record.series).unwrap_or_default();
                let point = self.point(record, own);
                if let Some(point) = self.live_point(record, at_ns) {
                    let curve = self
                        .live_curves
                        .entry(record.series)
                        .or_insert_with(|| LiveSeries::of_at_most(self.options.curve_points));
                    extend_live(curve, record, point);
                }
                let curve = self
                    .curves
                    .entry(record.series)
                    .or_insert_with(|| HeldSeries::of_at_most(self.options.curve_points));
                extend(curve, record, point, at_ns);
                if record.state.destroyed_ns == 0 {
                    due_ns = due_ns.min(curve.due_ns());
                }
            }
        }
        let wait = Duration::from_nanos(due_ns.saturating_sub(at_ns))
            .clamp(FIRST_INTERVAL, LONGEST)
            .max(own_cpu().saturating_sub(began) * SHARE);
        // Sites take a share of their own.
        self.sample_sites();
        self.sample_growth();
        wait
    }

    /// The curve of a series up to now; `granules` are those of the series.
    pub(super) fn curve(&self, record: &SeriesRecord, granules: &[GranuleFacts]) -> HeldSeries {
        let mut curve = self.curves.get(&record.series).cloned().unwrap_or_default();
        let target = record.state.key.target;
        if !self.target_has_ended(target) {
            let open = granules.iter().filter(|granule| !granule.closed);
            let own = open.fold(0, |sum: u64, granule| sum.saturating_add(granule.bytes));
            let at_ns = self.stopped_ns.unwrap_or_else(now_ns);
            extend(&mut curve, record, self.point(record, own), at_ns);
        }
        curve
    }

    /// The same of what is live.
    pub(super) fn live_curve(&self, record: &SeriesRecord) -> LiveSeries {
        let mut curve = self.live_curves.get(&record.series).cloned().unwrap_or_default();
        let has_ended = self.target_has_ended(record.state.key.target);
        let at_ns = self.stopped_ns.unwrap_or_else(now_ns);
        if let Some(point) = self.live_point(record, at_ns).filter(|_| !has_ended) {
            extend_live(&mut curve, record, point);
        }
        curve
    }

    /// What is live of a series of kind `slab`; `None` for other kinds, where objects are not counted, and where only some
    /// of the pages are examined.
    fn live_point(&self, record: &SeriesRecord, at_ns: u64) -> Option<LivePoint> {
        let own = self.allocators.get(record.state.key.allocator as usize)?;
        if own.profile.kind != Kind::Slab || !own.level.has_objects() || self.config.sample > 1 {
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

    fn target_has_ended(&self, target: u32) -> bool {
        self.targets.iter().any(|known| known.target == target && known.ended.is_some())
    }

    pub(super) fn ended_targets(&self) -> BTreeSet<u32> {
        let ended = self.targets.iter().filter(|target| target.ended.is_some());
        ended.map(|target| target.target).collect()
    }

    /// Bytes of the open granules by series, for those of which they have to be added up.
    fn open_bytes(&self, records: &[SeriesRecord]) -> BTreeMap<u32, u64> {
        let mut sums: BTreeMap<u32, u64> = records
            .iter()
            .filter(|record| self.held(record).1 == HeldBytes::Own)
            .map(|record| (record.series, 0))
            .collect();
        if sums.is_empty() {
            return sums;
        }
        for granule in self.session.read_granules() {
            if !granule.slot.state.is_closed()
                && let Some(sum) = sums.get_mut(&granule.slot.series)
            {
                *sum = sum.saturating_add(granule.slot.bytes);
            }
        }
        sums
    }

    /// What counts as held back in a series.
    fn held(&self, record: &SeriesRecord) -> (Kind, HeldBytes) {
        match self.allocators.get(record.state.key.allocator as usize) {
            Some(allocator) => (allocator.profile.kind, held_bytes(&allocator.profile)),
            None => (Kind::Drain, HeldBytes::Unknown),
        }
    }

    /// The state of a series as a point without its time; `own` are its open granules' own bytes.
    fn point(&self, record: &SeriesRecord, own: u64) -> HeldPoint {
        let state = &record.state;
        let (kind, bytes) = self.held(record);
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
}

/// The same for what is live.
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

//! `firefox`: a profile for the Firefox Profiler, in which memory that is held back is an allocation that was not freed.
//!
//! A track per process has resident memory and the findings, one per allocator the allocations, the curve of retention,
//! and pinned granules and the DSR as markers. `pieces` says what an allocation is, `recording` what is remembered of
//! events until the report is written.

mod pieces;
mod recording;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

use fxprof_processed_profile::{
    CategoryHandle, Frame, FrameFlags, FrameInfo, GraphColor, MarkerFieldFlags, MarkerFieldFormat,
    MarkerGraphType, MarkerLocations, MarkerTiming, ProcessHandle, Profile, ReferenceTimestamp,
    SamplingInterval, StackHandle, StaticSchemaMarker, StaticSchemaMarkerField,
    StaticSchemaMarkerGraph, StringHandle, ThreadHandle, Timestamp,
};

use self::{pieces::Piece, recording::Recording};
use super::{Error, Exporter, Interval, Style, escape};
use crate::{
    Allocator, Kind, Report, Target,
    facts::{CallPath, EventFacts, Names},
};

/// Characters of a text from a target.
const TEXT: usize = 512;
/// Pinned granules that are markers, of one allocator: the first ones.
const MARKERS: usize = 10_000;
/// Ids above are no addresses for a viewer: its numbers are exact up to here.
const ADDRESSES: u64 = 1 << 52;

/// Writes reports as they are.
#[derive(Debug)]
pub(super) struct Firefox;

/// Writes a report with what was recorded until then.
#[derive(Debug, Default)]
struct Recorder(Mutex<Recording>);

fn write(
    report: &Report,
    recording: Option<&Recording>,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    let text = serde_json::to_string(&profile(report, recording)).map_err(Error::Json)?;
    writeln!(out, "{}", escape::json(&text))?;
    Ok(())
}

impl Exporter for Firefox {
    fn report(&self, report: &Report, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        write(report, None, out)
    }

    fn recorder(&self) -> Option<Box<dyn Exporter>> {
        Some(Box::<Recorder>::default())
    }
}

impl Recorder {
    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exporter for Recorder {
    fn report(&self, report: &Report, _: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        write(report, Some(&self.recording()), out)
    }

    fn interval(
        &self,
        interval: &Interval<'_>,
        _: &Style,
        _: &mut dyn io::Write,
    ) -> Result<(), Error> {
        self.recording().reading(interval.now);
        Ok(())
    }

    fn event(
        &self,
        event: &EventFacts<'_>,
        names: &dyn Names,
        _: &mut dyn io::Write,
    ) -> Result<(), Error> {
        self.recording().event(event, names);
        Ok(())
    }

    fn path(
        &self,
        number: u64,
        _: u32,
        path: &CallPath,
        names: &dyn Names,
        _: &mut dyn io::Write,
    ) -> Result<(), Error> {
        self.recording().path(number, path, names);
        Ok(())
    }
}

fn profile(report: &Report, recording: Option<&Recording>) -> Profile {
    let names: BTreeSet<&str> = report.targets.iter().map(|target| target.comm.as_str()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(", ");
    let product = format!("{} {}: {names}", report.tool.name, report.tool.version);
    let mut profile = Profile::new(
        &escape::shown(&product, TEXT),
        ReferenceTimestamp::from_millis_since_unix_epoch(0.0),
        SamplingInterval::from_millis(1),
    );
    profile.set_symbolicated(true);
    profile.set_os_name(&escape::shown(&format!("Linux {}", report.host.kernel), TEXT));
    let end = report.window.seconds;
    for target in &report.targets {
        let mut track = Track::new(&mut profile, target, &command(target), end);
        track.process(report, target, recording);
        for allocator in &target.allocators {
            let name = match &allocator.instance {
                Some(instance) => format!("{} {instance}", allocator.profile),
                None => allocator.profile.clone(),
            };
            let name = format!("{name} in {}", command(target));
            let mut track = Track::new(&mut profile, target, &name, end);
            track.allocator(target, allocator, recording);
        }
    }
    profile
}

fn command(target: &Target) -> String {
    format!("{} ({})", target.comm, target.pid)
}

/// One process of the profile, with one thread.
struct Track<'a> {
    profile: &'a mut Profile,
    process: ProcessHandle,
    thread: ThreadHandle,
    end: f64,
}

impl<'a> Track<'a> {
    fn new(profile: &'a mut Profile, target: &Target, name: &str, end: f64) -> Self {
        let name = escape::shown(name, TEXT);
        let process = profile.add_process(&name, target.pid, time(0.0));
        let thread = profile.add_thread(process, target.pid, time(0.0), true);
        profile.set_thread_name(thread, &name);
        profile.set_process_end_time(process, time(end));
        profile.set_thread_end_time(thread, time(end));
        profile.add_initial_visible_thread(thread);
        let mut track = Self { profile, process, thread, end };
        // So a viewer shows all of the time, however early the last sample is.
        track.note("observed", (0.0, Some(end)), &name);
        track
    }

    /// What is known of a process as a whole.
    fn process(&mut self, report: &Report, target: &Target, recording: Option<&Recording>) {
        let end = self.end;
        let readings = recording.map_or(&[][..], Recording::readings).iter();
        let mut rss: Vec<(f64, u64)> =
            readings.filter_map(|own| Some((own.at, *own.rss.get(&target.target)?))).collect();
        if let (true, Some(memory)) = (rss.is_empty(), &target.memory) {
            rss.push(((end - memory.seconds).max(0.0), memory.first.rss_bytes));
        }
        rss.extend(target.rss_bytes.map(|now| (end, now)));
        self.counter("RSS", "Resident memory", &rss);
        self.allocations(&pieces::grown(target));
        for finding in report.findings.iter().chain(&target.findings) {
            self.note(&finding.code, (end, None), &finding.message);
        }
    }

    fn allocator(&mut self, target: &Target, own: &Allocator, recording: Option<&Recording>) {
        let pieces = pieces::of_allocator(target, own, recording, self.end);
        self.allocations(&pieces);
        let curve = |series: &[(f64, u64, Option<u64>)]| -> Vec<(f64, u64)> {
            series.iter().filter_map(|&(at, _, bytes)| Some((at, bytes?))).collect()
        };
        if own.kind == Kind::Drain {
            let retained = curve(own.retention.series.as_deref().unwrap_or_default());
            self.counter("retained", "Bytes of closed granules that pins hold back", &retained);
            self.pinned(&pieces);
            let key = (target.target, own.profile.clone(), own.instance.clone());
            let readings = recording.map_or(&[][..], Recording::readings).iter();
            let dsr = readings.filter_map(|at| Some((at.at, *at.dsr.get(&key)?)));
            for (at, dsr) in dsr.chain(own.dsr.map(|dsr| (self.end, dsr))) {
                let name = self.profile.intern_string("DSR");
                let timing = MarkerTiming::Instant(time(at));
                self.profile.add_marker(self.thread, timing, Rate { name, dsr });
            }
        } else if let Some(live) = &own.live_over_time {
            let live = live.series.iter().filter_map(|&(at, _, bytes, _)| Some((at, bytes?)));
            self.counter("live", "Bytes of live objects", &live.collect::<Vec<_>>());
        }
    }

    /// A counter by its values; the format has differences.
    fn counter(&mut self, name: &str, what: &str, values: &[(f64, u64)]) {
        if values.is_empty() {
            return;
        }
        let counter = self.profile.add_counter(self.process, name, "Memory", what);
        let mut before = 0.0;
        for &(at, value) in values {
            let value = value as f64;
            self.profile.add_counter_sample(counter, time(at), value - before, 0);
            before = value;
        }
    }

    /// Adds what comes and goes, in the order of time. A granule has its address; what has none, or one that is in use,
    /// has an address of its own.
    fn allocations(&mut self, pieces: &[Piece]) {
        let mut steps: Vec<(Timestamp, bool, usize)> = Vec::new();
        for (index, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.bytes > 0) {
            steps.push((time(piece.from), true, index));
            steps.extend(piece.to.map(|to| (time(to.max(piece.from)), false, index)));
        }
        // What goes makes room for what comes at the same time, but nothing goes before it came.
        steps.sort_by_key(|&(at, comes, index)| {
            let piece = &pieces[index];
            (at, comes && piece.to.is_none_or(|to| time(to) > at))
        });
        let mut in_use = BTreeSet::new();
        let mut addresses = vec![0; pieces.len()];
        for (at, comes, index) in steps {
            let piece = &pieces[index];
            let stack = self.stack(&piece.stack);
            let bytes = i64::try_from(piece.bytes).unwrap_or(i64::MAX);
            let address = &mut addresses[index];
            if comes {
                let own = piece.granule.filter(|id| *id < ADDRESSES && !in_use.contains(id));
                *address = own.unwrap_or(ADDRESSES + index as u64);
                in_use.insert(*address);
            } else {
                in_use.remove(address);
            }
            let bytes = if comes { bytes } else { -bytes };
            self.profile.add_allocation_sample(self.thread, at, stack, *address, bytes);
        }
    }

    fn stack(&mut self, names: &[String]) -> Option<StackHandle> {
        let frames: Vec<FrameInfo> = names
            .iter()
            .map(|name| FrameInfo {
                frame: Frame::Label(self.profile.intern_string(&escape::shown(name, TEXT))),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        self.profile.intern_stack_frames(self.thread, frames.into_iter())
    }

    /// A marker per pinned granule, from its close to its late drain.
    fn pinned(&mut self, pieces: &[Piece]) {
        let granules = || pieces.iter().filter_map(|piece| Some((piece, piece.granule?)));
        for (piece, id) in granules().take(MARKERS) {
            let id = self.profile.intern_string(&format!("{id:#x}"));
            let (kind, to) = match piece.to {
                Some(to) => ("pinned, drained late", to),
                None => ("pinned", self.end),
            };
            let name = self.profile.intern_string(kind);
            let timing = MarkerTiming::Interval(time(piece.from), time(to));
            let marker = Granule { name, id, bytes: piece.bytes, pins: piece.pins };
            let marker = self.profile.add_marker(self.thread, timing, marker);
            let stack = self.stack(&piece.stack);
            self.profile.set_marker_stack(self.thread, marker, stack);
        }
        let more = granules().skip(MARKERS).count();
        if more > 0 {
            let text = format!("{more} more granules have no marker");
            self.note("markers", (self.end, None), &text);
        }
    }

    fn note(&mut self, name: &str, (from, to): (f64, Option<f64>), text: &str) {
        let name = self.profile.intern_string(&escape::shown(name, TEXT));
        let text = self.profile.intern_string(&escape::shown(text, 2 * TEXT));
        let timing = match to {
            Some(to) => MarkerTiming::Interval(time(from), time(to)),
            None => MarkerTiming::Instant(time(from)),
        };
        self.profile.add_marker(self.thread, timing, Note { name, text });
    }
}

/// Saturates; what is no number is 0.
#[allow(clippy::cast_sign_loss, reason = "the cast saturates")]
fn time(seconds: f64) -> Timestamp {
    Timestamp::from_nanos_since_reference((seconds * 1e9) as u64)
}

/// A sentence.
struct Note {
    name: StringHandle,
    text: StringHandle,
}

impl StaticSchemaMarker for Note {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "note";
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.text}");
    const TABLE_LABEL: Option<&'static str> = Some("{marker.name}: {marker.data.text}");
    const FIELDS: &'static [StaticSchemaMarkerField] =
        &[field("text", "Text", MarkerFieldFormat::String)];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.text
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}

/// A granule from its close to its late drain.
struct Granule {
    name: StringHandle,
    id: StringHandle,
    bytes: u64,
    pins: u64,
}

impl StaticSchemaMarker for Granule {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "pinned granule";
    const LOCATIONS: MarkerLocations = MarkerLocations::MARKER_CHART
        .union(MarkerLocations::MARKER_TABLE)
        .union(MarkerLocations::TIMELINE_MEMORY);
    const CHART_LABEL: Option<&'static str> = Some("{marker.data.granule}");
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.data.granule}: {marker.data.bytes}, {marker.data.pins} pins");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        field("granule", "Granule", MarkerFieldFormat::String),
        field("bytes", "Bytes", MarkerFieldFormat::Bytes),
        field("pins", "Pins", MarkerFieldFormat::Integer),
    ];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.id
    }

    fn number_field_value(&self, index: u32) -> f64 {
        if index == 1 { self.bytes as f64 } else { self.pins as f64 }
    }
}

/// The drain success rate so far. A viewer has no counters for ratios: it draws a track from these markers.
struct Rate {
    name: StringHandle,
    dsr: f64,
}

impl StaticSchemaMarker for Rate {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "DSR";
    const TABLE_LABEL: Option<&'static str> = Some("{marker.data.dsr}");
    const FIELDS: &'static [StaticSchemaMarkerField] =
        &[field("dsr", "Drain success rate", MarkerFieldFormat::Percentage)];
    const GRAPHS: &'static [StaticSchemaMarkerGraph] = &[StaticSchemaMarkerGraph {
        key: "dsr",
        graph_type: MarkerGraphType::Line,
        color: Some(GraphColor::Green),
    }];

    fn name(&self, _: &mut Profile) -> StringHandle {
        self.name
    }

    fn category(&self, _: &mut Profile) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.name
    }

    fn number_field_value(&self, _: u32) -> f64 {
        self.dsr
    }
}

const fn field(
    key: &'static str,
    label: &'static str,
    format: MarkerFieldFormat,
) -> StaticSchemaMarkerField {
    StaticSchemaMarkerField { key, label, format, flags: MarkerFieldFlags::SEARCHABLE }
}

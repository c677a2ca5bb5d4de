//! `ndjson`: one JSON record per line, each with its kind in `record`.
//!
//! `interval` (compact totals and what changed), `close`, `late_drain`, `pin_freed`, `fork`, `exec`, `exit`
//! (events, if asked for), `path` (a call path that events refer to by its number), and at the end `report`, which holds a whole `drainprof.report/1`.

use std::io;

use drainprof_common::{
    event::{Event, EventKind},
    state::Verdict,
};
use drainprof_profile::Level;
use serde::Serialize;

use super::{
    Error, Exporter, Interval, Style, escape,
    rate::{self, Change, Counts},
};
use crate::{
    PathEnd, Report,
    facts::{CallPath, EventFacts, Names, PathPins},
    health::Health,
};

#[derive(Debug)]
pub(super) struct Ndjson;

impl Exporter for Ndjson {
    fn report(
        &self,
        report: &Report,
        _style: &Style,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        write(&Record::Report { report }, out)
    }

    fn interval(
        &self,
        interval: &Interval<'_>,
        _style: &Style,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        let health = Health::from_names(&interval.now.losses);
        let lost = health.incomplete().fold(0u64, |sum, line| sum.saturating_add(line.count));
        write(
            &Record::Interval {
                time: interval.clock,
                window_seconds: interval.now.window.seconds,
                interval_seconds: rate::seconds(interval),
                complete: interval.now.complete,
                lost,
                allocators: rate::changes(interval).iter().map(Line::of).collect(),
            },
            out,
        )
    }

    fn event(
        &self,
        facts: &EventFacts<'_>,
        names: &dyn Names,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        let EventFacts { kind, event, pinned_by } = *facts;
        let who = Who::of(event, names);
        let record = match kind {
            EventKind::Close => Record::Close {
                who,
                granule: Granule::of(event, names),
                pinned_by: pinned_by.map(|all| all.iter().map(PinnedBy::of).collect()),
                verdict: verdict(event.verdict),
                live: event.live,
                live_bytes: known(event.live_bytes),
                bytes: known(event.bytes),
                age_seconds: elapsed(event.opened_ns, event.ns),
                place: hex(event.place),
            },
            EventKind::LateDrain => Record::LateDrain {
                who,
                granule: Granule::of(event, names),
                pin_delay_seconds: elapsed(event.closed_ns, event.ns),
            },
            EventKind::PinFreed => Record::PinFreed {
                who,
                granule: Granule::of(event, names),
                path: pinned_by.and_then(<[_]>::first).map(|pin| pin.path),
                bytes: known(event.bytes),
                pin_delay_seconds: elapsed(event.closed_ns, event.ns),
            },
            EventKind::Fork => Record::Fork {
                // The event's thread group is the child's.
                who: Who { pid: names.pid(event.target), ..who },
                child_pid: event.tgid,
                child_target: event.target_b,
            },
            EventKind::Exec => Record::Exec { who, new_target: event.target_b },
            EventKind::Exit => Record::Exit { who },
        };
        write(&record, out)
    }

    fn path(
        &self,
        number: u64,
        target: u32,
        path: &CallPath,
        names: &dyn Names,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        let pid = names.pid(target);
        let frames = path.addresses.iter().map(|address| format!("{address:#x}")).collect();
        let path_end = path.end;
        write(&Record::Path { path: number, target, pid, path_end, frames }, out)
    }
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
enum Record<'a> {
    Interval {
        time: &'a str,
        window_seconds: f64,
        interval_seconds: f64,
        complete: bool,
        lost: u64,
        allocators: Vec<Line<'a>>,
    },
    Close {
        #[serde(flatten)]
        who: Who,
        #[serde(flatten)]
        granule: Granule<'a>,
        verdict: Option<&'static str>,
        live: u64,
        live_bytes: Option<u64>,
        bytes: Option<u64>,
        age_seconds: Option<f64>,
        place: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pinned_by: Option<Vec<PinnedBy>>,
    },
    LateDrain {
        #[serde(flatten)]
        who: Who,
        #[serde(flatten)]
        granule: Granule<'a>,
        pin_delay_seconds: Option<f64>,
    },
    PinFreed {
        #[serde(flatten)]
        who: Who,
        #[serde(flatten)]
        granule: Granule<'a>,
        path: Option<u64>,
        bytes: Option<u64>,
        pin_delay_seconds: Option<f64>,
    },
    Path {
        path: u64,
        target: u32,
        pid: Option<u32>,
        path_end: PathEnd,
        frames: Vec<String>,
    },
    Fork {
        #[serde(flatten)]
        who: Who,
        child_pid: u32,
        child_target: u32,
    },
    Exec {
        #[serde(flatten)]
        who: Who,
        new_target: u32,
    },
    Exit {
        #[serde(flatten)]
        who: Who,
    },
    Report {
        report: &'a Report,
    },
}

/// Pins of one call path.
#[derive(Serialize)]
struct PinnedBy {
    path: u64,
    pins: u64,
}

impl PinnedBy {
    const fn of(pins: &PathPins) -> Self {
        Self { path: pins.path, pins: pins.pins }
    }
}

/// Where and when an event happened.
#[derive(Clone, Copy, Serialize)]
struct Who {
    monotonic_ns: u64,
    target: u32,
    pid: Option<u32>,
    tid: u32,
}

impl Who {
    fn of(event: &Event, names: &dyn Names) -> Self {
        let pid = names.pid(event.target).or(Some(event.tgid));
        Self { monotonic_ns: event.ns, target: event.target, pid, tid: event.tid }
    }
}

/// The granule that an event is about.
#[derive(Serialize)]
struct Granule<'a> {
    profile: Option<&'a str>,
    instance: Option<String>,
    #[serde(rename = "granule")]
    id: Option<String>,
    generation: u32,
}

impl<'a> Granule<'a> {
    fn of(event: &Event, names: &'a dyn Names) -> Self {
        let (profile, instance) = names.series(event.series).unzip();
        Self {
            profile,
            instance: hex(instance.unwrap_or_default()),
            // Which granule it was that a pin was freed of may not be known any more.
            id: (event.kind != EventKind::PinFreed as u32 || event.live != 0)
                .then(|| format!("{:#x}", event.granule)),
            generation: event.generation,
        }
    }
}

/// One allocator of an interval.
#[derive(Serialize)]
struct Line<'a> {
    target: u32,
    pid: u32,
    comm: &'a str,
    profile: &'a str,
    kind: &'static str,
    instance: Option<&'a str>,
    level: Level,
    open_now: u64,
    overdue: u64,
    retained_granules: Option<u64>,
    retained_bytes: Option<u64>,
    live_objects: Option<u64>,
    dsr: Option<f64>,
    one_in: u32,
    interval_dsr: Option<f64>,
    total: Counts,
    delta: Counts,
}

impl<'a> Line<'a> {
    fn of(change: &Change<'a>) -> Self {
        let Change { target, now, delta, .. } = *change;
        Self {
            target: target.target,
            pid: target.pid,
            comm: &target.comm,
            profile: &now.profile,
            kind: now.kind.name(),
            instance: now.instance.as_deref(),
            level: now.level,
            open_now: now.granules.open_now,
            overdue: now.overdue.granules,
            retained_granules: now.retention.granules,
            retained_bytes: now.retention.bytes,
            live_objects: now.objects.map(|objects| objects.live),
            dsr: now.dsr,
            one_in: now.sampling.map_or(1, |sampling| sampling.one_in),
            interval_dsr: change.dsr(),
            total: Counts::of(now),
            delta,
        }
    }
}

/// Null for the closes of kinds without verdict, and for a number that is none.
fn verdict(raw: u32) -> Option<&'static str> {
    [(Verdict::Drainable, "drainable"), (Verdict::Pinned, "pinned"), (Verdict::Unknown, "unknown")]
        .into_iter()
        .find(|&(verdict, _)| verdict as u32 == raw)
        .map(|(_, name)| name)
}

fn hex(value: u64) -> Option<String> {
    (value != 0).then(|| format!("{value:#x}"))
}

fn known(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

fn elapsed(from_ns: u64, to_ns: u64) -> Option<f64> {
    (from_ns != 0).then(|| to_ns.saturating_sub(from_ns) as f64 / 1e9)
}

fn write(record: &Record<'_>, out: &mut dyn io::Write) -> Result<(), Error> {
    let text = serde_json::to_string(record).map_err(Error::Json)?;
    writeln!(out, "{}", escape::json(&text))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, samples};

    struct Known;

    impl Names for Known {
        fn pid(&self, target: u32) -> Option<u32> {
            (target < 2).then_some(4242 + target)
        }
        fn series(&self, series: u32) -> Option<(&str, u64)> {
            (series == 5).then_some(("epoch-demo", 0x7f00_0000_1000))
        }
        fn began_ns(&self) -> u64 {
            0
        }
    }

    fn close() -> Event {
        Event {
            kind: EventKind::Close as u32,
            target: 0,
            ns: 5_000_000_000,
            tgid: 4242,
            tid: 4243,
            verdict: Verdict::Pinned as u32,
            series: 5,
            generation: 2,
            granule: 3,
            live: 7,
            live_bytes: 700,
            bytes: 4096,
            opened_ns: 4_000_000_000,
            place: 0x40_1234,
            ..Event::default()
        }
    }

    fn text(kind: EventKind, event: &Event) -> String {
        written(&EventFacts { kind, event, pinned_by: None })
    }

    fn written(facts: &EventFacts<'_>) -> String {
        let mut out = Vec::new();
        Ndjson.event(facts, &Known, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        text
    }

    fn line(kind: EventKind, event: &Event) -> serde_json::Value {
        serde_json::from_str(&text(kind, event)).unwrap()
    }

    /// Each kind of event has its record, on one line.
    #[test]
    fn events() {
        let late = Event { closed_ns: 4_500_000_000, ..close() };
        let fork = Event { tgid: 4243, target_b: 1, ..close() };
        let mut lines = String::new();
        for (kind, event) in [
            (EventKind::Close, close()),
            (EventKind::LateDrain, late),
            (EventKind::Fork, fork),
            (EventKind::Exec, fork),
            (EventKind::Exit, close()),
        ] {
            lines += &text(kind, &event);
        }
        insta::assert_snapshot!(lines);
    }

    /// Who pins is named by numbers, which a record of their own explains; a pin that is freed has its own. Which
    /// granule it was may not be known.
    #[test]
    fn events_with_paths() {
        let pins = [PathPins { path: 3, pins: 2 }, PathPins { path: 4, pins: 5 }];
        let freed = Event {
            kind: EventKind::PinFreed as u32,
            live: 1,
            bytes: 100,
            closed_ns: 4_500_000_000,
            ..close()
        };
        let path = CallPath { addresses: vec![0x40_2010, 0x40_60fe], end: PathEnd::Start };
        let mut out = Vec::new();
        Ndjson.path(3, 0, &path, &Known, &mut out).unwrap();
        let mut lines = String::from_utf8(out).unwrap();
        let (close, pinned_by) = (close(), Some(&pins[..]));
        lines += &written(&EventFacts { kind: EventKind::Close, event: &close, pinned_by });
        let (kind, pinned_by) = (EventKind::PinFreed, Some(&pins[..1]));
        lines += &written(&EventFacts { kind, event: &freed, pinned_by });
        lines += &written(&EventFacts { kind, event: &Event { live: 0, ..freed }, pinned_by });
        insta::assert_snapshot!(lines);
    }

    /// A fork's record is the parent's, although the event's thread group is the child.
    #[test]
    fn fork_names_both() {
        let record = line(EventKind::Fork, &Event { tgid: 4300, target_b: 1, ..close() });
        assert_eq!((&record["pid"], &record["child_pid"]), (&4242.into(), &4300.into()));
        let record = line(EventKind::Fork, &Event { target: 9, tgid: 4300, ..close() });
        assert!(record["pid"].is_null());
    }

    /// What the caller cannot name, what was before the attach, and closes without verdict are null.
    #[test]
    fn unknown_is_null() {
        let event =
            Event { target: 9, series: 9, verdict: 0, opened_ns: 0, bytes: 0, place: 0, ..close() };
        let record = line(EventKind::Close, &event);
        assert_eq!(record["pid"], 4242);
        for field in ["profile", "instance", "verdict", "age_seconds", "bytes", "place"] {
            assert!(record[field].is_null() && record.get(field).is_some(), "{field}");
        }
        assert!(line(EventKind::Close, &Event { verdict: 77, ..close() })["verdict"].is_null());
    }

    /// Intervals and the final report, one line each.
    #[test]
    fn records() {
        let mut text = String::new();
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            let mut out = Vec::new();
            let interval = Interval { before: None, now: &report, clock: "2024-05-01T12:00:05Z" };
            Ndjson.interval(&interval, &Style::default(), &mut out).unwrap();
            text.extend(["-- ", name, "\n", &String::from_utf8(out).unwrap()]);
            let mut out = Vec::new();
            Ndjson.report(&report, &Style::default(), &mut out).unwrap();
            let line = String::from_utf8(out).unwrap();
            let record: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(record["record"], "report");
            assert_eq!(record["report"]["schema"], "drainprof.report/1");
        }
        insta::assert_snapshot!(text);
    }
}

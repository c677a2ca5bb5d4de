//! Exporters: a value in, bytes out. One file per format, one row each in [`FORMATS`].
//!
//! An exporter cannot tell where its report came from, looks nothing up, and reads no clock: times of
//! day and names arrive as text. `cli` picks a format by name; help and documentation read the table.

mod contexts;
pub mod curves;
pub mod diff;
pub mod escape;
mod exporter;
mod firefox;
mod flamegraph;
mod folded;
mod heaps;
pub mod html;
mod json;
pub mod live;
mod ndjson;
mod pprof;
mod rate;
pub mod stack;
pub mod table;
mod text;
pub mod weigh;
mod why;

pub use escape::shown;
use exporter::SENTENCE;
pub use exporter::{Error, Exporter, Interval, Style};
pub use heaps::{write_heap_map, write_heap_metrics, write_heaps};
pub use pprof::otlp::otlp_profiles;
pub use weigh::PinWeight;
pub use why::write_why;

use crate::Report;

/// Whether a format has records for single events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Events {
    /// It has none.
    No,
    /// If asked for (`--events`).
    Asked,
    /// It is made of them.
    Always,
}

/// One row of the table of formats.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Its name for `--format`.
    pub name: &'static str,
    /// File name extension.
    pub extension: &'static str,
    /// What it is, in half a line.
    pub what: &'static str,
    /// Whether it has records for single events.
    pub events: Events,
    /// Whether it grows while an observation runs; the other ones come whole at the end.
    pub grows: bool,
    /// Whether it shows call paths and nothing else, so that it needs the level `stacks`.
    pub paths: bool,
    /// Whether it is no text: not for a terminal.
    pub binary: bool,
    /// Who writes it.
    pub exporter: &'static dyn Exporter,
}

/// A format that comes whole, as text, of any level.
const fn whole(
    name: &'static str,
    extension: &'static str,
    what: &'static str,
    exporter: &'static dyn Exporter,
) -> Format {
    Format {
        name,
        extension,
        what,
        events: Events::No,
        grows: false,
        paths: false,
        binary: false,
        exporter,
    }
}

/// All formats; the first is the default.
pub const FORMATS: &[Format] = &[
    Format {
        grows: true,
        ..whole(
            "text",
            "txt",
            "tables for people; one line per allocator and interval, then the report",
            &text::Text,
        )
    },
    whole("json", "json", "one drainprof.report/1 document at the end", &json::Json),
    Format {
        events: Events::Asked,
        grows: true,
        ..whole(
            "ndjson",
            "ndjson",
            "one JSON record per line: intervals, events if asked for, then the report",
            &ndjson::Ndjson,
        )
    },
    whole("html", "html", "one page for a browser, in one file, without script", &html::Html),
    Format {
        paths: true,
        ..whole(
            "folded",
            "folded",
            "call paths as folded stacks, one per line, weighed by --weight",
            &folded::Folded,
        )
    },
    Format {
        paths: true,
        ..whole(
            "flamegraph",
            "svg",
            "call paths as a flame graph (SVG), as wide as --weight says",
            &flamegraph::Flamegraph,
        )
    },
    Format {
        paths: true,
        binary: true,
        ..whole(
            "pprof",
            "pb.gz",
            "call paths for `go tool pprof` and other viewers of profiles (compressed protobuf)",
            &pprof::Pprof,
        )
    },
    Format {
        events: Events::Always,
        paths: true,
        ..whole(
            "firefox",
            "firefox.json",
            "a profile for profiler.firefox.com: what any range of time retains, by call path",
            &firefox::Firefox,
        )
    },
];

/// The format of that name.
#[must_use]
pub fn format(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// One line for each profile of which nothing can be said: process and reason, fit for a terminal.
fn not_measurable(report: &Report) -> impl Iterator<Item = String> + '_ {
    report.not_measurable().map(|(target, profile, because)| {
        let cut = |text| shown(text, SENTENCE);
        let (profile, comm, because) = (cut(profile), cut(&target.comm), cut(because));
        format!("NOT MEASURABLE: {profile} in {comm}[{}]: {because}", target.pid)
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::{Options, samples};

    /// Names and extensions are unique, and a name finds its row.
    #[test]
    fn table_is_consistent() {
        for (index, row) in FORMATS.iter().enumerate() {
            assert_eq!(format(row.name).unwrap().extension, row.extension);
            for other in &FORMATS[..index] {
                assert!(other.name != row.name && other.extension != row.extension);
            }
        }
        assert!(format("xml").is_none());
    }

    /// No format lets a control or direction character of a process's name, label or path through.
    #[test]
    fn hostile_names_never_pass() {
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            for format in FORMATS {
                let mut out = Vec::new();
                let interval = Interval { before: None, now: &report, clock: "12:00:05" };
                format.exporter.interval(&interval, &Style::default(), &mut out).unwrap();
                assert!(format.grows || out.is_empty(), "{name} as {}", format.name);
                format.exporter.report(&report, &Style::default(), &mut out).unwrap();
                if format.binary {
                    continue;
                }
                let text = String::from_utf8(out).unwrap();
                let bad = text.chars().find(|&c| c != '\n' && escape::is_hostile(c));
                assert_eq!(bad, None, "{name} as {}", format.name);
            }
        }
    }

    /// At 80 columns no line of the text is longer.
    #[test]
    fn eighty_columns() {
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            let mut out = Vec::new();
            let style = Style { width: 80, ..Style::default() };
            FORMATS[0].exporter.report(&report, &style, &mut out).unwrap();
            for line in String::from_utf8(out).unwrap().lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }

    /// A stored report is a file like any other: whatever its texts and numbers are, every format writes
    /// it without failing and without passing on a hostile character.
    #[test]
    fn stored_reports_are_not_trusted() {
        fn spoil(node: &mut serde_json::Value) {
            match node {
                serde_json::Value::String(text) => "\u{1b}[2J\u{9b}31m\u{202e}\n".clone_into(text),
                serde_json::Value::Number(number) if number.is_u64() => *node = u64::MAX.into(),
                serde_json::Value::Array(items) => items.iter_mut().for_each(spoil),
                serde_json::Value::Object(fields) => {
                    let names = ["how", "kind", "level", "weight", "pid", "target", "generation"];
                    let more = [
                        "code",
                        "signal",
                        "from_target",
                        "one_in",
                        "verdict",
                        "class",
                        "path_end",
                        "state",
                        "over_time",
                    ];
                    // Changes have a sign, and another most.
                    let signed = [
                        "anon_bytes",
                        "file_bytes",
                        "shmem_bytes",
                        "swap_bytes",
                        "heap_bytes",
                        "change_bytes",
                    ];
                    // A reading of a process's memory has some of these names, and no sign.
                    let is_reading = fields.contains_key("vsz_bytes");
                    let is_signed = |name: &str| !is_reading && signed.contains(&name);
                    for (_, value) in fields.iter_mut().filter(|(name, _)| is_signed(name)) {
                        *value = i64::MIN.into();
                    }
                    let kept = |name: &str| {
                        names.contains(&name) || more.contains(&name) || is_signed(name)
                    };
                    fields.iter_mut().filter(|(name, _)| !kept(name)).for_each(|(_, v)| spoil(v));
                }
                _ => {}
            }
        }
        for (name, snapshot) in samples::all() {
            let report = Report::build(&snapshot, &Options::default());
            let mut value = serde_json::to_value(&report).unwrap();
            spoil(&mut value);
            let spoilt: Report = serde_json::from_value(value).unwrap();
            let _ = crate::invariants(&spoilt);
            let _ = crate::verdict(&spoilt, Some(0.5));
            for format in FORMATS {
                let mut out = Vec::new();
                for (before, now) in
                    [(None, &spoilt), (Some(&report), &spoilt), (Some(&spoilt), &report)]
                {
                    let interval = Interval { before, now, clock: "\u{1b}" };
                    format.exporter.interval(&interval, &Style::default(), &mut out).unwrap();
                    live::screen(&interval, &Style::default(), &mut out).unwrap();
                }
                format.exporter.report(&spoilt, &Style::default(), &mut out).unwrap();
                if format.binary {
                    continue;
                }
                let text = String::from_utf8(out).unwrap();
                let bad = text.chars().find(|&c| c != '\n' && escape::is_hostile(c));
                assert_eq!(bad, None, "{name} as {}", format.name);
            }
        }
    }

    /// A closed pipe is distinguished from other failures, by every format.
    #[test]
    fn broken_pipe_is_recognised() {
        struct Closed(io::ErrorKind);
        impl io::Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let report = Report::build(&samples::stacks_snapshot(), &Options::default());
        for format in FORMATS {
            let write = |kind| {
                format.exporter.report(&report, &Style::default(), &mut Closed(kind)).unwrap_err()
            };
            assert!(write(io::ErrorKind::BrokenPipe).is_broken_pipe(), "{}", format.name);
            assert!(!write(io::ErrorKind::StorageFull).is_broken_pipe(), "{}", format.name);
        }
    }
}

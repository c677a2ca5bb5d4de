//! `pprof`: a compressed `profile.proto`, for `go tool pprof` and for stores and viewers of profiles.
//!
//! One sample per call path. Addresses are those in the process; what they are called stands in the file, so
//! that a viewer needs neither the program nor its debug information.

pub(super) mod otlp;
mod proto;
mod tables;

use std::io;

use flate2::{Compression, write::GzEncoder};
use prost::Message as _;

use self::{
    proto::{Profile, Sample, ValueType, signed},
    tables::Tables,
};
use super::{Error, Exporter, Style};
use crate::{Allocator, Kind, Report, Site, Target};

/// Where an allocator can have pins.
const PINS: [(&str, &str); 4] = [
    ("pinned_granules", "count"),
    ("pinning_objects", "count"),
    ("pinned_space", "bytes"),
    ("pin_delay", "nanoseconds"),
];
/// Where none can.
const HOLDS: [(&str, &str); 4] = [
    ("live_objects", "count"),
    ("live_space", "bytes"),
    ("allocated_objects", "count"),
    ("allocated_space", "bytes"),
];

#[derive(Debug)]
pub(super) struct Pprof;

impl Exporter for Pprof {
    fn report(
        &self,
        report: &Report,
        _style: &Style,
        out: &mut dyn io::Write,
    ) -> Result<(), Error> {
        let bytes = profile(report).encode_to_vec();
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        io::Write::write_all(&mut packed, &bytes)?;
        out.write_all(&packed.finish()?)?;
        Ok(())
    }
}

fn profile(report: &Report) -> Profile {
    let kinds: Vec<Kind> = with_paths(report).map(|(_, allocator, _)| allocator.kind).collect();
    let of_pins = kinds.is_empty() || kinds.contains(&Kind::Drain);
    let mut tables = Tables::default();
    // The first mapping is taken for the program.
    if let Some(target) = report.targets.first() {
        tables.executable(target);
    }
    let types = if of_pins { PINS } else { HOLDS };
    let sample_type: Vec<ValueType> = types
        .iter()
        .map(|(kind, unit)| ValueType { kind: tables.string(kind), unit: tables.string(unit) })
        .collect();
    let mut sample = Vec::new();
    for (target, allocator, sites) in with_paths(report) {
        if (allocator.kind == Kind::Drain) != of_pins {
            continue;
        }
        for site in sites {
            let value = if of_pins { pins(site) } else { holds(site) };
            if value.iter().any(|&value| value > 0) {
                sample.push(Sample {
                    location_id: tables.path(target, site),
                    value: value.to_vec(),
                    label: labels(&mut tables, target, allocator, site),
                });
            }
        }
    }
    let complete = if report.complete {
        "complete: nothing that the counts need was lost"
    } else {
        "INCOMPLETE: something that the counts need was lost"
    };
    let tool = format!("{} {}", report.tool.name, report.tool.version);
    let mut comment = vec![tables.text(&tool), tables.string(complete)];
    if with_paths(report).flat_map(|(.., sites)| sites).any(|site| site.estimated.is_some()) {
        comment.push(tables.string(
            "sampled: live_objects and live_space are estimates, allocated_* are those of the sample",
        ));
    }
    let default_sample_type = sample_type.first().map_or(0, |first| first.kind);
    let Tables { mapping, location, function, strings, .. } = tables;
    Profile {
        sample_type,
        sample,
        mapping,
        location,
        function,
        string_table: strings.into_list(),
        duration_nanos: nanoseconds(report.window.observed()),
        comment,
        default_sample_type,
    }
}

fn with_paths(report: &Report) -> impl Iterator<Item = (&Target, &Allocator, &[Site])> {
    report.targets.iter().flat_map(|target| {
        let allocators = target.allocators.iter();
        allocators
            .filter_map(move |allocator| Some((target, allocator, allocator.sites.as_deref()?)))
    })
}

fn pins(site: &Site) -> [i64; 4] {
    [
        signed(site.granules_pinned),
        signed(site.pins),
        signed(site.pin_bytes.unwrap_or_default()),
        nanoseconds(site.pin_delay_total_seconds),
    ]
}

fn holds(site: &Site) -> [i64; 4] {
    let (live, live_bytes) = match site.estimated {
        Some(estimated) => (Some(estimated.live), estimated.live_bytes),
        None => (site.live, site.live_bytes),
    };
    [
        signed(live.unwrap_or_default()),
        signed(live_bytes.unwrap_or_default()),
        signed(site.allocated),
        signed(site.allocated_bytes.unwrap_or_default()),
    ]
}

fn labels(
    tables: &mut Tables,
    target: &Target,
    allocator: &Allocator,
    site: &Site,
) -> Vec<proto::Label> {
    let mut labels = vec![
        tables.label("process", &format!("{} ({})", target.comm, target.pid)),
        tables.label("profile", &allocator.profile),
    ];
    if let Some(instance) = &allocator.instance {
        labels.push(tables.label("instance", instance));
    }
    if let Some(opened_at) = tables::place(&site.opened_at) {
        labels.push(tables.label("opened_at", &opened_at));
    }
    if let Some(class) = site.class {
        labels.push(tables.label("class", class.words()));
    }
    for thread in &site.threads {
        labels.push(tables.label("thread", thread));
    }
    labels
}

/// Saturates; a time that is no number is 0.
fn nanoseconds(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

#[cfg(test)]
mod tests;

//! Metrics as text: OpenMetrics 1.0, and the older format of Prometheus for clients that do not ask for it.

use std::fmt::Write as _;

use super::{
    family::{Exemplar, Family, Value, cumulative},
    table::Type,
};
use crate::PinDelays;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Flavour {
    /// The media type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The flavour that an `Accept` header prefers: OpenMetrics only where it is named.
#[must_use]
pub fn negotiate(accept: &str) -> Flavour {
    let mut open = 0.0_f32;
    let mut plain = 0.0_f32;
    for part in accept.split(',') {
        let mut words = part.split(';').map(str::trim);
        let name = words.next().unwrap_or_default();
        let weight = words
            .find_map(|word| word.strip_prefix("q="))
            .map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        if name.eq_ignore_ascii_case("application/openmetrics-text") {
            open = open.max(weight);
        } else if name.eq_ignore_ascii_case("text/plain") {
            plain = plain.max(weight);
        }
    }
    if open > 0.0 && open >= plain { Flavour::OpenMetrics } else { Flavour::Prometheus }
}

/// The metrics as text. Families without series are left out. The older format has no units, exemplars or end mark, and
/// names a family like its samples.
#[must_use]
pub fn render<'a>(families: impl IntoIterator<Item = &'a Family>, flavour: Flavour) -> String {
    let open = flavour == Flavour::OpenMetrics;
    let mut out = String::new();
    for family in families.into_iter().filter(|family| !family.series.is_empty()) {
        let of = family.definition;
        let (name, kind) = match (open, of.kind) {
            (true, kind) => (of.family(), kind),
            (false, Type::Info) => (of.sample(), Type::Gauge),
            (false, kind) => (of.sample(), kind),
        };
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {}", of.help, kind.name());
        if let Some(unit) = of.unit.filter(|_| open) {
            let _ = writeln!(out, "# UNIT {name} {unit}");
        }
        let sample = of.sample();
        for series in &family.series {
            let labels = pairs(&series.labels);
            let exemplar = series.exemplar.as_ref().filter(|_| open);
            let exemplar = exemplar.map(shown).unwrap_or_default();
            match &series.value {
                Value::Count(count) => {
                    let _ = writeln!(out, "{sample}{} {count}{exemplar}", braced(&labels));
                }
                Value::Measure(measure) => {
                    let _ = writeln!(out, "{sample}{} {measure:?}{exemplar}", braced(&labels));
                }
                Value::Delays(delays) => histogram(&mut out, &sample, &labels, delays),
            }
        }
    }
    if open {
        out.push_str("# EOF\n");
    }
    out
}

fn histogram(out: &mut String, name: &str, labels: &str, delays: &PinDelays) {
    let comma = if labels.is_empty() { "" } else { "," };
    for (bound, below) in cumulative(delays) {
        let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"{comma}{labels}}} {below}");
    }
    let (labels, sum) = (braced(labels), delays.sum_nanoseconds as f64 / 1e9);
    let _ = writeln!(out, "{name}_sum{labels} {sum:?}\n{name}_count{labels} {}", delays.count());
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn pairs(labels: &[(&'static str, String)]) -> String {
    let pair = |(name, value): &(&'static str, String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    labels.iter().map(pair).collect::<Vec<_>>().join(",")
}

fn shown(exemplar: &Exemplar) -> String {
    let seconds = exemplar.unix_ms as f64 / 1e3;
    format!(" # {{{}}} {:?} {seconds:?}", pairs(&exemplar.labels), exemplar.value as f64)
}

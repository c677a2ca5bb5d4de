//! Metrics as text, by `prometheus-client`: OpenMetrics 1.0, and the older format of Prometheus for whoever does not
//! ask for it.

use std::{
    fmt::{self, Write as _},
    time::{Duration, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text},
    metrics::{MetricType, exemplar::CounterWithExemplar},
    registry::{Registry, Unit},
};

use super::{Exemplar, Family, Type, Value};
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

/// The metrics as text. Families without series are left out.
pub fn render(families: &[Family], flavour: Flavour) -> Result<String, fmt::Error> {
    let shown = families.iter().filter(|family| !family.series.is_empty()).cloned().collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Shown { families: shown, flavour }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(match flavour {
        Flavour::OpenMetrics => out,
        Flavour::Prometheus => classic(&out, families),
    })
}

/// A label set as the library takes it.
type Pairs = Vec<(&'static str, String)>;

/// The library makes exemplars nowhere but in counters of its own.
fn held(exemplar: &Exemplar) -> CounterWithExemplar<Pairs> {
    let holder = CounterWithExemplar::default();
    let when = UNIX_EPOCH + Duration::from_millis(exemplar.unix_ms);
    holder.inc_by(exemplar.value, Some(exemplar.labels.clone()), Some(when));
    holder
}

/// Families that are encoded as they are.
#[derive(Debug)]
struct Shown {
    families: Vec<Family>,
    flavour: Flavour,
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.families {
            let of = family.definition;
            let unit = of.unit.map(|unit| Unit::Other(unit.to_owned()));
            let kind = match of.kind {
                Type::Counter => MetricType::Counter,
                Type::Gauge => MetricType::Gauge,
                Type::Histogram => MetricType::Histogram,
                Type::Info => MetricType::Info,
            };
            let mut metric = encoder.encode_descriptor(of.stem, of.help, unit.as_ref(), kind)?;
            for series in &family.series {
                let labels = series.labels.as_slice();
                match (of.kind, series.value) {
                    (Type::Info, _) => metric.encode_info(&labels)?,
                    (Type::Counter, Value::Count(count)) => {
                        // The older format has no exemplars.
                        let own = series.exemplar.as_ref();
                        let holder = own
                            .filter(|_| self.flavour == Flavour::OpenMetrics)
                            .map(held)
                            .unwrap_or_default();
                        let (_, exemplar) = holder.get();
                        metric.encode_family(&labels)?.encode_counter(&count, exemplar.as_ref())?;
                    }
                    (Type::Counter, Value::Measure(measure)) => {
                        metric
                            .encode_family(&labels)?
                            .encode_counter::<NoLabelSet, _, f64>(&measure, None)?;
                    }
                    (Type::Gauge, Value::Count(count)) => {
                        let mut gauge = metric.encode_family(&labels)?;
                        // The library's whole gauges end here, and it would fail beyond.
                        match i64::try_from(count) {
                            Ok(count) => gauge.encode_gauge(&count)?,
                            Err(_) => gauge.encode_gauge(&(count as f64))?,
                        }
                    }
                    (_, Value::Delays(delays)) => {
                        let bound = |bucket| {
                            let seconds = |nanos: u64| nanos as f64 / 1e9;
                            PinDelays::bound(bucket).map_or(f64::INFINITY, seconds)
                        };
                        let counts = delays.buckets.iter().enumerate();
                        let buckets: Vec<(f64, u64)> =
                            counts.map(|(bucket, count)| (bound(bucket), *count)).collect();
                        let sum = delays.sum_nanoseconds as f64 / 1e9;
                        metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                            sum,
                            delays.count(),
                            &buckets,
                            None,
                        )?;
                    }
                    // A histogram is counted by what it holds; a single number is none.
                    (Type::Histogram, _) => {}
                    (Type::Gauge, Value::Measure(measure)) => {
                        metric.encode_family(&labels)?.encode_gauge(&measure)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The older format has no units and no end mark, and names families as their samples. Samples are the same.
fn classic(text: &str, families: &[Family]) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next()) {
            (Some("#"), Some(keyword @ ("HELP" | "TYPE"))) => {
                let (name, rest) =
                    (words.next().unwrap_or_default(), words.next().unwrap_or_default());
                let of = families.iter().map(|family| family.definition);
                let sample =
                    of.clone().find(|of| of.family() == name).map(super::Definition::sample);
                let rest = if keyword == "TYPE" && rest == "info" { "gauge" } else { rest };
                let name = sample.unwrap_or_else(|| name.to_owned());
                let _ = writeln!(out, "# {keyword} {name} {rest}");
            }
            (Some("#"), _) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

//! The same metrics to an OpenTelemetry collector: OTLP over HTTP, as protobuf.
//!
//! An endpoint that fails holds up nothing: counts are cumulative, so the next export has all of it. A failure is logged
//! once, and once more when exports work again.

use std::{sync::Arc, time::Duration};

use axum::http::{HeaderValue, header};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
        metric::Data, number_data_point::Value as Number,
    },
    resource::v1::Resource,
};
use prost::Message as _;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::{
    error::ServeError,
    hub::Hub,
    metrics::{Definition, Family, Series, Type, Value, cumulative},
    options::OtlpOptions,
    outgoing::{Client, Peer},
};
use crate::clock::unix_ms;

/// How long one export may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last export may hold up the end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports the metrics of a hub.
pub(super) struct Sender {
    hub: Arc<Hub>,
    client: Client,
    endpoint: String,
    interval: Duration,
    /// When the counters started at zero, in nanoseconds since 1970.
    start: u64,
    is_failing: bool,
}

impl Sender {
    pub(super) fn new(options: &OtlpOptions, hub: Arc<Hub>) -> Result<Self, ServeError> {
        let endpoint = options.endpoint.clone();
        let peer = Peer {
            url: &endpoint,
            authorization_file: options.authorization_file.as_deref(),
            ca_file: options.ca_file.as_deref(),
        };
        match peer.client(EXPORT_TIMEOUT) {
            Ok(client) => {
                let (interval, start) = (options.interval, unix_nanos());
                Ok(Self { hub, client, endpoint, interval, start, is_failing: false })
            }
            Err(message) => Err(ServeError::Otlp { endpoint, message }),
        }
    }

    /// Exports at every interval; never returns.
    pub(super) async fn run(&mut self) {
        let mut interval = interval_at(Instant::now() + self.interval, self.interval);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.export().await;
        }
    }

    /// Exports a last time, as far as that is quick.
    pub(super) async fn finish(mut self) {
        if timeout(SHUTDOWN_TIMEOUT, self.export()).await.is_err() {
            tracing::debug!("the last metrics were not sent in time");
        }
    }

    async fn export(&mut self) {
        let body = request(&self.hub.families(), self.start, unix_nanos()).encode_to_vec();
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        let headers = [(header::CONTENT_TYPE, protobuf)];
        let why = match self.client.post(&self.endpoint, headers, body).await {
            Ok(status) if status.is_success() => None,
            Ok(status) => Some(format!("it answers {status}")),
            Err(why) => Some(why),
        };
        let was_failing = std::mem::replace(&mut self.is_failing, why.is_some());
        match why {
            Some(why) if !was_failing => tracing::warn!(
                endpoint = self.endpoint,
                why,
                "cannot send metrics; this is tried again at every interval, and not reported again"
            ),
            None if was_failing => {
                tracing::info!(endpoint = self.endpoint, "metrics are sent again");
            }
            _ => {}
        }
    }
}

fn unix_nanos() -> u64 {
    unix_ms().saturating_mul(1_000_000)
}

/// The body of an export. `start`, when the counters were zero, and `now` are in nanoseconds since 1970.
fn request(families: &[Family], start: u64, now: u64) -> ExportMetricsServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let shown = families.iter().filter(|family| !family.series.is_empty());
    let scope = InstrumentationScope {
        name: "drainprof".to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_metrics = ScopeMetrics {
        scope: Some(scope),
        metrics: shown.flat_map(|family| metrics(family, start, now)).collect(),
        schema_url: String::new(),
    };
    let attributes =
        vec![attribute("service.name", "drainprof"), attribute("service.version", version)];
    let resource = ResourceMetrics {
        resource: Some(Resource { attributes, ..Resource::default() }),
        scope_metrics: vec![scope_metrics],
        schema_url: String::new(),
    };
    ExportMetricsServiceRequest { resource_metrics: vec![resource] }
}

/// A family as metrics: one, but for a histogram. That goes as counters under the names that it has for Prometheus, since
/// OpenTelemetry's buckets include their upper bounds, and these do not.
fn metrics(family: &Family, start: u64, now: u64) -> Vec<Metric> {
    let of = family.definition;
    let point = |series: &Series, more: Option<KeyValue>, value: Number| {
        let own = series.labels.iter().map(|(name, value)| attribute(name, value));
        NumberDataPoint {
            attributes: own.chain(more).collect(),
            start_time_unix_nano: if of.kind.is_cumulative() { start } else { 0 },
            time_unix_nano: now,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    };
    if of.kind != Type::Histogram {
        let points = family.series.iter().map(|series| point(series, None, number(&series.value)));
        return vec![metric(of, "", unit(of), points.collect())];
    }
    let (mut buckets, mut counts, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for series in &family.series {
        let Value::Delays(delays) = &series.value else { continue };
        let below = cumulative(delays)
            .map(|(bound, count)| point(series, Some(attribute("le", &bound)), whole(count)));
        buckets.extend(below);
        counts.push(point(series, None, whole(delays.count())));
        sums.push(point(series, None, Number::AsDouble(delays.sum_nanoseconds as f64 / 1e9)));
    }
    vec![
        metric(of, "_bucket", "", buckets),
        metric(of, "_count", "", counts),
        metric(of, "_sum", unit(of), sums),
    ]
}

fn metric(of: &Definition, suffix: &str, unit: &str, data_points: Vec<NumberDataPoint>) -> Metric {
    let data = if of.kind.is_cumulative() {
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
    } else {
        Data::Gauge(Gauge { data_points })
    };
    Metric {
        name: format!("{}{suffix}", of.family()),
        description: of.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// The unit's name in OpenTelemetry.
fn unit(of: &Definition) -> &'static str {
    match of.unit {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("bytes_per_second") => "By/s",
        Some("ratio") => "1",
        _ => "",
    }
}

fn number(value: &Value) -> Number {
    match value {
        Value::Count(count) => whole(*count),
        Value::Measure(measure) => Number::AsDouble(*measure),
        Value::Delays(delays) => whole(delays.count()),
    }
}

fn whole(count: u64) -> Number {
    Number::AsInt(i64::try_from(count).unwrap_or(i64::MAX))
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

//! The same metrics to an OpenTelemetry collector: OTLP over HTTP, as protobuf.
//!
//! A thread of the OpenTelemetry library collects and sends at an interval; its requests run on the daemon's runtime.
//! An endpoint that fails holds up nothing: counts are cumulative, so the next time tells all of it. That it fails is
//! logged once, and once more when it works again.

use std::{
    future::poll_fn,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    metrics::{Meter, MeterProvider as _},
};
use opentelemetry_otlp::{MetricExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{
        PeriodicReader, SdkMeterProvider, Temporality, data::ResourceMetrics,
        exporter::PushMetricExporter,
    },
};
use tokio::runtime::Handle;

use super::{
    ServeError,
    hub::Hub,
    metrics::{Definition, METRICS, Series, Type, Value},
    outgoing::Peer,
};
use crate::PinDelays;

/// How long one sending may take, retries included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last sending may hold up the end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Where metrics are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpOptions {
    /// The whole URL, as `http://collector:4318/v1/metrics`.
    pub endpoint: String,
    /// A file with the value of the `Authorization` header.
    pub authorization_file: Option<PathBuf>,
    /// A file with the certificates (PEM) that the collector's must come from; `None`: those that this machine trusts.
    pub ca_file: Option<PathBuf>,
    /// From one sending to the next.
    pub interval: Duration,
}

/// Sends until it is stopped.
#[derive(Debug)]
pub(super) struct Sender(SdkMeterProvider);

impl Sender {
    /// Begins; has to be called on the runtime.
    pub(super) fn start(options: &OtlpOptions, hub: &Arc<Hub>) -> Result<Self, ServeError> {
        let failed =
            |message: String| ServeError::Otlp { endpoint: options.endpoint.clone(), message };
        let peer = Peer {
            url: &options.endpoint,
            authorization_file: options.authorization_file.as_deref(),
            ca_file: options.ca_file.as_deref(),
        };
        let client = peer.client(TIMEOUT).map_err(failed)?;
        let runtime = Handle::try_current().map_err(|error| failed(error.to_string()))?;
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(&options.endpoint)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let exporter = Told {
            exporter,
            runtime,
            endpoint: options.endpoint.clone(),
            failing: AtomicBool::new(false),
        };
        let reader = PeriodicReader::builder(exporter).with_interval(options.interval).build();
        let resource = Resource::builder()
            .with_service_name("drainprof")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider =
            SdkMeterProvider::builder().with_resource(resource).with_reader(reader).build();
        let meter = provider.meter("drainprof");
        for definition in METRICS {
            instrument(&meter, definition, Arc::clone(hub));
        }
        Ok(Self(provider))
    }

    /// Sends once more, and ends. What blocks does so beside the runtime, which carries the request.
    pub(super) async fn stop(self) {
        let stopping = tokio::task::spawn_blocking(move || self.0.shutdown_with_timeout(FAREWELL));
        match tokio::time::timeout(FAREWELL * 2, stopping).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::debug!(%error, "the last metrics were not sent"),
            Ok(Err(error)) => tracing::debug!(%error, "the last metrics were not sent"),
            Err(_) => tracing::debug!("the last metrics were not sent in time"),
        }
    }
}

/// The library has no histogram that is read off, only one that is told each value. So its counts go as counters, under
/// the names that they have for Prometheus.
fn histogram(meter: &Meter, of: &'static Definition, hub: &Arc<Hub>) {
    let counter = |suffix: &str| {
        meter.u64_observable_counter(format!("{}_{suffix}", of.family())).with_description(of.help)
    };
    let own = Arc::clone(hub);
    let _buckets = counter("bucket")
        .with_callback(move |observer| {
            each(&own, of, |series, attributes| {
                let Value::Delays(delays) = series.value else { return };
                let mut attributes = attributes.to_vec();
                for (bound, count) in cumulative(&delays) {
                    attributes.push(KeyValue::new("le", bound));
                    observer.observe(count, &attributes);
                    attributes.pop();
                }
            });
        })
        .build();
    let own = Arc::clone(hub);
    let _count = counter("count")
        .with_callback(move |observer| {
            each(&own, of, |series, attributes| {
                observer.observe(whole(series.value), attributes);
            });
        })
        .build();
    let own = Arc::clone(hub);
    let _sum = meter
        .f64_observable_counter(format!("{}_sum", of.family()))
        .with_description(of.help)
        .with_unit("s")
        .with_callback(move |observer| {
            each(&own, of, |series, attributes| {
                observer.observe(fraction(series.value), attributes);
            });
        })
        .build();
}

/// How many were shorter than each bound, which is in seconds.
fn cumulative(delays: &PinDelays) -> Vec<(String, u64)> {
    let mut sum = 0_u64;
    let bound = |bucket| match PinDelays::bound(bucket) {
        Some(nanos) => (nanos as f64 / 1e9).to_string(),
        None => "+Inf".to_owned(),
    };
    let counts = delays.buckets.iter().enumerate();
    counts
        .map(|(bucket, count)| {
            sum = sum.saturating_add(*count);
            (bound(bucket), sum)
        })
        .collect()
}

/// An instrument that shows what the family of that name holds.
fn instrument(meter: &Meter, of: &'static Definition, hub: Arc<Hub>) {
    let name = of.family();
    let unit = match of.unit {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("ratio") => "1",
        _ => "",
    };
    // Times and shares have fractions; counts and bytes are whole.
    let fractions = matches!(of.unit, Some("seconds" | "ratio"));
    macro_rules! build {
        ($kind:ident, $number:ident) => {{
            let builder = meter.$kind(name).with_description(of.help).with_unit(unit);
            let _instrument = builder
                .with_callback(move |observer| {
                    each(&hub, of, |series, attributes| {
                        observer.observe($number(series.value), attributes);
                    });
                })
                .build();
        }};
    }
    match (of.kind, fractions) {
        (Type::Histogram, _) => histogram(meter, of, &hub),
        (Type::Counter, false) => build!(u64_observable_counter, whole),
        (Type::Counter, true) => build!(f64_observable_counter, fraction),
        (Type::Gauge | Type::Info, false) => build!(u64_observable_gauge, whole),
        (Type::Gauge | Type::Info, true) => build!(f64_observable_gauge, fraction),
    }
}

fn each(hub: &Hub, of: &Definition, mut tell: impl FnMut(&Series, &[KeyValue])) {
    let metrics = hub.metrics();
    let family = metrics.families().iter().find(|family| family.definition.stem == of.stem);
    for series in family.into_iter().flat_map(|family| &family.series) {
        let attributes: Vec<_> =
            series.labels.iter().map(|(name, value)| KeyValue::new(*name, value.clone())).collect();
        tell(series, &attributes);
    }
}

fn whole(value: Value) -> u64 {
    match value {
        Value::Count(count) => count,
        Value::Delays(delays) => delays.count(),
        #[allow(clippy::cast_sign_loss, reason = "`as` saturates at 0")]
        Value::Measure(measure) => measure as u64,
    }
}

const fn fraction(value: Value) -> f64 {
    match value {
        Value::Count(count) => count as f64,
        Value::Delays(delays) => delays.sum_nanoseconds as f64 / 1e9,
        Value::Measure(measure) => measure,
    }
}

/// An exporter that tells of failures once.
#[derive(Debug)]
struct Told {
    exporter: MetricExporter,
    runtime: Handle,
    endpoint: String,
    failing: AtomicBool,
}

impl PushMetricExporter for Told {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let mut sending = Box::pin(self.exporter.export(metrics));
        // The library's thread is none of the runtime's, whose sockets and timers the request needs.
        let sent = poll_fn(|context| {
            let _entered = self.runtime.enter();
            sending.as_mut().poll(context)
        })
        .await;
        let failing = self.failing.swap(sent.is_err(), Ordering::Relaxed);
        match &sent {
            Err(error) if !failing => tracing::warn!(
                endpoint = self.endpoint,
                %error,
                "cannot send metrics; this is tried again at every interval, and not reported again"
            ),
            Ok(()) if failing => {
                tracing::info!(endpoint = self.endpoint, "metrics are sent again");
            }
            _ => {}
        }
        sent
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

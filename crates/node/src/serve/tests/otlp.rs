use std::time::Duration;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{NumberDataPoint, metric::Data, number_data_point::Value},
};
use prost::Message as _;

use super::Running;
use crate::{
    receiver::Receiver,
    serve::{Limits, OtlpOptions},
};

/// An endpoint that fails at first gets by TLS everything the next time: names, labels and values as in the text formats.
#[tokio::test]
async fn metrics_arrive() {
    let receiver = Receiver::tls();
    let otlp = OtlpOptions {
        endpoint: format!("{}/v1/metrics", receiver.url()),
        authorization_file: None,
        ca_file: receiver.ca_file(),
        interval: Duration::from_millis(200),
    };
    let running = Running::start(Limits::default(), Some(otlp), true);
    let taken = tokio::task::spawn_blocking(move || {
        receiver.take("400 Bad Request");
        receiver.take("200 OK")
    })
    .await
    .unwrap();
    assert_eq!(taken.line, "POST /v1/metrics HTTP/1.1");
    assert!(taken.head.contains("content-type: application/x-protobuf"), "{}", taken.head);
    let sent = ExportMetricsServiceRequest::decode(taken.body.as_slice()).unwrap();
    let metrics = &sent.resource_metrics[0].scope_metrics[0].metrics;
    let find = |name: &str| metrics.iter().find(|metric| metric.name == name).unwrap();
    let Some(Data::Sum(closes)) = &find("drainprof_granule_closes").data else { panic!("no sum") };
    assert!(closes.is_monotonic);
    let pinned = closes.data_points.iter().filter(|point| {
        let pairs: Vec<_> = point.attributes.iter().map(|pair| pair.key.as_str()).collect();
        assert!(!pairs.contains(&"pid"));
        format!("{:?}", point.attributes).contains("\"pinned\"")
    });
    assert!(pinned.clone().count() == 2);
    assert!(pinned.clone().all(|point| point.value == Some(Value::AsInt(2_474))));
    let Some(Data::Gauge(ready)) = &find("drainprof_ready").data else { panic!("no gauge") };
    assert_eq!(ready.data_points[0].value, Some(Value::AsInt(1)));
    let pressure = find("drainprof_memory_pressure_waited_seconds");
    assert_eq!(pressure.unit, "s");
    let Some(Data::Sum(buckets)) = &find("drainprof_pin_delay_seconds_bucket").data else {
        panic!("no sum")
    };
    let below = |bound: &str| {
        let is = |value: &&NumberDataPoint| format!("{:?}", value.attributes).contains(bound);
        buckets.data_points.iter().filter(is).map(|point| point.value).collect::<Vec<_>>()
    };
    assert_eq!(below("\"0.000001024\""), [Some(Value::AsInt(1)); 2]);
    assert_eq!(below("\"+Inf\""), [Some(Value::AsInt(3)); 2]);
    let Some(Data::Sum(count)) = &find("drainprof_pin_delay_seconds_count").data else {
        panic!("no sum")
    };
    assert!(count.data_points.iter().all(|point| point.value == Some(Value::AsInt(3))));
    let Some(Data::Sum(sum)) = &find("drainprof_pin_delay_seconds_sum").data else {
        panic!("no sum")
    };
    assert_eq!(sum.data_points[0].value, Some(Value::AsDouble(7_200.004_000_9)));
    running.stop().await;
}

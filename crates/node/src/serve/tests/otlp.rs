use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    time::Duration,
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{NumberDataPoint, metric::Data, number_data_point::Value},
};
use prost::Message as _;

use super::Running;
use crate::serve::{Limits, OtlpOptions};

/// Takes one request, answers it with a status, and gives its body.
fn take(listener: &TcpListener, status: &str) -> Vec<u8> {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "the request ended early");
        bytes.extend(&some[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        assert!(head.starts_with("post /v1/metrics "), "{head}");
        assert!(head.contains("content-type: application/x-protobuf"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        let length: usize = length.trim().parse().unwrap();
        if bytes.len() >= end + 4 + length {
            let answer =
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            return bytes.split_off(end + 4);
        }
    }
}

/// An endpoint that fails at first gets everything the next time: names, labels and values as in the text formats.
#[tokio::test]
async fn metrics_arrive() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/metrics", listener.local_addr().unwrap());
    let otlp = OtlpOptions { endpoint, interval: Duration::from_millis(200) };
    let running = Running::start(Limits::default(), Some(otlp), true);
    let body = tokio::task::spawn_blocking(move || {
        take(&listener, "400 Bad Request");
        take(&listener, "200 OK")
    })
    .await
    .unwrap();
    let sent = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
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

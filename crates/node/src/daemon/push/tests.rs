use std::{io::Read as _, os::unix::fs::PermissionsExt as _};

use drainprof_report::{Options, samples};
use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use prost::Message as _;

use super::*;
use crate::{
    Outcome,
    receiver::{Receiver, answer},
};

/// As much of pprof's `profile.proto` as is checked here: field numbers and types are those of the published definition.
#[derive(Clone, PartialEq, prost::Message)]
struct Pprof {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

fn record() -> WindowRecord {
    WindowRecord {
        id: 7,
        pid: 4242,
        comm: "svc".to_owned(),
        exe: "/usr/bin/svc".to_owned(),
        asked_by: "dsr_low".to_owned(),
        why: String::new(),
        began_unix_ms: 1_700_000_000_500,
        seconds: 10.0,
        outcome: Outcome::Finished,
        has_report: true,
    }
}

fn labels() -> Labels {
    Labels { exe: "svc".to_owned(), unit: Some("a,b}.service".to_owned()), ..Labels::default() }
}

fn report() -> Report {
    Report::build(&samples::stacks_snapshot(), &Options::default())
}

fn config(receiver: &Receiver) -> Pyroscope {
    let endpoint = format!("{}/", receiver.url());
    Pyroscope { endpoint: Some(endpoint), ca_file: receiver.ca_file(), ..Pyroscope::default() }
}

fn pusher(config: &Pyroscope) -> Pusher {
    Pusher::pyroscope(config, Duration::from_millis(1)).unwrap().unwrap()
}

async fn served<T: Send + 'static>(serve: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(serve).await.unwrap()
}

/// A window's profile arrives by TLS after a failure, with name, labels, time, headers, and the numbers of the report.
#[tokio::test]
async fn a_window_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("authorization");
    std::fs::write(&secret, "Basic bmFtZTpwYXNzd29yZA==\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let receiver = Receiver::tls();
    let config = Pyroscope {
        authorization_file: Some(secret),
        tenant: Some("team-a".to_owned()),
        ..config(&receiver)
    };
    let pusher = pusher(&config);
    pusher.window(&record(), &labels(), &report());
    let taken = served(move || {
        receiver.take("503 Service Unavailable");
        receiver.take("200 OK")
    })
    .await;
    let name = "svc%7Bunit%3Da_b_.service%2Cexe%3Dsvc%2Crule%3Ddsr_low%7D";
    let query =
        format!("name={name}&from=1700000000&until=1700000011&format=pprof&spyName=drainprof");
    assert_eq!(taken.line, format!("POST /ingest?{query} HTTP/1.1"));
    for line in [
        "authorization: basic bmftztpwyxnzd29yza==",
        "x-scope-orgid: team-a",
        "content-type: binary/octet-stream",
    ] {
        assert!(taken.head.lines().any(|own| own == line), "no {line} in {}", taken.head);
    }
    let mut bytes = Vec::new();
    GzDecoder::new(&taken.body[..]).read_to_end(&mut bytes).unwrap();
    let profile = Pprof::decode(&bytes[..]).unwrap();
    let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
    assert_eq!(text(profile.sample_type[0].kind), "pinned_granules");
    assert_eq!(profile.sample.iter().map(|sample| sample.value[0]).sum::<i64>(), 2_474);
    let labels = profile.sample.iter().flat_map(|sample| &sample.label);
    assert!(
        labels
            .map(|label| (text(label.key), text(label.str)))
            .any(|own| own == ("profile", "epoch-demo"))
    );
    pusher.end().await;
}

/// A collector gets the same as OpenTelemetry's profiles, with what the process is; both stores are counted together.
#[tokio::test]
async fn a_collector() {
    let (receiver, other) = (Receiver::tls(), Receiver::plain());
    let otlp = Otlp {
        profiles_endpoint: Some(format!("{}/v1development/profiles", receiver.url())),
        ca_file: receiver.ca_file(),
        ..Otlp::default()
    };
    let config = Config { otlp, pyroscope: config(&other), ..Config::default() };
    let pushers = Pushers::start(&config).unwrap();
    pushers.window(&record(), &labels(), &report());
    let taken = served(move || {
        other.take("200 OK");
        receiver.take("200 OK")
    })
    .await;
    assert_eq!(taken.line, "POST /v1development/profiles HTTP/1.1");
    assert!(taken.head.contains("content-type: application/x-protobuf"), "{}", taken.head);
    let sent = ExportProfilesServiceRequest::decode(&taken.body[..]).unwrap();
    let of = &sent.resource_profiles[0];
    let resource = format!("{:?}", of.resource);
    for known in ["service.name", "process.pid", "4242", "drainprof.unit", "dsr_low"] {
        assert!(resource.contains(known), "no {known} in {resource}");
    }
    let profile = &of.scope_profiles[0].profiles[0];
    assert_eq!(profile.time_unix_nano, 1_700_000_000_500_000_000);
    assert_eq!(profile.samples.iter().map(|sample| sample.values[0]).sum::<i64>(), 2_474);
    let states: Vec<_> = pushers.0.iter().map(|pusher| Arc::clone(&pusher.state)).collect();
    pushers.end().await;
    assert!(states.iter().all(|state| state.lock().unwrap().pushed.sent == 1));
}

/// Whose certificate does not come from where it must gets nothing.
#[tokio::test]
async fn a_stranger() {
    let (receiver, other) = (Receiver::tls(), Receiver::tls());
    let pusher = pusher(&Pyroscope { ca_file: other.ca_file(), ..config(&receiver) });
    pusher.window(&record(), &labels(), &report());
    let refusing = std::thread::spawn(move || receiver.request());
    let state = Arc::clone(&pusher.state);
    pusher.end().await;
    let state = state.lock().unwrap();
    assert_eq!((state.pushed.sent, state.pushed.unreachable), (0, 1));
    let failure = state.failure.as_deref().unwrap_or_default();
    assert!(failure.contains("certificate"), "{failure}");
    assert!(!refusing.is_finished(), "no request has come");
}

/// What is refused is not tried again; what fails is tried five times; both are counted, and the failure is reported until
/// one arrives.
#[tokio::test]
async fn losses_are_counted() {
    let receiver = Receiver::plain();
    let pusher = pusher(&config(&receiver));
    for _ in 0..2 {
        pusher.window(&record(), &labels(), &report());
    }
    let receiver = served(move || {
        receiver.take("401 Unauthorized");
        for _ in 0..MAX_ATTEMPTS {
            receiver.take("500 Internal Server Error");
        }
        receiver
    })
    .await;
    // It is counted once the answer is read, and before the next profile is sent.
    pusher.window(&record(), &labels(), &report());
    let (state, receiver) = served({
        let state = Arc::clone(&pusher.state);
        move || {
            let (mut stream, _) = receiver.request();
            let seen = state.lock().unwrap().pushed;
            let failure = state.lock().unwrap().failure.clone();
            answer(&mut *stream, "204 No Content");
            ((seen, failure), receiver)
        }
    })
    .await;
    let expected = Pushed { sent: 0, refused: 1, unreachable: 1, dropped: 0 };
    assert_eq!(state, (expected, Some("it answers 500 Internal Server Error".to_owned())));
    let seen = Arc::clone(&pusher.state);
    pusher.end().await;
    drop(receiver);
    let seen = seen.lock().unwrap();
    assert_eq!((seen.pushed.sent, seen.failure.clone()), (1, None));
}

/// The queue is bounded: what finds no room is counted, and nothing waits. A report without call stacks is not sent.
#[tokio::test]
async fn no_room() {
    let receiver = Receiver::plain();
    let pusher = pusher(&config(&receiver));
    let plain = Report::build(&samples::drain_snapshot(), &Options::default());
    pusher.window(&record(), &labels(), &plain);
    // On this thread, the task that sends does not run before the next `await`.
    for _ in 0..MAX_WAITING_PROFILES + 3 {
        pusher.window(&record(), &labels(), &report());
    }
    assert_eq!(pusher.pushed(), Pushed { dropped: 3, ..Pushed::default() });
    assert_eq!(pusher.failure(), None);
}

/// Endpoints and secrets that cannot be used are refused at the start, with the reason.
#[tokio::test]
async fn refused_at_the_start() {
    assert_eq!(Pushers::start(&Config::default()).unwrap().pushed(), None);
    let endpoint = |url: &str| Pyroscope { endpoint: Some(url.to_owned()), ..Pyroscope::default() };
    let refused = |config: &Pyroscope| {
        let config = Config { pyroscope: config.clone(), ..Config::default() };
        Pushers::start(&config).unwrap_err()
    };
    assert!(refused(&endpoint("ftp://store")).contains("http:// or https://"));
    let empty = tempfile::NamedTempFile::new().unwrap();
    for (file, why) in
        [("/does/not/exist".into(), "cannot take"), (empty.path().to_owned(), "none")]
    {
        let config = Pyroscope { ca_file: Some(file), ..endpoint("https://store") };
        assert!(refused(&config).contains(why));
    }
    let tenant = Pyroscope { tenant: Some("a\nb".to_owned()), ..endpoint("http://store") };
    assert!(refused(&tenant).contains("`pyroscope.tenant`"));
    let missing = Some("/does/not/exist".into());
    let missing = Pyroscope { authorization_file: missing, ..endpoint("http://store") };
    assert!(refused(&missing).contains("/does/not/exist"));
}

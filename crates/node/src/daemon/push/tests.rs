use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
};

use drainprof_report::{Options, samples};
use flate2::read::GzDecoder;
use prost::Message as _;

use super::*;
use crate::Outcome;

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

/// A request: its first line, its headers in small letters, and its body.
struct Taken {
    line: String,
    head: String,
    body: Vec<u8>,
}

/// Takes one request and answers it with a status.
fn take(listener: &TcpListener, status: &str) -> Taken {
    let (mut stream, taken) = request(listener);
    answer(&mut stream, status);
    taken
}

/// Takes one request.
fn request(listener: &TcpListener) -> (TcpStream, Taken) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4096];
        let read = stream.read(&mut some).unwrap();
        assert!(read > 0, "the request ended early");
        bytes.extend(&some[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let line = head.lines().next().unwrap().to_owned();
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if bytes.len() >= end + 4 + length.trim().parse::<usize>().unwrap() {
            let body = bytes.split_off(end + 4);
            return (stream, Taken { line, head, body });
        }
    }
}

fn answer(stream: &mut TcpStream, status: &str) {
    let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(answer.as_bytes()).unwrap();
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

fn config(listener: &TcpListener) -> Pyroscope {
    let endpoint = format!("http://{}/", listener.local_addr().unwrap());
    Pyroscope { endpoint: Some(endpoint), ..Pyroscope::default() }
}

fn pusher(config: &Pyroscope) -> Pusher {
    Pusher::with_pause(config, Duration::from_millis(1)).unwrap().unwrap()
}

async fn served<T: Send + 'static>(serve: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(serve).await.unwrap()
}

/// A window's profile arrives after a failure, with name, labels, time, headers, and the numbers of the report.
#[tokio::test]
async fn a_window_arrives() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("authorization");
    std::fs::write(&secret, "Basic bmFtZTpwYXNzd29yZA==\n").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Pyroscope {
        authorization_file: Some(secret),
        tenant: Some("team-a".to_owned()),
        ..config(&listener)
    };
    let pusher = pusher(&config);
    pusher.window(&record(), &labels(), &report());
    let taken = served(move || {
        take(&listener, "503 Service Unavailable");
        take(&listener, "200 OK")
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

/// What is refused is not tried again; what fails is tried five times; both are counted, and the trouble is told until
/// one arrives.
#[tokio::test]
async fn losses_are_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pusher = pusher(&config(&listener));
    for _ in 0..2 {
        pusher.window(&record(), &labels(), &report());
    }
    let listener = served(move || {
        take(&listener, "401 Unauthorized");
        for _ in 0..ATTEMPTS {
            take(&listener, "500 Internal Server Error");
        }
        listener
    })
    .await;
    // It is counted once the answer is read, and before the next profile is sent.
    pusher.window(&record(), &labels(), &report());
    let (state, listener) = served({
        let state = Arc::clone(&pusher.state);
        move || {
            let (mut stream, _) = request(&listener);
            let seen = state.lock().unwrap().pushed;
            let trouble = state.lock().unwrap().trouble.clone();
            answer(&mut stream, "204 No Content");
            ((seen, trouble), listener)
        }
    })
    .await;
    let expected = Pushed { sent: 0, refused: 1, unreachable: 1, dropped: 0 };
    assert_eq!(state, (expected, Some("it answers 500 Internal Server Error".to_owned())));
    let seen = Arc::clone(&pusher.state);
    pusher.end().await;
    drop(listener);
    let seen = seen.lock().unwrap();
    assert_eq!((seen.pushed.sent, seen.trouble.clone()), (1, None));
}

/// The queue is bounded: what finds no room is counted, and nobody waits. A report without call stacks is not sent.
#[tokio::test]
async fn no_room() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pusher = pusher(&config(&listener));
    let plain = Report::build(&samples::drain_snapshot(), &Options::default());
    pusher.window(&record(), &labels(), &plain);
    // On this thread, the task that sends does not run before the next `await`.
    for _ in 0..WAITING + 3 {
        pusher.window(&record(), &labels(), &report());
    }
    assert_eq!(pusher.pushed(), Pushed { dropped: 3, ..Pushed::default() });
    assert_eq!(pusher.trouble(), None);
}

/// Endpoints and secrets that cannot be used are refused at the start, with the reason.
#[tokio::test]
async fn refused_at_the_start() {
    assert!(Pusher::start(&Pyroscope::default()).unwrap().is_none());
    let endpoint = |url: &str| Pyroscope { endpoint: Some(url.to_owned()), ..Pyroscope::default() };
    let refused = |config: &Pyroscope| Pusher::start(config).unwrap_err();
    assert!(refused(&endpoint("https://store")).contains("with TLS"));
    let tenant = Pyroscope { tenant: Some("a\nb".to_owned()), ..endpoint("http://store") };
    assert!(refused(&tenant).contains("`pyroscope.tenant`"));
    let missing = Some("/does/not/exist".into());
    let missing = Pyroscope { authorization_file: missing, ..endpoint("http://store") };
    assert!(refused(&missing).contains("/does/not/exist"));
}

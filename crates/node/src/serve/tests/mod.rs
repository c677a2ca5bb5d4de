//! A server on the loopback, fed by a state made by hand.

mod control;
mod hostile;
mod http;
mod openapi;
mod otlp;
mod page;

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    sync::Arc,
    time::Duration,
};

use drainprof_census::{HeapSummary, Summary};
use drainprof_process::memory::{MemoryReading, MemoryShares, Pressure, Waiting};
use drainprof_profile::Level;
use drainprof_report::{Held, Options as ReportOptions, Report, samples};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

use super::{Limits, Options, OtlpOptions, Server};
use crate::{
    Alert, AlertState, Answer, Asked, Counts, Heaps, LabelSet, Labels, NodeState, NodeTarget,
    Outcome, PinDelays, Pushed, Refusal, Request, SCHEMA, Shares, WindowRecord, WorstSite,
};

pub(super) fn report() -> Report {
    Report::build(&samples::stacks_snapshot(), &ReportOptions::default())
}

fn labels() -> Labels {
    Labels {
        exe: "svc".to_owned(),
        cgroup: Some("/system.slice/svc.service".to_owned()),
        unit: Some("svc.service".to_owned()),
        ..Labels::default()
    }
}

pub(super) fn window(id: u64, outcome: Outcome) -> WindowRecord {
    WindowRecord {
        id,
        pid: 4242,
        comm: "svc".to_owned(),
        exe: "/usr/bin/svc".to_owned(),
        asked_by: "user".to_owned(),
        why: "asked for".to_owned(),
        began_unix_ms: 1_700_000_000_000,
        seconds: 60.0,
        outcome,
        has_report: outcome == Outcome::Finished,
    }
}

const SHARES: Shares = Shares {
    unix_ms: 1_700_000_050_000,
    memory: MemoryShares { pss_bytes: 9 << 20, uss_bytes: 7 << 20 },
};

fn heaps() -> Heaps {
    let heap = HeapSummary {
        allocator: "glibc".to_owned(),
        mapped_bytes: 12 << 20,
        resident_bytes: 8 << 20,
        held_bytes: 6 << 20,
        live_objects: 1_000,
        live_bytes: 3 << 20,
        cached_bytes: 4_096,
        free_bytes: 5 << 20,
        unknown_bytes: 0,
        trimmable_bytes: Some(2 << 20),
    };
    let summary = Summary { seconds: 0.25, rss_bytes: 10 << 20, heaps: vec![heap] };
    Heaps { unix_ms: 1_700_000_050_000, summary, failure: None }
}

fn pressure(avg10: f64) -> Pressure {
    let some = Waiting { avg10, avg60: 0.25, avg300: 0.5, total_seconds: 12.5 };
    Pressure { some, full: Waiting::default() }
}

/// Three delays: of less than a microsecond, of a few milliseconds, and of more than two hours.
fn delays() -> PinDelays {
    let mut delays = PinDelays { sum_nanoseconds: 7_200_004_000_900, ..PinDelays::default() };
    for bucket in [0, 6, PinDelays::BUCKETS - 1] {
        delays.buckets[bucket] = 1;
    }
    delays
}

/// A node with one process, two label sets (one of them without a process), a window and an alert.
pub(super) fn state() -> NodeState {
    let report = report();
    let target = &report.targets[0];
    let counts = Counts {
        labels: labels(),
        profile: target.allocators[0].profile.clone(),
        kind: "drain".to_owned(),
        granules: drainprof_report::Counts {
            opened: 10_000,
            drainable: 7_526,
            pinned: 2_474,
            unknown: 3,
        },
        allocated: 20_000,
        freed: 17_526,
        hits: 40_000,
        cost_seconds: 0.25,
        processes: 1,
        held: Held { open_now: 16, retained_granules: Some(2_474), retained_bytes: None },
        pin_delays: delays(),
        worst_site: Some(WorstSite {
            site: "00f1e2d3c4b5a697".to_owned(),
            window: 7,
            granules_pinned: 2_400,
            unix_ms: 1_700_000_050_000,
        }),
    };
    let hostile = Labels { exe: "a\"b\\c\nd\u{1b}e".to_owned(), ..Labels::default() };
    let gone = Counts {
        labels: hostile,
        processes: 0,
        held: Held { retained_granules: None, ..counts.held },
        worst_site: None,
        ..counts.clone()
    };
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: report.tool.clone(),
        unix_ms: 1_700_000_060_000,
        uptime_seconds: 3_600.0,
        ready: true,
        killed: false,
        degraded: Vec::new(),
        complete: false,
        incomplete: vec!["ring_full 7: Events were lost (raise --ring-bytes)".to_owned()],
        losses: [("ring_full".to_owned(), 7), ("granule_map_full".to_owned(), 0)].into(),
        self_use: report.self_use,
        pressure: Some(pressure(0.125)),
        targets: vec![NodeTarget {
            pid: 4242,
            start_time: 99,
            comm: "svc".to_owned(),
            exe: "/usr/bin/svc".to_owned(),
            labels: labels(),
            matched: true,
            level: Some(Level::Boundary),
            observed_ratio: None,
            reason: "the configured level".to_owned(),
            since_unix_ms: 1_700_000_000_000,
            memory: Some(MemoryReading {
                rss_bytes: 10 << 20,
                anon_bytes: 8 << 20,
                vsz_bytes: 100 << 20,
                minor_faults: 100,
                major_faults: 2,
                ..MemoryReading::default()
            }),
            rss_slope_bytes_per_second: Some(12.5),
            rss_slope_interval: Some([10.0, 15.0]),
            rss_r_squared: Some(0.75),
            seconds_to_limit: None,
            faults_per_second: Some(3.0),
            shares: Some(SHARES),
            heaps: Some(heaps()),
            cgroup_pressure: Some(pressure(0.25)),
            cost: target.cost,
            allocators: target.allocators.clone(),
            findings: target.findings.clone(),
            alerts: vec![Alert {
                rule: "dsr_low".to_owned(),
                state: AlertState::Firing,
                since_unix_ms: 1_700_000_000_000,
                message: "the DSR is 0.75, below 0.8".to_owned(),
            }],
        }],
        processes_late: 3,
        processes_given_up: 5,
        probes_put_off: 4,
        label_sets: [labels(), gone.labels.clone(), Labels::other()]
            .map(|labels| LabelSet {
                labels,
                since_unix_ms: 1_700_000_000_000,
                minor_faults: 40,
                major_faults: 2,
            })
            .to_vec(),
        counts: vec![counts, gone],
        windows: vec![window(7, Outcome::Finished), window(8, Outcome::Running)],
        pushed: Some(Pushed { sent: 3, refused: 1, unreachable: 2, dropped: 4 }),
    }
}

/// What a daemon's loop would answer.
fn answer(request: &Request) -> Result<Answer, Refusal> {
    let none = |message: &str| Err(Refusal::NotFound { message: message.to_owned() });
    match request {
        Request::State => Ok(Answer::State { state: Box::new(state()) }),
        Request::Report { pid: 4242 } | Request::WindowReport { id: 7 } => {
            Ok(Answer::Report { report: Box::new(report()) })
        }
        Request::Report { .. } => none("no such process is watched"),
        Request::WindowReport { .. } => none("no such window"),
        Request::Windows { limit } => Ok(Answer::Windows {
            windows: state().windows.into_iter().rev().take(*limit as usize).collect(),
        }),
        Request::Diagnose { pid: 4242, seconds, .. } => {
            let seconds = seconds.unwrap_or(60.0);
            Ok(Answer::Window { window: WindowRecord { seconds, ..window(9, Outcome::Running) } })
        }
        Request::Diagnose { .. } => {
            Err(Refusal::NotNow { message: "a window runs; try again in 40 s".to_owned() })
        }
        Request::Kill | Request::Resume | Request::Reload => {
            Ok(Answer::Done { message: "done".to_owned() })
        }
    }
}

/// A server that runs, and the loop behind it.
pub(super) struct Running {
    pub(super) http: SocketAddr,
    pub(super) directory: tempfile::TempDir,
    pub(super) state: watch::Sender<Arc<NodeState>>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), super::ServeError>>,
    answering: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(limits: Limits, otlp: Option<OtlpOptions>, answers: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        page::write_history(&directory.path().join("history.db"));
        Self::start_in(directory, limits, otlp, answers)
    }

    /// The same with the history that a directory has, or has not.
    pub(super) fn start_in(
        directory: tempfile::TempDir,
        limits: Limits,
        otlp: Option<OtlpOptions>,
        answers: bool,
    ) -> Self {
        let token = directory.path().join("token");
        std::fs::write(&token, TOKEN).unwrap();
        std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
        let options = Options {
            token_file: Some(token),
            http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
            socket: Some(directory.path().join("run/control.sock")),
            history: Some(directory.path().join("history.db")),
            otlp,
            limits,
            ..Options::default()
        };
        let server = Server::bind(&options).unwrap();
        let http = server.address().unwrap();
        let (state, shown) = watch::channel(Arc::new(state()));
        let (requests, mut asked) = mpsc::channel::<Asked>(2);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(server.run(shown, requests, async {
            let _ = stopped.await;
        }));
        let answering = tokio::spawn(async move {
            if !answers {
                return std::future::pending().await;
            }
            while let Some(Asked { request, answer: to }) = asked.recv().await {
                let _ = to.send(answer(&request));
            }
        });
        Self { http, directory, state, stop: Some(stop), server, answering }
    }

    pub(super) fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("run/control.sock")
    }

    /// Stops it, and sees that it has taken its socket with it.
    pub(super) async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.server).await.unwrap().unwrap();
        assert!(!self.socket().exists());
        self.answering.abort();
    }
}

/// A response: status, headers in lower case, body.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Response {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Sends bytes as they are, and reads until the server closes.
pub(super) fn raw(address: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // Who has heard enough may close before all is sent.
    let _ = stream.write_all(bytes);
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Response { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub(super) async fn send(address: SocketAddr, text: String) -> Response {
    tokio::task::spawn_blocking(move || raw(address, text.as_bytes())).await.unwrap()
}

pub(super) async fn get(address: SocketAddr, path: &str) -> Response {
    send(address, format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")).await
}

/// Its holder may do everything.
pub(super) const TOKEN: &str = "a-token-of-these-tests";

/// The same with the token.
pub(super) async fn get_all(address: SocketAddr, path: &str) -> Response {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n");
    send(address, format!("{head}authorization: Bearer {TOKEN}\r\n\r\n")).await
}

pub(super) async fn post(address: SocketAddr, more: &str, body: &str) -> Response {
    let token = format!("authorization: Bearer {TOKEN}\r\n{more}");
    post_bare(address, &token, body).await
}

/// The same without the token.
pub(super) async fn post_bare(address: SocketAddr, more: &str, body: &str) -> Response {
    let length = body.len();
    let head =
        "POST /api/v1/diagnose HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
    send(address, format!("{head}\r\ncontent-length: {length}\r\n{more}\r\n{body}")).await
}

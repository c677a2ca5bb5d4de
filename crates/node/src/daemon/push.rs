//! Sends the call stacks of diagnostic windows to stores of profiles: pprof to Pyroscope's `/ingest`, which Alloy has, too,
//! and OpenTelemetry's profiles to a collector.
//!
//! For each store a task of its own sends; the loop only hands over, and never waits. What finds no room, is refused, or
//! cannot be sent after some attempts is counted ([`Pushed`]).

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use drainprof_report::{Report, export};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};

use crate::{
    Labels, Pushed, WindowRecord,
    config::{Config, Otlp, Pyroscope},
    serve::{HttpClient, Peer, sensitive},
};

/// Profiles that can wait.
const MAX_WAITING_PROFILES: usize = 16;
/// Attempts for one profile, and the pause after the first; each further pause is twice as long, half of it by chance.
const MAX_ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the daemon's end waits for what is not sent yet.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// Names the tenant.
const SCOPE_HEADER: HeaderName = HeaderName::from_static("x-scope-orgid");
/// Characters of a label's value.
const MAX_VALUE_CHARS: usize = 200;

/// One profile on its way.
struct Profile {
    /// What follows the endpoint in the URL.
    target: String,
    bytes: Vec<u8>,
}

/// The form that a store takes.
#[derive(Clone, Copy, Debug)]
struct Form {
    content_type: &'static str,
    write: fn(&WindowRecord, &Labels, &Report) -> Option<Profile>,
}

const INGEST: Form = Form { content_type: "binary/octet-stream", write: ingest };
const OTLP: Form = Form { content_type: "application/x-protobuf", write: otlp };

/// All stores.
#[derive(Debug, Default)]
pub(super) struct Pushers(Vec<Pusher>);

impl Pushers {
    /// Starts a task for each store that is configured. Has to be called on the runtime. The error is a sentence.
    pub(super) fn start(config: &Config) -> Result<Self, String> {
        let pyroscope = Pusher::pyroscope(&config.pyroscope, FIRST_PAUSE)?;
        let otlp = Pusher::otlp(&config.otlp, FIRST_PAUSE)?;
        Ok(Self(pyroscope.into_iter().chain(otlp).collect()))
    }

    /// Hands over what a window saw, if it has call stacks.
    pub(super) fn window(&self, record: &WindowRecord, labels: &Labels, report: &Report) {
        self.0.iter().for_each(|pusher| pusher.window(record, labels, report));
    }

    /// What came of the profiles so far, of all stores together; `None`: there is none.
    pub(super) fn pushed(&self) -> Option<Pushed> {
        self.0.iter().map(Pusher::pushed).reduce(|one, other| Pushed {
            sent: one.sent + other.sent,
            refused: one.refused + other.refused,
            unreachable: one.unreachable + other.unreachable,
            dropped: one.dropped + other.dropped,
        })
    }

    /// Why profiles are not sent now, for each store.
    pub(super) fn failures(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(Pusher::failure)
    }

    /// Sends what waits, as far as that is quick, and ends.
    pub(super) async fn end(self) {
        for pusher in self.0 {
            pusher.end().await;
        }
    }
}

/// Hands profiles to the task that sends them.
#[derive(Debug)]
struct Pusher {
    form: Form,
    way: Sender<Profile>,
    task: JoinHandle<()>,
    state: Arc<Mutex<State>>,
    endpoint: String,
}

#[derive(Debug, Default)]
struct State {
    pushed: Pushed,
    /// Why the last profile could not be sent.
    failure: Option<String>,
}

impl Pusher {
    /// Pyroscope's; `None`: no endpoint is configured.
    fn pyroscope(config: &Pyroscope, pause: Duration) -> Result<Option<Self>, String> {
        let Some(endpoint) = &config.endpoint else { return Ok(None) };
        let peer = Peer {
            url: endpoint,
            authorization_file: config.authorization_file.as_deref(),
            ca_file: config.ca_file.as_deref(),
        };
        let tenant = |own: &String| {
            sensitive(own.as_bytes())
                .ok_or_else(|| "`pyroscope.tenant` is no value of an HTTP header".to_owned())
        };
        let tenant = config.tenant.as_ref().map(tenant).transpose()?;
        Self::start(peer, INGEST, tenant, pause).map(Some)
    }

    /// The collector's; `None`: it gets no profiles.
    fn otlp(config: &Otlp, pause: Duration) -> Result<Option<Self>, String> {
        let Some(endpoint) = &config.profiles_endpoint else { return Ok(None) };
        let peer = Peer {
            url: endpoint,
            authorization_file: config.authorization_file.as_deref(),
            ca_file: config.ca_file.as_deref(),
        };
        Self::start(peer, OTLP, None, pause).map(Some)
    }

    fn start(
        peer: Peer<'_>,
        form: Form,
        tenant: Option<HeaderValue>,
        pause: Duration,
    ) -> Result<Self, String> {
        let endpoint = peer.url.to_owned();
        let client = peer
            .client(ATTEMPT_TIMEOUT)
            .map_err(|why| format!("cannot send profiles to {endpoint}: {why}"))?;
        let sender = Endpoint { client, url: endpoint.clone(), form, tenant, pause };
        let state = Arc::new(Mutex::new(State::default()));
        let (way, waiting) = mpsc::channel(MAX_WAITING_PROFILES);
        let task = tokio::spawn(send_all(sender, waiting, Arc::clone(&state)));
        Ok(Self { form, way, task, state, endpoint })
    }

    /// Hands over what a window saw, if it has call stacks.
    fn window(&self, record: &WindowRecord, labels: &Labels, report: &Report) {
        let allocators = report.targets.iter().flat_map(|target| &target.allocators);
        if allocators.flat_map(|own| own.sites.iter().flatten()).next().is_none() {
            return;
        }
        let profile = (self.form.write)(record, labels, report);
        if profile.is_none_or(|profile| self.way.try_send(profile).is_err()) {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).pushed.dropped += 1;
        }
    }

    /// What came of the profiles so far.
    fn pushed(&self) -> Pushed {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).pushed
    }

    /// Why profiles are not sent now; `None`: they are.
    fn failure(&self) -> Option<String> {
        let why = self.state.lock().unwrap_or_else(PoisonError::into_inner).failure.clone()?;
        Some(format!("profiles are not sent to {}: {why}", self.endpoint))
    }

    /// Sends what waits, as far as that is quick, and ends.
    async fn end(self) {
        drop(self.way);
        let mut task = self.task;
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, &mut task).await.is_err() {
            tracing::debug!("the last profiles were not sent in time");
            task.abort();
        }
    }
}

/// For Pyroscope: pprof, and in the URL what it is of.
fn ingest(record: &WindowRecord, labels: &Labels, report: &Report) -> Option<Profile> {
    let pprof = export::format("pprof")?;
    let mut bytes = Vec::new();
    pprof.exporter.report(report, &export::Style::default(), &mut bytes).ok()?;
    Some(Profile { target: format!("/ingest?{}", query(record, labels)), bytes })
}

/// For a collector, whose endpoint is the whole URL.
#[allow(clippy::unnecessary_wraps, reason = "as every `Form::write`")]
fn otlp(record: &WindowRecord, labels: &Labels, report: &Report) -> Option<Profile> {
    let pid = record.pid.to_string();
    let known = [
        ("service.name", Some(labels.exe.as_str())),
        ("process.executable.name", Some(labels.exe.as_str())),
        ("process.pid", Some(pid.as_str())),
        ("container.id", labels.container.as_deref()),
        ("k8s.namespace.name", labels.namespace.as_deref()),
        ("drainprof.pod", labels.pod.as_deref()),
        ("drainprof.unit", labels.unit.as_deref()),
        ("drainprof.cgroup", labels.cgroup.as_deref()),
        ("drainprof.rule", Some(record.asked_by.as_str())),
    ];
    let resource: Vec<(&str, &str)> =
        known.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let began = record.began_unix_ms.saturating_mul(1_000_000);
    let bytes = export::otlp_profiles(report, &resource, began);
    Some(Profile { target: String::new(), bytes })
}

/// The name of the series, its labels, and the time.
fn query(record: &WindowRecord, labels: &Labels) -> String {
    let own = [
        ("cgroup", labels.cgroup.as_deref()),
        ("container", labels.container.as_deref()),
        ("unit", labels.unit.as_deref()),
        ("pod", labels.pod.as_deref()),
        ("namespace", labels.namespace.as_deref()),
        ("exe", Some(labels.exe.as_str())),
        ("rule", Some(record.asked_by.as_str())),
    ];
    let own: Vec<String> = own
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", plain(value?))))
        .collect();
    let name = format!("{}{{{}}}", plain(&labels.exe), own.join(","));
    #[allow(clippy::cast_sign_loss, reason = "`as` saturates at 0")]
    let until = record.began_unix_ms.saturating_add((record.seconds * 1e3) as u64);
    let (from, until) = (record.began_unix_ms / 1_000, until.div_ceil(1_000));
    format!("name={}&from={from}&until={until}&format=pprof&spyName=drainprof", encoded(&name))
}

/// A value without the signs that end one: a store knows no escapes for them.
fn plain(value: &str) -> String {
    let safe = |sign: char| if "{},=\"".contains(sign) || sign.is_control() { '_' } else { sign };
    value.chars().take(MAX_VALUE_CHARS).map(safe).collect()
}

/// Percent-encoded, as a query needs it.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut all, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                all.push(byte.into());
            }
            _ => {
                let _ = write!(all, "%{byte:02X}");
            }
        }
        all
    })
}

/// Where profiles go.
struct Endpoint {
    client: HttpClient,
    url: String,
    form: Form,
    tenant: Option<HeaderValue>,
    pause: Duration,
}

/// Why an attempt failed.
enum Failure {
    /// Another attempt may help.
    Again(String),
    /// It is refused.
    Refused(String),
}

impl Endpoint {
    async fn attempt(&self, profile: &Profile) -> Result<(), Failure> {
        let url =
            if profile.target.is_empty() { &*self.url } else { self.url.trim_end_matches('/') };
        let content = HeaderValue::from_static(self.form.content_type);
        let tenant = self.tenant.clone().map(|own| (SCOPE_HEADER, own));
        let headers = [(header::CONTENT_TYPE, content)].into_iter().chain(tenant);
        let url = format!("{url}{}", profile.target);
        let status = self.client.post(&url, headers, profile.bytes.clone()).await;
        let status = status.map_err(Failure::Again)?;
        if status.is_success() {
            return Ok(());
        }
        let message = format!("it answers {status}");
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            Err(Failure::Again(message))
        } else {
            Err(Failure::Refused(message))
        }
    }

    /// With pauses, until it is sent, refused, or tried often enough.
    async fn send(&self, profile: &Profile) -> Result<(), Failure> {
        let mut attempt = 1;
        loop {
            match self.attempt(profile).await {
                Err(Failure::Again(_)) if attempt < MAX_ATTEMPTS => {
                    let pause = self.pause * 2u32.pow(attempt - 1);
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }
}

/// Sends one after the other until nothing more can come. A failure is logged once, and its end.
async fn send_all(endpoint: Endpoint, mut waiting: Receiver<Profile>, state: Arc<Mutex<State>>) {
    while let Some(profile) = waiting.recv().await {
        let sent = endpoint.send(&profile).await;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match sent {
            Ok(()) => {
                state.pushed.sent += 1;
                if state.failure.take().is_some() {
                    tracing::info!(url = endpoint.url, "profiles are sent again");
                }
                continue;
            }
            Err(Failure::Refused(why)) => {
                state.pushed.refused += 1;
                why
            }
            Err(Failure::Again(why)) => {
                state.pushed.unreachable += 1;
                why
            }
        };
        if state.failure.is_none() {
            tracing::warn!(url = endpoint.url, why, "cannot send a profile; the next one is tried");
        }
        state.failure = Some(why);
    }
}

#[cfg(test)]
mod tests;

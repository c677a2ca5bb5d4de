//! Sends the call stacks of diagnostic windows to a store of profiles: pprof to Pyroscope's `/ingest`, which Alloy has, too.
//!
//! A task of its own sends; the loop only hands over, and never waits. What finds no room, is refused, or cannot be sent
//! after some attempts is counted ([`Pushed`]).

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::http::{HeaderValue, Request, StatusCode, header};
use drainprof_report::{Report, export};
use opentelemetry_http::{Bytes, HttpClient as _, hyper::HyperClient};
use tokio::{
    sync::mpsc::{self, Receiver, Sender},
    task::JoinHandle,
};

use crate::{Labels, Pushed, WindowRecord, config::Pyroscope, serve};

/// Profiles that can wait.
const WAITING: usize = 16;
/// Attempts for one profile, and the pause after the first; each further pause is twice as long, half of it by chance.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the daemon's end waits for what is not sent yet.
const SHUTDOWN: Duration = Duration::from_secs(3);
/// Characters of a label's value.
const VALUE: usize = 200;

/// One profile on its way.
struct Profile {
    /// The URL's query.
    query: String,
    bytes: Vec<u8>,
}

/// Hands profiles to the task that sends them.
#[derive(Debug)]
pub(super) struct Pusher {
    way: Sender<Profile>,
    task: JoinHandle<()>,
    state: Arc<Mutex<State>>,
    endpoint: String,
}

#[derive(Debug, Default)]
struct State {
    pushed: Pushed,
    /// Why the last profile could not be sent.
    trouble: Option<String>,
}

impl Pusher {
    /// Starts the task; `None`: no endpoint is configured. Has to be called on the runtime. The error is a sentence.
    pub(super) fn start(config: &Pyroscope) -> Result<Option<Self>, String> {
        Self::with_pause(config, PAUSE)
    }

    fn with_pause(config: &Pyroscope, pause: Duration) -> Result<Option<Self>, String> {
        let Some(endpoint) = &config.endpoint else { return Ok(None) };
        if !endpoint.starts_with("http://") {
            return Err(format!(
                "cannot send profiles to {endpoint}: expected a URL that begins with http://; let an agent on this \
                 machine forward them with TLS"
            ));
        }
        let header = |name: &str, value: &[u8]| {
            let mut value = HeaderValue::from_bytes(value)
                .map_err(|_| format!("`pyroscope.{name}` is no value of an HTTP header"))?;
            value.set_sensitive(true);
            Ok::<_, String>(value)
        };
        let authorization = match &config.authorization_file {
            Some(path) => {
                let secret = serve::secret(path).map_err(|error| error.to_string())?;
                Some(header("authorization_file", &secret)?)
            }
            None => None,
        };
        let tenant =
            config.tenant.as_ref().map(|own| header("tenant", own.as_bytes())).transpose()?;
        let sender = Endpoint {
            client: HyperClient::with_default_connector(TIMEOUT, authorization),
            url: format!("{}/ingest", endpoint.trim_end_matches('/')),
            tenant,
            pause,
        };
        let state = Arc::new(Mutex::new(State::default()));
        let (way, waiting) = mpsc::channel(WAITING);
        let task = tokio::spawn(send_all(sender, waiting, Arc::clone(&state)));
        Ok(Some(Self { way, task, state, endpoint: endpoint.clone() }))
    }

    /// Hands over what a window saw, if it has call stacks.
    pub(super) fn window(&self, record: &WindowRecord, labels: &Labels, report: &Report) {
        let allocators = report.targets.iter().flat_map(|target| &target.allocators);
        if allocators.flat_map(|own| own.sites.iter().flatten()).next().is_none() {
            return;
        }
        let Some(pprof) = export::format("pprof") else { return };
        let mut bytes = Vec::new();
        let written = pprof.exporter.report(report, &export::Style::default(), &mut bytes);
        let profile = Profile { query: query(record, labels), bytes };
        if written.is_err() || self.way.try_send(profile).is_err() {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).pushed.dropped += 1;
        }
    }

    /// What came of the profiles so far.
    pub(super) fn pushed(&self) -> Pushed {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).pushed
    }

    /// Why profiles are not sent now; `None`: they are.
    pub(super) fn trouble(&self) -> Option<String> {
        let why = self.state.lock().unwrap_or_else(PoisonError::into_inner).trouble.clone()?;
        Some(format!("profiles are not sent to {}: {why}", self.endpoint))
    }

    /// Sends what waits, as far as that is quick, and ends.
    pub(super) async fn end(self) {
        drop(self.way);
        let mut task = self.task;
        if tokio::time::timeout(SHUTDOWN, &mut task).await.is_err() {
            tracing::debug!("the last profiles were not sent in time");
            task.abort();
        }
    }
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
    value.chars().take(VALUE).map(safe).collect()
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
    client: HyperClient,
    url: String,
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
        let mut request = Request::post(format!("{}?{}", self.url, profile.query))
            .header(header::CONTENT_TYPE, "binary/octet-stream")
            .header(header::USER_AGENT, concat!("drainprof/", env!("CARGO_PKG_VERSION")));
        if let Some(tenant) = &self.tenant {
            request = request.header("X-Scope-OrgID", tenant);
        }
        let request = request
            .body(Bytes::from(profile.bytes.clone()))
            .map_err(|error| Failure::Refused(error.to_string()))?;
        let answer = self.client.send_bytes(request).await;
        let status = answer.map_err(|error| Failure::Again(causes(&*error)))?.status();
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
                Err(Failure::Again(_)) if attempt < ATTEMPTS => {
                    let pause = self.pause * 2u32.pow(attempt - 1);
                    tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Sends one after the other until nobody hands over any more. A failure is logged once, and its end.
async fn send_all(endpoint: Endpoint, mut waiting: Receiver<Profile>, state: Arc<Mutex<State>>) {
    while let Some(profile) = waiting.recv().await {
        let sent = endpoint.send(&profile).await;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match sent {
            Ok(()) => {
                state.pushed.sent += 1;
                if state.trouble.take().is_some() {
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
        if state.trouble.is_none() {
            tracing::warn!(url = endpoint.url, why, "cannot send a profile; the next one is tried");
        }
        state.trouble = Some(why);
    }
}

#[cfg(test)]
mod tests;

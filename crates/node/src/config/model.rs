//! The configuration: structs whose fields are the keys.
//!
//! A field is the only place that knows a key. Its doc comment, its default and the extensions of its schema make the
//! default file, the reference page, the checks and the comparison at a reload ([`super::schema`]):
//!
//! - `x-range`: the lowest and the highest value.
//! - `x-restart`: a changed value applies when the daemon starts again; on a struct, for all of its keys.
//! - `example`: a value, where the default says nothing about how one looks.

use std::{net::SocketAddr, path::PathBuf};

use drainprof_profile::Level;
use drainprof_report::values::{Bytes, Share, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::{census::Census, rule::Rule, window::Window};
use crate::{govern, section::section, trigger};

/// The daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How the daemon works.
    pub daemon: Daemon,
    /// Selects the processes to watch: the memory of each, and granules where a profile matches.
    pub select: Select,
    /// Sizes of the kernel's maps. Without a value, a size follows from the memory of the machine. What finds no room
    /// counts as lost.
    pub maps: Maps,
    /// Censuses of heaps, read from outside without probes: live, free and trimmable bytes of the watched processes.
    pub census: Census,
    /// Diagnostic windows: one process is traced more deeply for a bounded time.
    pub window: Window,
    /// Where the daemon listens.
    pub listen: Listen,
    /// The history on disk.
    pub store: Store,
    /// What metrics look like.
    pub metrics: Metrics,
    /// Metrics sent to an OpenTelemetry collector.
    pub otlp: Otlp,
    /// Call stacks of diagnostic windows sent to a store of profiles.
    pub pyroscope: Pyroscope,
    /// When the daemon traces a process more deeply.
    pub triggers: trigger::Config,
    /// What the probes may cost.
    pub governor: govern::Config,
}

section! {
    /// How the daemon works.
    Daemon {
        /// Time between two readings of the counters, and of the memory of watched processes.
        #[schemars(extend("x-range" = ["100ms", "1h"]))]
        interval: Time = Time::seconds(10),
        /// Time between two scans for processes that started or ended.
        #[schemars(extend("x-range" = ["100ms", "1h"]))]
        discover_interval: Time = Time::seconds(2),
        /// How deep the daemon traces a process while nothing is wrong with it. A profile without a live count measures
        /// nothing at `boundary`; its processes then get no probes.
        level: Level = Level::Boundary,
        /// What carries the probes. `process`: only the watched processes; each counts from the next scan on. `file`: the
        /// files that they map. Then children of watched processes and new processes of watched programs are traced from
        /// their first instruction on, but every process that maps the file pays for its hits. A process that is found late
        /// all the same is the loss `attached_late`; one that ends unseen is `processes_missed`.
        #[schemars(extend("x-restart" = true))]
        attach: Attach = Attach::Process,
        /// CPU time for reading PSS and USS (`smaps_rollup`), one process after the other, as a share of one CPU. `0%`:
        /// never.
        #[schemars(extend("x-range" = ["0%", "10%"]))]
        pss_budget: Share = Share(0.0002),
        /// The kill switch: while this file exists, the daemon attaches nothing.
        #[serde(deserialize_with = "absolute")]
        #[schemars(with = "String", extend("format" = "path"))]
        kill_file: PathBuf = PathBuf::from("/run/drainprof/kill"),
        /// Names of the profiles to use. Empty: all but those that are used on request only.
        #[schemars(length(max = 256))]
        profiles: Vec<String> = Vec::new(),
        /// Directories with profiles of your own; later ones win.
        #[serde(deserialize_with = "all_absolute")]
        #[schemars(with = "Vec<AbsolutePath>", length(max = 16))]
        profile_directories: Vec<PathBuf> = ["/usr/share/drainprof/profiles", "/etc/drainprof/profiles"].map(PathBuf::from).to_vec(),
    }
}

section! {
    /// Which processes are watched.
    Select {
        /// Rules, in order: the first that matches a process decides. A process that no rule matches is watched, unless
        /// some rule includes. A rule matches if all of its lines do; a line matches if one of its patterns does. `*` stands
        /// for anything, `/` included. The daemon's own executable is never watched.
        #[schemars(
            length(max = 256),
            example = r#"[{ action = "exclude", unit = "backup*.service" }, { action = "include", exe = ["nginx", "/opt/*/svc"] }]"#
        )]
        rules: Vec<Rule> = Vec::new(),
        /// The largest number of processes with probes; of further ones the memory alone is watched.
        #[schemars(extend("x-range" = [1, 10_000]))]
        max_targets: u32 = 200,
        /// Whether processes that no profile matches are watched too: their memory, page faults and pressure.
        unmatched: bool = true,
        /// The largest number of watched processes; further ones are left out.
        #[schemars(extend("x-range" = [1, 100_000]))]
        max_processes: u32 = 2_000,
    }
}

/// Sizes of the kernel's maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-restart" = true))]
pub struct Maps {
    /// Granules that are open, or closed and pinned, at once.
    #[schemars(extend("x-range" = [1, 16_777_216]), example = "65536")]
    pub granules: Option<u32>,
    /// Objects that are live at once.
    #[schemars(extend("x-range" = [1, 134_217_728]), example = "1048576")]
    pub objects: Option<u32>,
    /// Allocator instances.
    #[schemars(extend("x-range" = [1, 1_048_576]), example = "4096")]
    pub instances: Option<u32>,
    /// Threads inside a followed call at once.
    #[schemars(extend("x-range" = [1, 1_048_576]), example = "16384")]
    pub threads: Option<u32>,
    /// Code locations that open granules.
    #[schemars(extend("x-range" = [1, 1_048_576]), example = "4096")]
    pub places: Option<u32>,
    /// Call stacks, at level `stacks`.
    #[schemars(extend("x-range" = [1, 1_048_576]), example = "16384")]
    pub call_paths: Option<u32>,
    /// Probes in one session.
    #[schemars(extend("x-range" = [1, 65_536]), example = "4096")]
    pub probes: Option<u32>,
    /// The ring buffer for events.
    #[schemars(extend("x-range" = ["4KiB", "1GiB"]), example = "\"1MiB\"")]
    pub ring: Option<Bytes>,
}

section! {
    /// Where the daemon listens.
    #[schemars(extend("x-restart" = true))]
    Listen {
        /// Address and port of the web service (metrics, state, reports), or `off`. Without the token it shows no addresses
        /// and no reports.
        #[schemars(with = "String", extend("format" = "address"))]
        address: Address = Address::At(SocketAddr::from(([127, 0, 0, 1], 9464))),
        /// Further names of this machine that requests to the web service may name as their host, beside `localhost` and the
        /// address that they reach.
        #[schemars(length(max = 64), example = r#"["node1.example"]"#)]
        hosts: Vec<String> = Vec::new(),
        /// A file with a token (mode 0600, 16 characters or more). `Authorization: Bearer TOKEN` shows reports and
        /// addresses, and opens windows. Not set: only the control socket does.
        #[serde(deserialize_with = "optional_absolute")]
        #[schemars(with = "Option<String>", extend("format" = "path"), example = "\"/etc/drainprof/token\"")]
        token_file: Option<PathBuf> = None,
        /// The socket for the command line and `drainprof top`.
        #[serde(deserialize_with = "absolute")]
        #[schemars(with = "String", extend("format" = "path"))]
        control: PathBuf = PathBuf::from("/run/drainprof/control.sock"),
        /// The group whose members may use that socket. Not set: root only.
        #[schemars(example = "\"drainprof\"")]
        control_group: Option<String> = None,
    }
}

section! {
    /// The history on disk.
    Store {
        /// Whether the daemon keeps a history.
        #[schemars(extend("x-restart" = true))]
        enabled: bool = true,
        /// Its file.
        #[serde(deserialize_with = "absolute")]
        #[schemars(with = "String", extend("format" = "path", "x-restart" = true))]
        path: PathBuf = PathBuf::from("/var/lib/drainprof/history.db"),
        /// How far it goes back.
        #[schemars(extend("x-range" = ["5m", "3660d"]))]
        max_age: Time = Time::days(30),
        /// How large its files may become; the oldest entries go first.
        #[schemars(extend("x-range" = ["4MiB", "1TiB"]))]
        max_bytes: Bytes = Bytes(256 << 20),
    }
}

section! {
    /// What metrics look like.
    #[schemars(extend("x-restart" = true))]
    Metrics {
        /// Labels of metrics. Processes with the same labels are counted together.
        #[schemars(length(max = 6))]
        labels: Vec<Label> = vec![Label::Exe, Label::Unit, Label::Container, Label::Pod, Label::Namespace],
        /// Label sets that are counted apart. A new set evicts the one that was idle longest, whose counts move to `other`.
        #[schemars(extend("x-range" = [1, 100_000]))]
        max_label_sets: u32 = 500,
    }
}

section! {
    /// Metrics sent to an OpenTelemetry collector.
    #[schemars(extend("x-restart" = true))]
    Otlp {
        /// The collector's address (OTLP over HTTP). Not set: the daemon sends nothing.
        #[serde(deserialize_with = "url")]
        #[schemars(extend("format" = "url"), example = "\"http://127.0.0.1:4318/v1/metrics\"")]
        endpoint: Option<String> = None,
        /// A file with the value of the `Authorization` header: `Basic …` or `Bearer …`. Only its owner may read it.
        #[serde(deserialize_with = "optional_absolute")]
        #[schemars(with = "Option<String>", extend("format" = "path"), example = "\"/etc/drainprof/otlp\"")]
        authorization_file: Option<PathBuf> = None,
        /// A file with the certificates (PEM) that the collector's must come from. Not set: those that the machine trusts.
        #[serde(deserialize_with = "optional_absolute")]
        #[schemars(with = "Option<String>", extend("format" = "path"), example = "\"/etc/drainprof/ca.pem\"")]
        ca_file: Option<PathBuf> = None,
        /// Time between two exports.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        interval: Time = Time::minutes(1),
        /// Where the call stacks of diagnostic windows go, as OpenTelemetry's profiles, which are in development. Not set:
        /// nowhere.
        #[serde(deserialize_with = "url")]
        #[schemars(extend("format" = "url"), example = "\"http://127.0.0.1:4318/v1development/profiles\"")]
        profiles_endpoint: Option<String> = None,
    }
}

/// Call stacks of diagnostic windows sent to a store of profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("x-restart" = true))]
pub struct Pyroscope {
    /// The address of Pyroscope, or of an agent with its `/ingest`, such as Alloy. Not set: the daemon sends nothing.
    #[serde(deserialize_with = "url")]
    #[schemars(extend("format" = "url"), example = "\"http://127.0.0.1:4040\"")]
    pub endpoint: Option<String>,
    /// A file with the value of the `Authorization` header: `Basic …` or `Bearer …`. Only its owner may read it.
    #[serde(deserialize_with = "optional_absolute")]
    #[schemars(with = "Option<String>", extend("format" = "path"), example = "\"/etc/drainprof/pyroscope\"")]
    pub authorization_file: Option<PathBuf>,
    /// A file with the certificates (PEM) that its certificate must come from. Not set: those that the machine trusts.
    #[serde(deserialize_with = "optional_absolute")]
    #[schemars(with = "Option<String>", extend("format" = "path"), example = "\"/etc/drainprof/ca.pem\"")]
    pub ca_file: Option<PathBuf>,
    /// The tenant: the value of the `X-Scope-OrgID` header.
    #[schemars(example = "\"team-a\"")]
    pub tenant: Option<String>,
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Address {
    /// Nowhere.
    Off,
    /// At this address and port.
    At(SocketAddr),
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        match address {
            Address::Off => "off".to_owned(),
            Address::At(address) => address.to_string(),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let expected =
            "expected an address and port, \"127.0.0.1:9464\" or \"[::1]:9464\", or \"off\"";
        text.parse().map(Self::At).map_err(|_| format!("`{}`, {expected}", text.escape_debug()))
    }
}

/// What carries the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// Only the watched processes.
    Process,
    /// The files that they map: new processes are traced from their first instruction on, and every process that maps
    /// the file pays for its hits.
    File,
}

/// A label of a process that metrics can carry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    /// The file name of the executable.
    Exe,
    /// The control group's path.
    Cgroup,
    /// The container's id.
    Container,
    /// The systemd unit.
    Unit,
    /// The Kubernetes pod.
    Pod,
    /// The Kubernetes namespace.
    Namespace,
}

impl Label {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Exe, Self::Cgroup, Self::Container, Self::Unit, Self::Pod, Self::Namespace];
}

fn absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.starts_with('/') {
        return Ok(PathBuf::from(text));
    }
    Err(D::Error::custom(format!("`{}`, expected an absolute path", text.escape_debug())))
}

fn optional_absolute<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PathBuf>, D::Error> {
    absolute(deserializer).map(Some)
}

/// An absolute path.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("format" = "path"))]
struct AbsolutePath(
    #[serde(deserialize_with = "absolute")]
    #[schemars(with = "String")]
    PathBuf,
);

fn all_absolute<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let paths = Vec::<AbsolutePath>::deserialize(deserializer)?;
    Ok(paths.into_iter().map(|path| path.0).collect())
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let url = String::deserialize(deserializer)?;
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let host = rest.map_or("", |rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
    if host.is_empty() || url.contains(char::is_whitespace) {
        let expected = "expected a URL that begins with http:// or https://";
        return Err(D::Error::custom(format!("`{}`, {expected}", url.escape_debug())));
    }
    if host.contains('@') {
        return Err(D::Error::custom("a name or password does not belong in the endpoint"));
    }
    Ok(Some(url))
}

impl Config {
    /// Contradictions between values: a key that is part of each, and what is wrong.
    pub(super) fn contradictions(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        let Window { length, longest, budget_per_hour, .. } = &self.window;
        if length > budget_per_hour && *budget_per_hour != Time::seconds(0) {
            let why = "one window is longer than all windows of an hour may be; make it shorter, or \
                       `window.budget_per_hour` larger (\"0s\": rules open no window)";
            all.push(("window.length".to_owned(), why.to_owned()));
        }
        if length > longest {
            let why = "a window is longer than `window.longest`; make it shorter, or that larger";
            all.push(("window.length".to_owned(), why.to_owned()));
        }
        let sections =
            [("triggers", self.triggers.problems()), ("governor", self.governor.problems())];
        for (section, problems) in sections {
            for problem in problems {
                // A problem begins with its key in backquotes.
                let key = problem.split('`').nth(1).unwrap_or_default();
                all.push((format!("{section}.{key}"), problem.clone()));
            }
        }
        all
    }
}

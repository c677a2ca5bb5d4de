//! `drainprof daemon`.

use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::Args;
use drainprof_node::{
    Labels,
    config::{Address, Config, Facts, Selector},
    daemon::{Admission, Found, Refused, Service, Setup, Watched, admit},
    serve::{self, Server},
    store::{self, StoreError, Writer},
};
use drainprof_observe::{Side, SideOptions};
use drainprof_probe::{
    bpf::{SessionConfig, Sizes},
    calibrate,
    kernel::{HostView, LiveHost},
    plan::{AttachPlan, Sites},
};
use drainprof_process::{Process, ProcessError, printable, printable_lines, processes, readers};
use drainprof_profile::{Level, Library};
use tokio::sync::{mpsc, oneshot};

use super::{
    config::{self, ConfigSource},
    drive::block_on,
    exit::{Failure, code},
    options,
};

/// Requests that may wait for the loop.
const MAX_WAITING_REQUESTS: usize = 64;
/// A state that is older than this, and than one and a half intervals, shows that the daemon hangs.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// For how long the loop waits for the kernel to put a probe in place.
const PLACING_PATIENCE: Duration = Duration::from_millis(1500);
/// Points of a curve: twice what a trend uses. At a daemon's pace, more would take hours until memory is level.
const CURVE_POINTS: usize = 128;

/// Arguments of `drainprof daemon`.
#[derive(Args, Debug)]
pub(super) struct DaemonArgs {
    #[command(flatten)]
    source: ConfigSource,
    /// List processes to watch, and why not others; attach nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Watches this machine until a signal ends it.
pub(super) fn main(args: &DaemonArgs) -> Result<u8> {
    let config = config::load(&args.source)?.config;
    if args.dry_run {
        return dry_run(&config);
    }
    options::require_host_pids()?;
    options::require_privileges()?;
    let server = Server::bind(&serve_options(&config))?;
    let (history, no_history) = history(&config)?;
    let library = library(&config)?;
    let sources = args.source.clone();
    let setup = Setup {
        session: session(&config)?,
        library,
        options: side_options(),
        program: PathBuf::from("/proc/self/exe"),
        growth: options::growth_offsets(&LiveHost).map(drop).map_err(|error| format!("{error:#}")),
        history,
        no_history,
        reread: Box::new(move || {
            let config = config::load(&sources).map_err(|error| format!("{error:#}"))?.config;
            let library = self::library(&config).map_err(|error| format!("{error:#}"));
            Ok((config, library))
        }),
        kernel: options::kernel_release(),
        config,
    };
    block_on(run(setup, server))
}

async fn run(setup: Setup, server: Server) -> Result<u8> {
    let (ask, asked) = mpsc::channel(MAX_WAITING_REQUESTS);
    if let Some(address) = server.address() {
        eprintln!("drainprof: metrics and API at http://{address}");
    }
    if let Some(socket) = server.socket() {
        eprintln!("drainprof: control socket at {}", socket.display());
    }
    let (service, state) = Service::new(setup)?;
    let (stop, stopped) = oneshot::channel::<()>();
    // On a thread of its own, so that requests are answered while probes are put in place.
    let serving = std::thread::Builder::new()
        .name("serve".to_owned())
        .spawn(move || {
            let shutdown = async {
                // The loop's end, however it comes.
                let _ = stopped.await;
            };
            block_on(async move { Ok(server.run(state, ask, shutdown).await?) })
        })
        .context("cannot start the thread that serves")?;
    // As a task: whatever wakes the future that the runtime itself waits for costs it two more system calls.
    let result = tokio::spawn(service.run(asked)).await;
    drop(stop);
    match serving.join() {
        Ok(outcome) => outcome?,
        Err(_) => anyhow::bail!("the thread that serves has failed"),
    }
    result.context("the daemon's loop has failed")??;
    Ok(code::OK)
}

fn serve_options(config: &Config) -> serve::Options {
    serve::Options {
        http: match config.listen.address {
            Address::At(address) => Some(address),
            Address::Off => None,
        },
        hosts: config.listen.hosts.clone(),
        token_file: config.listen.token_file.clone(),
        socket: Some(config.listen.control.clone()),
        group: config.listen.control_group.clone(),
        history: config.store.enabled.then(|| config.store.path.clone()),
        labels: config.metrics.labels.clone(),
        otlp: config.otlp.endpoint.clone().map(|endpoint| serve::OtlpOptions {
            endpoint,
            authorization_file: config.otlp.authorization_file.clone(),
            ca_file: config.otlp.ca_file.clone(),
            interval: config.otlp.interval.get(),
        }),
        stale_after: (config.daemon.interval.get() * 3 / 2).max(STALE_AFTER),
        ..serve::Options::default()
    }
}

/// The history, if one is wanted; or why it cannot be kept. That is no reason not to watch; but where another daemon
/// writes it, there is one too many.
fn history(config: &Config) -> Result<(Option<Writer>, Option<String>)> {
    if !config.store.enabled {
        return Ok((None, None));
    }
    let options = store::Options {
        path: config.store.path.clone(),
        max_age: config.store.max_age.get(),
        max_bytes: config.store.max_bytes.0,
        boot: None,
    };
    match Writer::open(&options) {
        Ok(writer) => Ok((Some(writer), None)),
        Err(error @ StoreError::Busy { .. }) => Err(error.into()),
        Err(error) => {
            let why = format!("{:#}", anyhow::Error::from(error));
            eprintln!("drainprof: no history is kept: {}", printable_lines(&why));
            Ok((None, Some(format!("{why}; then start the daemon again"))))
        }
    }
}

fn library(config: &Config) -> Result<Library> {
    let library = Library::load(&[], &config.daemon.profile_directories)?;
    let known = |name: &&String| library.get(name).is_none();
    if let Some(unknown) = config.daemon.profiles.iter().find(known) {
        let message = format!(
            "daemon.profiles: no profile is called {unknown}; `drainprof profile list` has them"
        );
        return Err(Failure::new(code::CONFIG, message).into());
    }
    Ok(library)
}

fn side_options() -> SideOptions {
    SideOptions {
        profiles: Vec::new(),
        level: None,
        follow: false,
        debug_dirs: Vec::new(),
        costs: calibrate::costs(&options::calibration(&super::args::CacheArgs::default(), false)),
        duty: None,
        sites: Sites::default(),
        curve_points: CURVE_POINTS,
    }
}

fn session(config: &Config) -> Result<SessionConfig> {
    Ok(SessionConfig {
        sizes: sizes(config, &LiveHost),
        events: false,
        sample: 1,
        offsets: options::offsets(&LiveHost)?,
        growth: None,
        growth_paths: false,
        calls: true,
        patience: PLACING_PATIENCE,
    })
}

/// Many processes, hardly any of them with many granules; at `boundary` no object is followed.
fn sizes(config: &Config, host: &dyn HostView) -> Sizes {
    let asked = &config.maps;
    let room = options::sizes_for(host);
    let shallow = !config.daemon.level.has_objects();
    Sizes {
        granules: asked.granules.unwrap_or(room.granules.min(65_536)),
        objects: asked.objects.unwrap_or(if shallow { 1_024 } else { room.objects }),
        instances: asked.instances.unwrap_or(4_096),
        threads: asked.threads.unwrap_or(room.threads),
        places: asked.places.unwrap_or(4_096),
        probes: asked.probes.unwrap_or(8_192),
        targets: room.targets,
        call_paths: match config.daemon.level {
            Level::Stacks => asked.call_paths.unwrap_or(Sizes::CALL_PATHS),
            Level::Close | Level::Boundary | Level::Objects => 0,
        },
        growth: false,
        kernel_stacks: false,
        ring_bytes: asked
            .ring
            .map_or(room.ring_bytes, |ring| u32::try_from(ring.0).unwrap_or(u32::MAX)),
    }
}

/// Lists the processes that would be watched, and counts the others by their reasons.
fn dry_run(config: &Config) -> Result<u8> {
    options::require_host_pids()?;
    options::require_privileges()?;
    let side_options = SideOptions {
        profiles: config.daemon.profiles.clone(),
        level: Some(config.daemon.level),
        ..side_options()
    };
    let mut side = Side::new(&session(config)?, library(config)?, side_options)?;
    let selector = Selector::of_this_process(&config.select);
    let mut out = super::output::stdout()?;
    let mut watched = Watched::default();
    // By reasons.
    let mut memory_only: BTreeMap<String, u64> = BTreeMap::new();
    let mut unwatched: BTreeMap<String, u64> = BTreeMap::new();
    for pid in processes().context("cannot list the processes")? {
        let process = match readers::open(pid) {
            Ok(process) => process,
            Err(ProcessError::KernelThread { .. } | ProcessError::Myself { .. }) => continue,
            Err(error) => {
                tracing::debug!(pid, %error, "not examined");
                *unwatched.entry("it cannot be examined".to_owned()).or_default() += 1;
                continue;
            }
        };
        let (found, probes) = match examine(config, &selector, watched, &process, &mut side) {
            Ok(examined) => examined,
            Err(refused) => {
                *unwatched.entry(refused.to_string()).or_default() += 1;
                continue;
            }
        };
        let why = found.reason().to_owned();
        if !found.is_watched(&config.select) {
            *unwatched.entry(why).or_default() += 1;
            continue;
        }
        watched.processes += 1;
        if !found.is_match() {
            *memory_only.entry(why).or_default() += 1;
            continue;
        }
        watched.matched += 1;
        let what = match &found {
            Found::Attached => probes,
            Found::Failed(error) => format!("{why}: {error}"),
            _ => why,
        };
        writeln!(out, "{pid:>8}  {}  {what}", printable(&process.comm))?;
    }
    let Watched { processes, matched } = watched;
    writeln!(out, "{processes} processes would be watched, {matched} of them by a profile")?;
    for (why, count) in memory_only {
        writeln!(out, "{count} for their memory alone: {why}")?;
    }
    for (why, count) in unwatched {
        writeln!(out, "{count} would not: {why}")?;
    }
    Ok(code::OK)
}

/// What the daemon would find of a process, and the probes that it would place.
fn examine(
    config: &Config,
    selector: &Selector,
    watched: Watched,
    process: &Process,
    side: &mut Side,
) -> Result<(Found, String), Refused> {
    let pid = process.pid;
    let exe = printable(process.exe.as_os_str().as_encoded_bytes());
    let own = exe.clone();
    let labels = readers::ask(pid, move || Labels::read(Path::new("/proc"), pid, &own));
    let labels = labels.ok().and_then(Result::ok).unwrap_or_else(|| Labels::parse(&exe, b""));
    let facts = Facts { exe: &exe, comm: &printable(&process.comm), labels: &labels };
    Ok(match admit(&config.select, selector, &facts, watched)? {
        Admission::MemoryOnly => (Found::Beyond, String::new()),
        Admission::Profiles => match side.plan(process) {
            Ok((plans, _)) => (Found::Attached, probes(&plans)),
            Err(error) => (Found::of_error(error, config.daemon.level), String::new()),
        },
    })
}

/// Profiles with the number of their probes.
fn probes(plans: &[AttachPlan]) -> String {
    let of_each =
        plans.iter().map(|plan| format!("{} ({} probes)", plan.profile.name, plan.probes.len()));
    of_each.collect::<Vec<_>>().join(", ")
}

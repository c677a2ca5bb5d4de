//! The daemon's loop: wires the roster, the counters, the windows, the history and the kill switch together.

mod requests;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use drainprof_observe::{ObserveError, SideOptions, self_use};
use drainprof_probe::bpf::{Obstacles, SessionConfig, obstacles};
use drainprof_process::{
    Silent, given_up, is_user_silenced, memory::Pressure, silent_processes, times_given_up,
};
use drainprof_profile::Library;
use drainprof_report::{
    Report, Tool,
    health::{Health, Line},
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, watch},
    time::{Interval, MissedTickBehavior, interval_at},
};

use super::{
    allocator,
    census::{Censuses, Taken},
    counters::Counters,
    history::HistoryWriter,
    kill::KillSwitch,
    push::Pushers,
    roster::Roster,
    tick::Tick,
    view::View,
    window::STOPPING_PATIENCE,
    windows::Windows,
};
use crate::{
    Asked, NodeState, SCHEMA,
    clock::unix_ms,
    config::{Attach, Config},
    serve::{systemd, systemd::Message},
    store::{Moment, Writer},
};

/// How often the loop takes events and reclaims room in maps, whatever the interval.
const TICK_INTERVAL: Duration = Duration::from_millis(200);

/// Processes that cannot be read which are named.
const MAX_NAMED: usize = 10;

/// How often free memory goes back to the kernel: windows, censuses and newcomers need much for a moment.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(10);

/// What the daemon starts with.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// Sizes and offsets for the kernel side.
    pub session: SessionConfig,
    /// The profiles.
    pub library: Library,
    /// How to observe; the level does not matter.
    pub options: SideOptions,
    /// The drainprof that runs diagnostic windows.
    pub program: PathBuf,
    /// Whether windows can trace growth on this kernel; if not, why.
    pub growth: Result<(), String>,
    /// The history; `None`: the daemon keeps none.
    pub history: Option<Writer>,
    /// Why there is no history although it is configured, in a sentence.
    pub no_history: Option<String>,
    /// Reads the configuration again.
    pub reread: Reread,
    /// The kernel's release.
    pub kernel: String,
}

/// Reads the configuration and the profiles again. A configuration with an error leaves the old one in force; so do
/// profiles with an error, and the new configuration applies with the old profiles.
pub type Reread = Box<dyn FnMut() -> Result<(Config, Result<Library, String>), String> + Send>;

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The kernel side cannot be loaded.
    #[error(transparent)]
    Observe(Box<ObserveError>),
    /// Profiles cannot be sent as configured.
    #[error("{0}")]
    Push(String),
    /// The system refuses a signal handler, a timer or a thread.
    #[error("cannot {step}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
}

/// The daemon.
pub struct Service {
    config: Config,
    roster: Roster,
    counters: Counters,
    windows: Windows,
    censuses: Censuses,
    history: Option<HistoryWriter>,
    pushers: Pushers,
    kill: KillSwitch,
    publish: watch::Sender<Arc<NodeState>>,
    /// What the last cycle read.
    last: View,
    began: Instant,
    /// When the last cycle ended.
    cycled: Instant,
    ready: bool,
    /// The daemon stops: nothing starts any more.
    stopping: bool,
    /// Whether the next cycle is due at once.
    hurry: bool,
    reread: Reread,
    kernel: String,
    /// Why there is no history.
    no_history: Option<String>,
    /// Why the configuration or the profiles on disk are not in force.
    refused: Option<String>,
}

impl Service {
    /// Loads the kernel side for the configured level. Must be called inside the runtime.
    pub fn new(setup: Setup) -> Result<(Self, watch::Receiver<Arc<NodeState>>), ServiceError> {
        allocator::keep_little();
        let Setup { config, session, library, mut options, kernel, .. } = setup;
        let pushers = Pushers::start(&config).map_err(ServiceError::Push)?;
        options.follow = config.daemon.attach == Attach::File;
        options.profiles.clone_from(&config.daemon.profiles);
        let roster =
            Roster::new(&config, session, library, options).map_err(ServiceError::Observe)?;
        let mut next_window = 1;
        let mut history = None;
        if let Some(mut writer) = setup.history {
            next_window = writer.next_window_id();
            let started = HistoryWriter::start(writer, config.store.path.clone());
            history = Some(started.map_err(|source| ServiceError::System {
                step: "start the thread that writes the history",
                source,
            })?);
        }
        let limit = config.metrics.max_label_sets as usize;
        let began = Instant::now();
        let (publish, state) = watch::channel(Arc::new(empty_state()));
        let service = Self {
            counters: Counters::new(config.metrics.labels.clone(), limit, unix_ms()),
            windows: Windows::new(setup.program, setup.growth, next_window),
            censuses: Censuses::default(),
            roster,
            history,
            pushers,
            kill: KillSwitch::default(),
            publish,
            last: View::of(Vec::new(), &kernel),
            began,
            cycled: began,
            ready: false,
            stopping: false,
            hurry: false,
            reread: setup.reread,
            kernel,
            no_history: setup.no_history,
            refused: None,
            config,
        };
        Ok((service, state))
    }

    /// Runs until SIGTERM or SIGINT. SIGHUP reads the configuration again; SIGUSR1 requests a diagnostic window on the
    /// process with the worst state.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Asked>) -> Result<(), ServiceError> {
        let mut terminate = signal_of(SignalKind::terminate())?;
        let mut interrupt = signal_of(SignalKind::interrupt())?;
        let mut hang_up = signal_of(SignalKind::hangup())?;
        let mut user = signal_of(SignalKind::user_defined1())?;
        let tick = Tick::every(TICK_INTERVAL)
            .map_err(|source| ServiceError::System { step: "make a timer", source })?;
        let mut scan = every(self.config.daemon.discover_interval.get());
        let mut cycle = every(self.config.daemon.interval.get());
        let mut free = every(GIVE_BACK_INTERVAL);
        let watchdog = systemd::watchdog_interval();
        let mut alive = every(watchdog.unwrap_or(Duration::from_secs(3600)));
        self.check_kill_switch();
        self.scan();
        while self.roster.has_waiting() {
            self.admit();
        }
        self.cycle();
        notify(Message::Ready);
        eprintln!("drainprof: watching");
        loop {
            tokio::select! {
                () = tick.next() => {
                    self.check_kill_switch();
                    self.roster.take_events(&self.config);
                    if self.roster.has_waiting() {
                        self.admit();
                    }
                    if let Some(taken) = self.censuses.check() {
                        self.census_ended(taken);
                    }
                }
                _ = scan.tick() => self.scan(),
                _ = cycle.tick() => self.cycle(),
                _ = free.tick() => allocator::give_back(),
                Some(asked) = requests.recv() => self.answer(asked),
                Some(ended) = self.windows.next_ended(), if self.windows.is_busy() => {
                    self.window_ended(ended);
                }
                taken = self.censuses.next() => self.census_ended(taken),
                _ = hang_up.recv() => {
                    notify(Message::Reloading);
                    match self.reload() {
                        Ok(message) => tracing::info!("{message}"),
                        Err(message) => tracing::error!("{message}"),
                    }
                    self.hurry = true;
                    scan = every(self.config.daemon.discover_interval.get());
                    cycle = every(self.config.daemon.interval.get());
                    notify(Message::Ready);
                }
                _ = user.recv() => self.diagnose_worst(),
                _ = alive.tick(), if watchdog.is_some() => notify(Message::Alive),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            if std::mem::take(&mut self.hurry) {
                self.cycle();
            }
            // The runtime takes any of what is ready: while much comes, the state has its turn first.
            if self.is_late() {
                self.cycle();
                cycle.reset();
            }
        }
        notify(Message::Stopping);
        self.stop().await;
        Ok(())
    }

    /// Stops counting, publishes the last state, and takes all probes out.
    async fn stop(mut self) {
        self.windows.stop_all();
        self.stopping = true;
        self.roster.release_all("the daemon stops");
        self.cycle();
        let limit = tokio::time::Instant::now() + STOPPING_PATIENCE;
        while let Ok(Some(ended)) = tokio::time::timeout_at(limit, self.windows.next_ended()).await
        {
            self.window_ended(ended);
        }
        if let Some(history) = self.history.take() {
            history.end();
        }
        std::mem::take(&mut self.pushers).end().await;
        self.roster.end().await;
    }

    /// Whether a state should have been made before.
    fn is_late(&self) -> bool {
        self.cycled.elapsed() > self.config.daemon.interval.get() + TICK_INTERVAL
    }

    /// Finds processes that started, changed or ended.
    fn scan(&mut self) {
        self.roster.scan(&self.config, self.kill.is_on(), self.began.elapsed());
        self.ready |= self.roster.is_complete();
    }

    /// Checks newcomers that wait.
    fn admit(&mut self) {
        self.roster.admit(&self.config, self.kill.is_on());
        self.ready |= self.roster.is_complete();
    }

    /// Checks the kill switch, and attaches or detaches everything if it has changed.
    fn check_kill_switch(&mut self) {
        if !self.kill.update(&self.config.daemon.kill_file) {
            return;
        }
        self.hurry = true;
        if self.kill.is_on() {
            tracing::warn!("the kill switch is on: everything is detached");
            self.roster.release_all("the kill switch is on");
            self.windows.stop_all();
        } else {
            tracing::warn!("the kill switch is off again");
            self.roster.rediscover();
            self.scan();
        }
    }

    /// One cycle: changes levels, reads counters and memory, evaluates rules and publishes the state.
    fn cycle(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let works = !self.kill.is_on() && !self.stopping;
        let level = works.then_some(self.config.daemon.level);
        let turns = self.roster.begin_turns(&self.config.governor, level, seconds);
        self.roster.quiesce();
        let seconds = self.began.elapsed().as_secs_f64();
        let pressure = self.roster.read_memory(&self.config, seconds);
        self.counters.begin(unix_ms(), self.roster.processes());
        let view = View::of(self.roster.snapshots(), &self.kernel);
        let counted = self.counters.count_ended(&view, |target| self.roster.labels(target));
        self.roster.finish_turns(turns);
        let gone = self.roster.forget(|kernel, target| counted.contains(&(kernel, target)));
        self.counters.kernels_gone(&gone);
        self.roster.evaluate(&self.config.triggers, seconds, &view);
        if !self.stopping {
            self.open_windows();
        }
        self.begin_census();
        self.publish(pressure, &view);
        self.last = view;
        self.cycled = Instant::now();
    }

    /// A census has ended: the next one may begin.
    fn census_ended(&mut self, taken: Taken) {
        self.roster.count_heaps(taken);
        self.begin_census();
    }

    /// Begins the next census, if one is due.
    fn begin_census(&mut self) {
        if !self.kill.is_on() && !self.stopping {
            let seconds = self.began.elapsed().as_secs_f64();
            self.roster.begin_census(&mut self.censuses, &self.config, seconds);
        }
    }

    /// Publishes the state of now.
    fn publish(&mut self, pressure: Option<Pressure>, view: &View) {
        let now: Vec<_> =
            view.running().map(|(id, seen)| (id, self.roster.labels(seen.1), seen)).collect();
        let counts =
            self.counters.counts(now.iter().map(|(id, labels, seen)| (*id, labels, *seen)));
        let losses = self.counters.losses();
        let mut incomplete = incomplete(&losses);
        incomplete.extend(view.reports().flat_map(|(_, report)| not_measurable(report)));
        let uptime_seconds = self.began.elapsed().as_secs_f64();
        let map_bytes = view.reports().map(|(_, report)| report.self_use.map_bytes).sum();
        let mut own = self_use(Duration::ZERO, map_bytes);
        own.cpu_ratio = Some(own.cpu_seconds / uptime_seconds.max(1e-9));
        let state = NodeState {
            unix_ms: unix_ms(),
            uptime_seconds,
            ready: self.ready,
            killed: self.kill.is_on(),
            degraded: self.degraded(),
            complete: incomplete.is_empty(),
            incomplete,
            losses,
            self_use: own,
            pressure,
            targets: self.roster.states(view),
            processes_late: self.roster.processes_late(),
            processes_given_up: times_given_up(),
            probes_put_off: obstacles().times,
            label_sets: self.counters.label_sets(),
            counts,
            windows: self.windows.list(),
            pushed: self.pushers.pushed(),
            ..empty_state()
        };
        if let Some(history) = &mut self.history {
            history.moment(Moment::of(&state));
        }
        self.publish.send_replace(Arc::new(state));
    }

    /// What does not work now although it is configured.
    fn degraded(&self) -> Vec<String> {
        let history = match &self.history {
            Some(history) => history.failure(),
            None => self.no_history.clone(),
        };
        let history = history.map(|why| format!("the history is not written: {why}"));
        let hangs = given_up().into_iter().map(|file| {
            format!("{file} cannot be read: its file system does not answer, and is left alone until it does")
        });
        let hangs = hangs.chain(silent(&silent_processes())).chain(self.roster.slow());
        let hangs = hangs.chain(in_the_way(&obstacles()));
        let failures = history.into_iter().chain(self.refused.clone()).chain(hangs);
        failures.chain(self.censuses.degraded()).chain(self.pushers.failures()).collect()
    }

    fn publish_windows(&self) {
        let windows = self.windows.list();
        self.publish.send_modify(|state| Arc::make_mut(state).windows = windows);
    }
}

/// Processes that the kernel does not answer for, a sentence each.
fn silent(all: &[Silent]) -> Vec<String> {
    let sentence = |one: &Silent| {
        let comm = one.comm.as_deref().map(|comm| format!(" ({comm})")).unwrap_or_default();
        format!(
            "process {}{comm} cannot be read: the kernel has not answered for it, first {} s ago, since a lock of it is \
             held or its memory is not delivered; it is left alone, and tried again",
            one.pid, one.seconds
        )
    };
    let more = all.len().saturating_sub(MAX_NAMED);
    let more = (more > 0).then(|| format!("{more} more processes cannot be read"));
    let user = is_user_silenced().then(|| {
        "processes are not read whose user has several that cannot be read: each costs a thread"
            .to_owned()
    });
    all.iter().take(MAX_NAMED).map(sentence).chain(more).chain(user).collect()
}

/// Processes that are in the way of probes, a sentence each.
fn in_the_way(all: &Obstacles) -> Vec<String> {
    let late = all.late.map(|late| {
        let names: Vec<String> = all.suspects.iter().map(ToString::to_string).collect();
        let names =
            if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        format!(
            "the kernel has not come back with a probe for {} s, and no process of the machine can fork: it waits for a \
             process that holds the lock of its address space{names}; end it, or the server of its files",
            late.as_secs()
        )
    });
    let holders = all.holders.iter().take(MAX_NAMED);
    let holders = holders.map(|one| format!("probes are put off: {one}; they are tried again"));
    late.into_iter().chain(holders).collect()
}

/// The state before the first cycle.
fn empty_state() -> NodeState {
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: Tool { name: "drainprof".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        unix_ms: 0,
        uptime_seconds: 0.0,
        ready: false,
        killed: false,
        degraded: Vec::new(),
        complete: true,
        incomplete: Vec::new(),
        losses: super::counters::no_losses(),
        self_use: self_use(Duration::ZERO, 0),
        pressure: None,
        targets: Vec::new(),
        processes_late: 0,
        processes_given_up: 0,
        probes_put_off: 0,
        label_sets: Vec::new(),
        counts: Vec::new(),
        windows: Vec::new(),
        pushed: None,
    }
}

/// Why the counts are not complete.
fn incomplete(losses: &BTreeMap<String, u64>) -> Vec<String> {
    let listed = losses.iter().map(|(name, count)| (name.clone(), Some(*count))).collect();
    Health::from_names(&listed).incomplete().map(Line::sentence).collect()
}

/// The profiles that say nothing of a process that runs, and why.
fn not_measurable(report: &Report) -> Vec<String> {
    let running = report.not_measurable().filter(|(target, ..)| target.ended.is_none());
    running
        .map(|(target, profile, why)| {
            format!(
                "process {} ({}): profile {profile}: not measurable: {why}",
                target.pid, target.comm
            )
        })
        .collect()
}

/// Notifies systemd, if it has started the daemon.
fn notify(message: Message<'_>) {
    if let Err(error) = systemd::send(message) {
        tracing::debug!(%error, ?message, "cannot notify systemd");
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(tokio::time::Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

fn signal_of(kind: SignalKind) -> Result<Signal, ServiceError> {
    signal(kind).map_err(|source| ServiceError::System { step: "wait for a signal", source })
}

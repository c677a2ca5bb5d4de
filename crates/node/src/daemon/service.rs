//! The daemon's loop, and what it owns.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use drainprof_observe::{ObserveError, ObserverOptions};
use drainprof_probe::bpf::SessionConfig;
use drainprof_process::{Process, memory::MemoryReader};
use drainprof_profile::Library;
use drainprof_report::{Report, Tool, health};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval_at},
};

use super::{
    arrivals::Arrivals,
    beat::Beat,
    counters::Counters,
    keeper::Keeper,
    pool::Pool,
    tracked::Tracked,
    windows::{Ended, FAREWELL},
};
use crate::{
    Asked, Labels, NodeState, WindowRecord,
    config::{Attach, Config, Selector},
    serve::{systemd, systemd::Word},
    store::Writer,
    trigger,
};

/// How often events are taken and maps relieved, whatever the interval.
const BEAT: Duration = Duration::from_millis(200);
/// Windows that are shown after they have ended.
pub(super) const SHOWN_WINDOWS: usize = 32;
/// Reports of windows that are kept in memory, where there is no history.
pub(super) const KEPT_REPORTS: usize = 4;

/// What the daemon begins with.
pub struct Setup {
    /// What it is told.
    pub config: Config,
    /// Sizes and offsets for the kernel side.
    pub session: SessionConfig,
    /// The profiles.
    pub library: Library,
    /// How to observe; the level does not matter.
    pub options: ObserverOptions,
    /// The drainprof that runs diagnostic windows.
    pub program: PathBuf,
    /// Whether windows can watch growth on this kernel; if not, why.
    pub growth: Result<(), String>,
    /// The history; `None`: none is kept.
    pub history: Option<Writer>,
    /// Why none is kept although it was asked for, in a sentence.
    pub no_history: Option<String>,
    /// Reads the configuration again.
    pub reread: Reread,
    /// The kernel's release.
    pub kernel: String,
}

/// Reads configuration and profiles again; an error leaves what is in force.
pub type Reread = Box<dyn FnMut() -> Result<(Config, Library), String> + Send>;

/// Why the daemon cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The kernel side cannot be loaded.
    #[error(transparent)]
    Observe(Box<ObserveError>),
    /// A signal cannot be waited for, or a thread cannot be started.
    #[error("cannot {step}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel says.
        #[source]
        source: std::io::Error,
    },
}

/// A window that runs.
pub(super) struct Running {
    pub(super) record: WindowRecord,
    /// Where its process belongs: it may have gone when the window ends.
    pub(super) labels: Labels,
    /// Ends it early.
    pub(super) stop: Option<oneshot::Sender<()>>,
}

/// The daemon.
pub struct Service {
    pub(super) config: Config,
    pub(super) policy: trigger::WindowConfig,
    pub(super) selector: Selector,
    pub(super) pool: Pool,
    pub(super) arrivals: Arrivals,
    /// Those who wait to be looked at, with their fingerprints.
    pub(super) waiting: VecDeque<(Process, u64)>,
    /// Fingerprints of processes that no profile fits.
    pub(super) unfit: HashSet<u64>,
    pub(super) tracked: BTreeMap<u32, Tracked>,
    /// Those that have gone and were not counted yet.
    pub(super) left: BTreeMap<u32, Labels>,
    /// Those that are to be put in place again at the next look.
    pub(super) again: Vec<u32>,
    pub(super) counters: Counters,
    /// Losses of kernel sides that have gone, by name.
    pub(super) lost: BTreeMap<String, u64>,
    /// The losses of each kernel side that is there, as of the last look.
    pub(super) losing: BTreeMap<u64, BTreeMap<String, u64>>,
    pub(super) reader: MemoryReader,
    pub(super) grants: trigger::Windows<u32>,
    pub(super) windows: JoinSet<(WindowRecord, Ended)>,
    pub(super) running: BTreeMap<u64, Running>,
    pub(super) shown: VecDeque<WindowRecord>,
    pub(super) reports: VecDeque<(u64, Report)>,
    pub(super) next_window: u64,
    pub(super) keeper: Option<Keeper>,
    /// Thrown by an order; the file has a say of its own.
    pub(super) ordered_kill: bool,
    pub(super) killed: bool,
    pub(super) ready: bool,
    /// It was told to end: nothing is begun any more.
    pub(super) ending: bool,
    pub(super) began: Instant,
    pub(super) publish: watch::Sender<Arc<NodeState>>,
    pub(super) setup_program: PathBuf,
    pub(super) growth: Result<(), String>,
    pub(super) reread: Reread,
    pub(super) kernel: String,
    /// Whether the next look is due at once.
    pub(super) hurry: bool,
    /// What was reported at the last look.
    pub(super) last: Vec<Report>,
    /// Why there is no history.
    pub(super) no_history: Option<String>,
    /// Why the configuration on the disk is not the one in force.
    pub(super) refused: Option<String>,
    said: BTreeSet<&'static str>,
}

impl Service {
    /// Loads the kernel side for the level at which processes are looked at. Must be called inside the runtime.
    pub fn new(setup: Setup) -> Result<(Self, watch::Receiver<Arc<NodeState>>), ServiceError> {
        let Setup { config, session, library, mut options, .. } = setup;
        options.follow = config.daemon.attach == Attach::File;
        options.profiles.clone_from(&config.daemon.profiles);
        let level = config.daemon.level;
        let mut pool = Pool::new(session, library, options);
        pool.prepare(level).map_err(|error| ServiceError::Observe(Box::new(error)))?;
        let (keeper, next_window) = match setup.history {
            Some(mut writer) => {
                let next = writer.next_window_id();
                let keeper =
                    Keeper::start(writer, config.store.path.clone()).map_err(|source| {
                        ServiceError::System {
                            step: "start the thread that writes the history",
                            source,
                        }
                    })?;
                (Some(keeper), next)
            }
            None => (None, 1),
        };
        let (publish, state) = watch::channel(Arc::new(nothing()));
        let service = Self {
            policy: policy(&config),
            selector: Selector::of_this_process(&config.select),
            pool,
            arrivals: Arrivals::default(),
            waiting: VecDeque::new(),
            unfit: HashSet::new(),
            tracked: BTreeMap::new(),
            left: BTreeMap::new(),
            again: Vec::new(),
            counters: Counters::new(
                config.metrics.labels.clone(),
                config.metrics.max_label_sets as usize,
                unix_ms(),
            ),
            lost: BTreeMap::new(),
            losing: BTreeMap::new(),
            reader: MemoryReader::new(),
            grants: trigger::Windows::new(),
            windows: JoinSet::new(),
            running: BTreeMap::new(),
            shown: VecDeque::new(),
            reports: VecDeque::new(),
            next_window,
            keeper,
            ordered_kill: false,
            killed: false,
            ready: false,
            ending: false,
            began: Instant::now(),
            publish,
            setup_program: setup.program,
            growth: setup.growth,
            reread: setup.reread,
            kernel: setup.kernel,
            hurry: false,
            last: Vec::new(),
            no_history: setup.no_history,
            refused: None,
            said: BTreeSet::new(),
            config,
        };
        Ok((service, state))
    }

    /// Runs until it is told to end by SIGTERM or SIGINT. SIGHUP reads the configuration again, SIGUSR1 asks for a
    /// diagnostic window on the process that is worst off.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Asked>) -> Result<(), ServiceError> {
        let mut terminate = signal_of(SignalKind::terminate())?;
        let mut interrupt = signal_of(SignalKind::interrupt())?;
        let mut hang_up = signal_of(SignalKind::hangup())?;
        let mut user = signal_of(SignalKind::user_defined1())?;
        let beat = Beat::every(BEAT)
            .map_err(|source| ServiceError::System { step: "make a timer", source })?;
        let mut discover = every(self.config.daemon.discover_interval);
        let mut look = every(self.config.daemon.interval);
        let watchdog = systemd::watchdog_interval();
        let mut alive = every(watchdog.unwrap_or(Duration::from_secs(3600)));
        self.heed_kill_file();
        self.discover();
        while !self.waiting.is_empty() {
            self.attend();
        }
        self.look().await;
        word(Word::Ready);
        eprintln!("drainprof: watching");
        loop {
            tokio::select! {
                () = beat.next() => {
                    self.heed_kill_file();
                    self.take_events();
                    self.pool.relieve();
                    if !self.waiting.is_empty() {
                        self.attend();
                    }
                }
                _ = discover.tick() => self.discover(),
                _ = look.tick() => self.look().await,
                Some(asked) = requests.recv() => self.answer(asked),
                Some(ended) = self.windows.join_next(), if !self.windows.is_empty() => {
                    if let Ok((record, ended)) = ended {
                        self.window_ended(record, ended);
                    }
                }
                _ = hang_up.recv() => {
                    word(Word::Reloading);
                    match self.reload() {
                        Ok(message) => tracing::info!("{message}"),
                        Err(message) => tracing::error!("{message}"),
                    }
                    self.hurry = true;
                    discover = every(self.config.daemon.discover_interval);
                    look = every(self.config.daemon.interval);
                    word(Word::Ready);
                }
                _ = user.recv() => self.diagnose_worst(),
                _ = alive.tick(), if watchdog.is_some() => word(Word::Alive),
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
            if std::mem::take(&mut self.hurry) {
                self.look().await;
            }
        }
        word(Word::Stopping);
        self.farewell().await;
        Ok(())
    }

    /// Stops counting, tells everything once more, and takes all probes out.
    async fn farewell(mut self) {
        for running in self.running.values_mut() {
            if let Some(stop) = running.stop.take() {
                // It may have ended meanwhile.
                let _ = stop.send(());
            }
        }
        self.ending = true;
        self.again.clear();
        let unix_ms = self.unix_ms();
        for (pid, tracked) in &mut self.tracked {
            self.pool.release(*pid);
            // Whoever reads the last state sees that these are looked at no more.
            tracked.turn(None, "the daemon ends".to_owned(), unix_ms);
        }
        self.look().await;
        let limit = tokio::time::Instant::now() + FAREWELL;
        while let Ok(Some(ended)) = tokio::time::timeout_at(limit, self.windows.join_next()).await {
            if let Ok((record, ended)) = ended {
                self.window_ended(record, ended);
            }
        }
        if let Some(keeper) = self.keeper.take() {
            keeper.end();
        }
        let mut pool = self.pool;
        pool.end_all();
        // The kernel takes a tenth of a second for each probe; nothing else waits for that.
        let waited = tokio::task::spawn_blocking(move || pool.wait());
        let _ = waited.await;
    }

    /// The time of day, in milliseconds since 1970.
    #[allow(clippy::unused_self, reason = "the one clock of the loop")]
    pub(super) fn unix_ms(&self) -> u64 {
        unix_ms()
    }

    /// Seconds since the daemon began.
    pub(super) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Says something in the log that would otherwise be said over and over.
    pub(super) fn say_once(&mut self, what: &'static str, message: impl FnOnce() -> String) {
        if self.said.insert(what) {
            tracing::warn!("{}", message());
        }
    }
}

fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// The state before anything was looked at.
fn nothing() -> NodeState {
    NodeState {
        schema: crate::SCHEMA.to_owned(),
        tool: Tool { name: "drainprof".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() },
        unix_ms: 0,
        uptime_seconds: 0.0,
        ready: false,
        killed: false,
        degraded: Vec::new(),
        complete: true,
        losses: health::by_name(&Default::default())
            .into_iter()
            .map(|(name, count)| (name, count.unwrap_or_default()))
            .collect(),
        self_use: super::look::own_use(0),
        pressure: None,
        targets: Vec::new(),
        label_sets: Vec::new(),
        counts: Vec::new(),
        windows: Vec::new(),
    }
}

/// The policy of windows that the configuration asks for.
pub(super) fn policy(config: &Config) -> trigger::WindowConfig {
    let time = |time: Duration| trigger::Time::of_seconds(time.as_secs_f64());
    trigger::WindowConfig {
        length: time(config.window.length),
        longest: time(config.window.longest),
        cooldown: time(config.window.cooldown),
        budget_per_hour: time(config.window.budget_per_hour),
        at_once: config.window.at_once,
    }
}

/// Tells systemd, if it has started the daemon.
fn word(word: Word<'_>) {
    if let Err(error) = systemd::tell(word) {
        tracing::debug!(%error, ?word, "systemd could not be told");
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

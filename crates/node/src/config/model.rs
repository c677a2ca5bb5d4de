//! The keys: one list, from which come the structs, their defaults, the default file, the reference page, the
//! check of files and the comparison at a reload.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use bytesize::ByteSize;
use drainprof_profile::Level;
use toml::{Spanned, Value, de::DeValue};

use super::{
    check::{AtMost, Between, Check as _, Url},
    error::Fault,
    policies::{Governor, Triggers},
    rule::{MAX_RULES, Rule},
    setting::{Address, Attach, Label, Setting as _},
};
use crate::trigger::{Share, WindowGrowth};

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// At a reload.
    AtOnce,
    /// When the daemon is started again.
    Restart,
}

/// What a value's reader gives: the faults of the value, each with its place.
type Set = fn(&mut Config, &Spanned<DeValue<'_>>) -> Result<(), Vec<Fault>>;

/// One key.
pub struct Key {
    /// Its name within the section.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// When a changed value takes effect.
    pub applies: Applies,
    /// What is written, in words.
    pub expected: fn() -> String,
    /// What is taken of that, in words.
    pub limit: fn() -> Option<String>,
    /// A value as an example, where the default is none.
    pub example: Option<&'static str>,
    /// Its value, as it would be written; `None`: it is not set.
    pub get: fn(&Config) -> Option<Value>,
    pub(super) set: Set,
    pub(super) keep: fn(&mut Config, &Config),
    pub(super) set_text: fn(&mut Config, &str) -> Result<(), Vec<Fault>>,
}

/// One section.
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

macro_rules! sections {
    ($(
        $(#[doc = $about:literal])+
        $section:ident: $Section:ident {
            $(
                $(#[doc = $meaning:literal])+
                $key:ident: $Type:ty = $default:expr, $applies:ident
                $(, check $check:expr)? $(, example $example:literal)?;
            )+
        }
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Section {
                $( $(#[doc = $meaning])+ pub $key: $Type, )+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $( $key: $default, )+ }
                }
            }
        )+

        /// What the daemon is told.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config {
            $( $(#[doc = $about])+ pub $section: $Section, )+
            /// When a process is looked at more deeply.
            pub triggers: Triggers,
            /// What the probes may cost.
            pub governor: Governor,
        }

        /// The sections with their keys, in the order in which they are written; `[triggers]` and `[governor]`
        /// have theirs elsewhere ([`super::Policy`]).
        pub const SECTIONS: &[Section] = &[$(
            Section {
                name: stringify!($section),
                about: concat!($($about),+),
                keys: &[$(
                    Key {
                        name: stringify!($key),
                        meaning: concat!($($meaning),+),
                        applies: Applies::$applies,
                        expected: || <$Type>::expected(),
                        limit: || {
                            let none: Option<String> = None;
                            $( let none = none.or_else(|| Some(limit_words::<$Type>(&$check))); )?
                            none
                        },
                        example: {
                            let none: Option<&'static str> = None;
                            $( let _ = none; let none = Some($example); )?
                            none
                        },
                        get: |config| config.$section.$key.show(),
                        set: |config, value| {
                            let read = <$Type>::read(value)?;
                            $( $check.check(&read).map_err(|why| vec![Fault::new(value.span(), why)])?; )?
                            config.$section.$key = read;
                            Ok(())
                        },
                        keep: |config, from| {
                            config.$section.$key.clone_from(&from.$section.$key);
                        },
                        set_text: |config, text| {
                            let read = <$Type>::from_text(text)?;
                            $( $check.check(&read).map_err(|why| vec![Fault::new(0..0, why)])?; )?
                            config.$section.$key = read;
                            Ok(())
                        },
                    },
                )+],
            },
        )+];
    };
}

fn limit_words<T>(check: &impl super::check::Check<T>) -> String {
    check.words()
}

sections! {
    /// How the daemon works.
    daemon: Daemon {
        /// Time between two looks at the memory of the processes that are watched, and at their counters.
        interval: Duration = seconds(10), AtOnce, check Between(Duration::from_millis(100), hours(1));
        /// Time between two looks for processes that have come or gone.
        discover_interval: Duration = seconds(2), AtOnce, check Between(Duration::from_millis(100), hours(1));
        /// How deep to look at a process while nothing is wrong with it. Profiles that know no live count measure
        /// nothing at `boundary`; such processes get no probe then.
        level: Level = Level::Boundary, AtOnce;
        /// What carries the probes: `process`, only the processes that are wanted; `file`, the files that they
        /// map, so that new processes are seen from their first instruction on, but every process that maps the
        /// file pays for its hits.
        attach: Attach = Attach::Process, Restart;
        /// The kill switch: while this file exists, nothing is attached.
        kill_file: PathBuf = PathBuf::from("/run/drainprof/kill"), AtOnce;
        /// Profiles to use, by name. None: all but those that are used on request only.
        profiles: Vec<String> = Vec::new(), AtOnce, check AtMost(256);
        /// Directories with profiles of your own; later ones win.
        profile_directories: Vec<PathBuf> = vec![
            PathBuf::from("/usr/share/drainprof/profiles"),
            PathBuf::from("/etc/drainprof/profiles"),
        ], AtOnce, check AtMost(16);
    }

    /// Which processes are watched, of those that a profile fits.
    select: Select {
        /// Rules, in order: the first that fits a process decides. A process that none fits is watched, unless
        /// some rule includes. A rule fits if all of its lines do; a line fits if one of its patterns does.
        /// `*` stands for anything, `/` included. The daemon's own executable is never watched.
        rules: Vec<Rule> = Vec::new(), AtOnce, check AtMost(MAX_RULES),
            example "[{ action = \"exclude\", unit = \"backup*.service\" }, { action = \"include\", exe = [\"nginx\", \"/opt/*/svc\"] }]";
        /// Processes that are watched at most; further ones wait until others end.
        max_targets: u32 = 200, AtOnce, check Between(1, 10_000);
    }

    /// Sizes of the kernel's maps; what is not set is chosen from the memory there is. What does not fit is
    /// counted as lost.
    maps: Maps {
        /// Granules that are open, or closed and pinned, at once.
        granules: Option<u32> = None, Restart, check Between(1, 16_777_216), example "65536";
        /// Objects that are live at once.
        objects: Option<u32> = None, Restart, check Between(1, 134_217_728), example "1048576";
        /// Allocator instances.
        instances: Option<u32> = None, Restart, check Between(1, 1_048_576), example "4096";
        /// Threads inside a followed call at once.
        threads: Option<u32> = None, Restart, check Between(1, 1_048_576), example "16384";
        /// Places that open granules.
        places: Option<u32> = None, Restart, check Between(1, 1_048_576), example "4096";
        /// Call paths, at level `stacks`.
        call_paths: Option<u32> = None, Restart, check Between(1, 1_048_576), example "16384";
        /// Probes in one session.
        probes: Option<u32> = None, Restart, check Between(1, 65_536), example "4096";
        /// The ring buffer for events.
        ring: Option<ByteSize> = None, Restart, check Between(ByteSize::kib(4), ByteSize::gib(1)), example "\"1MiB\"";
    }

    /// Diagnostic windows: for a bounded time, one process is looked at more deeply.
    window: Window {
        /// How long a window lasts, if nothing else is asked for.
        length: Duration = seconds(60), AtOnce, check Between(seconds(1), hours(1));
        /// How long a user's window can be at most.
        longest: Duration = seconds(600), AtOnce, check Between(seconds(1), hours(24));
        /// How deep it looks.
        level: Level = Level::Stacks, AtOnce;
        /// Which windows watch page faults, heap and mappings, too, and name the call paths by which memory grows:
        /// `memory`, those that open while a rule about memory fires; `always`; `never`. Whoever asks for a window
        /// can say otherwise.
        growth: WindowGrowth = WindowGrowth::Memory, AtOnce;
        /// How long a process is left alone by the rules after a window. A user who asks for one does not wait.
        cooldown: Duration = seconds(1800), AtOnce, check Between(Duration::ZERO, hours(24 * 7));
        /// Time in windows that rules open, of all processes together, in an hour. `0s`: rules open none.
        budget_per_hour: Duration = seconds(600), AtOnce, check Between(Duration::ZERO, hours(1));
        /// Windows that are open at once, on the whole machine.
        at_once: u32 = 2, AtOnce, check Between(1, 16);
        /// What the probes of a window may take of one CPU from the process; a window that takes more ends.
        cost: Share = Share(0.2), AtOnce, check Between(Share(0.0001), Share(16.0));
    }

    /// Where the daemon can be asked.
    listen: Listen {
        /// Address and port of the web service (metrics, state, reports), or `off`. It knows no passwords:
        /// leave it on the loopback address, or put something in front of it.
        address: Address = Address::At(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464)), Restart;
        /// The socket for the command line and `drainprof top`.
        control: PathBuf = PathBuf::from("/run/drainprof/control.sock"), Restart;
        /// The group whose members may use that socket. Not set: root only.
        control_group: Option<String> = None, Restart, example "\"drainprof\"";
    }

    /// The history on disk.
    store: Store {
        /// Whether a history is kept.
        enabled: bool = true, Restart;
        /// Its file.
        path: PathBuf = PathBuf::from("/var/lib/drainprof/history.db"), Restart;
        /// How far it goes back.
        max_age: Duration = hours(30 * 24), Restart, check Between(hours(1), hours(24 * 3660));
        /// How large its files may become; the oldest goes first.
        max_bytes: ByteSize = ByteSize::mib(256), Restart, check Between(ByteSize::mib(4), ByteSize::tib(1));
    }

    /// What metrics look like.
    metrics: Metrics {
        /// Labels that metrics carry. Processes whose labels are the same are counted together.
        labels: Vec<Label> = vec![Label::Exe, Label::Unit, Label::Container, Label::Pod, Label::Namespace],
            Restart, check AtMost(Label::ALL.len());
        /// Different sets of labels; what comes later is counted under `other`.
        max_label_sets: u32 = 500, Restart, check Between(1, 100_000);
    }

    /// Metrics sent to an OpenTelemetry collector.
    otlp: Otlp {
        /// The collector's address (OTLP over HTTP). Not set: nothing is sent.
        endpoint: Option<String> = None, Restart, check Url, example "\"http://127.0.0.1:4318/v1/metrics\"";
        /// Time between two exports.
        interval: Duration = seconds(60), Restart, check Between(seconds(1), hours(24));
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

impl Config {
    /// What is wrong with several values together: the keys that it is about, and why.
    pub(super) fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let Window { length, longest, budget_per_hour, .. } = &self.window;
        if length > budget_per_hour && !budget_per_hour.is_zero() {
            let why = "one window is longer than all windows of an hour may be; make it shorter, or \
                       `window.budget_per_hour` larger (\"0s\": rules open no window)";
            all.push(("window.length", why.to_owned()));
        }
        if length > longest {
            let why = "a window is longer than `window.longest`; make it shorter, or that larger";
            all.push(("window.length", why.to_owned()));
        }
        all
    }
}

//! Options that several commands share.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use drainprof_report::{export::FORMATS, facts::Duty};

use super::{
    filter::FilterArgs,
    values::{
        Budget, LevelArg, SitesArg, WeightArg, budget, duration, duty, format_names, ratio, sample,
    },
};

/// What `attach` and `run` have in common.
#[derive(Args, Clone, Debug)]
pub(super) struct ObserveArgs {
    /// Profile to use: a name, or a file. Default: all that match. Repeatable.
    #[arg(long, value_name = "NAME|FILE", env = "DRAINPROF_PROFILE", value_delimiter = ',')]
    pub(super) profile: Vec<String>,
    /// Directory of profiles, instead of /usr/share/drainprof/profiles and /etc/drainprof/profiles. Repeatable; later
    /// ones win.
    #[arg(long, value_name = "DIR")]
    pub(super) profile_dir: Vec<PathBuf>,
    /// Level. Default: the cheapest at which the profile measures.
    #[arg(long, value_enum, env = "DRAINPROF_LEVEL")]
    pub(super) level: Option<LevelArg>,
    /// Stop after this time: 30, 30s, 5m, 2h, 30d.
    #[arg(short, long, value_parser = duration, value_name = "TIME")]
    pub(super) duration: Option<Duration>,
    /// Probe only part of the time: 10s/10m is 10 seconds in every 10 minutes. Not with `run` or --follow-forks.
    #[arg(long, value_name = "ON/PERIOD", value_parser = duty)]
    pub(super) duty: Option<Duty>,
    /// Of a census, follow one of N pages: 1/16, or 16. What is live becomes an estimate with an interval. Default: all
    /// (`growth --view allocations`: 1/16).
    #[arg(long, value_name = "1/N", value_parser = sample)]
    pub(super) sample: Option<u32>,
    /// Time between lines of the live view.
    #[arg(short, long, value_parser = duration, value_name = "TIME", default_value = "1s",
          env = "DRAINPROF_INTERVAL")]
    pub(super) interval: Duration,
    /// Output format.
    #[arg(short = 'o', long, value_parser = format_names(), default_value = FORMATS[0].name,
          value_name = "FORMAT", env = "DRAINPROF_FORMAT")]
    pub(super) format: String,
    /// Meaning of widths (folded, flamegraph).
    #[arg(long, value_enum, default_value_t = WeightArg::Granules, value_name = "WHAT",
          env = "DRAINPROF_WEIGHT")]
    pub(super) weight: WeightArg,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// A record per close and late drain, at level stacks with the pinning stacks (ndjson; firefox is made of them).
    #[arg(long)]
    pub(super) events: bool,
    /// Report memory growth per process: by call stack, by granule, as a trend, and time to the control group limit.
    #[arg(long)]
    pub(super) growth: bool,
    /// Read the heaps from outside at the begin (attach) and at the end: live and free bytes, and what changed, by size
    /// class and type.
    #[arg(long)]
    pub(super) census: bool,
    /// Follow children, now and later. Probes then sit on files: every process that maps them pays.
    #[arg(long)]
    pub(super) follow_forks: bool,
    /// Exit with 3 if the DSR of any allocator is below this (0 to 1).
    #[arg(long, value_name = "DSR", value_parser = ratio)]
    pub(super) fail_under: Option<f64>,
    /// What probes may cost the processes, of one CPU (0.05, 5%), on average; none: anything. Above it, the level goes
    /// down unless --level is given, then windows are measured, else the command ends with exit code 6.
    #[arg(long, value_name = "SHARE", value_parser = budget, default_value = "5%", env = "DRAINPROF_BUDGET")]
    pub(super) budget: Budget,
    /// Show probe sites, attach nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Probe a function's first instruction, or the cheapest equivalent one.
    #[arg(long, value_enum, default_value_t = SitesArg::Cheapest, value_name = "WHICH",
          env = "DRAINPROF_SITES")]
    pub(super) sites: SitesArg,
    /// Look for separate debug files here too.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_DEBUG_DIR")]
    pub(super) debug_dir: Vec<PathBuf>,
    /// Show addresses only.
    #[arg(long, env = "DRAINPROF_NO_SYMBOLS", value_parser = clap::builder::FalseyValueParser::new())]
    pub(super) no_symbols: bool,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    #[command(flatten)]
    pub(super) sizes: SizeArgs,
}

/// Where the measured cost of probes is remembered.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct CacheArgs {
    /// Where measured probe costs are kept. Default: /var/cache/drainprof for root, else the user's cache directory.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_CACHE_DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Measure probe costs again, and do not keep them.
    #[arg(long)]
    pub(super) no_cache: bool,
}

/// Sizes of the kernel's maps; overflow is counted as lost.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Kernel map sizes (overflow is counted as loss)")]
pub(super) struct SizeArgs {
    /// Granules that are open, or closed and pinned, at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub(super) max_granules: Option<u32>,
    /// Objects that are live at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=134_217_728))]
    pub(super) max_objects: Option<u32>,
    /// Allocator instances.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_instances: Option<u32>,
    /// Threads inside a followed call at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_threads: Option<u32>,
    /// Sites that open granules.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_places: Option<u32>,
    /// Call stacks, at level stacks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_call_paths: Option<u32>,
    /// Probes in one session.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) max_probes: Option<u32>,
    /// Bytes of the ring buffer for events.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1_073_741_824))]
    pub(super) ring_bytes: Option<u32>,
}

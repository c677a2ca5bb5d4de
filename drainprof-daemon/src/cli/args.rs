//! What the command line looks like.

mod values;

use std::{ffi::OsString, path::PathBuf, sync::LazyLock, time::Duration};

use clap::{Args, Parser, Subcommand};
use drainprof_report::{export::FORMATS, facts::Duty};

pub(super) use self::values::{
    AnswerFormat, Budget, LevelArg, PlainFormat, SitesArg, WeightArg, duration, format_names,
    point_in_time, ratio, require_weight,
};
use self::values::{budget, duty, sample};
use super::{
    census::CensusArgs, complete::CompletionsArgs, config::ConfigArgs, ctl::CtlArgs,
    daemon::DaemonArgs, diagnose::DiagnoseArgs, diff::DiffArgs, discover::DiscoverArgs,
    filter::FilterArgs, growth::GrowthArgs, history::HistoryArgs, man::ManArgs,
    profile_check::CheckArgs, profile_new::NewArgs, report::ReportArgs, selection::Selection,
    top::TopArgs, why::WhyArgs,
};

const EXIT_CODES: &str = "Exit codes:
  0 ok    1 failure    2 usage    3 below --fail-under    4 no such target, or no profile matches
  5 incomplete result    6 over --budget    69 the kernel lacks a feature    77 no privilege
  78 bad profile or configuration    `run` forwards the command's status where drainprof itself was fine";

/// Which build this is: the version, the commit if whoever built it named one, and what the kernel side is built from.
static BUILD: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("DRAINPROF_COMMIT").unwrap_or("unknown");
    let kernel_side = drainprof_probe::bpf::SOURCES_SHA256.trim();
    format!("{}\ncommit {commit}\neBPF object of sources {kernel_side}", env!("CARGO_PKG_VERSION"))
});

/// Shows which granules of arenas, pools and slabs are pinned, in unmodified, running programs.
#[derive(Debug, Parser)]
#[command(name = "drainprof", version, long_version = BUILD.as_str(), after_help = EXIT_CODES, propagate_version = true)]
pub(super) struct Cli {
    /// Log more on stderr; twice: everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Answer why memory is as large as it is: does it grow, what holds it, who, and what to do.
    #[command(after_help = "Examples:
  drainprof why -p 4242
  drainprof why --comm postgres -d 1m
  drainprof why --unit nginx.service -o json | jq -r .answer
Probes take at most 1 % of one CPU. Exit code 5: not known, and the answer says why.")]
    Why(WhyArgs),
    /// List programs, matching profiles and what each level costs.
    #[command(after_help = "Examples:
  drainprof discover                  all processes that a profile matches
  drainprof discover --all            also those that none matches
  drainprof discover -o json | jq -r '.groups[].attach'",
              mut_group("selection", |group| group.required(false)))]
    Discover(DiscoverArgs),
    /// Attach to running processes and measure their drainability.
    #[command(after_help = "Examples:
  drainprof attach -p 4242                        a live table, and a report at Ctrl-C
  drainprof attach -p $(pidof -s svc) --profile ./svc.toml -d 30s -o json
  drainprof attach -p 4242 -d 30s -o flamegraph -O pins.svg
  drainprof attach --unit nginx.service -d 30s")]
    Attach(AttachArgs),
    /// Show where resident memory grows, by call stack; with --profile or --level, what lies in pinned granules.
    #[command(after_help = "Examples:
  drainprof growth -p 4242 -d 30s                       all views
  drainprof growth -p 4242 -d 30s --view allocations    outstanding calls of malloc, from 1 of 16 pages
  drainprof growth -p 4242 -d 1m -o flamegraph -O faults.svg
  drainprof growth -d 30s                               the whole machine, by command, container and stack",
              mut_group("selection", |group| group.required(false)))]
    Growth(GrowthArgs),
    /// Start a command and trace it from its first instruction.
    #[command(after_help = "Examples:
  drainprof run -- ./svc --port 8080
  drainprof run -o json -O report.json --profile ./svc.toml -- ./svc
  drainprof run --follow-forks -- nginx -g 'daemon off;'",
              mut_arg("budget", |budget| budget.default_value("none")))]
    Run(RunArgs),
    /// Show processes and allocators live on the terminal.
    #[command(after_help = "Examples:
  drainprof top                       what the daemon watches
  drainprof top --at 10:30            what it saw then; arrow keys lead through the history
  drainprof top -p 4242               one process, without a daemon
  drainprof top --socket ./control.sock
Press ? for the keys.",
              mut_group("selection", |group| group.required(false)))]
    Top(TopArgs),
    /// Show saved reports, filtered or in another format; needs no privileges.
    #[command(after_help = "Examples:
  drainprof report svc.json --include 'make_session|cache_' --min-size 4096
  drainprof report --window 7 -o flamegraph -O w7.svg   a diagnostic window
  drainprof report --since 2h                     changes, from the daemon's history")]
    Report(ReportArgs),
    /// Show what the daemon recorded; needs only to read the file.
    #[command(after_help = "Examples:
  drainprof history                       processes and windows of the last two hours
  drainprof history -p 4242 --since 24h   memory, DSR and retention of one, as sparklines
  drainprof history -p 4242 -o json | jq '.processes[0].memory[-1]'")]
    History(HistoryArgs),
    /// Compare two saved reports.
    #[command(after_help = "Examples:
  drainprof diff before.json after.json
  drainprof diff before.json after.json -o flamegraph -O diff.svg
Save both with -o json --top 10000: a --top above the number of sites.")]
    Diff(DiffArgs),
    /// Watch every process that a profile matches; look deeper when a rule fires.
    #[command(after_help = "Examples:
  drainprof daemon --dry-run                      processes to watch, and why not others
  drainprof daemon --config ./my.toml --set daemon.interval=10s
Signals: SIGHUP reloads the configuration, SIGUSR1 opens a diagnostic window on the worst process,
SIGTERM and SIGINT end it.")]
    Daemon(DaemonArgs),
    /// List, show and check allocator profiles.
    #[command(after_help = "Examples:
  drainprof profile list
  drainprof profile show nginx > my-nginx.toml
  drainprof profile check my-nginx.toml -p $(pidof -s nginx) --for 5s")]
    Profile(ProfileArgs),
    /// Read the heaps of a running process from outside, without a probe: what is live, free, and held by few objects.
    #[command(after_help = "Examples:
  drainprof census -p 4242
  drainprof census -p 4242 -o json | jq '.heaps[].trimmable_bytes'
Reads the heaps of glibc, musl, jemalloc 5, gperftools, mimalloc 2 and 3, Go, CPython and Ruby,
PostgreSQL's contexts, and the pools of nginx and httpd.
Without --freeze, the process runs on. A selector has to match one process.")]
    Census(CensusArgs),
    /// Measure probe costs on this host.
    Calibrate(CalibrateArgs),
    /// Check and show the daemon's configuration.
    #[command(after_help = "Examples:
  drainprof config default > drainprof.toml
  drainprof config check drainprof.toml
Environment variables are named after the keys: DRAINPROF_STORE_MAX_AGE=7d sets max_age of [store].")]
    Config(ConfigArgs),
    /// Check kernel features and privileges; suggest fixes.
    Doctor(DoctorArgs),
    /// Ask the daemon for a diagnostic window and show its report.
    #[command(after_help = "Example:
  drainprof diagnose -p 4242 --for 5m -o flamegraph -O pins.svg
A selector has to match one process.")]
    Diagnose(DiagnoseArgs),
    /// Query or control the daemon.
    Ctl(CtlArgs),
    /// Print a script that lets a shell complete commands, processes, profiles and formats.
    #[command(after_help = "Examples:
  source <(drainprof completions bash)            now; in ~/.bashrc: always
  drainprof completions zsh > /usr/local/share/zsh/site-functions/_drainprof
  drainprof completions fish > ~/.config/fish/completions/drainprof.fish
Packages have them. Script and binary have to be of one version.")]
    Completions(CompletionsArgs),
    /// Write manual pages.
    #[command(after_help = "Examples:
  drainprof man | man -l -
  drainprof man --dir ~/.local/share/man/man1")]
    Man(ManArgs),
    /// Read symbols for another drainprof, which speaks to it over its stdin.
    #[command(name = drainprof_process::symbolize::COMMAND, hide = true)]
    SymbolHelper,
}

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
    /// Leave out processes with more bytes of writable anonymous memory.
    #[arg(long, value_name = "BYTES", requires = "census", hide = true)]
    pub(super) census_limit: Option<u64>,
    /// Memory for the reading, bytes; what does not fit is unknown.
    #[arg(long, value_name = "BYTES", requires = "census", hide = true)]
    pub(super) census_memory: Option<u64>,
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
    /// Growth alone: no profile was asked for, so no probe is put in place.
    #[arg(skip)]
    pub(super) growth_alone: bool,
    /// All processes of the machine, and those that they start.
    #[arg(skip)]
    pub(super) system: bool,
    /// Growth as sums of each process, without call paths.
    #[arg(skip)]
    pub(super) growth_sums: bool,
    /// Growth that the kernel causes with its stacks.
    #[arg(skip)]
    pub(super) growth_kernel: bool,
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

#[derive(Args, Debug)]
pub(super) struct AttachArgs {
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Attach to the whole prefork family: topmost ancestor with the same executable, and its descendants. Implies
    /// --follow-forks.
    #[arg(long, conflicts_with = "duty")]
    pub(super) family: bool,
    /// When the process began, in clock ticks since boot: another one with its number is refused.
    #[arg(long, value_name = "TICKS", hide = true)]
    pub(super) started: Option<u64>,
    /// Ends with this process, which has begun it.
    #[arg(long, value_name = "PID", hide = true)]
    pub(super) parent: Option<u32>,
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
}

#[derive(Args, Debug)]
pub(super) struct RunArgs {
    #[command(flatten)]
    pub(super) observe: ObserveArgs,
    /// The command and its arguments.
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(super) struct ProfileArgs {
    #[command(subcommand)]
    pub(super) action: ProfileAction,
}

#[derive(Debug, Subcommand)]
pub(super) enum ProfileAction {
    /// List all profiles: built in and from directories.
    List,
    /// Print a profile's text.
    Show {
        /// Its name.
        name: String,
    },
    /// Check a profile: alone, against a process, or (--for) at work.
    #[command(after_help = "Examples:
  drainprof profile check svc.toml                           does it parse?
  drainprof profile check svc.toml -p $(pidof -s svc)        where would probes go?
  drainprof profile check svc.toml -p 4242 --for 5s          do all fire, and do allocs and frees balance?
Exit codes: 0 good (with --for: every probe fired), 5 not so, 4 no such process or no match, 78 bad profile.")]
    Check(CheckArgs),
    /// Draft a profile from a binary's functions, for you to finish.
    #[command(after_help = "Example:
  drainprof profile new --from-symbols /usr/sbin/nginx --prefix ngx_ -O nginx.toml")]
    New(NewArgs),
}

#[derive(Args, Debug)]
pub(super) struct CalibrateArgs {
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    pub(super) format: PlainFormat,
    /// Measure again, even if results are kept.
    #[arg(long)]
    pub(super) fresh: bool,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
}

#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    pub(super) format: PlainFormat,
    /// Add verifier instructions and machine code bytes per eBPF program (always in JSON).
    #[arg(long)]
    pub(super) programs: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// The command line is consistent with itself.
    #[test]
    fn command_is_consistent() {
        Cli::command().debug_assert();
    }

    /// `--version` names the build; `-V` is one line, which scripts read.
    #[test]
    fn version_names_the_build() {
        let shown = |flag| Cli::try_parse_from(["drainprof", flag]).unwrap_err().to_string();
        let version = format!("drainprof {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(shown("-V"), version);
        let long = shown("--version");
        let lines: Vec<_> = long.strip_prefix(&version).unwrap().lines().collect();
        assert!(
            matches!(lines[..], [commit, object] if commit.starts_with("commit ")
            && object.strip_prefix("eBPF object of sources ").unwrap().len() == 64),
            "{long}"
        );
    }
}

//! What the command line looks like.

mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use drainprof_profile::Level;
use drainprof_report::{export::FORMATS, facts::Duty};

pub(super) use self::values::{
    LevelArg, PlainFormat, SitesArg, WeightArg, duration, format_names, ratio, share,
};
use self::values::{duty, sample};
use super::{
    config::ConfigArgs, ctl::CtlArgs, daemon::DaemonArgs, diagnose::DiagnoseArgs, diff::DiffArgs,
    discover::DiscoverArgs, filter::FilterArgs, growth::GrowthArgs, history::HistoryArgs,
    profile_check::CheckArgs, profile_new::NewArgs, report::ReportArgs, top::TopArgs,
};

const EXIT_CODES: &str = "Exit codes:
  0 ok    1 failure    2 usage    3 below --fail-under    4 no such target, or no profile matches
  5 incomplete result    6 over --budget    69 the kernel lacks a feature    77 no privilege
  78 bad profile or configuration    `run` forwards the command's status where drainprof itself was fine";

/// Shows which granules of arenas, pools and slabs are pinned, in unmodified, running programs.
#[derive(Debug, Parser)]
#[command(name = "drainprof", version, after_help = EXIT_CODES, propagate_version = true)]
pub(super) struct Cli {
    /// Say more on stderr; twice: everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Say what can be looked into here: processes, the profiles that fit them, and what it costs.
    #[command(after_help = "Examples:
  drainprof discover                  all processes that a profile fits, and the command for each
  drainprof discover -p 4242          one process
  drainprof discover --all            also those that no profile fits
  drainprof discover -o json | jq -r '.groups[].attach'
  drainprof discover --profile ./svc.toml
Nothing is attached. Prices are remembered ones (`drainprof calibrate`), or another machine's.")]
    Discover(DiscoverArgs),
    /// Attach to running processes and measure their drainability.
    #[command(after_help = "Examples:
  drainprof attach -p 4242                        a live table, and a report at Ctrl-C
  drainprof attach -p 4242 -d 30s -o json         30 seconds, then one JSON document
  drainprof attach -p $(pidof -s svc) --profile ./svc.toml --level objects
  drainprof attach -p 4242 -d 30s -o flamegraph -O pins.svg   who pins, as a picture
  drainprof attach --family -p 4242               a server's master and workers, now and later
  drainprof attach -p 4242 --dry-run              where the probes would go; attaches nothing
  drainprof attach -p 4242 --duty 10s/10m -d 24h  10 seconds of every 10 minutes, for a day
  drainprof attach -p 4242 -d 60s --fail-under 0.95 && echo drains well")]
    Attach(AttachArgs),
    /// Say where a running process's memory grows: page faults, heap and mappings by call path. With --profile or
    /// --level also what of it lies in pinned granules. --view allocations: what malloc has handed out and not got back.
    #[command(after_help = "Examples:
  drainprof growth -p 4242 -d 30s                       all views
  drainprof growth -p 4242 -d 30s --view mappings       what was mapped and is still there
  drainprof growth -p 4242 -d 30s --view allocations    outstanding calls of malloc, from 1 of 16 pages
  drainprof growth -p 4242 -d 1m --view allocations --sample 1 -o flamegraph -O outstanding.svg
  drainprof growth -p 4242 -d 1m -o flamegraph -O faults.svg
  drainprof growth -p 4242 -d 1m -o json -O before.json
  drainprof growth -p 4242 --profile ./svc.toml --level objects")]
    Growth(GrowthArgs),
    /// Start a command with the probes in place before its `main`.
    #[command(after_help = "Examples:
  drainprof run -- ./svc --port 8080
  drainprof run -o json -O report.json --profile ./svc.toml -- ./svc
  drainprof run --follow-forks -- nginx -g 'daemon off;'")]
    Run(RunArgs),
    /// Show processes and their allocators on the terminal, as they are now.
    #[command(after_help = "Examples:
  drainprof top                       what the daemon watches
  drainprof top -p 4242               one process, without a daemon
  drainprof top --socket ./control.sock
Press ? for the keys.")]
    Top(TopArgs),
    /// Show saved reports again: in another format, or only a part of them. Needs no privileges.
    #[command(after_help = "Examples:
  drainprof report svc.json                       as text
  drainprof report svc.json --include 'make_session|cache_' --min-size 4096
  drainprof report svc.json --no-paths -o json -O svc-anonymous.json
  drainprof report monday.json tuesday.json       one after the other
  drainprof report --window 7 -o flamegraph -O w7.svg   what a diagnostic window has found
  drainprof report --since 2h                     what has changed, from the daemon's history
  drainprof report svc.json --fail-under 0.95 -O /dev/null && echo drains well")]
    Report(ReportArgs),
    /// Show what the daemon has kept: all processes, or the course of one. Needs no privileges but to read the file.
    #[command(after_help = "Examples:
  drainprof history                       processes and windows of the last two hours
  drainprof history -p 4242 --since 24h   memory, DSR and retention of one, as sparklines
  drainprof history -p 4242 -o json | jq '.processes[0].memory[-1]'
  drainprof history --replay states.ndjson --since 8760h")]
    History(HistoryArgs),
    /// Compare two saved reports: what pins now that did not before, and what no longer does.
    #[command(after_help = "Examples:
  drainprof diff before.json after.json
  drainprof diff before.json after.json -o json
  drainprof diff before.json after.json -o flamegraph -O diff.svg
Save reports to compare with a --top above the number of their sites: -o json --top 10000")]
    Diff(DiffArgs),
    /// Watch this machine: every process that a profile fits, cheaply, and more deeply when it matters.
    #[command(after_help = "Examples:
  drainprof daemon                                what /etc/drainprof/drainprof.toml says
  drainprof daemon --dry-run                      who would be watched, and why others would not
  drainprof daemon --config ./my.toml --set daemon.interval=10s
  curl -s http://127.0.0.1:9464/metrics
Signals: SIGHUP reads the configuration again, SIGUSR1 opens a diagnostic window on the process that is worst
off, SIGTERM and SIGINT end it.")]
    Daemon(DaemonArgs),
    /// List, show and check allocator profiles.
    #[command(after_help = "Examples:
  drainprof profile list
  drainprof profile show nginx > my-nginx.toml
  drainprof profile check my-nginx.toml -p $(pidof -s nginx) --for 5s")]
    Profile(ProfileArgs),
    /// Measure what a probe costs on this host, by the kind of instruction that it sits on.
    #[command(after_help = "Examples:
  drainprof calibrate                 the table; measured once, then remembered
  drainprof calibrate --fresh -o json
The other commands do the same at their start, where nothing is remembered yet.")]
    Calibrate(CalibrateArgs),
    /// Check and show the daemon's configuration.
    #[command(after_help = "Examples:
  drainprof config default > drainprof.toml      every key with its meaning and default
  drainprof config check --config drainprof.toml
  drainprof config show                          what is in force, and who has set it
Environment variables are named after the keys: DRAINPROF_STORE_MAX_AGE=7d sets max_age of [store].
A configuration with errors is refused with exit code 78; all errors are told.")]
    Config(ConfigArgs),
    /// Say what this kernel and our privileges allow, and how to mend what is missing.
    Doctor(DoctorArgs),
    /// Have the daemon look deeper into a process for a while, and show what it saw.
    #[command(after_help = "Examples:
  drainprof diagnose -p 4242 --for 60s
  drainprof diagnose -p 4242 --for 5m -o flamegraph -O pins.svg")]
    Diagnose(DiagnoseArgs),
    /// Ask the daemon how it is, or give it an order.
    #[command(after_help = "Examples:
  drainprof ctl status
  drainprof ctl status -o json
  drainprof ctl kill           detaches everything at once
  drainprof ctl reload")]
    Ctl(CtlArgs),
    /// Read symbols for another drainprof, which speaks to it over its stdin.
    #[command(name = drainprof_process::symbolize::COMMAND, hide = true)]
    SymbolHelper,
}

/// What `attach` and `run` have in common.
#[derive(Args, Clone, Debug)]
pub(super) struct ObserveArgs {
    /// Profile to use: a name, or a file. Default: all that match. May be given again.
    #[arg(long, value_name = "NAME|FILE", env = "DRAINPROF_PROFILE", value_delimiter = ',')]
    pub(super) profile: Vec<String>,
    /// Look for profiles of your own in this directory, instead of /usr/share/drainprof/profiles and
    /// /etc/drainprof/profiles. May be given again; later ones win.
    #[arg(long, value_name = "DIR")]
    pub(super) profile_dir: Vec<PathBuf>,
    /// How deep to look. Default: the cheapest at which the profile measures.
    #[arg(long, value_enum, env = "DRAINPROF_LEVEL")]
    pub(super) level: Option<LevelArg>,
    /// Stop after this time: 30, 30s, 5m, 2h.
    #[arg(short, long, value_parser = duration, value_name = "TIME")]
    pub(super) duration: Option<Duration>,
    /// Look for a while in each period only: 10s/10m measures for 10 seconds of every 10 minutes, and
    /// leaves no probe in the process in between. Not with `run` or --follow-forks.
    #[arg(long, value_name = "ON/PERIOD", value_parser = duty)]
    pub(super) duty: Option<Duty>,
    /// Look at one of N granules only, with all that happens in it: 1/16, or 16. The DSR is then an
    /// estimate, and told with its confidence interval; of a census, what is live is.
    /// Default: all (`growth --view allocations`: 1/16).
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
    /// What widths mean (formats folded and flamegraph).
    #[arg(long, value_enum, default_value_t = WeightArg::Granules, value_name = "WHAT",
          env = "DRAINPROF_WEIGHT")]
    pub(super) weight: WeightArg,
    /// Write to this file instead of stdout.
    #[arg(short = 'O', long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// One record per close and late drain, at level stacks with the call paths that pin (format ndjson).
    #[arg(long)]
    pub(super) events: bool,
    /// Tell where the memory of each process grows: page faults, heap and mappings by call path, what of the memory
    /// that was touched lies in granules, how resident memory grows, and when the control group is full.
    #[arg(long)]
    pub(super) growth: bool,
    /// Follow children, now and later. The probes then sit on the files: every process that maps them
    /// pays for a hit, though only the followed ones are counted.
    #[arg(long)]
    pub(super) follow_forks: bool,
    /// Exit with 3 if the DSR of any allocator is below this (0 to 1). With --sample, if its whole
    /// confidence interval is; if the threshold lies within it, exit with 5.
    #[arg(long, value_name = "DSR", value_parser = ratio)]
    pub(super) fail_under: Option<f64>,
    /// Stop, and exit with 6, when the probes take more than this of one CPU from the observed processes: 0.05, 5%.
    /// Judged by three intervals (-i) in a row.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(super) budget: Option<f64>,
    /// Growth alone: no profile was asked for, so no probe is put in place.
    #[arg(skip)]
    pub(super) growth_alone: bool,
    /// Growth as sums of each process, without call paths.
    #[arg(skip)]
    pub(super) growth_sums: bool,
    /// Show where the probes would go, and attach nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Which instruction of a function may be probed: its first, or the cheapest that sees the same.
    #[arg(long, value_enum, default_value_t = SitesArg::Cheapest, value_name = "WHICH",
          env = "DRAINPROF_SITES")]
    pub(super) sites: SitesArg,
    /// Look for separate debug files here too.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_DEBUG_DIR")]
    pub(super) debug_dir: Vec<PathBuf>,
    /// Show places as addresses only; look for no names.
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
    /// Remember here what probes cost on this host. Default: /var/cache/drainprof for root, else
    /// drainprof in the user's cache directory.
    #[arg(long, value_name = "DIR", env = "DRAINPROF_CACHE_DIR")]
    pub(super) cache_dir: Option<PathBuf>,
    /// Measure what probes cost, and neither use nor change what is remembered.
    #[arg(long)]
    pub(super) no_cache: bool,
}

/// Sizes of the kernel's maps; what does not fit is counted as lost.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sizes of the kernel's maps (what does not fit is counted)")]
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
    /// Places that open granules.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_places: Option<u32>,
    /// Call paths, at level stacks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(super) max_call_paths: Option<u32>,
    /// Probes in one session.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) max_probes: Option<u32>,
    /// Bytes of the ring buffer for events.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1_073_741_824))]
    pub(super) ring_bytes: Option<u32>,
}

impl ObserveArgs {
    /// What `profile check` observes with.
    pub(super) fn for_check(
        profile: &str,
        level: Option<Level>,
        sites: SitesArg,
        cache: CacheArgs,
    ) -> Self {
        Self {
            profile: vec![profile.to_owned()],
            profile_dir: Vec::new(),
            level: level.map(|level| match level {
                Level::Boundary => LevelArg::Boundary,
                Level::Objects => LevelArg::Objects,
                Level::Stacks => LevelArg::Stacks,
            }),
            duration: None,
            duty: None,
            sample: None,
            interval: Duration::from_secs(1),
            format: FORMATS[0].name.to_owned(),
            weight: WeightArg::Granules,
            output: None,
            events: false,
            growth: false,
            follow_forks: false,
            fail_under: None,
            budget: None,
            growth_alone: false,
            growth_sums: false,
            dry_run: false,
            sites,
            debug_dir: Vec::new(),
            no_symbols: true,
            cache,
            filter: FilterArgs::default(),
            sizes: SizeArgs {
                max_granules: None,
                max_objects: None,
                max_instances: None,
                max_threads: None,
                max_places: None,
                max_call_paths: None,
                max_probes: None,
                ring_bytes: None,
            },
        }
    }
}

#[derive(Args, Debug)]
pub(super) struct AttachArgs {
    /// Process to attach to; may be given again.
    #[arg(short, long, value_name = "PID", required = true, value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: Vec<u32>,
    /// Attach to the whole family of each process, now and later: its topmost ancestor that runs the same
    /// executable, and all that descend from that one. Implies --follow-forks.
    #[arg(long, conflicts_with = "duty")]
    pub(super) family: bool,
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
    /// All profiles: built in, and from /usr/share/drainprof/profiles and /etc/drainprof/profiles.
    List,
    /// Print a profile's text.
    Show {
        /// Its name.
        name: String,
    },
    /// Check a profile: by itself, against a process, and with --for by watching it at work.
    #[command(after_help = "Examples:
  drainprof profile check svc.toml                           does it parse, and what does it offer
  drainprof profile check svc.toml -p $(pidof -s svc)        where the probes would go
  drainprof profile check svc.toml -p 4242 --for 5s          which fire, and do allocs and frees balance
  drainprof profile check svc.toml -p 4242 --for 1m --max-unmatched 2% -o json
Exit codes: 0 all as it should be (with --for: every probe fired), 5 not so, 4 no such process or no match,
78 the profile cannot be used.")]
    Check(CheckArgs),
    /// Draft a profile from the functions of a program or library. A person has to finish it.
    #[command(after_help = "Examples:
  drainprof profile new --from-symbols /usr/sbin/nginx --prefix ngx_ -O nginx.toml
  drainprof profile new --from-symbols ./svc --prefix arena_
  drainprof profile new --from-symbols libpool.so.1 --debug-dir ./debug
What it cannot know (the kind, wrappers that call one another) stands in the draft's comments.")]
    New(NewArgs),
}

#[derive(Args, Debug)]
pub(super) struct CalibrateArgs {
    /// Output format.
    #[arg(short = 'o', long, value_enum, default_value_t = PlainFormat::Text)]
    pub(super) format: PlainFormat,
    /// Measure again, even if a measurement is remembered.
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
    /// Add what this kernel makes of each eBPF program: the instructions that its verifier goes through,
    /// and the bytes of machine code. The JSON document always has them.
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
}

//! The commands: what each takes, and what runs it.

use std::sync::LazyLock;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use drainprof_process::symbolize;

use super::{
    attach::{self, AttachArgs},
    calibrate::{self, CalibrateArgs},
    census::{self, CensusArgs},
    code,
    complete::{self, CompletionsArgs},
    config::{self, ConfigArgs},
    ctl::{self, CtlArgs},
    daemon::{self, DaemonArgs},
    diagnose::{self, DiagnoseArgs},
    diff::{self, DiffArgs},
    discover::{self, DiscoverArgs},
    doctor::{self, DoctorArgs},
    growth::{self, GrowthArgs},
    history::{self, HistoryArgs},
    man::{self, ManArgs},
    profile::{self, ProfileArgs},
    report::{self, ReportArgs},
    run::{self, RunArgs},
    top::{self, TopArgs},
    why::{self, WhyArgs},
    window,
};

const EXIT_CODES: &str = "Exit codes:
  0 ok    1 failure    2 usage    3 below --fail-under    4 no such target, or no profile matches
  5 incomplete result    6 over --budget    69 the kernel lacks a feature    77 no privilege
  78 bad profile or configuration    `run` forwards the command's status where drainprof itself was fine";

/// Which build this is: the version, the commit if the build named one, and what the kernel side is built from.
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
    /// Observe what a daemon asks for on stdin, in JSON.
    #[command(hide = true)]
    Window,
    /// Read symbols for another drainprof, which speaks to it over its stdin.
    #[command(name = drainprof_process::symbolize::COMMAND, hide = true)]
    SymbolHelper,
}

impl Command {
    /// Runs it, and returns the exit code.
    pub(super) fn run(self) -> Result<u8> {
        match self {
            Self::Why(args) => why::main(&args),
            Self::Attach(args) => attach::main(&args),
            Self::Growth(args) => growth::main(&args),
            Self::Discover(args) => discover::main(&args),
            Self::Run(args) => run::main(&args),
            Self::Report(args) => report::main(&args),
            Self::History(args) => history::main(&args),
            Self::Diff(args) => diff::main(&args),
            Self::Top(args) => top::main(&args),
            Self::Profile(args) => profile::main(args),
            Self::Census(args) => census::main(&args),
            Self::Calibrate(args) => calibrate::main(&args),
            Self::Config(args) => config::main(&args),
            Self::Daemon(args) => daemon::main(&args),
            Self::Doctor(args) => doctor::main(&args),
            Self::Diagnose(args) => diagnose::main(&args),
            Self::Ctl(args) => ctl::main(&args),
            Self::Completions(args) => complete::main(&args),
            Self::Man(args) => man::main(&args, Cli::command()),
            Self::Window => window::main(),
            Self::SymbolHelper => symbolize::serve()
                .context("the symbol helper lost its drainprof")
                .map(|()| code::OK),
        }
    }
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

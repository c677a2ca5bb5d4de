//! From arguments to validated options; and the checks that come before anything is attached.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use drainprof_observe::{SideOptions, names::SymbolOptions, observation::Options};
use drainprof_probe::{
    bpf::{GrowthOffsets, Offsets, SessionConfig, Sizes},
    calibrate::{self, CalibrateOptions},
    kernel::{self, HostView, LiveHost, Tracefs},
    plan::Sites,
};
use drainprof_profile::{Level, Library};
use drainprof_report::{
    self as report,
    export::{self, Events, Format},
    series::MOST_POINTS,
};

use super::{
    args::{CacheArgs, LevelArg, ObserveArgs, SizeArgs},
    exit::{Failure, code},
    filter::ROWS,
    output::require_no_terminal,
};

/// Intervals are not shorter.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// For how long a command waits for the kernel to put a probe in place.
const PATIENCE: Duration = Duration::from_secs(10);

/// Says which capability is missing, before anything is tried.
pub(super) fn require_privileges() -> Result<()> {
    match kernel::missing_privileges(&LiveHost) {
        Some(missing) => Err(Failure::new(code::PRIVILEGE, missing).into()),
        None => Ok(()),
    }
}

/// Says that process ids mean something else here than to the kernel side, before any is examined.
pub(super) fn require_host_pids() -> Result<()> {
    let failed = kernel::run(&LiveHost)
        .into_iter()
        .find(|check| check.name == "pid_namespace" && check.status == kernel::Status::Fail);
    match failed {
        Some(check) => {
            let text = format!("{}: {}; {}", check.found, check.means, check.fix);
            Err(Failure::new(kernel::verdict(&[check]).exit_code(), text).into())
        }
        None => Ok(()),
    }
}

/// Where tracepoint fields stand, from tracefs, which is mounted if it is not.
pub(super) fn offsets(host: &dyn HostView) -> Result<Offsets> {
    let read = || -> Result<Offsets> {
        let tracefs = kernel::ensure_mounted(host)?;
        let newtask = tracefs.format(host, "task", "task_newtask")?;
        let exec = tracefs.format(host, "sched", "sched_process_exec")?;
        let offset = |format: &kernel::Format, field: &str| -> Result<u32> {
            let field = format.field(field).with_context(|| {
                format!("the tracepoint {} has no field {field} on this kernel", format.name)
            })?;
            Ok(field.offset)
        };
        Ok(Offsets {
            newtask_pid: offset(&newtask, "pid")?,
            newtask_flags: offset(&newtask, "clone_flags")?,
            exec_old_pid: offset(&exec, "old_pid")?,
        })
    };
    read().map_err(|error| Failure::new(code::UNSUPPORTED, format!("{error:#}")).into())
}

/// Where the fields of growth's tracepoints stand.
pub(super) fn growth_offsets(host: &dyn HostView) -> Result<GrowthOffsets> {
    let read = || -> Result<GrowthOffsets> {
        let tracefs = kernel::ensure_mounted(host)?;
        let offset = |category: &str, event: &str, field: &str| -> Result<u32> {
            let format = tracefs.format(host, category, event)?;
            let field = format.field(field).with_context(|| {
                format!("the tracepoint {event} has no field {field} on this kernel")
            })?;
            Ok(field.offset)
        };
        Ok(GrowthOffsets {
            mm_id: offset("kmem", "rss_stat", "mm_id")?,
            curr: offset("kmem", "rss_stat", "curr")?,
            member: offset("kmem", "rss_stat", "member")?,
            size: offset("kmem", "rss_stat", "size")?,
            // The same in all of them.
            syscall: offset("syscalls", "sys_enter_mmap", "__syscall_nr")?,
        })
    };
    read().map_err(|error| Failure::new(code::UNSUPPORTED, format!("{error:#}")).into())
}

/// The library, with the files that were named on the command line, and the names of the profiles asked
/// for; `own` directories take the place of the system's.
pub(super) fn library(asked: &[String], own: &[PathBuf]) -> Result<(Library, Vec<String>)> {
    let system = Library::SYSTEM_DIRECTORIES.map(PathBuf::from);
    let directories: &[PathBuf] = if own.is_empty() { &system } else { own };
    let files: Vec<PathBuf> =
        asked.iter().filter(|name| is_file(name)).map(PathBuf::from).collect();
    let library = Library::load(&files, directories)?;
    let names = asked
        .iter()
        .map(|asked| {
            if !is_file(asked) {
                return Ok(asked.clone());
            }
            // A file's profile is found again by where it came from.
            library
                .iter()
                .find(|profile| {
                    matches!(&profile.source, drainprof_profile::Source::File(path) if path == Path::new(asked))
                })
                .map(|profile| profile.name.clone())
                .with_context(|| format!("another file overrides the profile in {asked}"))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok((library, names))
}

/// A name has neither a directory nor an ending; whatever else is given is a file.
fn is_file(asked: &str) -> bool {
    asked.contains('/') || Path::new(asked).extension().is_some_and(|ending| ending == "toml")
}

/// Observes with these profiles, at this level; nothing else is asked for.
pub(super) fn plain(
    profiles: &[String],
    directories: &[PathBuf],
    level: Option<Level>,
    sites: Sites,
    cache: &CacheArgs,
) -> Result<Options> {
    let (library, profiles) = library(profiles, directories)?;
    require_host_pids()?;
    require_privileges()?;
    let host = LiveHost;
    Ok(Options {
        session: SessionConfig {
            sizes: sizes(&SizeArgs::default(), level, false, &host),
            events: false,
            sample: 1,
            offsets: offsets(&host)?,
            growth: None,
            growth_paths: false,
            calls: true,
            patience: PATIENCE,
        },
        library,
        side: SideOptions {
            profiles,
            level,
            follow: false,
            debug_dirs: Vec::new(),
            costs: calibrate::costs(&calibration(cache, false)),
            duty: None,
            sites,
            curve_points: MOST_POINTS,
        },
        symbols: None,
        interval: None,
        duration: None,
        budget: None,
        memory: false,
    })
}

/// What `attach` and `run` observe.
pub(super) fn observation(args: &ObserveArgs) -> Result<Options> {
    if args.duty.is_some() && args.follow_forks {
        return Err(usage(
            "--duty cannot follow forks: children born between two cycles would be missed",
        ));
    }
    if args.duty.is_some() && args.growth {
        return Err(usage("--duty cannot report growth: memory changes unseen between two cycles"));
    }
    let level = level(args);
    let plain = plain(&args.profile, &args.profile_dir, level, args.sites.into(), &args.cache)?;
    let host = LiveHost;
    Ok(Options {
        session: SessionConfig {
            sizes: Sizes {
                kernel_stacks: args.growth_kernel,
                ..sizes(&args.sizes, level, args.growth, &host)
            },
            events: args.events || records(args),
            sample: args.sample.unwrap_or(1),
            growth: args.growth.then(|| growth_offsets(&host)).transpose()?,
            growth_paths: !args.growth_sums,
            calls: !args.growth_alone,
            ..plain.session
        },
        library: if args.growth_alone { Library::default() } else { plain.library },
        side: SideOptions {
            follow: args.follow_forks,
            debug_dirs: args.debug_dir.clone(),
            duty: args.duty,
            ..plain.side
        },
        symbols: (!args.no_symbols).then(|| SymbolOptions {
            debug_dirs: args.debug_dir.clone(),
            ..SymbolOptions::default()
        }),
        // A line per process and second is no view of a machine.
        interval: (!args.system).then(|| args.interval.max(SHORTEST_INTERVAL)),
        duration: args.duration,
        budget: args.budget.0,
        memory: args.growth,
    })
}

/// The command line asks for something that cannot be.
pub(super) fn usage(text: impl Into<String>) -> anyhow::Error {
    Failure::new(code::USAGE, text).into()
}

/// How the costs of probes are come by.
pub(super) fn calibration(args: &CacheArgs, fresh: bool) -> CalibrateOptions {
    let root = nix::unistd::geteuid().is_root();
    let directory = || {
        calibrate::cache_directory(args.cache_dir.as_deref(), root, |name| std::env::var_os(name))
    };
    CalibrateOptions { cache: if args.no_cache { None } else { directory() }, fresh }
}

/// What the maps may be for the memory that there is.
pub(super) fn sizes_for(host: &dyn HostView) -> Sizes {
    let available = host
        .read(Path::new("/proc/meminfo"))
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        })
        .map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    let room = kernel::memory_limit(host).map_or(available, |limit| limit.room().min(available));
    Sizes::for_memory(room, kernel::cpus_online(host).unwrap_or(1))
}

fn sizes(args: &SizeArgs, level: Option<Level>, growth: bool, host: &dyn HostView) -> Sizes {
    let defaults = sizes_for(host);
    Sizes {
        granules: args.max_granules.unwrap_or(defaults.granules),
        objects: args.max_objects.unwrap_or(defaults.objects),
        instances: args.max_instances.unwrap_or(defaults.instances),
        threads: args.max_threads.unwrap_or(defaults.threads),
        places: args.max_places.unwrap_or(defaults.places),
        probes: args.max_probes.unwrap_or(defaults.probes),
        targets: defaults.targets,
        call_paths: match level {
            Some(Level::Stacks) => args.max_call_paths.unwrap_or(Sizes::CALL_PATHS),
            Some(Level::Close | Level::Boundary | Level::Objects) | None if growth => {
                args.max_call_paths.unwrap_or(Sizes::CALL_PATHS)
            }
            Some(Level::Close | Level::Boundary | Level::Objects) | None => 0,
        },
        growth,
        kernel_stacks: false,
        ring_bytes: args.ring_bytes.unwrap_or(defaults.ring_bytes),
    }
}

/// The format asked for.
pub(super) fn format(args: &ObserveArgs) -> Result<&'static Format> {
    let format = export::format(&args.format)
        .ok_or_else(|| usage(format!("no format is called {}", args.format)))?;
    if args.events && format.events == Events::No {
        return Err(usage(format!(
            "--events needs a format with records for them (ndjson, firefox), not {}",
            format.name
        )));
    }
    if args.growth_sums && (format.paths || level(args) == Some(Level::Stacks)) {
        return Err(usage(
            "--no-stacks leaves no call paths for --level stacks, folded or flamegraph: leave it out",
        ));
    }
    if args.census && args.system {
        return Err(usage("--census reads the heaps of single processes: name them with -p"));
    }
    if args.weight.is_of_growth() && !args.growth {
        return Err(usage("this --weight is of growth: add --growth, or use `drainprof growth`"));
    }
    if format.paths
        && !args.weight.is_of_growth()
        && !matches!(args.level, None | Some(LevelArg::Stacks))
    {
        return Err(usage(format!("{} shows call paths, which need --level stacks", format.name)));
    }
    if args.filter.by_growth() && (!args.growth || args.duty.is_some()) {
        return Err(usage(
            "--grown-between is of growth, all of the time: take --growth, or `drainprof growth`",
        ));
    }
    if args.filter.by_time() {
        args.filter.check(args.sample.is_some_and(|one_in| one_in > 1), args.duty.is_some())?;
        if args.growth_alone || !matches!(args.level, None | Some(LevelArg::Stacks)) {
            return Err(usage(
                "filters by time choose among call stacks that allocate: take --level stacks, or growth --view allocations",
            ));
        }
    }
    require_no_terminal(format, args.output.as_deref())?;
    if args.events && args.filter.no_paths() {
        return Err(usage(
            "--no-paths takes names and ids out of reports, and events are made of them: leave out --events",
        ));
    }
    Ok(format)
}

/// Whether the format is made of events, and they may be shown.
fn records(args: &ObserveArgs) -> bool {
    let format = export::format(&args.format);
    let records = format.is_some_and(|format| format.events == Events::Always);
    records && !args.filter.no_paths() && !args.growth_alone
}

/// The level asked for; a format that shows call paths asks for them.
fn level(args: &ObserveArgs) -> Option<Level> {
    let paths = export::format(&args.format).is_some_and(|format| format.paths)
        && !args.weight.is_of_growth();
    let paths = paths || args.filter.by_time();
    args.level.map(Into::into).or(paths.then_some(Level::Stacks))
}

/// How many granules and call paths are listed. A picture has room for more than a page.
pub(super) fn top(args: &ObserveArgs) -> usize {
    let paths = export::format(&args.format).is_some_and(|format| format.paths);
    args.filter.rows(if paths || args.system { 1_000 } else { ROWS })
}

/// How the report is to be built.
pub(super) fn report(args: &ObserveArgs) -> report::Options {
    report::Options {
        kernel: kernel_release(),
        system: args.system,
        top: top(args),
        min_age: args.filter.min_age(),
        min_bytes: args.filter.min_size(),
        ..report::Options::default()
    }
}

/// The release of the running kernel; empty where it cannot be reported.
pub(super) fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Whether tracefs is there; for `doctor`.
pub(super) fn tracefs_is_mounted(host: &dyn HostView) -> bool {
    Tracefs::find(host).is_ok()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parsed(more: &[&str]) -> ObserveArgs {
        let words = ["drainprof", "attach", "-p", "1", "-O", "out"].iter().chain(more);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Attach(attach) => attach.observe,
            _ => unreachable!(),
        }
    }

    /// A format that shows call paths asks for them, and refuses a level that has none.
    #[test]
    fn formats_of_paths_need_stacks() {
        for name in ["folded", "flamegraph", "pprof"] {
            let args = parsed(&["-o", name]);
            assert_eq!(format(&args).unwrap().name, name);
            assert_eq!((level(&args), top(&args)), (Some(Level::Stacks), 1_000));
            assert!(format(&parsed(&["-o", name, "--level", "stacks"])).is_ok());
            let error = format(&parsed(&["-o", name, "--level", "objects"])).unwrap_err();
            assert!(error.to_string().contains("--level stacks"), "{error}");
            assert_eq!(top(&parsed(&["-o", name, "--top", "20"])), 20);
        }
        let args = parsed(&["-o", "json"]);
        assert_eq!((level(&args), top(&args)), (None, 20));
        assert!(format(&parsed(&["-o", "json", "--level", "objects"])).is_ok());
    }

    /// Filters by time ask for call stacks; what could not be answered is refused before anything is attached.
    #[test]
    fn filters_by_time() {
        let args = parsed(&["--allocated-between", "1s,2m", "--until-end"]);
        assert!(format(&args).is_ok());
        assert_eq!(level(&args), Some(Level::Stacks));
        for (refused, why) in [
            (&["--alive-at", "3s", "--level", "objects"][..], "--level stacks"),
            (&["--freed-between", "1,2", "--sample", "1/16"], "--freed-between"),
            (&["--alive-at", "3s", "--duty", "1s/10s"], "--duty"),
            (&["--alive-at", "3s", "--alive-at-most", "1s"], "--until-end"),
            (&["--grown-between", "1s,2s"], "--growth"),
        ] {
            let error = format(&parsed(refused)).unwrap_err().to_string();
            assert!(error.contains(why), "{refused:?}: {error}");
        }
        assert!(format(&parsed(&["--grown-between", "1s,2s", "--growth"])).is_ok());
        for range in ["1s", "2s,1s", "1s,1s", "a,b", "1,2,3"] {
            let words = ["drainprof", "attach", "-p", "1", "--freed-between", range];
            assert!(Cli::try_parse_from(words).is_err(), "{range}");
        }
    }
}

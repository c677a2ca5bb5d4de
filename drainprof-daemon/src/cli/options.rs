//! What the host gives to a goal, and the checks that come before anything is attached.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use drainprof_observe::{
    engine::Options,
    goal::{Goal, Host, Probing},
};
use drainprof_probe::{
    bpf::{GrowthOffsets, Offsets, Sizes},
    calibrate::{self, CalibrateOptions},
    kernel::{self, HostView, LiveHost, Tracefs},
};
use drainprof_profile::Library;

use super::{
    args::{CacheArgs, SizeArgs},
    exit::{Failure, code},
};

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

/// How a goal is observed on this host.
pub(super) fn resolve(goal: &Goal, sizes: Sizes, cache: &CacheArgs) -> Result<Options> {
    let (library, profiles) = match &goal.probing {
        Some(Probing { profiles, profile_dirs, .. }) => library(profiles, profile_dirs)?,
        None => (Library::default(), Vec::new()),
    };
    let host = host(goal.growth().is_some(), sizes, cache)?;
    Ok(goal.on(host, library, profiles))
}

/// What this host gives to goals, of which some are of growth or none.
pub(super) fn host(growth: bool, sizes: Sizes, cache: &CacheArgs) -> Result<Host> {
    require_host_pids()?;
    require_privileges()?;
    let live = LiveHost;
    Ok(Host {
        offsets: offsets(&live)?,
        growth_offsets: growth.then(|| growth_offsets(&live)).transpose()?,
        sizes,
        costs: calibrate::costs(&calibration(cache, false)),
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

/// The sizes that are asked for; where none is, those that there is memory for.
pub(super) fn sizes(args: &SizeArgs) -> Sizes {
    let room = sizes_for(&LiveHost);
    Sizes {
        granules: args.max_granules.unwrap_or(room.granules),
        objects: args.max_objects.unwrap_or(room.objects),
        instances: args.max_instances.unwrap_or(room.instances),
        threads: args.max_threads.unwrap_or(room.threads),
        places: args.max_places.unwrap_or(room.places),
        probes: args.max_probes.unwrap_or(room.probes),
        call_paths: args.max_call_paths.unwrap_or(Sizes::CALL_PATHS),
        ring_bytes: args.ring_bytes.unwrap_or(room.ring_bytes),
        ..room
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

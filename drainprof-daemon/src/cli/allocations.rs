//! `drainprof growth --view allocations`: which malloc of the processes is observed, and how.
//!
//! It is `attach` with the census of their malloc, at level `stacks`, of a sample of its pages. What it can refuse is
//! refused here, before the kernel side is loaded.

use anyhow::Result;
use drainprof_observe::{allocations::Allocations, goal::Probing};
use drainprof_process::{ElfCache, Image, ImageOptions, printable};
use drainprof_profile::{Level, Library};

use super::{
    attach::AttachArgs,
    exit::{Failure, code},
    options::{self, usage},
    values::LevelArg,
};

/// What is probed for the view. A profile that was named stays, if it is a census.
///
/// # Errors
/// If a process maps no malloc that is known, if two have different ones, and if something else was asked for that the
/// view cannot have.
pub(super) fn probing(args: &AttachArgs) -> Result<Probing> {
    let observe = &args.observe;
    if observe.duty.is_some() {
        return Err(usage(
            "--view allocations has to see every call: leave out --duty, and take a larger --sample if it costs too much",
        ));
    }
    if observe.level.is_some_and(|level| level != LevelArg::Stacks) {
        return Err(usage("--view allocations is of call paths: leave out --level"));
    }
    options::require_host_pids()?;
    let (library, named) = options::library(&observe.profile, &observe.profile_dir)?;
    let one_in = observe.sample.unwrap_or(Allocations::ONE_IN);
    if let Some(name) = not_a_census(&library, &named) {
        return Err(usage(format!(
            "profile {name} is no census: --view allocations needs one whose granules nobody opens (implicit = true)"
        )));
    }
    let profiles = if named.is_empty() {
        vec![malloc_of(&library, args, one_in)?.profile]
    } else {
        observe.profile.clone()
    };
    let profile_dirs = observe.profile_dir.clone();
    Ok(Probing { profiles, profile_dirs, level: Some(Level::Stacks), sample: one_in })
}

/// The first of these profiles that is known and no census. What is unknown is reported where it is looked up.
fn not_a_census<'a>(library: &Library, named: &'a [String]) -> Option<&'a String> {
    named.iter().find(|name| library.get(name).is_some_and(|profile| !profile.implicit))
}

/// The malloc that all of the processes map.
fn malloc_of(library: &Library, args: &AttachArgs, one_in: u32) -> Result<Allocations> {
    let options = ImageOptions { debug_dirs: args.observe.debug_dir.clone() };
    let mut cache = ElfCache::new();
    let mut first: Option<(u32, Allocations)> = None;
    for process in args.selection.open()? {
        let pid = process.pid;
        let image = Image::load(&process, &options, &mut cache)?;
        let found = Allocations::of(library, &image, one_in).map_err(|error| {
            let name = printable(&process.comm);
            Failure::new(code::NO_TARGET, format!("process {pid} ({name}): {error}"))
        })?;
        match &first {
            None => first = Some((pid, found)),
            Some(of) => same(of, &(pid, found))?,
        }
    }
    first.map(|(_, malloc)| malloc).ok_or_else(|| usage("name a process: -p PID"))
}

/// One session observes one malloc: two profiles would be laid into the same picture.
fn same((pid, malloc): &(u32, Allocations), (other, its): &(u32, Allocations)) -> Result<()> {
    if malloc == its {
        return Ok(());
    }
    Err(usage(format!(
        "process {pid} is served by {}, process {other} by {}: --view allocations shows one malloc; run it once for each",
        malloc.profile, its.profile
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::command::{Cli, Command};

    fn parsed(more: &[&str]) -> AttachArgs {
        let words = ["drainprof", "attach", "-p", "1"].iter().chain(more);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Attach(args) => args,
            _ => unreachable!(),
        }
    }

    fn refused(more: &[&str]) -> String {
        probing(&parsed(more)).unwrap_err().to_string()
    }

    /// What the view cannot have is refused with what to do instead, before any process is examined.
    #[test]
    fn cannot_have() {
        assert!(refused(&["--duty", "1s/10s"]).contains("leave out --duty"));
        assert!(refused(&["--level", "objects"]).contains("leave out --level"));
        assert!(refused(&["--profile", "apr"]).contains("profile apr is no census"));
    }

    /// A census that was named is taken, with the view's level; a sample that was asked for stays.
    #[test]
    fn named() {
        for (more, sample) in [(&[][..], 16), (&["--sample", "1"], 1), (&["--sample", "1/64"], 64)]
        {
            let args = parsed(&[&["--profile", "malloc-jemalloc"], more].concat());
            let probing = probing(&args).unwrap();
            assert_eq!(probing.profiles, ["malloc-jemalloc"]);
            assert_eq!((probing.level, probing.sample), (Some(Level::Stacks), sample));
        }
    }

    /// Processes with two mallocs are not laid into one picture.
    #[test]
    fn one_malloc() {
        let of = |pid, name: &str| (pid, Allocations { profile: name.to_owned(), one_in: 16 });
        assert!(same(&of(1, "malloc-glibc"), &of(2, "malloc-glibc")).is_ok());
        let error =
            same(&of(1, "malloc-glibc"), &of(2, "malloc-jemalloc")).unwrap_err().to_string();
        assert!(error.contains("process 1") && error.contains("2 by malloc-jemalloc"), "{error}");
    }
}

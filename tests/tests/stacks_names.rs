//! Names of call paths where the program has none of its own: debug files elsewhere, or nowhere.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    elf,
    environment::{self, has_programs, requires_root},
    paths::Sites,
    target::Target,
    tracer::{Traced, Tracer, trace, trace_from_start},
};
use serde_json::Value;
use tempfile::TempDir;

const STACKS: [&str; 4] = ["--level", "stacks", "--top", "2000"];
const ROUNDS: [&str; 1] = ["rounds=60"];

fn sites(traced: &Traced) -> Result<&Vec<Value>> {
    let sites = &traced.outcome.report()["targets"][0]["allocators"][0]["sites"];
    sites.as_array().context("a list of sites")
}

/// Stripped, with the debug file beside the program, found by its debug link.
#[test]
fn debug_link() -> Result<()> {
    if requires_root() {
        Sites::default().check(&trace("paths_split", &ROUNDS, "paths", &STACKS)?);
    }
    Ok(())
}

/// The files of the paths are told with their build ids, and no others.
#[test]
fn build_ids() -> Result<()> {
    if requires_root() {
        let path = environment::target("paths_split")?;
        let traced = trace("paths_split", &ROUNDS, "paths", &STACKS)?;
        let modules = &traced.outcome.report()["targets"][0]["modules"];
        let modules = modules.as_array().context("a list of modules")?;
        let program = modules.iter().find(|module| module["name"] == "paths_split");
        let program = program.with_context(|| format!("no program in {modules:?}"))?;
        assert_eq!(program["build_id"], elf::build_id(&path)?);
        assert_eq!(program["path"], path.to_str().context("a plain path")?);
        let frames = sites(&traced)?.iter().filter_map(|site| site["frames"].as_array()).flatten();
        let used: BTreeSet<_> = frames.filter_map(|frame| frame["module"].as_str()).collect();
        let told: BTreeSet<_> =
            modules.iter().filter_map(|module| module["name"].as_str()).collect();
        assert_eq!(used, told);
    }
    Ok(())
}

/// A directory of debug files by build id, with the one of `name`.
fn debug_files(name: &str) -> Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let id = elf::build_id(&environment::target(name)?)?;
    let beside = directory.path().join(".build-id").join(&id[..2]);
    fs::create_dir_all(&beside)?;
    let debug = environment::targets().join(format!("{name}_split.debug"));
    fs::copy(debug, beside.join(format!("{}.debug", &id[2..])))?;
    Ok(directory)
}

/// Stripped, with the debug file under `--debug-dir`, found by its build id.
#[test]
fn debug_directory() -> Result<()> {
    if requires_root() {
        let directory = debug_files("paths")?;
        let path = directory.path().to_str().context("a plain path")?;
        let more = [&STACKS[..], &["--debug-dir", path]].concat();
        Sites::default().check(&trace("paths_stripped", &ROUNDS, "paths", &more)?);
        Sites::default().check(&trace_from_start("paths_stripped", &ROUNDS, "paths", &more)?);
    }
    Ok(())
}

/// Programs whose unwind tables are for debuggers alone: in the program, in the file of its debug link, and under
/// `--debug-dir`. Without them, paths end in the program, which is told.
#[test]
fn unwind_tables_for_debuggers() -> Result<()> {
    if requires_root() {
        let directory = debug_files("paths_bare")?;
        let path = directory.path().to_str().context("a plain path")?;
        let more = [&STACKS[..], &["--debug-dir", path]].concat();
        Sites::default().check(&trace("paths_bare", &ROUNDS, "paths", &STACKS)?);
        Sites::default().check(&trace("paths_bare_split", &ROUNDS, "paths", &STACKS)?);
        Sites::default().check(&trace("paths_bare_stripped", &ROUNDS, "paths", &more)?);
        let without = trace("paths_bare_stripped", &ROUNDS, "paths", &STACKS)?;
        let ends: Vec<_> = sites(&without)?.iter().map(|site| &site["path_end"]).collect();
        ensure!(ends.iter().any(|end| **end == "no_unwind_info"), "{ends:?}");
    }
    Ok(())
}

/// Where a frame lies: the file, without what its variant is called, and the offset.
fn places(site: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let frames = site["frames"].as_array().map_or(&[][..], Vec::as_slice);
    let place = |frame: &Value| {
        let module = text(&frame["module"]);
        (module.trim_end_matches("_stripped").to_owned(), text(&frame["module_offset"]))
    };
    frames.iter().map(place).collect()
}

/// Without a debug file: the same paths at the same offsets as in the whole program, with the same counts; what the
/// program exports has a name, and what it does not export has none, not a neighbour's.
#[test]
fn stripped() -> Result<()> {
    if requires_root() {
        let whole = trace("paths", &ROUNDS, "paths", &STACKS)?;
        let bare = trace("paths_stripped", &ROUNDS, "paths", &STACKS)?;
        bare.exact();
        Sites::default().check(&whole);
        let whole = sites(&whole)?;
        ensure!(whole.len() == sites(&bare)?.len(), "as many sites");
        let (mut exported, mut hidden) = (0, 0);
        for site in sites(&bare)? {
            let twin = whole.iter().find(|twin| places(twin) == places(site));
            let twin =
                twin.with_context(|| format!("no such path in the whole program: {site:#}"))?;
            for key in ["allocated", "objects", "objects_live", "granules_pinned", "path_end"] {
                assert_eq!(site[key], twin[key], "{key} of {site:#}");
            }
            let frames = |site: &Value| site["frames"].as_array().cloned().unwrap_or_default();
            for (frame, named) in frames(site).iter().zip(frames(twin)) {
                if frame["module"] != "paths_stripped" {
                    continue;
                }
                assert_eq!((&frame["file"], &frame["line"]), (&Value::Null, &Value::Null));
                let function = frame["function"].as_str();
                match named["function"].as_str() {
                    // `-rdynamic` exports what is not static.
                    Some(name @ ("main" | "path_b" | "path_wrap" | "path_create" | "_start")) => {
                        assert_eq!(function, Some(name), "{frame:#}");
                        exported += 1;
                    }
                    name => {
                        assert_eq!(function, None, "{name:?}: {frame:#}");
                        hidden += 1;
                    }
                }
            }
        }
        ensure!(exported > 30 && hidden > 30, "{exported} exported, {hidden} hidden");
    }
    Ok(())
}

/// With `--no-symbols` there are addresses alone, and the same sites.
#[test]
fn not_wanted() -> Result<()> {
    if requires_root() {
        let more = [&STACKS[..], &["--no-symbols"]].concat();
        let traced = trace("paths", &ROUNDS, "paths", &more)?;
        traced.exact();
        let expected = traced.truths[0]["paths"].as_array().map_or(0, Vec::len);
        assert_eq!(sites(&traced)?.len(), expected);
        for frame in sites(&traced)?.iter().filter_map(|site| site["frames"].as_array()).flatten() {
            assert!(frame["address"].is_string(), "{frame:#}");
            assert_eq!((&frame["function"], &frame["module"]), (&Value::Null, &Value::Null));
        }
    }
    Ok(())
}

/// Two programs of the same file at once: each has its own sites, and both their names.
#[test]
fn two_at_once() -> Result<()> {
    if requires_root() {
        let path = environment::target("paths")?;
        ensure!(Path::new(&path).is_file());
        let mut first = Target::start("paths", &["rounds=40"])?;
        let mut second = Target::start("paths", &["rounds=70"])?;
        let pids = [first.pid(), second.pid()];
        let tracer = Tracer::attach(&pids, "paths", &STACKS)?;
        first.go()?;
        second.go()?;
        let mut truths = first.finish()?.truths;
        truths.extend(second.finish()?.truths);
        Sites::default().check(&Traced { truths, outcome: tracer.finish()? });
    }
    Ok(())
}

/// In a root of its own (as in a container) the program and its debug file are those of that root, also when the process
/// is gone.
#[test]
fn own_root() -> Result<()> {
    if requires_root() && has_programs(&["chroot"]) {
        let root = tempfile::tempdir()?;
        fs::copy(environment::target("paths_static_stripped")?, root.path().join("svc"))?;
        let debug = root.path().join("usr/lib/debug");
        fs::create_dir_all(debug.parent().context("it has one")?)?;
        fs::rename(debug_files("paths_static")?.keep(), &debug)?;
        let mut command = Command::new("chroot");
        command.arg(root.path()).args(["/svc", ROUNDS[0]]);
        Sites::default().check(&traced("paths in a root of its own", command, &STACKS)?);
    }
    Ok(())
}

/// In a mount namespace of its own, whose files are gone with it, before the report asks for names.
#[test]
fn own_mounts() -> Result<()> {
    if requires_root() && has_programs(&["unshare", "mount"]) {
        let place = tempfile::tempdir()?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-e", "-c"]);
        command.arg(
            "mount -t tmpfs none \"$0\"; cp \"$1\" \"$0/svc\"; exec \"$0/svc\" rounds=60 stops=1",
        );
        command.arg(place.path()).arg(environment::target("paths")?);
        let mut target = Target::start_command("paths in mounts of its own", command)?;
        ensure!(!place.path().join("svc").exists(), "it must be in the other namespace alone");
        let more = [&STACKS[..], &["-i", "1000s"]].concat();
        let mut tracer = Tracer::attach(&[target.pid()], "paths", &more)?;
        target.go()?;
        target.reaches("done")?;
        // Its paths were found once their files are held; the program is before the C library, which no probe is in.
        tracer.holds(&mapped(target.pid(), "/libc")?)?;
        target.go()?;
        target.reaches("unloaded")?;
        target.go()?;
        let truths = target.finish()?.truths;
        Sites::default().check(&Traced { truths, outcome: tracer.finish()? });
    }
    Ok(())
}

/// The file that a process has mapped whose path contains `part`.
fn mapped(pid: u32, part: &str) -> Result<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    Ok(paths.find(|path| path.contains(part)).context("it is mapped")?.into())
}

/// A target that any command becomes, attached to.
fn traced(name: &str, command: Command, more: &[&str]) -> Result<Traced> {
    let mut target = Target::start_command(name, command)?;
    let tracer = Tracer::attach(&[target.pid()], "paths", more)?;
    target.go()?;
    let truths = target.finish()?.truths;
    Ok(Traced { truths, outcome: tracer.finish()? })
}

/// Code that a process makes while it runs is named by its perf map, though both are gone before anybody asks.
#[test]
#[cfg(target_arch = "x86_64")]
fn generated_code() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("paths", &["jit=1", "stops=1", "rounds=60"])?;
        let more = [&STACKS[..], &["-i", "1000s"]].concat();
        let mut tracer = Tracer::attach(&[target.pid()], "paths", &more)?;
        target.go()?;
        target.reaches("done")?;
        tracer.holds(Path::new(&format!("/tmp/perf-{}.map", target.pid())))?;
        target.go()?;
        target.reaches("unloaded")?;
        target.go()?;
        let truths = target.finish()?.truths;
        Sites::default().check(&Traced { truths, outcome: tracer.finish()? });
    }
    Ok(())
}

/// A path through the vDSO is complete, and tells where in it.
#[test]
#[cfg(target_arch = "x86_64")]
fn vdso() -> Result<()> {
    if requires_root() {
        let traced = trace("paths", &["vdso=1", "rounds=20"], "paths", &STACKS)?;
        Sites::default().check(&traced);
        let frames = sites(&traced)?.iter().filter_map(|site| site["frames"].as_array()).flatten();
        let inside: Vec<_> = frames.filter(|frame| frame["module"] == "[vdso]").collect();
        ensure!(!inside.is_empty(), "no frame in the vDSO");
        let named = |frame: &&&Value| {
            frame["function"].as_str().is_some_and(|name| name.contains("clock_gettime"))
        };
        ensure!(inside.iter().any(|frame| named(&frame)), "{inside:#?}");
        ensure!(inside.iter().all(|frame| frame["module_offset"].is_string()), "{inside:#?}");
    }
    Ok(())
}

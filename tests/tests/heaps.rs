//! glibc's heaps of threads, in the C library that runs here: by the names in its debug file (package `libc6-dbg`), and
//! without it.
//!
//! The target finds out by itself when a heap begins and when it is over (`targets/heaps.c`).

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::{Count, Expect},
    elf,
    environment::{self, requires_root},
    target::Target,
    tracer::{self, Traced, Tracer, trace, trace_from_start},
};
use serde_json::Value;
use tempfile::TempDir;

const PROFILE: &str = "glibc-heap";
const OBJECTS: [&str; 2] = ["--level", "objects"];

fn heaps(traced: &Traced) -> [&Value; 3] {
    let granules = &traced.outcome.report()["targets"][0]["allocators"][0]["granules"];
    ["opened", "closed", "open_now"].map(|key| &granules[key])
}

/// Which probe stands for the others of the group `opened` in a process.
fn used(target: &Target) -> Result<String> {
    let pid = target.pid().to_string();
    let args = ["attach", "-p", &pid, "--profile", PROFILE, "--dry-run", "-o", "json"];
    let shown = tracer::run_to_end(&args)?.stdout.join("\n");
    let plan: Value = serde_json::from_str(&shown).with_context(|| shown.clone())?;
    let groups = plan.pointer("/processes/0/plans/0/groups").and_then(Value::as_array);
    let groups = groups.context("a list of groups")?;
    let opened = groups.iter().find(|group| group["group"] == "opened").context("a group")?;
    let members = opened["members"].as_array().context("members")?;
    let used = members.iter().find(|member| member["used"] == true).context("one is used")?;
    Ok(used["at"].as_str().context("a place")?.to_owned())
}

/// A directory with the C library of this machine under another build id, of which nobody has a debug file.
fn nameless_library() -> Result<TempDir> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let own = paths.find(|path| path.ends_with("/libc.so.6")).context("the C library is mapped")?;
    let id = elf::build_id(&PathBuf::from(own))?;
    let digits = (0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16));
    let id = digits.collect::<Result<Vec<_>, _>>()?;
    let mut bytes = fs::read(own)?;
    let at = bytes.windows(id.len()).position(|window| window == id).context("the note")?;
    bytes[at] ^= 0xff;
    let directory = TempDir::new()?;
    fs::write(directory.path().join("libc.so.6"), bytes)?;
    Ok(directory)
}

/// Three threads, two rounds of 1,600 times 100 kB. Freed to the last object, each thread gives back three of four
/// heaps. With one object of 24 bytes kept, none: not even those that are empty, since a newer one is in use.
#[test]
fn one_small_object_holds_the_heaps() -> Result<()> {
    if requires_root() {
        for (pin, expected) in [("pin=0", [12, 9, 3]), ("pin=1", [9, 0, 9])] {
            let traced = trace("heaps", &[pin], PROFILE, &OBJECTS)?;
            traced.exact();
            assert_eq!(heaps(&traced), expected.map(Value::from).each_ref(), "{pin}");
            trace_from_start("heaps", &[pin], PROFILE, &OBJECTS)?.exact();
        }
    }
    Ok(())
}

/// The same C library without a debug file: heaps are told by the shape of what is mapped and unmapped, and the counts
/// are the same. What the threads' caches hold at their ends (the rest of a full heap) cannot be told from a free.
#[test]
fn without_names() -> Result<()> {
    if requires_root() {
        let library = nameless_library()?;
        for pin in ["pin=0", "pin=1"] {
            let mut command = Command::new(environment::target("heaps")?);
            command.arg(pin).env("LD_LIBRARY_PATH", library.path());
            let mut target = Target::start_command("heaps", command)?;
            assert_eq!(used(&target)?, "mmap");
            let tracer = Tracer::attach(&[target.pid()], PROFILE, &OBJECTS)?;
            target.go()?;
            let truths = target.finish()?.truths;
            let both = Traced { truths, outcome: tracer.finish()? };
            Expect::default().loss("unmatched_frees", Count::Exactly(6)).check(&both);
        }
    }
    Ok(())
}

/// With the debug file, the function that makes heaps is probed, and nothing else for it.
#[test]
fn by_name() -> Result<()> {
    if requires_root() {
        let target = Target::start("heaps", &[])?;
        let used = used(&target)?;
        ensure!(used == "alloc_new_heap", "{used} is used: is the package libc6-dbg installed?");
        target.kill()?;
    }
    Ok(())
}

/// Every way in which an object can come, change and go counts once, also out of a heap into a mapping of its own;
/// what is done in the main arena does not count at all.
#[test]
fn every_kind_of_object() -> Result<()> {
    if requires_root() {
        trace("heaps", &["mode=kinds"], PROFILE, &OBJECTS)?.exact();
        trace_from_start("heaps", &["mode=kinds", "threads=5"], PROFILE, &OBJECTS)?.exact();
    }
    Ok(())
}

/// At level `stacks` the path that holds the heaps is the one that allocated what was kept.
#[test]
fn who_holds() -> Result<()> {
    if requires_root() {
        let traced = trace("heaps", &["pin=1"], PROFILE, &["--level", "stacks"])?;
        traced.exact();
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        let sites = allocator["sites"].as_array().context("a list of sites")?;
        let holders: Vec<_> = sites.iter().filter(|site| site["live"] != 0).collect();
        ensure!(holders.len() == 1 && holders[0] == &sites[0], "{sites:#?}");
        assert_eq!((&sites[0]["live"], &sites[0]["live_bytes"]), (&3.into(), &72.into()));
        let functions: Vec<_> = (0..3).map(|at| &sites[0]["frames"][at]["function"]).collect();
        assert_eq!(functions, ["keep_one", "worker", "start_thread"]);
        let census = &allocator["census"];
        let counts = (&census["granules_open"], &census["drainable_now"]);
        assert_eq!(counts, (&9.into(), &6.into()), "three hold an object: {census}");
    }
    Ok(())
}

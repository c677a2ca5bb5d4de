//! Level `stacks`: every object at its call path, by function and line, of programs without frame pointers.
//!
//! The targets know their paths (`targets/paths.h`); paths, counts and sums are compared to the last event.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::Count,
    environment::{self, requires_root},
    paths::{Sites, steps},
    target::Target,
    tracer::{Traced, Tracer, trace, trace_from_start},
};
use serde_json::Value;

/// Every site is listed.
const STACKS: [&str; 4] = ["--level", "stacks", "--top", "2000"];

fn attached(name: &str, args: &[&str], profile: &str) -> Result<Traced> {
    trace(name, args, profile, &STACKS)
}

fn from_start(name: &str, args: &[&str], profile: &str) -> Result<Traced> {
    trace_from_start(name, args, profile, &STACKS)
}

fn sites(traced: &Traced) -> &[Value] {
    let sites = &traced.outcome.report()["targets"][0]["allocators"][0]["sites"];
    sites.as_array().map_or(&[], Vec::as_slice)
}

/// From the first instruction on: sixteen kinds of paths, each pin at its own, judged at the allocs' returns.
#[test]
fn from_the_start() -> Result<()> {
    if requires_root() {
        Sites::default().check(&from_start("paths", &["rounds=200"], "paths")?);
    }
    Ok(())
}

/// The same where allocs are probed at their entry.
#[test]
fn from_the_start_at_entry() -> Result<()> {
    if requires_root() {
        Sites::default().check(&from_start("paths", &["rounds=200"], "paths_entry")?);
    }
    Ok(())
}

/// Attached in mid-run: the frames of the callers are older than the probes, and all of its code has run.
#[test]
fn in_mid_run() -> Result<()> {
    if requires_root() {
        for profile in ["paths", "paths_entry"] {
            Sites::default().check(&attached("paths", &["warm=30", "rounds=200"], profile)?);
        }
    }
    Ok(())
}

/// A program that allocates on each path once or twice, and ends: the first allocations of all paths are at theirs.
#[test]
fn the_first_allocations() -> Result<()> {
    if requires_root() {
        for profile in ["paths", "paths_entry"] {
            Sites::default().check(&from_start("paths", &["rounds=1"], profile)?);
            Sites::default().check(&attached("paths", &["rounds=1"], profile)?);
        }
    }
    Ok(())
}

/// Programs at fixed addresses, and static ones, whose paths lead through their own copy of the C library.
#[test]
fn fixed_and_static() -> Result<()> {
    if requires_root() {
        Sites::default().check(&attached("paths_fixed", &[], "paths")?);
        Sites::default().check(&attached("paths_static", &[], "paths")?);
    }
    Ok(())
}

/// The place of opening tells apart what a path allocates in granules of other kinds; the thread has its name.
#[test]
fn places_and_threads() -> Result<()> {
    if requires_root() {
        let traced = attached("paths", &["rounds=20"], "paths")?;
        let find = |function: &str| {
            let mut all = sites(&traced).iter();
            all.find(|site| steps(site).iter().any(|step| step.function == function))
                .with_context(|| format!("no site leads through {function}"))
        };
        let opened = |site: &Value| site["opened_at"]["function"].clone();
        assert_eq!(opened(find("path_create")?), "create");
        assert_eq!(opened(find("path_busy")?), "main");
        assert_eq!(find("worker")?["threads"], serde_json::json!(["paths-worker"]));
        assert_eq!(find("path_busy")?["threads"], serde_json::json!(["paths"]));
        for site in sites(&traced) {
            let seconds = |key: &str| site[key].as_f64().unwrap_or(-1.0);
            let window = traced.outcome.report()["window"]["seconds"].as_f64().unwrap_or(0.0);
            let (first, last) = (seconds("first_seen_seconds"), seconds("last_seen_seconds"));
            assert!(0.0 <= first && first <= last && last <= window + 0.1, "{site:#}");
        }
    }
    Ok(())
}

/// A recursion deeper than is followed: its innermost frames are told, and that it is cut.
#[test]
fn too_deep() -> Result<()> {
    if requires_root() {
        let traced = attached("paths", &["deep=200", "rounds=50"], "paths")?;
        let expected = Sites::default().expect(|rest| rest.loss("path_cut", Count::Exactly(50)));
        expected.check(&traced);
        let deep = sites(&traced).iter().find(|site| site["path_end"] == "too_deep");
        let frames = deep.context("one is cut")?["frames"].as_array().map_or(0, Vec::len);
        assert_eq!(frames, drainprof_common::unwind::MAX_PATH);
    }
    Ok(())
}

/// A signal handler with a stack of its own, and frames that are larger than what is copied at once: they are known after
/// a few allocations, and nothing is told of a path that is not so.
#[test]
fn stacks_that_are_learnt_in_parts() -> Result<()> {
    if requires_root() {
        for option in ["alt=1", "large=1"] {
            let traced = attached("paths", &[option, "rounds=300"], "paths")?;
            let expected =
                Sites::default().late(64).expect(|rest| rest.loss("path_cut", Count::Any));
            expected.check(&traced);
        }
    }
    Ok(())
}

/// C++: in a try, in a handler, in a destructor while an exception passes, templates, lambdas, virtual calls.
#[test]
fn cpp() -> Result<()> {
    if requires_root() {
        Sites::default().check(&attached("paths_cpp", &["rounds=60"], "paths")?);
        Sites::default().check(&from_start("paths_cpp", &["rounds=1"], "paths")?);
    }
    Ok(())
}

/// Rust, optimised: each inlined function is there at its line; so are closures, generics, and a drop in a panic.
#[test]
fn rust() -> Result<()> {
    if requires_root() {
        Sites::default().check(&attached("rust_paths", &[], "paths")?);
        Sites::default().check(&from_start("rust_paths", &[], "paths")?);
    }
    Ok(())
}

/// Children are followed, and have sites of their own.
#[test]
fn children() -> Result<()> {
    if requires_root() {
        let more = [&STACKS[..], &["--follow-forks"]].concat();
        let traced = trace("paths", &["fork=1", "rounds=50"], "paths", &more)?;
        ensure!(traced.truths.len() == 2, "parent and child: {:?}", traced.truths.len());
        Sites::default().check(&traced);
        let traced = trace_from_start("paths", &["fork=1", "rounds=50"], "paths", &more)?;
        Sites::default().check(&traced);
    }
    Ok(())
}

/// Paths through a library that was unloaded, and deleted, before anybody asked for names have theirs from the file, which
/// was opened when they were found.
#[test]
fn unloaded_library() -> Result<()> {
    if requires_root() {
        for deleted in [false, true] {
            let directory = tempfile::tempdir()?;
            let library = directory.path().join("libplugin.so");
            fs::copy(environment::target("places_plugin")?, &library)?;
            let option = format!("plugin={}", library.display());
            let mut target = Target::start("paths", &[&option, "stops=1", "rounds=50"])?;
            let more = [&STACKS[..], &["-i", "1000s"]].concat();
            let mut tracer = Tracer::attach(&[target.pid()], "paths", &more)?;
            target.go()?;
            target.reaches("done")?;
            tracer.holds(&library)?;
            if deleted {
                fs::remove_file(&library)?;
            }
            target.go()?;
            target.reaches("unloaded")?;
            target.go()?;
            let truths = target.finish()?.truths;
            let outcome = tracer.finish()?;
            Sites::default().check(&Traced { truths, outcome });
        }
    }
    Ok(())
}

/// At level `objects` all of these programs are counted exactly, and have no sites.
#[test]
fn other_levels_have_no_sites() -> Result<()> {
    if requires_root() {
        for (name, args, profile) in [
            ("paths", &["deep=200", "alt=1", "large=1", "rounds=50"][..], "paths"),
            ("paths", &["warm=10", "rounds=50"], "paths_entry"),
            ("paths_cpp", &["rounds=20"], "paths"),
            ("rust_paths", &[], "paths"),
            ("delays", &["pins=20"], "paths"),
        ] {
            let traced = trace(name, args, profile, &["--level", "objects"])?;
            traced.exact();
            let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
            assert_eq!(
                (&allocator["sites"], &allocator["sites_total"]),
                (&Value::Null, &Value::Null)
            );
        }
    }
    Ok(())
}

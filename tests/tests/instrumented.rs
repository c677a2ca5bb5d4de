//! Profiles for code that programs carry in themselves: the calls of libdrainprof, and temporal-slab. Targets of our own
//! have their names, arguments and layout, and print their truth.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::{Count, Expect},
    environment::{self, requires_root},
    target::Target,
    tracer::{self, Traced, Tracer, trace, trace_from_start},
};
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// Two profilers with granules of equal ids, which are used again; objects whose ids repeat from granule to granule, and
/// which are deregistered behind their granule's close; calls without a profiler; one that is destroyed.
#[test]
fn what_a_program_tells_libdrainprof() -> Result<()> {
    if requires_root() {
        let args = ["closes=3000", "p=5000"];
        trace("granule_calls", &args, "libdrainprof", &OBJECTS)?.exact();
        trace_from_start("granule_calls", &args, "libdrainprof", &OBJECTS)?.exact();
    }
    Ok(())
}

/// At level `boundary` the live counts are the library's own, read from its table at each close: exact, with a probe hit
/// for each open and close alone. In the library's other mode there is no such table: not measurable, and not 0.
#[test]
fn counts_of_libdrainprof_itself() -> Result<()> {
    if requires_root() {
        let boundary = ["--level", "boundary"];
        let args = ["closes=3000", "p=5000", "boundary=1"];
        let traced = trace("granule_calls", &args, "libdrainprof", &boundary)?;
        traced.exact();
        let probes = &traced.outcome.report()["targets"][0]["probes"];
        let roles: Vec<_> =
            probes.as_array().context("a list")?.iter().map(|p| &p["role"]).collect();
        assert_eq!(roles, ["destroy", "close", "open"]);
        trace_from_start("granule_calls", &args, "libdrainprof", &boundary)?.exact();
        let args = ["boundary=1", "mode=1"];
        let traced = trace("granule_calls", &args, "libdrainprof", &boundary)?;
        not_measurable(&traced, "attach with --level objects")?;
    }
    Ok(())
}

/// The place at which a program registers is the path that pins.
#[test]
fn who_registers_what_pins() -> Result<()> {
    if requires_root() {
        let traced = trace("granule_calls", &[], "libdrainprof", &["--level", "stacks"])?;
        Expect::default().loss("pins_while_learning", Count::Any).check(&traced);
        let sites = &traced.outcome.report()["targets"][0]["allocators"][0]["sites"];
        assert_eq!(sites[0]["frames"][0]["function"], "main");
        ensure!(sites[0]["granules_pinned"].as_u64().is_some_and(|count| count > 0), "{sites:#}");
    }
    Ok(())
}

fn opened_by(traced: &Traced) -> Result<usize> {
    let probes = traced.outcome.report().pointer("/targets/0/probes").and_then(Value::as_array);
    let mut probes = probes.context("a list of probes")?.iter();
    Ok(usize::from(probes.any(|probe| probe["symbol"] == "epoch_advance")))
}

/// A ring of 16 epochs that no argument names, and handles: exact, with debug information that says where the epoch
/// stands, and without; attached, and from the first instruction; at level `stacks`, and with a destroyed allocator. The
/// epoch that is open at the end has its label.
#[test]
fn epochs_of_temporal_slab() -> Result<()> {
    if requires_root() {
        for target in ["temporal", "temporal_nodebug"] {
            let traced = trace(target, &["epochs=3000"], "temporal-slab", &OBJECTS)?;
            traced.exact();
            assert_eq!(opened_by(&traced)?, 1);
            let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
            let open = allocator["open_granules"].as_array().context("a list")?;
            ensure!(open.len() == 1 && open[0]["label"] == "the last one", "{open:?}");
            trace_from_start(target, &["epochs=300", "late=0"], "temporal-slab", &OBJECTS)?.exact();
        }
        let traced = trace("temporal", &["destroy=1"], "temporal-slab", &["--level", "stacks"])?;
        Expect::default().loss("pins_while_learning", Count::Any).check(&traced);
    }
    Ok(())
}

/// The counters of a documented build move the epoch; without debug information it is found all the same.
#[test]
fn another_build_that_is_known() -> Result<()> {
    if requires_root() {
        let traced = trace("temporal_counters", &["epochs=3000"], "temporal-slab", &OBJECTS)?;
        traced.exact();
        assert_eq!(opened_by(&traced)?, 1);
    }
    Ok(())
}

/// Checks that nothing is said of the granules, and why: no DSR, not complete, exit code 5, the reason in the first
/// line of the text.
fn not_measurable(traced: &Traced, because: &str) -> Result<()> {
    let report = traced.outcome.report();
    assert_eq!(traced.outcome.code, Some(5), "{}", traced.outcome.talk());
    assert_eq!(report["complete"], false);
    let allocator = &report["targets"][0]["allocators"][0];
    let reason = allocator["not_measurable"].as_str().with_context(|| format!("{allocator:#}"))?;
    ensure!(reason.contains(because), "{reason}");
    assert_eq!(allocator["dsr"], Value::Null);
    assert_eq!(allocator["granules"]["pinned"], 0);
    assert_eq!(allocator["retention"]["granules"], Value::Null);
    assert_eq!(allocator["granules"]["drainable"], 0);
    let findings = report["targets"][0]["findings"].as_array().context("a list of findings")?;
    let told = findings.iter().find(|finding| finding["code"] == "not_measurable");
    assert_eq!(told.context("a finding")?["weight"], "error");
    Ok(())
}

/// A build whose structures stand elsewhere: every open is rejected, and the few closes that could be decided are no
/// measure of the others.
#[test]
fn another_build_that_is_not_known() -> Result<()> {
    if requires_root() {
        let traced = trace("temporal_labels", &["epochs=1000"], "temporal-slab", &OBJECTS)?;
        not_measurable(&traced, "1000 of 1001 opens were rejected")?;
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), traced.outcome.report().to_string())?;
        let path = file.path().to_str().context("a path")?;
        let outcome = tracer::run_to_end(&["report", path, "-o", "text"])?;
        let first = outcome.stdout.first().context("a page")?;
        ensure!(first.starts_with("NOT MEASURABLE: temporal-slab in temporal_labels["), "{first}");
        assert_eq!(outcome.code, Some(5), "{}", outcome.talk());
    }
    Ok(())
}

/// Threads' caches between the program and the epochs: recognised before a probe is placed.
#[test]
fn caches_are_recognised() -> Result<()> {
    if requires_root() {
        let traced = trace("temporal_cached", &["epochs=1000"], "temporal-slab", &OBJECTS)?;
        not_measurable(&traced, "threads keep objects in caches of their own")?;
        assert_eq!(traced.outcome.report()["targets"][0]["probes"], serde_json::json!([]));
    }
    Ok(())
}

/// What pins an allocator goes with it: its call paths retain nothing, as it does itself.
#[test]
fn a_destroyed_one_retains_nothing() -> Result<()> {
    if requires_root() {
        let args = ["destroy=1", "keep=1", "late=0"];
        let traced = trace("temporal", &args, "temporal-slab", &["--level", "stacks"])?;
        Expect::default().loss("pins_while_learning", Count::Any).check(&traced);
        let allocator = &traced.outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["retention"]["granules"], 0);
        let sites = allocator["sites"].as_array().context("a list")?;
        ensure!(sites.iter().any(|site| site["granules_pinned"].as_u64() > Some(0)), "{sites:?}");
        ensure!(sites.iter().all(|site| site["granules_retained"] == 0), "{sites:?}");
    }
    Ok(())
}

/// The pages of an epoch's slabs are read from its lists: what was touched in pinned epochs is known, and what they
/// retain.
#[test]
fn pages_of_pinned_epochs() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("temporal", &["epochs=1000", "late=0", "stops=1"])?;
        let more = ["--level", "objects", "--growth"];
        let tracer = Tracer::attach(&[target.pid()], "temporal-slab", &more)?;
        target.go()?;
        target.reaches("end")?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        target.go()?;
        let truths = target.finish()?.truths;
        let bytes = truths[0]["pinned_pages"].as_u64().context("pages")? * 4096;
        let told = &outcome.report()["targets"][0];
        assert_eq!(told["growth"]["touched"]["pinned_bytes"], bytes);
        assert_eq!(told["allocators"][0]["retention"]["bytes"], bytes);
    }
    Ok(())
}

/// Ids that are numbers of the program's own: what was touched in their granules is not known, and not 0.
#[test]
fn numbers_are_no_addresses() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "--growth"];
        let traced = trace("granule_calls", &["p=9000"], "libdrainprof", &more)?;
        let touched = &traced.outcome.report()["targets"][0]["growth"]["touched"];
        assert_eq!(touched["pinned_bytes"], Value::Null, "{touched}");
        ensure!(touched["bytes"].as_u64() > Some(0), "{touched}");
    }
    Ok(())
}

/// Without symbols it cannot be attached: the message names the functions that are looked for, that the file is stripped,
/// and where its debug file would be.
#[test]
fn a_stripped_one_says_what_is_missing() -> Result<()> {
    if requires_root() {
        let target = Target::start("temporal_stripped", &[])?;
        let pid = target.pid().to_string();
        let outcome = tracer::run_to_end(&["attach", "-p", &pid, "--profile", "temporal-slab"])?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        let path = environment::target("temporal_stripped")?;
        let line = outcome.stderr.iter().find(|line| line.contains(&path.display().to_string()));
        let line = line.with_context(|| outcome.talk())?;
        for says in ["missing epoch_advance, epoch_close", "stripped; no debug file at", ".debug"] {
            ensure!(line.contains(says), "{says}: {line}");
        }
        target.kill()?;
    }
    Ok(())
}

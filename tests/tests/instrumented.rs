//! Profiles for code that programs carry in themselves: the calls of libdrainprof, and temporal-slab. Targets of our own
//! have their names, arguments and layout, and print their truth.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::{Count, Expect},
    environment::{self, requires_root},
    target::Target,
    tracer::{self, Traced, trace, trace_from_start},
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

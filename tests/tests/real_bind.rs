//! Debian's BIND as it is: the memory contexts of libisc are the granules.
//!
//! libisc itself insists that a context is empty when it ends, and stops the program otherwise: so a `named` that
//! ends properly has drained every one. A library that is preloaded into the same process counts the calls.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    bind::{RUNNING, Zone},
    compare::only_allocator,
    environment::requires_root,
    process::Process,
    tracer::Tracer,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// A `named` from its start to its end, with 50 questions in between.
fn from_start_to_end(zone: &Zone, level: &str) -> Result<Value> {
    let mut tracer = Tracer::run_command(&zone.counting()?, "bind", &["--level", level])?;
    tracer.process().expect_err_containing(RUNNING)?;
    zone.ask(50)?;
    kill(Pid::from_raw(zone.pid()?.cast_signed()), Signal::SIGTERM)?;
    let outcome = tracer.finish()?;
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    only_allocator(&outcome)
}

/// From start to end every context and every object is seen that the preloaded library counts; what is taken with
/// `isc__mem_get` comes back by `isc__mem_put` and `isc__mem_putanddetach`, exactly; and nothing is left in any
/// context, as libisc itself has made sure.
#[test]
fn start_to_end_is_exact() -> Result<()> {
    if requires_root() {
        let zone = Zone::new()?;
        let allocator = from_start_to_end(&zone, "objects")?;
        let counted = zone.counted()?;
        let [get, allocate, pool_get] = counted.taken;
        let [put, put_and_detach, free, pool_put] = counted.given_back;
        assert_eq!((get, allocate, pool_get), (put + put_and_detach, free, pool_put));
        assert!(counted.created > 5 && get > 10_000 && pool_get > 0, "{counted:?}");
        let (granules, objects) = (&allocator["granules"], &allocator["objects"]);
        let seen = json!({
            "opened": granules["opened"], "closed": granules["closed"],
            "drainable": granules["drainable"], "dsr": allocator["dsr"],
            "allocated": objects["allocated"], "freed": objects["freed"], "live": objects["live"],
        });
        let taken = counted.taken.iter().sum::<u64>();
        let expected = json!({
            "opened": counted.created, "closed": counted.created,
            "drainable": counted.created, "dsr": 1.0,
            "allocated": taken, "freed": taken, "live": 0,
        });
        assert_eq!(seen, expected, "{counted:?}");
    }
    Ok(())
}

/// Without a look at any object, the contexts' own counts say the same of each close.
#[test]
fn own_counts_agree() -> Result<()> {
    if requires_root() {
        let zone = Zone::new()?;
        let allocator = from_start_to_end(&zone, "boundary")?;
        let (created, granules) = (zone.counted()?.created, &allocator["granules"]);
        assert_eq!(granules["opened"], created, "{granules}");
        assert_eq!(
            (&granules["closed"], &granules["drainable"]),
            (&created.into(), &created.into()),
            "{granules}"
        );
        assert_eq!((&allocator["level"], &allocator["dsr"]), (&"boundary".into(), &1.0.into()));
    }
    Ok(())
}

/// Contexts have the names that `named` gives them once it has made them.
#[test]
fn contexts_have_names() -> Result<()> {
    if requires_root() {
        let zone = Zone::new()?;
        let mut named = Process::start("named", zone.named()?)?;
        named.expect_err_containing(RUNNING)?;
        let tracer = Tracer::attach(&[named.pid()], "bind", &[])?;
        named.signal(Signal::SIGHUP)?;
        named.expect_err_containing(RUNNING)?;
        zone.ask(1)?;
        tracer.interrupt()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        let open = allocator["open_granules"].as_array().context("a list")?;
        let mut labels: Vec<_> =
            open.iter().filter_map(|granule| granule["label"].as_str()).collect();
        labels.sort_unstable();
        // Those of the view and of named's own, which the reload has made again; caches are kept.
        assert_eq!(labels, ["ADB", "ADB", "ADB_dynamic", "ADB_dynamic"], "{open:?}");
        named.signal(Signal::SIGTERM)?;
        named.wait()?;
    }
    Ok(())
}

/// A `named` that ran before has its configuration loaded again: the contexts of the view before end, drained, as
/// many as begin. Those are older than the attach, and their own counts decide.
#[test]
fn reload_replaces_contexts() -> Result<()> {
    if requires_root() {
        let zone = Zone::new()?;
        let mut named = Process::start("named", zone.named()?)?;
        named.expect_err_containing(RUNNING)?;
        let tracer = Tracer::attach(&[named.pid()], "bind", &[])?;
        for _ in 0..2 {
            named.signal(Signal::SIGHUP)?;
            named.expect_err_containing(RUNNING)?;
        }
        zone.ask(10)?;
        named.signal(Signal::SIGTERM)?;
        named.expect_err_containing(" exiting")?;
        named.wait()?;
        let allocator = only_allocator(&tracer.finish()?)?;
        let count = |key: &str| allocator["granules"][key].as_u64().unwrap_or(u64::MAX);
        // What was there before the attach ends with the process, as does what came later.
        assert!(count("opened") >= 2 && count("opened_before") > 0, "{}", allocator["granules"]);
        assert_eq!(count("closed"), count("opened") + count("opened_before"));
        assert_eq!((count("drainable"), count("open_now")), (count("closed"), 0));
    }
    Ok(())
}

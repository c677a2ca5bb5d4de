//! Debian's Varnish as it is, on a loopback port: its sessions, requests and backend fetches are the granules.
//!
//! Varnish counts the same things itself (`varnishstat`, `MEMPOOL.*`), and both must come to the same numbers.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::sum_rule,
    environment::requires_root,
    http::{Client, get},
    tracer::{Outcome, Tracer},
    varnish::{POOLS, Varnish},
};
use serde_json::Value;

/// The functions that open granules, in the order of [`POOLS`].
const OPENED_BY: [&str; 3] = ["SES_New", "Req_New", "VBO_GetBusyObj"];

/// The one allocator of a process.
fn allocator(outcome: &Outcome, pid: u32) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    let targets = report["targets"].as_array().context("a list of targets")?;
    let target = targets.iter().find(|target| target["pid"] == pid);
    let target = target.with_context(|| format!("no target {pid} in {targets:?}"))?;
    let allocator = target["allocators"][0].clone();
    ensure!(!allocator.is_null(), "nothing was seen of {pid}: {target}");
    assert_eq!(sum_rule(&allocator), None);
    assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
    Ok(allocator)
}

/// For each function that opens granules, how many of its granules are closed and how many are open.
fn by_place(allocator: &Value) -> Result<[(u64, u64); 3]> {
    let mut found = BTreeMap::new();
    for place in allocator["lifetimes"]["places"].as_array().context("a list of places")? {
        let name = place["function"].as_str().unwrap_or_default().to_owned();
        let counts: &mut (u64, u64) = found.entry(name).or_default();
        counts.0 += place["closed"].as_u64().context("a count")?;
        counts.1 += place["open_now"].as_u64().context("a count")?;
    }
    let counts = OPENED_BY.map(|name| found.remove(name).unwrap_or_default());
    ensure!(found.is_empty(), "granules are opened elsewhere, too: {found:?}");
    Ok(counts)
}

/// 50 connections, one kept connection with 50 requests, and 20 requests that are passed on.
fn load(varnish: &Varnish) -> Result<()> {
    for _ in 0..50 {
        get(varnish.port, "/here")?;
    }
    let mut kept = Client::connect(varnish.port)?;
    for _ in 0..50 {
        kept.get("/here")?;
    }
    kept.end()?;
    for _ in 0..20 {
        get(varnish.port, "/there")?;
    }
    Ok(())
}

/// Sessions, requests and fetches are as many as Varnish itself counts, opened and closed, pool by pool; and they
/// are as many as were asked for.
#[test]
fn counters_agree() -> Result<()> {
    if requires_root() {
        let varnish = Varnish::start()?;
        let before = varnish.counters()?;
        let tracer = Tracer::attach(&[varnish.child], "varnish", &[])?;
        load(&varnish)?;
        let after = varnish.settle([0, 0, 0])?;
        tracer.interrupt()?;
        let allocator = allocator(&tracer.finish()?, varnish.child)?;
        let gone = |what: &str| {
            POOLS.map(|pool| {
                let name = format!("MEMPOOL.{pool}.{what}");
                after[&name] - before[&name]
            })
        };
        let seen = by_place(&allocator)?;
        assert_eq!(seen.map(|(closed, open)| closed + open), gone("allocs"), "{seen:?}");
        assert_eq!(seen.map(|(closed, _)| closed), gone("frees"), "{seen:?}");
        assert_eq!((seen[0].0, seen[2].0), (71, 20), "{seen:?}");
        assert_eq!(allocator["granules"]["opened"], seen.iter().map(|seen| seen.0).sum::<u64>());
        varnish.quit()?;
    }
    Ok(())
}

/// Half-sent requests, idle kept connections and a backend that does not answer hold exactly what Varnish says is
/// alive, by name; every block has the size that Varnish gives it.
#[test]
fn what_waits_is_held() -> Result<()> {
    if requires_root() {
        let varnish = Varnish::start()?;
        let tracer = Tracer::attach(&[varnish.child], "varnish", &[])?;
        let mut waiting = Vec::new();
        let mut hold = |text: &str| -> Result<()> {
            let mut client = Client::connect(varnish.port)?;
            client.send(text)?;
            waiting.push(client);
            Ok(())
        };
        for _ in 0..5 {
            hold("GET /here HTTP/1.1\r\nHos")?;
        }
        for _ in 0..3 {
            hold("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")?;
        }
        let mut idle = Client::connect(varnish.port)?;
        idle.get("/here")?;
        varnish.backend.holds(3)?;
        // The idle one gives its request back after a moment, and keeps its session.
        let counters = varnish.settle([9, 8, 3])?;
        tracer.interrupt()?;
        let allocator = allocator(&tracer.finish()?, varnish.child)?;
        let open = allocator["open_granules"].as_array().context("a list")?;
        for (pool, alive) in POOLS.into_iter().zip([9, 8, 3]) {
            let of = open.iter().filter(|granule| granule["label"] == pool).collect::<Vec<_>>();
            assert_eq!(of.len(), alive, "{pool}: {open:?}");
            let size = counters[&format!("MEMPOOL.{pool}.sz_wanted")];
            assert!(of.iter().all(|granule| granule["bytes"] == size), "{pool} {size}: {of:?}");
        }
        assert_eq!(open.len(), 20);
        drop((waiting, idle));
        varnish.quit()?;
    }
    Ok(())
}

/// A child that the manager starts again is followed from its first instruction.
#[test]
fn new_child_is_followed() -> Result<()> {
    if requires_root() {
        let mut varnish = Varnish::start()?;
        let tracer = Tracer::attach(&[varnish.manager.pid()], "varnish", &["--follow-forks"])?;
        varnish.renew_child()?;
        load(&varnish)?;
        let counters = varnish.settle([0, 0, 0])?;
        tracer.interrupt()?;
        let allocator = allocator(&tracer.finish()?, varnish.child)?;
        let seen = by_place(&allocator)?.map(|(closed, _)| closed);
        assert_eq!(seen, POOLS.map(|pool| counters[&format!("MEMPOOL.{pool}.frees")]));
        varnish.quit()?;
    }
    Ok(())
}

/// Every block has one workspace, which ends with it; requests on a kept connection rewind theirs; whatever is
/// allocated in one is gone with it.
#[test]
fn workspaces_end_with_their_blocks() -> Result<()> {
    if requires_root() {
        let varnish = Varnish::start()?;
        let before = varnish.counters()?;
        let tracer = Tracer::attach(&[varnish.child], "varnish-workspace", &[])?;
        load(&varnish)?;
        let after = varnish.settle([0, 0, 0])?;
        tracer.interrupt()?;
        let allocator = allocator(&tracer.finish()?, varnish.child)?;
        let blocks: u64 = POOLS
            .iter()
            .map(|pool| format!("MEMPOOL.{pool}.allocs"))
            .map(|name| after[&name] - before[&name])
            .sum();
        let (granules, objects) = (&allocator["granules"], &allocator["objects"]);
        assert_eq!((&granules["opened"], &granules["closed"]), (&blocks.into(), &blocks.into()));
        assert_eq!((&granules["opened_before"], &granules["reopened"]), (&0.into(), &0.into()));
        let asked = after["MAIN.client_req"] - before["MAIN.client_req"];
        assert!(granules["resets"].as_u64() >= Some(49), "{asked} requests: {granules}");
        assert!(objects["allocated"].as_u64() > Some(blocks), "{objects}");
        assert_eq!(objects["live"], 0, "{objects}");
        varnish.quit()?;
    }
    Ok(())
}

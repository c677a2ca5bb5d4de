//! Debian's HAProxy as it is, on a loopback port: sessions and streams are the granules, and with another profile its
//! pools.
//!
//! HAProxy counts and lists the same things itself, on its stats socket.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::only_allocator,
    environment::requires_root,
    haproxy::{Pool, Setup},
    http::{Client, get, idle},
    process::Process,
    tracer::{Outcome, Tracer},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

/// The one allocator of the one process, and the process.
fn allocator(outcome: &Outcome) -> Result<(Value, u64)> {
    let pid = outcome.report()["targets"][0]["pid"].as_u64().context("a pid")?;
    Ok((only_allocator(outcome)?, pid))
}

/// Granules that were opened by a function: closed, open.
fn opened_by(allocator: &Value, function: &str) -> Result<(u64, u64)> {
    let places = allocator["lifetimes"]["places"].as_array().context("a list of places")?;
    let place = places.iter().find(|place| place["function"] == function);
    let count = |key: &str| place.map_or(Some(0), |place| place[key].as_u64()).context("a count");
    Ok((count("closed")?, count("open_now")?))
}

fn start(setup: &Setup) -> Result<Process> {
    let process = Process::start("haproxy", setup.haproxy()?)?;
    setup.stats()?;
    Ok(process)
}

/// 100 connections, one kept connection with 50 requests and 20 requests that are passed on: sessions and streams are
/// as many as HAProxy counts connections and requests, and all of them end.
#[test]
fn counters_agree() -> Result<()> {
    if requires_root() {
        let setup = Setup::new()?;
        let mut process = start(&setup)?;
        let mut stats = setup.stats()?;
        let before = stats.number("CumConns")?;
        let tracer = Tracer::attach(&[process.pid()], "haproxy", &[])?;
        for _ in 0..100 {
            get(setup.port, "/here")?;
        }
        let mut kept = Client::connect(setup.port)?;
        for _ in 0..50 {
            kept.get("/here")?;
        }
        kept.end()?;
        for _ in 0..20 {
            get(setup.port, "/there")?;
        }
        idle(process.pid())?;
        tracer.interrupt()?;
        let (allocator, _) = allocator(&tracer.finish()?)?;
        let connections = stats.number("CumConns")? - before;
        assert_eq!(connections, 121, "HAProxy counts its connections");
        assert_eq!(opened_by(&allocator, "session_accept_fd")?, (121, 0));
        assert_eq!(opened_by(&allocator, "sc_new_from_endp")?, (170, 0));
        assert_eq!(allocator["granules"]["opened"], 291, "{}", allocator["granules"]);
        process.signal(Signal::SIGTERM)?;
        process.wait()?;
    }
    Ok(())
}

/// Streams whose server does not answer are open, each under the address that `show sess` gives it, each within its
/// session; an idle kept connection holds a session and no stream.
#[test]
fn what_waits_is_held() -> Result<()> {
    if requires_root() {
        let setup = Setup::new()?;
        let mut process = start(&setup)?;
        let mut stats = setup.stats()?;
        let tracer = Tracer::attach(&[process.pid()], "haproxy", &[])?;
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut client = Client::connect(setup.port)?;
            client.send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")?;
            held.push(client);
        }
        let mut kept = Client::connect(setup.port)?;
        kept.get("/here")?;
        setup.backend.holds(3)?;
        let listed = stats.streams()?;
        idle(process.pid())?;
        tracer.interrupt()?;
        let (allocator, _) = allocator(&tracer.finish()?)?;
        let open = allocator["open_granules"].as_array().context("a list")?;
        let text = |granule: &Value, key: &str| granule[key].as_str().map(str::to_owned);
        let parents: Vec<_> = open.iter().filter_map(|granule| text(granule, "parent")).collect();
        let mut streams: Vec<_> = open
            .iter()
            .filter(|granule| !granule["parent"].is_null())
            .filter_map(|granule| text(granule, "id"))
            .collect();
        streams.sort();
        assert_eq!(streams, listed, "{open:?}");
        assert_eq!((open.len(), streams.len()), (7, 3), "{open:?}");
        let is_open = |id: &String| open.iter().any(|granule| granule["id"] == id.as_str());
        assert!(parents.iter().all(is_open), "{parents:?} {open:?}");
        drop((held, kept));
        process.signal(Signal::SIGTERM)?;
        process.wait()?;
    }
    Ok(())
}

/// From the start on, what is out of each pool is what `show pools` says, pool by pool: by address, name and bytes.
/// The conversation in which it says so has buffers only while it says it.
#[test]
fn show_pools_agrees() -> Result<()> {
    if requires_root() {
        let setup = Setup::new()?;
        let more = ["--top", "1000"];
        let tracer = Tracer::run_command(&setup.haproxy()?, "haproxy-pools", &more)?;
        let mut stats = setup.stats()?;
        for _ in 0..50 {
            get(setup.port, "/here")?;
        }
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut client = Client::connect(setup.port)?;
            client.send("GET /hang HTTP/1.1\r\nHost: a\r\n\r\n")?;
            held.push(client);
        }
        setup.backend.holds(3)?;
        let mut pools = stats.pools()?;
        let pid = stats.number("Pid")?;
        let pid_now = Pid::from_raw(i32::try_from(pid)?);
        // Ended at once: nothing is given back, and what is out stays so.
        kill(pid_now, Signal::SIGKILL)?;
        let (allocator, seen_pid) = allocator(&tracer.finish()?)?;
        assert_eq!((seen_pid, &allocator["kind"]), (pid, &"slab".into()));
        let open = allocator["open_granules"].as_array().context("a list")?;
        let mut seen = BTreeMap::new();
        for granule in open {
            let count = |key: &str| granule[key].as_u64().context("a count");
            let id = granule["id"].as_str().context("an address")?.to_owned();
            let size = pools.get(&id).map_or(0, |pool| pool.size);
            let pool = Pool {
                name: granule["label"].as_str().context("a name")?.to_owned(),
                size,
                out: count("live")?,
            };
            assert_eq!(count("live_bytes")?, size * pool.out, "{pool:?}");
            seen.insert(id, pool);
        }
        let transient = |name: &str| ["buffer", "trash"].contains(&name);
        for all in [&mut pools, &mut seen] {
            all.retain(|_, pool| !transient(&pool.name));
        }
        assert_eq!(seen, pools);
        assert!(seen.values().any(|pool| pool.name == "stream" && pool.out == 4), "{seen:?}");
        drop(held);
    }
    Ok(())
}

//! Debian's nginx as it is, on a loopback port, with a configuration of the test's own.
//!
//! nginx makes one pool per connection and one per request, so `ab -n 100 -c 1` opens exactly 200 and
//! closes exactly 200. It has done all that it was asked when it sleeps in its wait for events.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::sum_rule,
    environment::{self, has_programs, requires_root},
    nginx::{Nginx, worker_pid},
    tracer::{Outcome, Tracer},
};
use nix::sys::signal::Signal;
use serde_json::Value;

const OBJECTS: [&str; 2] = ["--level", "objects"];

fn ready() -> bool {
    requires_root() && has_programs(&["nginx", "ab"])
}

/// The allocator of one process.
fn pools(outcome: &Outcome, pid: u32) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    let targets = report["targets"].as_array().context("a list of targets")?;
    let target = targets
        .iter()
        .find(|target| target["pid"] == pid)
        .with_context(|| format!("no target {pid} in {targets:?}"))?;
    let allocator = target["allocators"][0].clone();
    ensure!(!allocator.is_null(), "nothing was seen of {pid}: {target}");
    assert_eq!(sum_rule(&allocator), None);
    assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
    Ok(allocator)
}

fn granules(allocator: &Value) -> [u64; 4] {
    ["opened", "opened_before", "closed", "open_now"]
        .map(|key| allocator["granules"][key].as_u64().unwrap_or(u64::MAX))
}

/// 100 requests over 100 connections: 200 pools opened, 200 closed, none left.
#[test]
fn one_process_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(false)?;
        // Twice: the second attach finds a process that was traced before.
        for _ in 0..2 {
            let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
            nginx.ab(&["-n", "100", "-c", "1"])?;
            nginx.settle()?;
            tracer.interrupt()?;
            let allocator = pools(&tracer.finish()?, nginx.worker)?;
            assert_eq!(granules(&allocator), [200, 0, 200, 0], "{allocator}");
            assert_eq!(allocator["objects"]["live"], 0, "a bulk close frees the members");
        }
        nginx.quit()?;
    }
    Ok(())
}

/// The same 100 requests over one kept connection: 101 pools.
#[test]
fn keep_alive_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
        nginx.ab(&["-k", "-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        assert_eq!(granules(&allocator), [101, 0, 101, 0], "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// Master and worker, both named by pid: the worker does it all, and no more than that.
#[test]
fn worker_is_exact() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(true)?;
        let pids = [nginx.process.pid(), nginx.worker];
        let tracer = Tracer::attach(&pids, "nginx", &OBJECTS)?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        assert_eq!(granules(&allocator), [200, 0, 200, 0], "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// A worker that the master forks after a reload is followed from its first instruction.
#[test]
fn new_worker_is_followed() -> Result<()> {
    if ready() {
        let mut nginx = Nginx::start(true)?;
        let more = ["--level", "objects", "--follow-forks"];
        let tracer = Tracer::attach(&[nginx.process.pid()], "nginx", &more)?;
        let old = nginx.worker;
        nginx.process.signal(Signal::SIGHUP)?;
        nginx.worker = worker_pid(&nginx.process.expect_err_containing("start worker process ")?)?;
        nginx.process.expect_err_containing(&format!("worker process {old} exited"))?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        let [opened, _, closed, _] = granules(&allocator);
        assert_eq!((opened, closed), (200, 200), "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// Five idle kept connections and three half-sent requests hold exactly eleven pools, of the sizes of connections and
/// requests, for as long as they are held: meanwhile hundreds of others come and go. They are the oldest ones, and all
/// of them are gone once the clients are.
#[test]
fn idle_connections_hold_pools() -> Result<()> {
    /// How long they are held.
    const HOLD: Duration = Duration::from_secs(1);
    if ready() {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
        let whole = "GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(nginx.ask(whole)?);
        }
        for _ in 0..3 {
            held.push(nginx.ask("GET /index.html HTTP/1.1\r\nHo")?);
        }
        nginx.settle()?;
        let since = Instant::now();
        let mut peers = 0;
        while since.elapsed() < HOLD {
            nginx.ab(&["-n", "100", "-c", "1"])?;
            peers += 200;
        }
        nginx.settle()?;
        let at_least = since.elapsed();
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let allocator = pools(&outcome, nginx.worker)?;
        // Five requests were answered; eight connections and three requests are open.
        assert_eq!(granules(&allocator), [16 + peers, 0, 5 + peers, 11], "{allocator}");
        let open = allocator["open_granules"].as_array().context("a list")?;
        let mut sizes: Vec<_> = open.iter().map(|pool| pool["bytes"].as_u64()).collect();
        sizes.sort_unstable();
        let expected = [vec![Some(512); 8], vec![Some(4096); 3]].concat();
        assert_eq!(sizes, expected, "{open:?}");
        for pool in open {
            let age = pool["age_seconds"].as_f64().context("an age")?;
            ensure!(age >= at_least.as_secs_f64(), "{age} s, held for {at_least:?}: {pool}");
        }

        // A second look begins with them open, and sees them go.
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &OBJECTS)?;
        drop(held);
        // Behind the ends of the connections comes one more.
        nginx.ab(&["-n", "1", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?, nginx.worker)?;
        assert_eq!(granules(&allocator), [2, 11, 13, 0], "{allocator}");
        nginx.quit()?;
    }
    Ok(())
}

/// A census of the same, without a probe: each connection and each request that is held is there, with its bytes, and
/// the master has none.
#[test]
fn census_of_pools() -> Result<()> {
    if ready() {
        let nginx = Nginx::start(true)?;
        let whole = "GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(nginx.ask(whole)?);
        }
        for _ in 0..3 {
            held.push(nginx.ask("GET /index.html HTTP/1.1\r\nHo")?);
        }
        nginx.settle()?;
        let pools = census_pools(nginx.worker)?;
        let named = |name: &str| -> Vec<&Value> {
            pools.iter().filter(|pool| pool["name"] == name).collect()
        };
        assert_eq!(pools.len(), 1 + 8 + 3, "{pools:?}");
        assert_eq!(named("configuration").len(), 1, "{pools:?}");
        // A request takes blocks of 4 KiB, as configured.
        let requests = named("request");
        let blocks = |pool: &&&Value| {
            pool["blocks"].as_u64().is_some_and(|blocks| pool["total_bytes"] == blocks * 4096)
        };
        assert_eq!(requests.iter().filter(blocks).count(), 3, "{pools:?}");
        // A half-sent request has its header of 1 KiB beside the pool's own block, which malloc rounds.
        let connections = named("connection");
        let half = |bytes: u64| (512 + 1024..512 + 1024 + 32).contains(&bytes);
        let sizes = connections.iter().filter_map(|pool| pool["total_bytes"].as_u64());
        let (large, small): (Vec<u64>, Vec<u64>) = sizes.partition(|bytes| half(*bytes));
        assert_eq!((large.len(), small), (3, vec![512; 5]), "{pools:?}");
        let master = census_pools(nginx.process.pid())?;
        assert_eq!(master.len(), 1, "{master:?}");
        drop(held);
        nginx.quit()?;
    }
    Ok(())
}

fn census_pools(pid: u32) -> Result<Vec<Value>> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    ensure!(output.status.success(), "{output:?}");
    let mut census: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(census["contexts"].as_array().into_iter().flatten().all(|own| own["kind"] == "pool"));
    Ok(census["contexts"].as_array_mut().map(std::mem::take).unwrap_or_default())
}

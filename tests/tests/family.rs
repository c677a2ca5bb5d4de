//! `attach --family`: one command for all processes of a prefork server, now and later.
//!
//! On Debian's nginx and PostgreSQL as they are; what is counted is known from `ab`'s requests and from the
//! statements of the sessions. The process that is named is a child: its ancestors have to be found.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::sum_rule,
    environment::{has_programs, requires_root, skip},
    nginx::{Nginx, worker_pid},
    postgresql::{Cluster, Session, binaries},
    tracer::{self, Outcome, Tracer},
};
use nix::{sys::signal::Signal, unistd::User};
use serde_json::Value;

const FAMILY: [&str; 5] = ["--level", "objects", "--family", "--top", "1000"];

/// The only allocator of one process, in a report that lost nothing.
fn allocator(outcome: &Outcome, pid: u32) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}\n{}", report["losses"], outcome.talk());
    let targets = report["targets"].as_array().context("a list of targets")?;
    let mut found = targets.iter().filter(|target| target["pid"] == pid);
    let target = found.next().with_context(|| format!("no target {pid}: {}", outcome.talk()))?;
    assert!(found.next().is_none(), "process {pid} is counted as two targets");
    let allocator = target["allocators"][0].clone();
    assert_eq!(sum_rule(&allocator), None, "pid {pid}");
    Ok(allocator)
}

fn granules(allocator: &Value) -> [u64; 2] {
    ["opened", "closed"].map(|key| allocator["granules"][key].as_u64().unwrap_or(u64::MAX))
}

/// A worker that ran before the attach and one that a reload brings: each opens and closes exactly what
/// `ab` makes it do.
#[test]
fn nginx_master_and_workers() -> Result<()> {
    if requires_root() && has_programs(&["nginx", "ab"]) {
        let mut nginx = Nginx::start(true)?;
        let (master, old) = (nginx.process.pid(), nginx.worker);
        let tracer = Tracer::attach(&[old], "nginx", &FAMILY)?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        nginx.process.signal(Signal::SIGHUP)?;
        nginx.worker = worker_pid(&nginx.process.expect_err_containing("start worker process ")?)?;
        nginx.process.expect_err_containing(&format!("worker process {old} exited"))?;
        nginx.ab(&["-n", "50", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        // The old worker also destroys what it inherited when it ends; none of that was opened in sight.
        let first = allocator(&outcome, old)?;
        assert_eq!(first["granules"]["opened"], 200, "{first}");
        assert_eq!(granules(&allocator(&outcome, nginx.worker)?), [100, 100]);
        // The reload was the master's work: its new configuration has a pool.
        assert_ne!(allocator(&outcome, master)?["granules"]["opened"], 0);
        nginx.quit()?;
    }
    Ok(())
}

fn prepare(session: &mut Session, number: usize) -> Result<()> {
    for n in 0..number {
        session.run(&format!("prepare p{n} as select {n} + count(*) from pg_class;"))?;
    }
    Ok(())
}

fn plans(allocator: &Value) -> usize {
    let open = allocator["open_granules"].as_array().map_or(&[][..], Vec::as_slice);
    open.iter().filter(|granule| granule["label"] == "CachedPlanSource").count()
}

/// A backend from before the attach and one from after it: each holds as many plans as it has prepared
/// statements, and the server's own view says the same.
#[test]
fn postgresql_backends() -> Result<()> {
    let has_server = binaries().is_some() && matches!(User::from_name("postgres"), Ok(Some(_)));
    if !has_server {
        skip("no PostgreSQL server up to version 15, or no user postgres");
    } else if requires_root() && has_programs(&["psql"]) {
        let cluster = Cluster::start()?;
        let mut before = cluster.session()?;
        let old = before.backend()?;
        let tracer = Tracer::attach(&[old], "postgresql", &FAMILY)?;
        let mut after = cluster.session()?;
        let new = after.backend()?;
        prepare(&mut before, 20)?;
        prepare(&mut after, 7)?;
        let held =
            "select count(*) from pg_backend_memory_contexts where name = 'CachedPlanSource'";
        let own = [before.number(held)?, after.number(held)?];
        assert_eq!(own, [20, 7]);
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let seen = [plans(&allocator(&outcome, old)?), plans(&allocator(&outcome, new)?)];
        assert_eq!(seen, [20, 7]);
        let targets = outcome.report()["targets"].as_array().context("a list of targets")?;
        assert!(targets.iter().any(|target| target["pid"] == cluster.postmaster.pid()));
        cluster.stop()?;
    }
    Ok(())
}

/// `--dry-run` plans for every member, and a duty cycle, which cannot follow forks, is refused.
#[test]
fn plans_and_refusals() -> Result<()> {
    if requires_root() && has_programs(&["nginx"]) {
        let nginx = Nginx::start(true)?;
        let worker = nginx.worker.to_string();
        let planned = tracer::run_to_end(&[
            "attach",
            "--family",
            "-p",
            &worker,
            "--profile",
            "nginx",
            "--dry-run",
            "-o",
            "json",
        ])?;
        assert_eq!(planned.code, Some(0), "{}", planned.talk());
        let plan: Value = serde_json::from_str(&planned.stdout.join("\n"))?;
        let pids: Vec<_> = (0..2).map(|index| plan["processes"][index]["pid"].clone()).collect();
        assert_eq!(pids, [nginx.process.pid(), nginx.worker]);
        let refused =
            tracer::run_to_end(&["attach", "--family", "-p", &worker, "--duty", "1s/10s"])?;
        assert_eq!(refused.code, Some(2), "{}", refused.talk());
        nginx.quit()?;
    }
    Ok(())
}

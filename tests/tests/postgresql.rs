//! Debian's PostgreSQL as it is: a cluster of the test's own, reached through a socket in its directory.
//!
//! The backend's memory contexts are the granules; the server's own view of them,
//! `pg_backend_memory_contexts`, is the second opinion.

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_tests::{
    compare::sum_rule,
    environment::{has_programs, requires_root, skip},
    postgresql::{Cluster, binaries},
    tracer::{Outcome, Tracer},
};
use nix::unistd::User;
use serde_json::Value;

fn ready() -> bool {
    if !requires_root() || !has_programs(&["psql"]) {
        return false;
    }
    let usable = binaries().is_some() && matches!(User::from_name("postgres"), Ok(Some(_)));
    if !usable {
        skip("no PostgreSQL server up to version 15, or no user postgres");
    }
    usable
}

/// The contexts of one process, by all allocators of it.
fn contexts(outcome: &Outcome, pid: u32) -> Result<Value> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}\n{}", report["losses"], outcome.talk());
    let targets = report["targets"].as_array().context("a list of targets")?;
    for target in targets {
        for allocator in target["allocators"].as_array().context("a list of allocators")? {
            assert_eq!(sum_rule(allocator), None, "pid {}", target["pid"]);
        }
    }
    match targets.iter().find(|target| target["pid"] == pid) {
        Some(target) => Ok(target["allocators"][0].clone()),
        None => bail!("no target {pid} among {}", targets.len()),
    }
}

fn labelled(allocator: &Value, label: &str) -> usize {
    let open = allocator["open_granules"].as_array().map_or(&[][..], Vec::as_slice);
    open.iter().filter(|granule| granule["label"] == label).count()
}

const FOLLOW: [&str; 5] = ["--level", "objects", "--follow-forks", "--top", "1000"];

/// Twenty prepared statements hold twenty `CachedPlanSource` and twenty `CachedPlanQuery` contexts; the
/// server's own view says the same; DEALLOCATE ALL closes all forty.
#[test]
fn prepared_statements_hold_contexts() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        for deallocate in [false, true] {
            let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &FOLLOW)?;
            let mut session = cluster.session()?;
            let pid = session.backend()?;
            for n in 0..20 {
                session.run(&format!("prepare p{n} as select {n} + count(*) from pg_class;"))?;
            }
            let count = |name: &str| {
                format!("select count(*) from pg_backend_memory_contexts where name = '{name}'")
            };
            assert_eq!(session.number(&count("CachedPlanSource"))?, 20);
            assert_eq!(session.number(&count("CachedPlanQuery"))?, 20);
            let left = if deallocate {
                session.run("deallocate all;")?;
                0
            } else {
                20
            };
            // The answer to this one comes after everything above is done.
            session.run("select 1;")?;
            tracer.interrupt()?;
            let allocator = contexts(&tracer.finish()?, pid)?;
            assert_eq!(labelled(&allocator, "CachedPlanSource"), left, "{}", allocator["granules"]);
            assert_eq!(labelled(&allocator, "CachedPlanQuery"), left, "{}", allocator["granules"]);
        }
        cluster.stop()?;
    }
    Ok(())
}

/// Names and numbers of long-lived contexts agree with the server's own view.
#[test]
fn the_servers_own_view_agrees() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &FOLLOW)?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        session
            .run("select count(*) from pg_class join pg_attribute on attrelid = pg_class.oid;")?;
        let names = ["CacheMemoryContext", "MessageContext", "RowDescriptionContext"];
        let mut expected = Vec::new();
        for name in names {
            let query =
                format!("select count(*) from pg_backend_memory_contexts where name = '{name}'");
            expected.push(session.number(&query)?);
        }
        tracer.interrupt()?;
        let allocator = contexts(&tracer.finish()?, pid)?;
        let seen: Vec<u64> = names.iter().map(|name| labelled(&allocator, name) as u64).collect();
        assert_eq!(seen, expected, "{names:?}: {}", allocator["granules"]);
        cluster.stop()?;
    }
    Ok(())
}

/// A backend that has come and gone opened what it closed, but for the few contexts that end with it.
#[test]
fn a_backend_from_start_to_end() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &FOLLOW)?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        for n in 0..20 {
            session.run(&format!("select count(*) + {n} from pg_class;"))?;
        }
        session.process.finish()?;
        // The next backend is forked after the one before has gone; the postmaster ends last.
        let postmaster = cluster.postmaster.pid();
        cluster.stop()?;
        let outcome = tracer.finish()?;
        let allocator = contexts(&outcome, pid)?;
        let count = |key: &str| allocator["granules"][key].as_u64().unwrap_or(0);
        assert!(count("opened") > 20 && count("closed") > 20, "{}", allocator["granules"]);
        let targets = outcome.report()["targets"].as_array().context("a list")?;
        let backend = targets.iter().find(|target| target["pid"] == pid).context("the backend")?;
        assert_eq!(backend["began"]["how"], "forked", "{backend}");
        assert_eq!(backend["ended"]["how"], "exit", "{backend}");
        assert!(targets.iter().any(|target| target["pid"] == postmaster));
    }
    Ok(())
}

/// pgbench through many backends: sums hold in every one of them, and the same load gives the same counts.
#[test]
fn the_same_load_gives_the_same_counts() -> Result<()> {
    if ready() && has_programs(&["pgbench"]) {
        let cluster = Cluster::start()?;
        let output =
            cluster.client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]).output()?;
        ensure!(output.status.success(), "pgbench -i failed: {output:?}");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &FOLLOW)?;
            let mut bench = cluster.client("pgbench");
            bench.args(["-S", "-n", "-t", "20", "-c", "1", "--random-seed=7", "postgres"]);
            let output = bench.output()?;
            ensure!(output.status.success(), "pgbench failed: {output:?}");
            // A further session: the backends before it were forked, and have had their work, by now.
            let mut session = cluster.session()?;
            session.run("select 1;")?;
            let own = session.backend()?;
            tracer.interrupt()?;
            let outcome = tracer.finish()?;
            contexts(&outcome, own)?;
            let targets = outcome.report()["targets"].as_array().context("a list")?;
            let busiest = targets
                .iter()
                .filter(|target| target["pid"] != own)
                .filter_map(|target| target["allocators"][0]["granules"]["opened"].as_u64())
                .max();
            seen.push(busiest.context("a backend of pgbench")?);
        }
        // The first run fills the caches of the catalogue on disk; the others find them.
        assert_eq!(seen[1], seen[2], "{seen:?}");
        cluster.stop()?;
    }
    Ok(())
}

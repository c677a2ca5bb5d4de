//! USDT probes of a program as Debian ships it: PostgreSQL's, with semaphores, stripped, in a family of processes.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{has_programs, requires_root, skip},
    postgresql::{Cluster, binaries},
    tracer::{Outcome, Tracer},
};
use nix::unistd::User;

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

/// Opened, closed and open granules of a process, by the profile called `name`.
fn counts(outcome: &Outcome, pid: u32, name: &str) -> Result<[u64; 3]> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}\n{}", report["losses"], outcome.talk());
    let targets = report["targets"].as_array().context("a list of targets")?;
    let target = targets.iter().find(|target| target["pid"] == pid).context("the backend")?;
    let allocators = target["allocators"].as_array().context("a list of allocators")?;
    let found = allocators.iter().find(|allocator| allocator["profile"] == name);
    let granules = &found.with_context(|| format!("no {name}: {target}"))?["granules"];
    let count = |key: &str| granules[key].as_u64().context("a count");
    Ok([count("opened")?, count("closed")?, count("open_now")?])
}

/// A backend that is attached to: as many transactions begin, commit and roll back as psql asks for. The
/// transactions are told apart by the number that the probe hands out.
#[test]
fn transactions_of_a_backend() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        let tracer = Tracer::attach(&[pid], "usdt_postgresql", &["--level", "boundary"])?;
        for n in 0..30 {
            session.run(&format!("begin; select {n}; commit;"))?;
        }
        for n in 0..12 {
            session.run(&format!("begin; select {n}; rollback;"))?;
        }
        session.run("begin;")?;
        tracer.interrupt()?;
        assert_eq!(counts(&tracer.finish()?, pid, "test-usdt-postgresql")?, [43, 42, 1]);
        session.run("commit;")?;
        cluster.stop()?;
    }
    Ok(())
}

/// Backends that are forked while all of the file's processes are probed: each has raised semaphores from its
/// first query on, and its own counts.
#[test]
fn transactions_of_backends_to_come() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        let more = ["--level", "boundary", "--follow-forks"];
        let tracer = Tracer::attach(&[cluster.postmaster.pid()], "usdt_postgresql", &more)?;
        let mut backends = Vec::new();
        for transactions in [3, 11] {
            let mut session = cluster.session()?;
            let pid = session.backend()?;
            for n in 0..transactions {
                session.run(&format!("select {n};"))?;
            }
            backends.push((pid, transactions, session));
        }
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let mut own = Vec::new();
        for (pid, transactions, _) in &backends {
            let [opened, closed, open] = counts(&outcome, *pid, "test-usdt-postgresql")?;
            assert_eq!((opened - closed, open), (0, 0), "pid {pid}");
            own.push(opened - transactions);
        }
        // What a session does before its first transaction of ours is the same in both.
        assert_eq!(own[0], own[1], "{own:?}");
        cluster.stop()?;
    }
    Ok(())
}

//! Debian's PostgreSQL as it is: a cluster of the test's own, reached through a socket in its directory.
//!
//! The backend's memory contexts are the granules; the server's own view of them,
//! `pg_backend_memory_contexts`, is the second opinion.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_tests::{
    compare::sum_rule,
    elf,
    environment::{has_programs, requires_root, skip},
    postgresql::{Cluster, binaries},
    tracer::{self, Outcome, Tracer},
    uprobe::Trace,
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

/// Twenty prepared statements are moved below `CacheMemoryContext` once they are made, and the parents that are told are
/// those that the server's own view names, for each of their contexts.
#[test]
fn prepared_statements_have_the_servers_parents() -> Result<()> {
    const NAMES: [&str; 2] = ["CachedPlanSource", "CachedPlanQuery"];
    const PARENTS: [&str; 2] = ["CacheMemoryContext", "CachedPlanSource"];
    if ready() {
        let cluster = Cluster::start()?;
        let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &FOLLOW)?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        for n in 0..20 {
            session.run(&format!("prepare p{n} as select {n} + count(*) from pg_class;"))?;
        }
        let mut expected = BTreeMap::new();
        for name in NAMES {
            for parent in PARENTS {
                let of = "select count(*) from pg_backend_memory_contexts";
                let count = session
                    .number(&format!("{of} where name = '{name}' and parent = '{parent}'"))?;
                expected.insert((name, parent), count);
            }
        }
        assert_eq!(expected.values().sum::<u64>(), 40, "{expected:?}");
        assert_eq!(expected[&("CachedPlanSource", "CacheMemoryContext")], 20);
        session.run("select 1;")?;
        tracer.interrupt()?;
        let allocator = contexts(&tracer.finish()?, pid)?;
        let open = allocator["open_granules"].as_array().context("a list")?;
        let mut told = BTreeMap::new();
        for name in NAMES {
            for parent in PARENTS {
                let is_below = |granule: &&Value| {
                    granule["label"] == name
                        && open.iter().any(|other| {
                            other["id"] == granule["parent"] && other["label"] == parent
                        })
                };
                told.insert((name, parent), open.iter().filter(is_below).count() as u64);
            }
        }
        assert_eq!(told, expected);
        cluster.stop()?;
    }
    Ok(())
}

/// What prepared statements retain, by the server's own view, is what the closes of their contexts say that
/// they gave back, to the byte: at level `boundary` and at level `objects`.
#[test]
fn what_prepared_statements_retain() -> Result<()> {
    const NAMES: [&str; 2] = ["CachedPlanSource", "CachedPlanQuery"];
    if ready() {
        let cluster = Cluster::start()?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        for level in ["boundary", "objects"] {
            let more = ["--level", level, "--top", "1000"];
            let tracer = Tracer::attach(&[pid], "postgresql", &more)?;
            for n in 0..20 {
                session.run(&format!("prepare p{n} as select {n} + count(*) from pg_class;"))?;
            }
            tracer.interrupt()?;
            let allocator = contexts(&tracer.finish()?, pid)?;
            let open = allocator["open_granules"].as_array().context("a list")?;
            let name = |id: &Value| {
                let mut found = open.iter().filter(|granule| granule["id"] == *id);
                let label = found.next().and_then(|granule| granule["label"].as_str());
                NAMES.into_iter().find(|name| label == Some(name))
            };
            let mut retained = BTreeMap::new();
            for name in NAMES {
                let view = "pg_backend_memory_contexts";
                let of = |what: &str| format!("select {what} from {view} where name = '{name}'");
                let count = session.number(&of("count(*)"))?;
                retained.insert(name, (count, session.number(&of("sum(total_bytes)"))?));
            }

            let mut command = tracer::command()?;
            command.args(["attach", "-p", &pid.to_string(), "--profile", "postgresql"]);
            command.args(["--level", level, "-o", "ndjson", "--events"]);
            let mut tracer = Tracer::spawn(command)?;
            tracer.attached()?;
            session.run("deallocate all;")?;
            tracer.interrupt()?;
            let mut given_back = BTreeMap::new();
            for line in tracer.finish()?.stdout {
                let record: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
                if let Some(name) = name(&record["granule"]).filter(|_| record["record"] == "close")
                {
                    let bytes = record["bytes"].as_u64().context("a close has its bytes")?;
                    let sum: &mut (u64, u64) = given_back.entry(name).or_default();
                    *sum = (sum.0 + 1, sum.1 + bytes);
                }
            }
            assert_eq!(given_back, retained, "{level}");
            assert!(retained.values().all(|sum| sum.0 == 20 && sum.1 > 0), "{retained:?}");
        }
        cluster.stop()?;
    }
    Ok(())
}

/// Resets of contexts that are empty already are passed over, and no others: as many of each kind as the kernel's own
/// trace of the function, with the field that says which it is.
#[test]
fn empty_resets_are_passed_over() -> Result<()> {
    if ready() {
        let cluster = Cluster::start()?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        let server = binaries().context("checked before")?.join("postgres");
        let offset = elf::file_offset(&server, "MemoryContextReset")?;
        let tracer = Tracer::attach(&[pid], "postgresql", &["--level", "boundary"])?;
        // The server waits for the next statement whenever a trace begins or ends.
        let trace = Trace::begin(pid, &server, offset, "empty=+4(%di):u8")?;
        session.run(
            "select count(*) from (select length(n::text) from generate_series(1, 5000) n) q;",
        )?;
        let lines = trace.end()?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let allocator = contexts(&outcome, pid)?;
        let count = |field: &str| lines.iter().filter(|line| line.ends_with(field)).count();
        let (empty, others) = (count("empty=1"), count("empty=0"));
        ensure!(empty + others == lines.len(), "another value: {:?}", lines.last());
        ensure!(empty > 5000 && others > 0, "{empty} empty ones of {}", lines.len());
        let probes = outcome.report().pointer("/targets/0/probes").and_then(Value::as_array);
        let mut probes = probes.context("a list of probes")?.iter();
        let reset = probes.find(|probe| probe["role"] == "reset").context("the probe")?;
        assert_eq!((&reset["entries"], &reset["rejected"]), (&lines.len().into(), &empty.into()));
        // Of a context that was open before, and not seen since, there is a reset all the same.
        assert_eq!(allocator["granules"]["resets"], others, "{}", allocator["granules"]);
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

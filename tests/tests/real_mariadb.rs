//! Debian's MariaDB as it is: its memory roots are the granules, each while it has blocks.
//!
//! The server counts prepared statements, each of which has one root; the roots of all open granules are read from
//! the server's memory.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::only_allocator,
    environment::requires_root,
    http::idle,
    mariadb::{Server, Session},
    tracer::{Outcome, Tracer},
};
use serde_json::{Value, json};

const ALL: [&str; 4] = ["--level", "objects", "--top", "1000"];

/// The one allocator of the one process.
fn roots(outcome: &Outcome) -> Result<Value> {
    let allocator = only_allocator(outcome)?;
    assert_eq!(allocator["kind"], "bulk");
    Ok(allocator)
}

/// Granules that the root of a statement makes: closed and open.
fn statements(allocator: &Value) -> Result<(u64, u64)> {
    let places = allocator["lifetimes"]["places"].as_array().context("a list of places")?;
    // Names of C++ functions carry their arguments.
    let of = places.iter().filter(|place| {
        place["function"].as_str().is_some_and(|name| name.starts_with("init_sql_alloc("))
    });
    let mut sums = (0, 0);
    for place in of {
        sums.0 += place["closed"].as_u64().context("a count")?;
        sums.1 += place["open_now"].as_u64().context("a count")?;
    }
    Ok(sums)
}

fn prepare(session: &mut Session, number: u32) -> Result<()> {
    session.run(&format!("prepare p{number} from 'select {number} + count(*) from test.t'"))
}

/// Twenty prepared statements hold twenty roots, as the server's own count says; deallocated, they end.
#[test]
fn prepared_statements_hold_roots() -> Result<()> {
    if requires_root() {
        let server = Server::start()?;
        let mut session = server.session()?;
        // What is loaded once, is.
        prepare(&mut session, 0)?;
        session.run("deallocate prepare p0")?;
        for left in [20, 0] {
            let before = session.status("Prepared_stmt_count")?;
            let tracer = Tracer::attach(&[server.process.pid()], "mariadb", &ALL)?;
            for number in 1..=20 {
                prepare(&mut session, number)?;
            }
            if left == 0 {
                for number in 1..=20 {
                    session.run(&format!("deallocate prepare p{number}"))?;
                }
            }
            idle(server.process.pid())?;
            tracer.interrupt()?;
            let allocator = roots(&tracer.finish()?)?;
            assert_eq!(session.status("Prepared_stmt_count")? - before, left);
            assert_eq!(statements(&allocator)?, (20 - left, left), "{}", allocator["lifetimes"]);
            for number in 1..=20 {
                // Where they were deallocated already, the server says so, and goes on.
                if left != 0 {
                    session.run(&format!("deallocate prepare p{number}"))?;
                }
            }
        }
        server.quit()?;
    }
    Ok(())
}

/// Every granule that is open is, in the server's memory, a root with blocks; no root has more objects in it than its
/// blocks can hold, and nothing that is closed is listed.
#[test]
fn open_roots_have_blocks() -> Result<()> {
    if requires_root() {
        let server = Server::start()?;
        let mut session = server.session()?;
        prepare(&mut session, 0)?;
        let tracer = Tracer::attach(&[server.process.pid()], "mariadb", &ALL)?;
        for number in 1..=10 {
            prepare(&mut session, number)?;
            session.run("select a, count(*) from test.t where a > 0 order by a")?;
        }
        idle(server.process.pid())?;
        tracer.interrupt()?;
        let allocator = roots(&tracer.finish()?)?;
        let mut known = 0;
        for granule in allocator["open_granules"].as_array().context("a list")? {
            let id = granule["id"].as_str().and_then(|id| u64::from_str_radix(&id[2..], 16).ok());
            let bytes = server.bytes_of_root(id.context("an address")?)?;
            assert!(bytes > 0, "a root without blocks: {granule}");
            // Of what is older than the attach, it is not known what is in it.
            if let Some(live) = granule["live_bytes"].as_u64() {
                assert!(live <= bytes, "{live} bytes in blocks of {bytes}: {granule}");
                known += 1;
            }
        }
        assert!(known >= 10, "{}", allocator["open_granules"]);
        server.quit()?;
    }
    Ok(())
}

/// The same statements have the same counts, object by object: statements of one connection reset its root, and leave
/// nothing behind.
#[test]
fn the_same_statements_have_the_same_counts() -> Result<()> {
    if requires_root() {
        let server = Server::start()?;
        let mut session = server.session()?;
        let mut seen = Vec::new();
        for _ in 0..3 {
            let tracer = Tracer::attach(&[server.process.pid()], "mariadb", &ALL)?;
            for number in 0..10 {
                session.run(&format!("select {number} + a from test.t order by a"))?;
            }
            idle(server.process.pid())?;
            tracer.interrupt()?;
            let allocator = roots(&tracer.finish()?)?;
            let (granules, objects) = (&allocator["granules"], &allocator["objects"]);
            assert!(granules["resets"].as_u64() >= Some(20), "{granules}");
            assert!(objects["allocated"].as_u64() > Some(100), "{objects}");
            seen.push(json!([granules, objects["allocated"], objects["allocated_bytes"]]));
        }
        // The first fills caches.
        assert_eq!(seen[1], seen[2], "{seen:#?}");
        server.quit()?;
    }
    Ok(())
}

//! Debian's Subversion as it is: pools of the Apache Portable Runtime, which lives in a library.
//!
//! A library that is preloaded into the same commands counts the same things from inside.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    compare::only_allocator,
    environment::{has_programs, requires_root},
    subversion::{Server, Workspace, version},
    tracer::{Outcome, Tracer, trace},
};
use serde_json::{Value, json};

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// What pools of the known version do: opened, closed, cleared, left open.
const KNOWN: (&str, [u64; 4]) = ("1.14.2", [273, 273, 212, 0]);

fn ready() -> bool {
    requires_root() && has_programs(&["svn", "svnadmin", "svnserve"])
}

/// The one allocator of the one process.
fn pools(outcome: &Outcome) -> Result<Value> {
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    only_allocator(outcome)
}

/// The counts that the preloaded library has as well, under its names.
fn counts(allocator: &Value) -> Value {
    let (granules, objects) = (&allocator["granules"], &allocator["objects"]);
    json!({
        "opened": granules["opened"], "closed": granules["closed"], "resets": granules["resets"],
        "open_now": granules["open_now"],
        "allocated": objects["allocated"], "allocated_bytes": objects["allocated_bytes"],
    })
}

/// Create, import, log, verify: in each of the four processes every pool, clear, allocation and byte is
/// seen that the library in the very process counts; a bulk close of a pool in use is no pin, and there is
/// no DSR.
#[test]
fn subversion_is_exact() -> Result<()> {
    if ready() {
        let workspace = Workspace::new()?;
        let mut seen = Vec::new();
        for step in workspace.steps()? {
            let command = workspace.counting(&step)?;
            let allocator = pools(&Tracer::run_command(&command, "apr", &OBJECTS)?.finish()?)?;
            let granules = &allocator["granules"];
            assert_eq!((&allocator["kind"], &allocator["dsr"]), (&"bulk".into(), &Value::Null));
            assert_eq!((&granules["pinned"], &granules["drainable"]), (&0.into(), &0.into()));
            assert_eq!((&granules["opened_before"], &granules["reopened"]), (&0.into(), &0.into()));
            seen.push(counts(&allocator));
        }
        assert_eq!(seen, workspace.counted()?);
    }
    Ok(())
}

/// The same commands with nothing preloaded: the numbers of pools that this version of Subversion is known
/// to have, and for any version as many created as destroyed.
#[test]
fn subversion_as_it_is() -> Result<()> {
    if ready() {
        let workspace = Workspace::new()?;
        let mut sums = [0; 4];
        for step in workspace.steps()? {
            let allocator = pools(&Tracer::run_command(&step, "apr", &OBJECTS)?.finish()?)?;
            for (sum, key) in sums.iter_mut().zip(["opened", "closed", "resets", "open_now"]) {
                let count = allocator["granules"][key].as_u64();
                *sum += count.with_context(|| format!("no {key}"))?;
            }
        }
        assert!(sums[0] == sums[1] && sums[2] > 0 && sums[3] == 0, "{sums:?}");
        if version()? == KNOWN.0 {
            assert_eq!(sums, KNOWN.1);
        }
    }
    Ok(())
}

fn address(id: &Value) -> Result<u64> {
    let text = id.as_str().with_context(|| format!("an id in hexadecimal, not {id}"))?;
    let digits = text.strip_prefix("0x").with_context(|| format!("no address: {text}"))?;
    Ok(u64::from_str_radix(digits, 16)?)
}

/// Attached to a server that waits in the middle of a conversation: the pools that it opened since are
/// open, and the parents told of them are those that stand in the server's memory.
#[test]
fn parents_are_the_servers_own() -> Result<()> {
    if ready() {
        let mut server = Server::start()?;
        let more = ["--level", "objects", "--top", "1000"];
        let tracer = Tracer::attach(&[server.process.pid()], "apr", &more)?;
        server.open_repository()?;
        tracer.interrupt()?;
        let allocator = pools(&tracer.finish()?)?;
        let listed = allocator["open_granules"].as_array().context("a list of open pools")?;
        assert_eq!(allocator["granules"]["open_now"], listed.len(), "{}", allocator["granules"]);
        let (mut seen, mut nested) = (0, 0);
        for pool in listed {
            // Of those that were there before only the use was seen.
            if pool["parent"].is_null() {
                continue;
            }
            let parent = server.word(address(&pool["id"])?)?;
            assert_eq!(address(&pool["parent"])?, parent, "{pool}");
            seen += 1;
            nested += usize::from(listed.iter().any(|other| other["id"] == pool["parent"]));
        }
        assert!(seen > 1 && nested > 0, "{seen} pools with parents, {nested} in listed ones");
        server.stop()?;
    }
    Ok(())
}

/// Pools that are named after they were made, some of them twice: what is left open has its last name, none where it was
/// given none, and the parent that the library itself tells.
#[test]
fn tags_are_labels() -> Result<()> {
    if ready() {
        let traced = trace("apr_tags", &[], "apr", &["--level", "boundary", "--top", "1000"])?;
        traced.exact();
        let described = |list: &Value| -> Result<BTreeMap<String, Value>> {
            let list = list.as_array().context("a list of open pools")?;
            let one = |pool: &Value| {
                let what = json!({"label": pool["label"], "parent": pool["parent"]});
                Ok((pool["id"].as_str().context("an id")?.to_owned(), what))
            };
            list.iter().map(one).collect()
        };
        let truth = described(&traced.truths.first().context("a truth")?["open"])?;
        let report = traced.outcome.report();
        let told = report.pointer("/targets/0/allocators/0/open_granules");
        let told = described(told.context("open pools")?)?;
        assert_eq!(truth.len(), 45);
        assert_eq!(told, truth);
        let named = |start: &str| {
            let begins =
                |pool: &&Value| pool["label"].as_str().is_some_and(|l| l.starts_with(start));
            told.values().filter(begins).count()
        };
        ensure!(named("tag ") > 10 && named("again ") > 2, "{told:?}");
    }
    Ok(())
}

//! Memory contexts as PostgreSQL 15, 16 and 17 lay them out: `targets/pg16.c`, which stands in for what Debian does not
//! have. That version 15 is as it is here, the server itself shows in `postgresql.rs`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{chaos_seed, requires_root},
    target::Target,
    tracer::{self, Tracer, trace, trace_from_start},
};
use serde_json::Value;

const PROFILE: &str = "postgresql";
const OBJECTS: [&str; 4] = ["--level", "objects", "--top", "1000"];

/// Name and parent of each open context, by its address.
fn described(list: &Value) -> Result<BTreeMap<String, (Value, Value)>> {
    let list = list.as_array().context("a list of open contexts")?;
    let one = |one: &Value| {
        let id = one["id"].as_str().context("an id")?.to_owned();
        Ok((id, (one["label"].clone(), one["parent"].clone())))
    };
    list.iter().map(one).collect()
}

/// Contexts, resets and chunks of all types are counted exactly in the layouts of all three versions, chunks that have a
/// block of their own and aligned ones included; what is open has its name, and the parent that it was moved below.
#[test]
fn every_layout_is_exact() -> Result<()> {
    if requires_root() {
        let seed = chaos_seed()?;
        for name in ["pg15", "pg16", "pg17"] {
            let traced = trace(name, &[seed.as_str()], PROFILE, &OBJECTS)?;
            traced.exact();
            let truth = traced.truths.first().context("a truth")?;
            for key in ["moved", "refused"] {
                ensure!(truth[key].as_u64() > Some(0), "{name}: {key}");
            }
            ensure!((truth["aligned"].as_u64() > Some(0)) == (name != "pg15"), "{name}: aligned");
            let told = traced.outcome.report().pointer("/targets/0/allocators/0/open_granules");
            let told = described(told.context("open granules")?)?;
            ensure!(!told.is_empty(), "{name}: it leaves contexts open");
            assert_eq!(told, described(&truth["open"])?, "{name}");
        }
        trace_from_start("pg17", &["seed=7"], PROFILE, &["--level", "objects"])?.exact();
    }
    Ok(())
}

/// At level `boundary` too, and the closes say the bytes that the contexts' own books had at their ends, to the byte.
#[test]
fn closes_say_the_bytes() -> Result<()> {
    if requires_root() {
        for name in ["pg15", "pg16", "pg17"] {
            let mut target = Target::start(name, &["steps=5000"])?;
            let mut command = tracer::command()?;
            command.args(["attach", "-p", &target.pid().to_string(), "--profile", PROFILE]);
            command.args(["--level", "boundary", "-o", "ndjson", "--events"]);
            let mut tracer = Tracer::spawn(command)?;
            tracer.attached()?;
            target.go()?;
            let truth = target.finish()?.truths.remove(0);
            let (mut closes, mut bytes) = (0_u64, 0);
            for line in tracer.finish()?.stdout {
                let record: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
                if record["record"] == "close" {
                    closes += 1;
                    bytes += record["bytes"].as_u64().context("a close has its bytes")?;
                }
            }
            let granules = &truth["allocators"][0]["granules"];
            assert_eq!(granules["closed"], closes, "{name}");
            assert_eq!(truth["given_back"], bytes, "{name}");
        }
    }
    Ok(())
}

/// `profile check` says which version a server is: the probes that are left out, and for want of which symbol.
#[test]
fn the_version_is_said() -> Result<()> {
    if requires_root() {
        for (name, other, missing) in [
            ("pg15", "v16", "AllocSetDelete"),
            ("pg16", "v15", "MemoryContextContains"),
            ("pg17", "v15", "MemoryContextContains"),
        ] {
            let target = Target::start(name, &[])?;
            let pid = target.pid().to_string();
            let outcome = tracer::run_to_end(&["profile", "check", PROFILE, "-p", &pid])?;
            let talk = [outcome.stdout.join("\n"), outcome.talk()].join("\n");
            assert_eq!(outcome.code, Some(0), "{name}: {talk}");
            let left_out = format!("pfree: it is not the version {other}: missing {missing}");
            ensure!(talk.contains(&left_out), "{name}: {talk}");
            target.kill()?;
        }
    }
    Ok(())
}

/// A build that checks its memory lays chunks out otherwise: it is refused, and told why, instead of being misread.
#[test]
fn a_build_for_developers_is_refused() -> Result<()> {
    if requires_root() {
        let target = Target::start("pg16_checked", &[])?;
        let pid = target.pid().to_string();
        let outcome = tracer::run_to_end(&["attach", "-p", &pid, "--profile", PROFILE])?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        ensure!(outcome.talk().contains("it has AllocSetCheck"), "{}", outcome.talk());
        target.kill()?;
    }
    Ok(())
}

//! The census of PostgreSQL's memory contexts, against what the server writes of them to its log at the same moment.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, has_programs, requires_root, skip},
    postgresql::{Cluster, Session, servers},
};
use nix::unistd::User;
use serde_json::Value;

fn ready() -> bool {
    if !requires_root() || !has_programs(&["psql"]) {
        return false;
    }
    let usable = !servers().is_empty() && matches!(User::from_name("postgres"), Ok(Some(_)));
    if !usable {
        skip("no PostgreSQL server, or no user postgres");
    }
    usable
}

fn census(pid: u32, more: &[&str]) -> Result<Value> {
    let mut command = Command::new(environment::drainprof()?);
    let output =
        command.args(["census", "-o", "json", "-p", &pid.to_string()]).args(more).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {talk}", output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn contexts(census: &Value) -> Result<&Vec<Value>> {
    census["contexts"].as_array().context("contexts")
}

/// A context: name, bytes, blocks, free bytes.
type Numbers = (String, u64, u64, u64);

/// Contexts by level in the server's order; and what its log adds up: children of one parent beyond the hundredth.
#[derive(Debug, Default, PartialEq)]
struct Listing {
    rows: BTreeMap<u64, Vec<Numbers>>,
    others: u64,
    others_sum: [u64; 3],
}

impl Listing {
    fn add_other(&mut self, numbers: [u64; 3]) {
        self.others_sum.iter_mut().zip(numbers).for_each(|(sum, own)| *sum += own);
    }
}

/// What a census says.
fn seen(census: &Value) -> Result<Listing> {
    let mut listing = Listing::default();
    let (mut children, mut left_out) = (BTreeMap::<_, u64>::new(), BTreeSet::new());
    for (index, context) in contexts(census)?.iter().enumerate() {
        let number = |key: &str| context[key].as_u64().with_context(|| format!("{key}: {context}"));
        let numbers = [number("total_bytes")?, number("blocks")?, number("free_bytes")?];
        let parent = context["parent"].as_u64();
        let siblings = children.entry(parent).or_default();
        *siblings += 1;
        let is_below_other = parent.is_some_and(|parent| left_out.contains(&parent));
        if is_below_other || *siblings > 100 {
            left_out.insert(index as u64);
            listing.others += u64::from(!is_below_other);
            listing.add_other(numbers);
            continue;
        }
        let name = context["name"].as_str().context("a name")?.to_owned();
        let rows = listing.rows.entry(number("level")?).or_default();
        rows.push((name, numbers[0], numbers[1], numbers[2]));
    }
    Ok(listing)
}

/// What the lines of a log say.
fn logged(talk: &str) -> Result<Listing> {
    let mut listing = Listing::default();
    for line in talk.lines().filter_map(|line| line.split_once("level: ")).map(|(_, line)| line) {
        let (level, rest) = line.split_once("; ").context("a level")?;
        let others = rest.split_once(" more child contexts containing ");
        let (name, rest) = others.or_else(|| rest.split_once(": ")).context("a name")?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let before = |word: &str| -> Result<u64> {
            let at = words.iter().position(|one| one.starts_with(word)).context(line.to_owned())?;
            Ok(words[at.checked_sub(1).context("a number")?].parse()?)
        };
        let numbers = [before("total")?, before("blocks")?, before("free")?];
        if others.is_some() {
            listing.others += name.parse::<u64>()?;
            listing.add_other(numbers);
        } else {
            let rows = listing.rows.entry(level.parse()?).or_default();
            rows.push((name.to_owned(), numbers[0], numbers[1], numbers[2]));
        }
    }
    Ok(listing)
}

/// Prepared statements, their plans, and a cursor whose sort is not done.
fn work(session: &mut Session) -> Result<()> {
    for n in 0..20 {
        session.run(&format!("prepare p{n} as select {n} + count(*) from pg_class;"))?;
        session.run(&format!("execute p{n} \\g /dev/null"))?;
    }
    session
        .run("create table t as select g, repeat('x', 100) b from generate_series(1, 3000) g;")?;
    session.run("begin; declare c cursor for select * from t order by b, g desc;")?;
    session.run("fetch 3 from c \\g /dev/null")
}

/// A backend says of itself, context by context, what the census says. With each server that is installed.
#[test]
fn asleep() -> Result<()> {
    if !ready() {
        return Ok(());
    }
    for binaries in servers() {
        let mut cluster = Cluster::start_from(&binaries)?;
        let mut session = cluster.session()?;
        let pid = session.backend()?;
        work(&mut session)?;
        let mut other = cluster.session()?;
        let log = "from pg_proc where proname = 'pg_log_backend_memory_contexts'";
        if other.number(&format!("select count(*) {log}"))? == 0 {
            // Version 13 has no such function.
            ensure!(seen(&census(pid, &[])?)?.others > 0, "{binaries:?}");
            cluster.stop()?;
            continue;
        }
        let before = cluster.postmaster.talk();
        other.run(&format!("select pg_log_backend_memory_contexts({pid}) \\g /dev/null"))?;
        cluster.postmaster.expect_err_containing("Grand total")?;
        let census = census(pid, &[])?;
        let talk = cluster.postmaster.talk();
        let truth = logged(talk.strip_prefix(&before).context("the log grows")?)?;
        assert_eq!(seen(&census)?, truth, "{binaries:?}");
        ensure!(truth.rows.values().map(Vec::len).sum::<usize>() > 100, "{truth:?}");
        let kind = |name: &str| {
            let named = contexts(&census).ok()?.iter().find(|one| one["name"] == name)?;
            named["kind"].as_str().map(str::to_owned)
        };
        // A sort's tuples are of another kind from version 15 on.
        assert_eq!(kind("CacheMemoryContext").as_deref(), Some("alloc_set"));
        let tuples = kind("Caller tuples").unwrap_or_else(|| "none".to_owned());
        ensure!(["generation", "bump", "alloc_set", "none"].contains(&tuples.as_str()), "{tuples}");
        assert_eq!(census["notes"].as_array().map(Vec::len), Some(0), "{}", census["notes"]);
        cluster.stop()?;
    }
    Ok(())
}

/// Idents, which can be SQL, are shown if they are asked for, cut and without control characters.
#[test]
fn idents() -> Result<()> {
    if !ready() {
        return Ok(());
    }
    let cluster = Cluster::start_from(servers().first().context("a server")?)?;
    let mut session = cluster.session()?;
    session.run(&format!("prepare p as select\t'secret {}';", "x".repeat(100)))?;
    let pid = session.backend()?;
    let wanted = format!("prepare p as select 'secret {}", "x".repeat(36));
    let shown = census(pid, &["--idents"])?;
    let is_it = |one: &&Value| one["name"] == "CachedPlanSource";
    let source = contexts(&shown)?.iter().find(is_it).context("the statement")?;
    assert_eq!(source["ident"], wanted.as_str(), "{source}");
    let hidden = census(pid, &[])?;
    ensure!(!hidden.to_string().contains("secret"), "{hidden}");
    let text = |more: &[&str]| -> Result<String> {
        let mut command = Command::new(environment::drainprof()?);
        command.args(["census", "--top", "1000", "-p", &pid.to_string()]).args(more);
        Ok(String::from_utf8(command.output()?.stdout)?)
    };
    ensure!(text(&["--idents"])?.contains("CachedPlanSource: prepare p as select 'secret"));
    let page = text(&[])?;
    ensure!(page.contains("CachedPlanSource") && !page.contains("secret"), "{page}");
    cluster.stop()
}

/// A backend that does not stop making and dropping contexts is read all the same, and does not notice.
#[test]
fn at_work() -> Result<()> {
    if !ready() {
        return Ok(());
    }
    let cluster = Cluster::start_from(servers().first().context("a server")?)?;
    let mut session = cluster.session()?;
    let pid = session.backend()?;
    session.process.send_line(
        "\\echo begins\ndo $$ begin loop perform count(*) from (select * from pg_class c join pg_attribute a \
         on a.attrelid = c.oid order by a.attname limit 10) q; end loop; end $$;",
    )?;
    session.process.expect_out("begins")?;
    let mut whole = 0;
    for _ in 0..12 {
        let census = census(pid, &[])?;
        let contexts = contexts(&census)?;
        assert_eq!(contexts[0]["name"], "TopMemoryContext");
        let known = contexts.iter().filter(|one| one["free_bytes"].is_u64()).count();
        if contexts.len() > 50 && known * 10 >= contexts.len() * 9 {
            whole += 1;
        } else {
            // What lies in memory that it has mapped since its maps were read cannot be seen.
            ensure!(
                census["notes"].to_string().contains("changed while they were read"),
                "{census}"
            );
        }
    }
    ensure!(whole >= 8, "{whole} of 12 were whole");
    ensure!(session.process.is_running()?);
    // The statement never ends: an immediate shutdown ends it.
    drop(cluster);
    Ok(())
}

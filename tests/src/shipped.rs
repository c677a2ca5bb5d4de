//! The shipped profiles and the programs that they are about: one row of [`ROWS`] for each.
//!
//! A row says in which file of which Debian package the profile's names are, and how to start that program and have
//! it do a little of everything. `tests/shipped.rs` and `tests/real_shipped.rs` walk the table: every name that a
//! profile has resolves in the file as it is installed, and on the live process every probe fires, or the row says
//! why it does not. A built-in profile without a row fails.
//!
//! To add one: a row in `rows.rs`, in the order of the names, and a function that starts the program (its helper module
//! beside this one implements [`Live`]). The packages of a row that [`Needs::Real`] belong into the list of
//! `cargo xtask test --real`.

mod live;
mod row;
mod rows;
mod servers;
mod symbols;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
pub use live::Live;
use nix::sys::signal::Signal;
pub use row::{Except, Needs, Row};
pub use rows::ROWS;
use serde_json::Value;
pub use symbols::{files, unresolved};

use crate::{process::Process, tracer};

/// The rows of the tests that run everywhere, or of those that need further packages.
pub fn rows(real: bool) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(move |row| matches!(row.needs, Needs::Real(_)) == real)
}

/// What is wrong with a row on the live program: probes that are silent without a reason, and reasons that do not
/// hold.
///
/// # Errors
/// If the program cannot be started or does not do what it should, or drainprof does not attach.
pub fn misfires(row: &Row) -> Result<Vec<String>> {
    let mut live = (row.start)()?;
    let mut command = tracer::command()?;
    command.args(["profile", "check", row.profile, "-p", &live.pid().to_string()]);
    command.args(["-o", "json"]);
    // Ended as soon as the work is done.
    command.args(["--for", "10m"]);
    let mut check = Process::start("drainprof", command)?;
    check.expect_err("drainprof: attached ")?;
    live.work()?;
    check.signal(Signal::SIGINT)?;
    let checked = check.finish()?;
    live.end()?;
    let said = || format!("{} {:?} {:?}", checked.status, checked.stderr, checked.stdout);
    let document: Value = serde_json::from_str(&checked.stdout.join("\n"))
        .with_context(|| format!("profile check writes no document: {}", said()))?;
    let coverage = &document["coverage"];
    let proven = coverage["proven"].as_bool().with_context(said)?;
    let code = if proven { 0 } else { 5 };
    ensure!(checked.status.code() == Some(code), "profile check: {}", said());
    let silent = silent(coverage).with_context(said)?;
    Ok(judge(row, &silent))
}

/// Each probe of a document's coverage, by role and symbol, and why it is silent; `None` for what did something.
///
/// Of several in one place or under one name (constructors, objects) one that fired is enough. One whose `when` never
/// held is as good as silent.
fn silent(coverage: &Value) -> Result<BTreeMap<String, Option<String>>> {
    let probes = coverage["probes"].as_array().context("a list of probes")?;
    ensure!(!probes.is_empty(), "profile check shows no probe");
    let mut found = BTreeMap::new();
    for probe in probes {
        let text = |key: &str| probe[key].as_str().with_context(|| format!("{key} of {probe}"));
        let count = |key: &str| probe[key].as_u64().with_context(|| format!("{key} of {probe}"));
        let rejected = count("rejected")? >= count("hits")?;
        let why = probe["silent"].as_str().map(ToOwned::to_owned);
        let why = why.or_else(|| rejected.then(|| "`when` held for no hit".to_owned()));
        let entry = found.entry(format!("{} {}", text("role")?, text("symbol")?));
        let all: &mut Option<String> = entry.or_insert_with(|| why.clone());
        if why.is_none() {
            *all = None;
        }
    }
    Ok(found)
}

/// Compares what was silent with what the row says.
fn judge(row: &Row, silent: &BTreeMap<String, Option<String>>) -> Vec<String> {
    let excused = |probe: &str| row.silent.iter().any(|except| except.what == probe);
    let mut wrong: Vec<String> = silent
        .iter()
        .filter(|(probe, _)| !excused(probe))
        .filter_map(|(probe, why)| {
            let why = why.as_ref()?;
            Some(format!(
                "{}: `{probe}` is silent, and the row does not say why: {why}",
                row.profile
            ))
        })
        .collect();
    let is_silent = |except: &&Except| matches!(silent.get(except.what), Some(Some(_)));
    wrong.extend(row.silent.iter().filter(|except| !is_silent(except)).map(|except| {
        format!(
            "{}: `{}` is no silent probe; it was to be so: {}",
            row.profile, except.what, except.why
        )
    }));
    wrong
}

/// Judges rows two at a time, and fails with everything that is wrong with any of them.
///
/// # Errors
/// What is wrong, or could not be judged, row by row.
pub fn all_good(real: bool, judge: fn(&Row) -> Result<Vec<String>>) -> Result<()> {
    let rows: Vec<&Row> = rows(real).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            match judge(row).with_context(|| format!("{} cannot be judged", row.profile)) {
                Ok(found) => wrong.extend(found),
                Err(error) => wrong.push(format!("{error:?}")),
            }
        }
        wrong
    };
    let wrong: Vec<String> = thread::scope(|scope| {
        let workers = [scope.spawn(work), scope.spawn(work)];
        let died = || vec!["a worker panicked".to_owned()];
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|_| died())).collect()
    });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn probe(symbol: &str, [hits, rejected]: [u64; 2], silent: Option<&str>) -> Value {
        json!({
            "role": "open", "symbol": symbol, "hits": hits, "rejected": rejected, "silent": silent
        })
    }

    /// Silent probes and those whose hits are all rejected need a reason, and reasons need a silent probe; of several
    /// under one name one that fires is enough.
    #[test]
    fn silence_needs_a_reason() -> Result<()> {
        let coverage = json!({ "probes": [
            probe("fires", [5, 4], None),
            probe("pool::Arena<unsigned long>::Arena()", [0, 0], Some("nothing was called")),
            probe("twice", [0, 0], Some("nothing was called")),
            probe("twice", [1, 0], None),
            probe("rejected", [3, 3], None),
        ]});
        let silent = silent(&coverage)?;
        let is_silent: Vec<bool> = silent.values().map(Option::is_some).collect();
        assert_eq!(is_silent, [false, true, true, false], "{silent:?}");
        let row = |silent| Row { silent, ..ROWS[0] };
        let wrong = judge(&row(&[]), &silent);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        let wrong = judge(
            &row(&[
                Except { what: "open rejected", why: "true" },
                Except { what: "open pool::Arena<unsigned long>::Arena()", why: "true" },
                Except { what: "open fires", why: "untrue" },
                Except { what: "open gone", why: "untrue" },
            ]),
            &silent,
        );
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong.iter().all(|text| text.contains("untrue")), "{wrong:?}");
        Ok(())
    }

    /// A document without probes proves nothing.
    #[test]
    fn no_probes() {
        assert!(silent(&json!({ "probes": [] })).is_err());
        assert!(silent(&json!(null)).is_err());
    }
}

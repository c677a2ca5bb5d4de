//! Granules that end with those that they are nested in, are moved, named, and handed over: `targets/nests.c`.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, chaos_seed, requires_root},
    target::Target,
    tracer::{self, Traced, Tracer, run_to_end, trace, trace_from_start},
};
use serde_json::{Value, json};

const OBJECTS: [&str; 4] = ["--level", "objects", "--top", "1000"];

/// Ids, labels and parents of the granules in a list, in the order of their ids.
fn described(list: &Value) -> Result<Vec<Value>> {
    let mut all: Vec<Value> = list
        .as_array()
        .context("a list of open granules")?
        .iter()
        .map(|one| json!({"id": one["id"], "label": one["label"], "parent": one["parent"]}))
        .collect();
    all.sort_by_key(|one| one["id"].to_string());
    Ok(all)
}

fn open_granules(traced: &Traced) -> Result<(Vec<Value>, Vec<Value>)> {
    let truth = traced.truths.first().context("a truth")?;
    let told = traced.outcome.report().pointer("/targets/0/allocators/0/open_granules");
    Ok((described(&truth["open"])?, described(told.context("open granules")?)?))
}

/// Whatever order contexts are made, moved, cleared, given up and freed in: each end is counted once and as what it
/// was, objects go with the context that they are nested in, and what is open has its last name and parent.
#[test]
fn every_end_is_counted() -> Result<()> {
    if requires_root() {
        let seed = chaos_seed()?;
        for args in [&[seed.as_str()][..], &["steps=60000", "depth=3"], &["depth=30", "seed=7"]] {
            let traced = trace("nests", args, "nests", &OBJECTS)?;
            traced.exact();
            let (truth, told) = open_granules(&traced)?;
            ensure!(!truth.is_empty(), "the target leaves contexts open");
            assert_eq!(told, truth, "{args:?}");
            let granules = traced.outcome.report().pointer("/targets/0/allocators/0/granules");
            for key in ["migrated", "ended_with_parent", "closed", "resets"] {
                ensure!(granules.is_some_and(|all| all[key].as_u64() > Some(100)), "{granules:?}");
            }
        }
    }
    Ok(())
}

/// Contexts that get other addresses go on as what they were, with their names and with what is nested in them, though
/// their old addresses are used again at once. (The parent that is told is the address from when it was said.)
#[test]
fn moved_contexts_go_on() -> Result<()> {
    if requires_root() {
        let seed = chaos_seed()?;
        for args in [&["moves=1", seed.as_str()][..], &["moves=1", "steps=60000", "depth=4"]] {
            let more = ["--level", "boundary", "--top", "1000"];
            let traced = trace("nests", args, "nests_moves", &more)?;
            traced.exact();
            let names = |all: Vec<Value>| {
                all.into_iter()
                    .map(|one| (one["id"].clone(), one["label"].clone()))
                    .collect::<Vec<_>>()
            };
            let (truth, told) = open_granules(&traced)?;
            assert_eq!(names(told), names(truth), "{args:?}");
            let granules = traced.outcome.report().pointer("/targets/0/allocators/0/granules");
            ensure!(
                granules.is_some_and(|all| all["ended_with_parent"].as_u64() > Some(100)),
                "{granules:?}"
            );
        }
    }
    Ok(())
}

/// From the first instruction on, and at level `boundary`, where nothing is known of the objects, granules are the same.
#[test]
fn granules_at_other_levels() -> Result<()> {
    if requires_root() {
        trace_from_start("nests", &[], "nests", &OBJECTS)?.exact();
        let at_boundary = trace("nests", &[], "nests", &["--level", "boundary", "--top", "1000"])?;
        let (truth, told) = open_granules(&at_boundary)?;
        assert_eq!(told, truth);
        let of = |value: &Value, key: &str| value["granules"][key].clone();
        let report = at_boundary.outcome.report();
        let told = report.pointer("/targets/0/allocators/0").context("an allocator")?;
        let truth = &at_boundary.truths[0]["allocators"][0];
        for key in ["opened", "closed", "resets", "migrated", "ended_with_parent", "open_now"] {
            assert_eq!(of(told, key), of(truth, key), "{key}");
        }
        assert_eq!(told["objects"], Value::Null);
    }
    Ok(())
}

/// Thousands of contexts that end with others come and go by addresses that are not seen again soon: nobody opens the
/// ids of those that ended, and each end is still counted as what it was.
#[test]
fn ends_without_reopens() -> Result<()> {
    if requires_root() {
        let args = ["first_out=1", "steps=100000"];
        let traced = trace("nests", &args, "nests", &["--level", "boundary", "--top", "1000"])?;
        let report = traced.outcome.report();
        assert_eq!(report["complete"], true, "{}", report["losses"]);
        let told = report.pointer("/targets/0/allocators/0/granules").context("granules")?;
        let truth = &traced.truths[0]["allocators"][0]["granules"];
        for key in ["opened", "closed", "reopened", "ended_with_parent", "migrated", "open_now"] {
            assert_eq!(told[key], truth[key], "{key}: {told}");
        }
        ensure!(told["ended_with_parent"].as_u64() > Some(10_000), "{told}");
    }
    Ok(())
}

/// Thousands of contexts that end with others come and go by addresses of their own, and there is room for far fewer:
/// what has ended gives its place up within seconds, none is lost, and each end is what it was.
#[test]
fn ended_granules_give_their_places_up() -> Result<()> {
    if requires_root() {
        // Between two pauses no more may be opened than a quarter of the room: it is made where three are taken.
        const PAUSES: usize = 10;
        let mut target = Target::start("nests", &["first_out=1", "steps=20000", "pause=2000"])?;
        let mut command = tracer::command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "--level", "boundary"]);
        command.args(["--profile", &environment::profile("nests"), "-o", "ndjson"]);
        command.args(["--interval", "300ms", "--max-granules", "2048"]);
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        for _ in 0..PAUSES {
            target.reaches("pause")?;
            // What closed more than a second ago is taken out meanwhile, where room is short.
            for _ in 0..5 {
                tracer.process().expect_out("{\"record\":\"interval\"")?;
            }
            target.go()?;
        }
        let truth = target.finish()?.truths.remove(0);
        let line = tracer.finish()?.stdout.pop().context("a last record")?;
        let report: Value = serde_json::from_str(&line)?;
        let report = &report["report"];
        assert_eq!(report["complete"], true, "{}", report["losses"]);
        let told = report.pointer("/targets/0/allocators/0/granules").context("granules")?;
        let truth = &truth["allocators"][0]["granules"];
        for key in ["opened", "closed", "reopened", "ended_with_parent", "migrated", "open_now"] {
            assert_eq!(told[key], truth[key], "{key}: {told}");
        }
        ensure!(told["opened"].as_u64() > Some(2 * 2048), "{told}");
    }
    Ok(())
}

/// Only pages of a census are sampled: --sample saves no hits elsewhere.
#[test]
fn granules_are_not_sampled() -> Result<()> {
    if requires_root() {
        let target = Target::start("nests", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("nests");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--sample", "1/4"];
        let refused = run_to_end(&args)?;
        assert_eq!(refused.code, Some(2), "{}", refused.talk());
        ensure!(refused.talk().contains("leave out --sample"), "{}", refused.talk());
        target.kill()?;
    }
    Ok(())
}

/// Attached half-way: contexts from before are roots whose own parents are not known, nothing is counted twice, and
/// what was opened since ends as it should.
#[test]
fn attached_in_the_middle() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("nests", &["stops=1"])?;
        target.go()?;
        target.reaches("half")?;
        let tracer = Tracer::attach(&[target.pid()], "nests", &OBJECTS)?;
        target.go()?;
        target.finish()?;
        let outcome = tracer.finish()?;
        let report = outcome.report();
        assert_eq!(report["complete"], true, "{}", report["losses"]);
        let granules = report.pointer("/targets/0/allocators/0/granules").context("granules")?;
        ensure!(granules["ended_with_parent"].as_u64() > Some(100), "{granules}");
        ensure!(granules["opened_before"].as_u64() > Some(0), "{granules}");
        let findings = report.pointer("/targets/0/findings").context("findings")?.to_string();
        ensure!(!findings.contains("invariant"), "{findings}");
    }
    Ok(())
}

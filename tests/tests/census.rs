//! Implicit granules: pages that begin with the first object in them and end with the last. The target keeps a model
//! of every page beside its calls.

use anyhow::Result;
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::{Tracer, command, run_to_end, trace, trace_from_start},
};

/// The census is exact to the last page, object and byte: random allocations, frees and reallocations in 64 pages,
/// with objects that are larger than a page, and some that grow out of theirs.
#[test]
fn exact_to_the_last_byte() -> Result<()> {
    if requires_root() {
        let traced = trace_from_start("pages", &[], "pages", &[])?;
        traced.exact();
        let census = &traced.outcome.report()["targets"][0]["allocators"][0]["census"];
        let held = census["granules_open"].as_u64();
        assert!(held > Some(10) && census["apart"]["objects"].as_u64() > Some(0), "{census}");
    }
    Ok(())
}

/// Eight threads with objects in the same pages: the pages that are held at the end, their objects and bytes, and the
/// sum rule of all that have begun and ended.
#[test]
fn threads_share_pages() -> Result<()> {
    if requires_root() {
        for pages in ["pages=2", "pages=64"] {
            trace_from_start("pages", &["threads=8", "ops=80000", pages], "pages", &[])?.exact();
        }
    }
    Ok(())
}

/// After an attach nothing is said to be empty, and nothing to end: each page may hold objects that are older. What
/// was seen is told, and frees of older objects are counted; nothing is incomplete.
#[test]
fn attached_late_it_claims_nothing() -> Result<()> {
    if requires_root() {
        let traced = trace("pages", &[], "pages", &[])?;
        traced.exact();
        let report = traced.outcome.report();
        assert_eq!(report["complete"], true);
        assert_eq!(report["targets"][0]["allocators"][0]["census"]["unknown_frees"], 10);
    }
    Ok(())
}

/// Fifty times more pages come and go than can be open at once, none of them twice: every one is counted, and no map
/// fills up.
#[test]
fn churn_fills_no_map() -> Result<()> {
    if requires_root() {
        let room = ["--max-granules", "4096", "--max-objects", "4096"];
        trace_from_start("pages", &["churn=200000"], "pages", &room)?.exact();
    }
    Ok(())
}

/// A profile that waits to be named is not used without its name, and says so in the list.
#[test]
fn only_on_request() -> Result<()> {
    if requires_root() {
        let mut list = command()?;
        list.args(["profile", "list"]);
        let listed = Tracer::spawn(list)?.finish()?;
        let line = listed.stdout.iter().find(|line| line.starts_with("malloc-glibc"));
        assert!(line.is_some_and(|line| line.contains("(only with --profile)")), "{line:?}");

        let target = Target::start("pages", &[])?;
        let pid = target.pid().to_string();
        // Its libc has the malloc of a profile that is built in.
        let refused = run_to_end(&["attach", "-p", &pid, "-d", "1s"])?;
        assert_eq!(refused.code, Some(4), "{}", refused.talk());
        assert!(!refused.talk().contains("malloc-"), "{}", refused.talk());
    }
    Ok(())
}

/// A census has to see all of the time: it cannot be taken in windows.
#[test]
fn no_windows() -> Result<()> {
    if requires_root() {
        let target = Target::start("pages", &[])?;
        let pid = target.pid().to_string();
        let profile = environment::profile("pages");
        let args = ["attach", "-p", &pid, "--profile", &profile, "--duty", "1s/10s"];
        let refused = run_to_end(&args)?;
        assert_eq!(refused.code, Some(2), "{}", refused.talk());
        assert!(refused.talk().contains("takes a census"), "{}", refused.talk());
    }
    Ok(())
}

/// In a sample of the pages, the pages, objects and bytes of a random history with reallocations agree with the estimate
/// of all of them, and nothing is taken for a loss. Threads share pages.
#[test]
fn sampled() -> Result<()> {
    if requires_root() {
        let args = ["threads=8", "ops=80000", "pages=2048"];
        let traced = trace_from_start("pages", &args, "pages", &["--sample", "1/2"])?;
        let report = traced.outcome.report();
        assert_eq!(report["complete"], true, "{}", report["losses"]);
        let allocator = &report["targets"][0]["allocators"][0];
        let truth = &traced.truths[0]["allocators"][0];
        let all = truth["census"]["granules_open"].as_f64().unwrap_or_default();
        let seen = allocator["census"]["granules_open"].as_f64().unwrap_or_default();
        assert!(
            all > 100.0 && (seen - all / 2.0).abs() <= 5.0 * all.sqrt() / 2.0,
            "{seen} of {all}"
        );
        assert_eq!(allocator["census"]["apart"], truth["census"]["apart"], "each is counted");
        let estimated = &allocator["sampling"]["estimated"];
        let interval = estimated["objects_live_bytes_interval"].as_array();
        assert_eq!(interval.map(Vec::len), Some(2), "{estimated}");
    }
    Ok(())
}

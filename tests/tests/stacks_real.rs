//! Level `stacks` on nginx and PostgreSQL as Debian ships them: stripped, without frame pointers. Their paths are followed
//! to the start of the process, and named as far as the programs export names.

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{has_programs, requires_root, skip},
    nginx::Nginx,
    paths::{Step, shown, steps, sums},
    postgresql::{Cluster, binaries},
    tracer::{Outcome, Tracer},
};
use nix::unistd::User;
use serde_json::Value;

const STACKS: [&str; 4] = ["--level", "stacks", "--top", "5000"];

/// All allocators of the report that have sites, after what must hold of each.
fn allocators(outcome: &Outcome) -> Result<Vec<Value>> {
    let report = outcome.report();
    assert_eq!(report["complete"], true, "{}", report["losses"]);
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    let targets = report["targets"].as_array().context("a list of targets")?;
    let all: Vec<Value> = targets
        .iter()
        .filter_map(|target| target["allocators"].as_array())
        .flatten()
        .filter(|allocator| allocator["sites"].as_array().is_some_and(|sites| !sites.is_empty()))
        .cloned()
        .collect();
    ensure!(!all.is_empty(), "nobody has sites");
    for allocator in &all {
        let found = sums(allocator);
        assert!(found.is_empty(), "{found:#?}");
    }
    Ok(all)
}

/// Checks that at least 99 of 100 allocations stand at whole paths, which begin at `_start` of the program `module`.
fn whole_paths(allocators: &[Value], module: &str) -> Result<Vec<Vec<Step>>> {
    let (mut all, mut whole, mut paths, mut cut) = (0, 0, Vec::new(), Vec::new());
    for site in allocators.iter().filter_map(|allocator| allocator["sites"].as_array()).flatten() {
        let allocated = site["allocated"].as_u64().context("a count")?;
        all += allocated;
        if site["path_end"] != "start" {
            cut.push(format!("{allocated} {}: {}", site["path_end"], shown(&steps(site))));
            continue;
        }
        whole += allocated;
        let path = steps(site);
        let outermost = path.last().context("a path has frames")?;
        assert_eq!(
            (outermost.function.as_str(), outermost.module.as_str()),
            ("_start", module),
            "{}",
            shown(&path)
        );
        for step in &path {
            assert!(!step.module.is_empty(), "a frame in no module: {}", shown(&path));
        }
        ensure!(
            path.iter().any(|step| step.function == "main"),
            "not through main: {}",
            shown(&path)
        );
        paths.push(path);
    }
    ensure!(
        all > 0 && whole * 100 >= all * 99,
        "{whole} of {all} allocations are at whole paths; the others:\n{}",
        cut.join("\n")
    );
    Ok(paths)
}

/// Whether a path leads through these functions, in this order, the innermost first.
fn leads_through(path: &[Step], functions: &[&str]) -> bool {
    let mut left = functions.iter().peekable();
    for step in path {
        if left.peek().is_some_and(|function| **function == step.function) {
            left.next();
        }
    }
    left.peek().is_none()
}

/// nginx under ab: requests are allocated under the event loop, and connections where they are accepted.
#[test]
fn nginx() -> Result<()> {
    if requires_root() && has_programs(&["nginx", "ab"]) {
        let nginx = Nginx::start(false)?;
        let tracer = Tracer::attach(&[nginx.worker], "nginx", &STACKS)?;
        nginx.ab(&["-n", "200", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let allocators = allocators(&tracer.finish()?)?;
        let paths = whole_paths(&allocators, "nginx")?;
        for functions in [
            &[
                "ngx_event_accept",
                "ngx_process_events_and_timers",
                "ngx_single_process_cycle",
                "main",
            ][..],
            &["ngx_http_create_request", "ngx_process_events_and_timers", "main"],
        ] {
            let found = paths.iter().any(|path| leads_through(path, functions));
            let all = || paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join("\n");
            assert!(found, "no path through {functions:?}:\n{}", all());
        }
        // 200 requests: what each allocates once has been allocated 200 times.
        let sites = allocators[0]["sites"].as_array().context("a list of sites")?;
        ensure!(sites.iter().any(|site| site["allocated"] == 200), "{sites:#?}");
        nginx.quit()?;
    }
    Ok(())
}

/// A PostgreSQL backend, forked while drainprof looks: queries are allocated under `PostgresMain`, which the
/// postmaster has forked.
#[test]
fn postgresql() -> Result<()> {
    if !requires_root() || !has_programs(&["psql"]) {
        return Ok(());
    }
    if binaries().is_none() || !matches!(User::from_name("postgres"), Ok(Some(_))) {
        skip("no PostgreSQL server up to version 15, or no user postgres");
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let more = [&STACKS[..], &["--follow-forks"]].concat();
    let tracer = Tracer::attach(&[cluster.postmaster.pid()], "postgresql", &more)?;
    let mut session = cluster.session()?;
    // The first queries fill the catalogue caches: thousands of paths that are not known yet, all at once.
    for n in 0..400 {
        session.run(&format!(
            "select count(*) + {n} from pg_class join pg_attribute on attrelid = pg_class.oid;"
        ))?;
    }
    tracer.interrupt()?;
    let allocators = allocators(&tracer.finish()?)?;
    let paths = whole_paths(&allocators, "postgres")?;
    let functions = ["PostgresMain", "PostmasterMain", "main"];
    let served = paths.iter().filter(|path| leads_through(path, &functions)).count();
    ensure!(served > 100, "{served} of {} paths lead through {functions:?}", paths.len());
    cluster.stop()
}

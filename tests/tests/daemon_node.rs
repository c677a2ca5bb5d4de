//! The daemon and the processes of its machine: they come, fork, execute, and go; every count is the sum of their truths.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::requires_root,
    kernel_maps::hash_entries,
    node::{Daemon, GROWTH, alone, descriptors, own_programs, resident, sum, target},
    target::{Finished, Target},
};
use serde_json::Value;

/// Granules of all allocators in truths.
fn granules(finished: &[Finished], key: &str) -> u64 {
    let truths = finished.iter().flat_map(|one| &one.truths);
    let allocators =
        truths.flat_map(|truth| truth["allocators"].as_array().cloned().unwrap_or_default());
    allocators.map(|one| one["granules"][key].as_u64().unwrap_or_default()).sum()
}

/// Targets of four kinds, with what makes them run.
const KINDS: [(&str, &[&str], &str); 4] = [
    ("psweep", &["closes=20000", "p=1500", "objects=2"], "test-arena"),
    ("bulk", &[], "test-bulk"),
    ("slab", &[], "test-slab"),
    ("family", &["mode=exec", "closes=200"], "test-arena"),
];

fn closed(state: &Value, profile: &str) -> u64 {
    ["drainable", "pinned", "unknown"].iter().map(|count| sum(state, profile, count)).sum()
}

/// Allocator instances that there is room for at once: fewer than the processes of a test have, one after the other.
const INSTANCES: u64 = 64;

/// How long a wave of processes lasts at least, in seconds by the daemon's clock.
const WAVE: f64 = 20.0;

/// Fifty processes of four kinds and services that run on meanwhile, in waves, over some minutes; some execute another program. At the end each count is the sum of their
/// truths, nothing was lost, nothing of them is left in the daemon, and its descriptors are back where they were.
#[test]
fn fifty_processes() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let room = format!("maps.instances = {INSTANCES}");
    let daemon = Daemon::start(&["arena", "bulk", "slab"], &room)?;
    let empty = hash_entries(daemon.pid())?;
    assert_eq!(empty.get("TARGETS"), Some(&0), "{empty:?}");
    let mut finished: BTreeMap<&str, Vec<Finished>> = BTreeMap::new();
    let mut settled = (0, 0);
    // One service of each wave lives on into the next one.
    let mut older: Option<(Target, &str)> = None;
    for wave in 0..5 {
        let mut running = Vec::new();
        for number in 0..9 {
            let (name, args, profile) = KINDS[number % KINDS.len()];
            let seed = format!("seed={}", wave * 10 + number);
            let args: Vec<&str> = args.iter().copied().chain([seed.as_str()]).collect();
            running.push((Target::start(name, &args)?, profile));
        }
        running.push((Target::start("routing", &["rate=500"])?, "test-arena"));
        let pids: Vec<u32> = running.iter().map(|(target, _)| target.pid()).collect();
        daemon.attached(&pids)?;
        for (target, _) in &mut running {
            target.go()?;
        }
        let began = daemon.state()?["uptime_seconds"].as_f64().unwrap_or_default();
        let service = running.pop().context("the service")?;
        for (target, profile) in running {
            finished.entry(profile).or_default().push(target.finish()?);
        }
        daemon.until("the wave has lasted", |state| {
            state["uptime_seconds"].as_f64() > Some(began + WAVE)
        })?;
        if let Some((mut target, profile)) = older.replace(service) {
            target.go()?;
            finished.entry(profile).or_default().push(target.finish()?);
        }
        let living = older.as_ref().map(|(target, _)| target.pid());
        let gone = |state: &Value| {
            pids.iter().all(|pid| Some(*pid) == living || target(state, *pid).is_none())
        };
        daemon.until("the wave is gone", gone)?;
        if wave == 0 {
            settled = (descriptors(daemon.pid())?, resident(daemon.pid())?);
        }
    }
    if let Some((mut target, profile)) = older {
        target.go()?;
        finished.entry(profile).or_default().push(target.finish()?);
    }
    let expected = |profile: &str, key: &str| granules(&finished[profile], key);
    let state = daemon.until("all is counted, and all are gone", |state| {
        finished.keys().all(|profile| {
            closed(state, profile) >= expected(profile, "closed")
                && sum(state, profile, "processes") == 0
        })
    })?;
    for profile in finished.keys() {
        assert_eq!(sum(&state, profile, "opened"), expected(profile, "opened"), "{profile}");
        assert_eq!(closed(&state, profile), expected(profile, "closed"), "{profile}");
        assert_eq!(sum(&state, profile, "open_now"), 0, "{profile}");
    }
    assert_eq!(sum(&state, "test-arena", "drainable"), expected("test-arena", "drainable"));
    assert_eq!(sum(&state, "test-arena", "pinned"), expected("test-arena", "pinned"));
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    // Probes are taken out in the background; then nothing is left of fifty processes with six each.
    let pid = daemon.pid();
    drainprof_tests::http::until(
        "the descriptors are back",
        || Ok(descriptors(pid)? <= settled.0),
    )?;
    // Nor in the kernel's maps, but for what is never given back one by one: closed ids, until their room is needed, and
    // the places of instances and their histograms, which go with all the maps when these are worn out. The processes
    // were more than there is room for.
    let mut left = hash_entries(pid)?;
    left.remove("INDEX");
    left.remove("HIST_INDEX");
    // The programs whose further processes are noticed are as few as they are.
    let programs = left.remove("PROGRAM_NAMES").context("the map of programs")?;
    assert!(programs <= 10, "{programs} names of five programs");
    let instances = left.remove("SERIES").context("the map of instances")?;
    assert!(instances < INSTANCES / 4 * 3, "{instances} instances are left");
    for (map, entries) in left {
        assert_eq!(entries, empty[&map], "{map}: entries are left");
    }
    let after = resident(pid)?;
    assert!(after < settled.1 + GROWTH, "{} bytes resident after one wave, {after} now", settled.1);
    daemon.finish()?;
    Ok(())
}

/// A million closes of twenty processes at once: none is lost, and each is judged rightly.
#[test]
fn a_million_closes() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "governor.enabled = false")?;
    let mut running = Vec::new();
    for seed in 0..20 {
        let args = ["closes=50000", "p=100", "late=64", &format!("seed={seed}")];
        running.push(Target::start("psweep", &args)?);
    }
    let pids: Vec<u32> = running.iter().map(Target::pid).collect();
    daemon.attached(&pids)?;
    for target in &mut running {
        target.go()?;
    }
    let finished: Vec<Finished> = running.into_iter().map(Target::finish).collect::<Result<_>>()?;
    assert_eq!(granules(&finished, "closed"), 1_000_000);
    let state = daemon.until("all is counted", |state| closed(state, "test-arena") >= 1_000_000)?;
    for count in ["opened", "drainable", "pinned", "unknown"] {
        let (seen, truth) = (sum(&state, "test-arena", count), granules(&finished, count));
        assert_eq!(seen, truth, "{count}: {} {}", state["counts"], state["losses"]);
    }
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    daemon.finish()?;
    Ok(())
}

/// With probes on the files, children are seen from their first instruction on: parent and child are exact.
#[test]
fn forks_are_exact_with_probes_on_files() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "daemon.attach = \"file\"")?;
    let mut family = Target::start("family", &["mode=fork", "closes=400"])?;
    daemon.attached(&[family.pid()])?;
    family.go()?;
    let finished = [family.finish()?];
    let (opened, closes) = (granules(&finished, "opened"), granules(&finished, "closed"));
    assert!(closes > 500, "parent and child have told: {closes}");
    let state = daemon.until("both are counted", |state| {
        closed(state, "test-arena") >= closes && sum(state, "test-arena", "processes") == 0
    })?;
    assert_eq!(sum(&state, "test-arena", "opened"), opened);
    assert_eq!(closed(&state, "test-arena"), closes);
    daemon.finish()?;
    Ok(())
}

/// What is excluded is not touched, and processes that a profile does not fit are not listed.
#[test]
fn selection() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let rules = own_programs("{ action = \"exclude\", exe = \"*/slab\" }, ");
    let daemon = Daemon::start(&["arena", "slab"], &rules)?;
    let slab = Target::start("slab", &[])?;
    let sweep = Target::start("psweep", &["closes=10"])?;
    daemon.attached(&[sweep.pid()])?;
    // It was started before the one that is there by now.
    let state = daemon.state()?;
    assert!(target(&state, slab.pid()).is_none());
    assert!(target(&state, daemon.pid()).is_none() && target(&state, std::process::id()).is_none());
    slab.kill()?;
    sweep.kill()?;
    daemon.finish()?;
    Ok(())
}

/// Kernel sides that may wait for the processes in them.
const KERNEL_SIDES: u64 = 8;

/// Why a process was attached again.
const MOVED: &str = "it has moved to newer counters";

/// Services that run for long, each begun when the counters of the one before it were used up by brief processes, do not
/// keep them all: some move to newer ones, and are observed on. Nothing of them counts twice.
#[test]
fn long_lived_processes_move() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "maps.instances = 8")?;
    let map_bytes = |state: &Value| state["self"]["map_bytes"].as_u64().unwrap_or_default();
    let one = map_bytes(&daemon.fresh()?);
    assert_ne!(one, 0);
    let mut services = Vec::new();
    let mut finished = Vec::new();
    for _ in 0..KERNEL_SIDES + 3 {
        let mut service = Target::start("routing", &["rate=50", "life=100"])?;
        let start = || Target::start("psweep", &["closes=50"]);
        let mut brief = (0..6).map(|_| start()).collect::<Result<Vec<_>>>()?;
        let pids: Vec<u32> = brief.iter().chain([&service]).map(Target::pid).collect();
        daemon.attached(&pids)?;
        service.go()?;
        services.push(service);
        for target in &mut brief {
            target.go()?;
        }
        for target in brief {
            finished.push(target.finish()?);
        }
    }
    let pids: Vec<u32> = services.iter().map(Target::pid).collect();
    let moved = |state: &Value| {
        let has_moved = |pid| target(state, pid).is_some_and(|one| one["reason"] == MOVED);
        pids.iter().filter(|pid| has_moved(**pid)).count()
    };
    daemon.until("few kernel sides are left", |state| {
        moved(state) > 0 && map_bytes(state) <= one * (KERNEL_SIDES + 1)
    })?;
    daemon.attached(&pids)?;
    assert!(moved(&daemon.fresh()?) < pids.len(), "those move that must, no others");
    for mut service in services {
        service.go()?;
        finished.push(service.finish()?);
    }
    let state = daemon.until("all are gone", |state| sum(state, "test-arena", "processes") == 0)?;
    let (opened, truth) = (sum(&state, "test-arena", "opened"), granules(&finished, "opened"));
    assert!(opened <= truth && opened > truth / 2, "{opened} of {truth} were seen");
    daemon.finish()?;
    Ok(())
}

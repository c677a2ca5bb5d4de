//! drainprof with few capabilities: those that the unit for systemd leaves it are enough, for root and for another user,
//! and each of them is needed, which is told.
//!
//! What is observed runs as one more user, and only that user may read its program.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    node::{Daemon, alone, configure, target},
    target::Target,
    tracer::{self, Tracer},
};
use serde_json::Value;
use tempfile::TempDir;

/// Whom the observed process belongs to, and a user without privileges; neither is in any database.
const OWNER: u32 = 64_101;
const NOBODY: u32 = 64_102;
const PRIVILEGE: Option<i32> = Some(77);

/// The capabilities that the unit leaves the daemon, in small letters.
fn needed() -> Result<Vec<String>> {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/drainprof.service");
    let unit = fs::read_to_string(unit)?;
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line.context("the unit bounds capabilities")?.split_whitespace();
    Ok(names.map(str::to_lowercase).collect())
}

/// Those that only make the symbol helper another user; nothing fails without them.
const FOR_THE_HELPER: [&str; 2] = ["cap_setuid", "cap_setgid"];

/// Whose capabilities are bounded.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// Root, which has no more than these.
    Root,
    /// A user who has these, as a file with capabilities gives them.
    Nobody,
}

/// A command that becomes `drainprof` with these capabilities and no others.
fn drainprof(who: Who, capabilities: &[String]) -> Result<Command> {
    let short = capabilities.iter().map(|name| name.trim_start_matches("cap_"));
    let set = short.fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
    let mut command = Command::new("setpriv");
    command.arg(format!("--bounding-set={set}"));
    match who {
        Who::Root => command.arg("--inh-caps=-all"),
        Who::Nobody => command
            .args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")])
            .args(["--clear-groups".to_owned(), format!("--inh-caps={set}")])
            .arg(format!("--ambient-caps={set}")),
    };
    let drainprof = tracer::command()?;
    command.env("NO_COLOR", "1").env("DRAINPROF_BUDGET", "none");
    command.env("HOME", "/").env_remove("XDG_CACHE_HOME");
    command.arg("--").arg(drainprof.get_program());
    Ok(command)
}

/// A directory that all may enter, with a target's program that only its owner may read.
fn program() -> Result<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let path = directory.path().join("psweep");
    fs::copy(environment::target("psweep")?, &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    chown(&path, Some(OWNER), Some(OWNER))?;
    Ok((directory, path))
}

fn start(program: &Path) -> Result<Target> {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={OWNER}"), format!("--regid={OWNER}")]);
    command.arg("--clear-groups").arg(program).args(["closes=2000", "p=2500", "stops=1"]);
    Target::start_command("psweep", command)
}

fn attach(who: Who, capabilities: &[String], pid: u32) -> Result<Tracer> {
    let mut command = drainprof(who, capabilities)?;
    command.args(["attach", "-p", &pid.to_string(), "--level", "stacks", "-o", "json"]);
    command.args(["--profile", &environment::profile("arena")]);
    Tracer::spawn(command)
}

/// Whether what the tests need is here.
fn can_run() -> bool {
    requires_root() && has_programs(&["setpriv"])
}

/// `attach` with exactly these capabilities counts what is true, at the level that needs most.
#[test]
fn these_are_enough_to_attach() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let needed = needed()?;
    let (_directory, program) = program()?;
    for who in [Who::Root, Who::Nobody] {
        let mut target = start(&program)?;
        let mut tracer = attach(who, &needed, target.pid())?;
        tracer.attached()?;
        target.go()?;
        target.reaches("half")?;
        target.go()?;
        target.reaches("end")?;
        target.go()?;
        let truth = target.finish()?.truths.remove(0);
        let outcome = tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{who:?}: {}", outcome.talk());
        let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let seen = &report["targets"][0]["allocators"][0];
        for count in ["opened", "closed", "drainable", "pinned"] {
            let of = |one: &Value| one["granules"][count].as_u64();
            assert_eq!(of(seen), of(&truth["allocators"][0]), "{who:?}: {count}");
        }
        assert!(seen["sites"].as_array().is_some_and(|sites| !sites.is_empty()), "{who:?}: {seen}");
    }
    Ok(())
}

/// Without any one of them it is refused: the exit code is that of privileges, and the one that is missing is named.
/// So it is with the two that ought to be enough for probes.
#[test]
fn each_is_needed_to_attach() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let needed = needed()?;
    let (_directory, program) = program()?;
    let target = start(&program)?;
    let mut cases: Vec<(&str, Vec<String>)> = Vec::new();
    for missing in needed.iter().filter(|name| !FOR_THE_HELPER.contains(&name.as_str())) {
        let left = needed.iter().filter(|name| *name != missing).cloned();
        cases.push((missing, left.collect()));
        if missing == "cap_sys_admin" {
            let narrow = ["cap_bpf", "cap_perfmon"].map(str::to_owned);
            let left = needed.iter().filter(|name| *name != missing).cloned();
            cases.push((missing, left.chain(narrow).collect()));
        }
    }
    for (missing, capabilities) in cases {
        let outcome = attach(Who::Root, &capabilities, target.pid())?.finish()?;
        let talk = outcome.talk();
        assert_eq!(outcome.code, PRIVILEGE, "only {capabilities:?}: {talk}");
        assert!(talk.contains(&missing.to_uppercase()), "only {capabilities:?}: {talk}");
    }
    target.kill()
}

/// Without those for the helper, `attach` works; the helper is confined, but keeps the user, which is logged.
#[test]
fn the_helper_keeps_root_without_its_own() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let needed = needed()?;
    for missing in FOR_THE_HELPER {
        let left: Vec<_> = needed.iter().filter(|name| *name != missing).cloned().collect();
        assert_eq!(left.len() + 1, needed.len(), "the unit has {missing}");
        let mut command = drainprof(Who::Root, &left)?;
        command.args(["doctor", "-o", "json"]);
        let outcome = Tracer::spawn(command)?.finish()?;
        let document: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let checks = document["checks"].as_array().context("doctor has checks")?;
        let check = checks.iter().find(|check| check["name"] == "symbol-helper");
        let check = check.context("doctor looks for the helper")?;
        assert_eq!(check["status"], "warn", "{check}");
        let found = check["found"].as_str().unwrap_or_default();
        assert!(
            found.starts_with("user 0, capabilities 0, has no_new_privs, has a filter"),
            "{check}"
        );
        assert!(check["means"].to_string().contains("CAP_SETUID and CAP_SETGID"), "{check}");
    }
    let (_directory, program) = program()?;
    let mut target = start(&program)?;
    let left = needed.into_iter().filter(|name| !FOR_THE_HELPER.contains(&name.as_str()));
    let mut tracer = attach(Who::Root, &left.collect::<Vec<_>>(), target.pid())?;
    tracer.attached()?;
    for place in ["half", "end"] {
        target.go()?;
        target.reaches(place)?;
    }
    target.go()?;
    target.finish()?;
    let outcome = tracer.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    assert!(
        outcome.talk().contains("it stays user root, without capabilities"),
        "{}",
        outcome.talk()
    );
    let report: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
    assert_eq!(report["symbols"]["given_up"], 0, "{}", report["symbols"]);
    Ok(())
}

/// The daemon with exactly these capabilities finds the process by itself and counts what is true.
#[test]
fn these_are_enough_for_the_daemon() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let _alone = alone();
    let needed = needed()?;
    let (_directory, program) = program()?;
    for who in [Who::Root, Who::Nobody] {
        let directory = tempfile::tempdir()?;
        configured(directory.path(), &program)?;
        if matches!(who, Who::Nobody) {
            chown(directory.path(), Some(NOBODY), Some(NOBODY))?;
        }
        let daemon = Daemon::start_command(drainprof(who, &needed)?, directory)?;
        let mut target_process = start(&program)?;
        let pid = target_process.pid();
        daemon.attached(&[pid])?;
        target_process.go()?;
        target_process.reaches("half")?;
        target_process.go()?;
        target_process.reaches("end")?;
        let granules =
            |state: &Value| target(state, pid).map(|one| one["allocators"][0]["granules"].clone());
        let state = daemon.until("all closes are counted", |state| {
            granules(state).is_some_and(|granules| granules["closed"] == 2000)
        })?;
        target_process.go()?;
        let truth = target_process.finish()?.truths.remove(0);
        let seen = granules(&state).context("the daemon has counts")?;
        for count in ["drainable", "pinned", "unknown"] {
            let truth = &truth["allocators"][0]["granules"][count];
            assert_eq!(seen[count].as_u64(), truth.as_u64(), "{who:?}: {count}");
        }
        daemon.finish()?;
    }
    Ok(())
}

/// A daemon that could place no probe does not start.
#[test]
fn a_daemon_without_them_ends() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let (_own, program) = program()?;
    let directory = tempfile::tempdir()?;
    let config = configured(directory.path(), &program)?;
    let left: Vec<_> = needed()?.into_iter().filter(|name| name != "cap_sys_admin").collect();
    let mut command = drainprof(Who::Root, &left)?;
    command.arg("daemon").arg("--config").arg(config);
    let outcome = Tracer::spawn(command)?.finish()?;
    assert_eq!(outcome.code, PRIVILEGE, "{}", outcome.talk());
    assert!(outcome.talk().contains("missing CAP_SYS_ADMIN"), "{}", outcome.talk());
    Ok(())
}

/// `doctor` names each that is missing, and its line for `setcap` has exactly these.
#[test]
fn doctor_agrees() -> Result<()> {
    if !can_run() {
        return Ok(());
    }
    let needed = needed()?;
    for missing in &needed {
        let left: Vec<_> = needed.iter().filter(|name| *name != missing).cloned().collect();
        let mut command = drainprof(Who::Root, &left)?;
        command.args(["doctor", "-o", "json"]);
        let outcome = Tracer::spawn(command)?.finish()?;
        let document: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let checks = document["checks"].as_array().context("doctor has checks")?;
        let check = checks.iter().find(|check| check["name"] == missing.as_str());
        let check = check.with_context(|| format!("doctor looks for {missing}"))?;
        assert_eq!(check["status"], "warn", "{check}");
        let line = format!("sudo setcap {}=ep ", needed.join(","));
        assert!(check.to_string().contains(&line), "{line}: {check}");
    }
    Ok(())
}

/// A configuration for one program, wherever other tests' programs are.
#[allow(clippy::unnecessary_debug_formatting, reason = "a TOML string has quotes")]
fn configured(directory: &Path, program: &Path) -> Result<PathBuf> {
    let rules = format!("select.rules = [{{ action = \"include\", exe = {program:?} }}]");
    let path = configure(directory, &["arena"], &rules)?;
    // Another user reads it, too.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    Ok(path)
}

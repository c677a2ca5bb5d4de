//! `drainprof run`: probes in place before the first instruction, the child's status forwarded.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::Expect,
    environment::{self, requires_root},
    tracer::{Tracer, trace_from_start},
};

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// Nothing is older than the observation, and every event is seen.
#[test]
fn exact_from_the_start() -> Result<()> {
    if requires_root() {
        trace_from_start("psweep", &["closes=3000", "late=4"], "arena", &OBJECTS)?.exact();
    }
    Ok(())
}

/// What happens before READY counts as well: nothing of it is unknown.
#[test]
fn the_time_before_main_loop_counts() -> Result<()> {
    if requires_root() {
        let args = ["mode=plain", "closes=500"];
        let traced = trace_from_start("family", &args, "arena", &OBJECTS)?;
        traced.exact();
        assert_eq!(traced.outcome.report()["targets"][0]["began"]["how"], "from_start");
    }
    Ok(())
}

/// The child's exit status is drainprof's.
#[test]
fn status_is_forwarded() -> Result<()> {
    if requires_root() {
        let traced = trace_from_start("psweep", &["closes=10", "status=7"], "arena", &OBJECTS)?;
        Expect::default().code(7).check(&traced);
        let ended = &traced.outcome.report()["targets"][0]["ended"];
        assert_eq!((&ended["how"], &ended["code"]), (&"exit".into(), &7.into()));
    }
    Ok(())
}

/// A child that dies by a signal is forwarded as shells do: 128 plus the signal.
#[test]
fn signal_is_forwarded() -> Result<()> {
    if requires_root() {
        let traced = trace_from_start("psweep", &["closes=10", "signal=15"], "arena", &OBJECTS)?;
        Expect::default().code(128 + 15).check(&traced);
        assert_eq!(traced.outcome.report()["targets"][0]["ended"]["signal"], 15);
    }
    Ok(())
}

/// An incomplete result outweighs the child's success.
#[test]
fn incomplete_outweighs_the_status() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "--max-granules", "64"];
        let traced = trace_from_start("many", &["what=granules"], "arena", &more)?;
        assert_eq!(traced.outcome.code, Some(5), "{}", traced.outcome.talk());
    }
    Ok(())
}

/// Children are followed from their first instruction.
#[test]
fn children_are_followed() -> Result<()> {
    if requires_root() {
        let more = ["--level", "objects", "--follow-forks"];
        for mode in ["mode=fork", "mode=vfork", "mode=exec"] {
            trace_from_start("family", &[mode], "arena", &more)?.exact();
        }
    }
    Ok(())
}

/// A command that cannot be started is named, and is no success.
#[test]
fn unknown_command() -> Result<()> {
    if requires_root() {
        let profile = environment::profile("arena");
        let args = ["run", "--profile", &profile, "--", "/nonexistent/program"];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_ne!(outcome.code, Some(0));
        assert!(outcome.talk().contains("/nonexistent/program"), "{}", outcome.talk());
    }
    Ok(())
}

/// A command whose program no profile is about is told, and runs on: what it executes may match.
#[test]
fn nothing_to_probe() -> Result<()> {
    if requires_root() {
        let profile = environment::profile("bulk");
        let program = environment::target("psweep")?.display().to_string();
        let args = ["run", "--profile", &profile, "--", &program, "closes=1"];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        assert!(outcome.talk().contains("no profile matches"), "{}", outcome.talk());
    }
    Ok(())
}

/// A wrapper that matches no profile is looked through, and its status is the command's.
#[test]
fn through_a_wrapper() -> Result<()> {
    if requires_root() {
        let mut command = Command::new("sh");
        let program = environment::target("psweep")?.display().to_string();
        command.args(["-c", &format!("{program} closes=10; exit 9")]).env("DRAINPROF_GO", "1");
        let outcome = Tracer::run_command(&command, "arena", &OBJECTS)?.finish()?;
        assert_eq!(outcome.code, Some(9), "{}", outcome.talk());
        assert_eq!(outcome.report()["targets"][0]["allocators"][0]["granules"]["closed"], 10);
    }
    Ok(())
}

/// What was asked for and cannot be done is refused before the command has run, so nothing runs unobserved.
#[test]
fn refused_level() -> Result<()> {
    if requires_root() {
        let profile = environment::profile("ifunc");
        let program = environment::target("ifunc")?.display().to_string();
        let args = ["run", "--level", "boundary", "--profile", &profile, "--", &program];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_eq!(outcome.code, Some(2), "{}", outcome.talk());
        assert!(outcome.talk().contains("cannot measure at level boundary"), "{}", outcome.talk());
        assert!(outcome.stdout.is_empty(), "it ran: {:?}", outcome.stdout);
    }
    Ok(())
}

/// The dynamic linker has followed a program's own IFUNCs by its entry point. A static program has not:
/// without its alloc probe it is refused, with the reason, and not run.
#[test]
fn ifuncs_at_the_entry_point() -> Result<()> {
    if requires_root() {
        trace_from_start("ifunc", &[], "ifunc", &OBJECTS)?.exact();
        let profile = environment::profile("ifunc");
        let program = environment::target("ifunc_static")?.display().to_string();
        let args = ["run", "--level", "objects", "--profile", &profile, "--", &program, "times=10"];
        let outcome = drainprof_tests::tracer::run_to_end(&args)?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        assert!(outcome.talk().contains("an IFUNC whose"), "{}", outcome.talk());
        assert!(outcome.stdout.is_empty(), "it ran: {:?}", outcome.stdout);
    }
    Ok(())
}

/// The child has drainprof's own stdin and stdout.
#[test]
fn child_reads_its_stdin() -> Result<()> {
    if requires_root() {
        let args = ["closes=200", "stops=1"];
        let mut tracer = Tracer::run("psweep", &args, "arena", &OBJECTS)?;
        tracer.process().expect_out("AT half")?;
        tracer.process().send_line("go")?;
        tracer.process().expect_out("AT end")?;
        tracer.process().send_line("go")?;
        let outcome = tracer.finish()?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        assert_eq!(outcome.report()["targets"][0]["allocators"][0]["granules"]["closed"], 200);
    }
    Ok(())
}

/// Programs that only execute another one are passed over although the profile matches them, also into a root of its own.
#[test]
fn past_wrappers() -> Result<()> {
    if requires_root() && environment::has_programs(&["chroot", "env", "nice", "ldd"]) {
        let root = tempfile::tempdir()?;
        let program = environment::target("behaviours")?;
        for file in [&program, &environment::which("env").context("there is env")?] {
            with_libraries(file, root.path())?;
        }
        fs::rename(root.path().join(program.strip_prefix("/")?), root.path().join("svc"))?;
        let root = root.path().display().to_string();
        let wrappers = ["--", "nice", "-n", "1", "chroot", &root, "env", "DRAINPROF_GO=1"];
        let report = root.clone() + "/report.json";
        let mut all = vec!["run", "--profile", "malloc-glibc", "-o", "json", "-O", &report];
        all.extend(wrappers.iter().chain(&["/svc", "seconds=1", "rate=1000"]));
        let outcome = drainprof_tests::tracer::run_to_end(&all)?;
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
        let targets = report["targets"].as_array().context("targets")?;
        let [target] = targets.as_slice() else { panic!("{}", outcome.talk()) };
        assert_eq!(target["comm"], "svc", "{}", outcome.talk());
        assert_eq!(target["began"]["how"], "from_start");
        let objects = &target["allocators"][0]["objects"];
        assert!(objects["allocated"].as_u64() > Some(0), "{objects:#}");
    }
    Ok(())
}

/// Copies a program into a root, with its libraries, each to where it was.
fn with_libraries(program: &Path, root: &Path) -> Result<()> {
    let listed = Command::new("ldd").arg(program).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in words.map(Path::new).chain([program]) {
        let place = root.join(file.strip_prefix("/")?);
        fs::create_dir_all(place.parent().context("it has one")?)?;
        fs::copy(file, place)?;
    }
    Ok(())
}

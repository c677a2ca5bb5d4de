//! What cannot be traced is refused with a reason and the right exit code; what only looks odd works.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    process::Process,
    target::Target,
    tracer::{Outcome, Traced, Tracer, command, run_to_end},
};

const OBJECTS: [&str; 2] = ["--level", "objects"];

fn attach(pid: &str, profile: &str) -> Result<Outcome> {
    run_to_end(&["attach", "-p", pid, "--profile", &environment::profile(profile), "-d", "1"])
}

/// Checks exit code and that stderr has all of `words`.
fn refused(outcome: &Outcome, code: i32, words: &[&str]) {
    let talk = outcome.talk();
    assert_eq!(outcome.code, Some(code), "{talk}");
    for word in words {
        assert!(talk.to_lowercase().contains(&word.to_lowercase()), "no {word:?} in:\n{talk}");
    }
    assert_eq!(outcome.stdout, Vec::<String>::new(), "stdout is data, and there is none");
    assert!(!talk.contains("panicked"), "{talk}");
}

/// A pid that nobody has.
#[test]
fn no_such_process() -> Result<()> {
    if requires_root() {
        let mut child = Command::new("true").stdin(Stdio::null()).spawn()?;
        child.wait()?;
        let pid = child.id().to_string();
        refused(&attach(&pid, "arena")?, 4, &[&pid]);
    }
    Ok(())
}

/// A zombie has no memory to trace.
#[test]
fn zombie() -> Result<()> {
    if requires_root() {
        let mut child = Command::new("true").stdin(Stdio::null()).spawn()?;
        let id = nix::unistd::Pid::from_raw(child.id().cast_signed());
        // Waits for the end and leaves the zombie in place.
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(id), flags)?;
        let pid = child.id().to_string();
        refused(&attach(&pid, "arena")?, 4, &[&pid, "zombie"]);
        child.wait()?;
    }
    Ok(())
}

/// A kernel thread has no memory of its own.
#[test]
fn kernel_thread() -> Result<()> {
    if requires_root() {
        if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
            refused(&attach("2", "arena")?, 4, &["kernel thread"]);
        } else {
            environment::skip("no kernel thread is visible in this pid namespace");
        }
    }
    Ok(())
}

/// Numbers that are no pid are usage errors or unknown targets, never a crash.
#[test]
fn impossible_pids() -> Result<()> {
    if requires_root() {
        for pid in ["0", "-1", "4294967295", "99999999999999999999", "x", ""] {
            let outcome = attach(pid, "arena")?;
            assert!(
                matches!(outcome.code, Some(2 | 4)),
                "{pid:?}: {:?} {}",
                outcome.code,
                outcome.talk()
            );
        }
    }
    Ok(())
}

/// A 32-bit program has other registers; it is refused, not misread.
#[test]
fn program_of_32_bits() -> Result<()> {
    if requires_root() {
        let target = Target::start("bits32", &[])?;
        refused(&attach(&target.pid().to_string(), "arena")?, 4, &["32-bit"]);
    }
    Ok(())
}

/// A stripped program has no symbols for a profile that wants them; they are named.
#[test]
fn stripped_program() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep_stripped", &[])?;
        let outcome = attach(&target.pid().to_string(), "arena")?;
        refused(&outcome, 4, &["psweep_stripped", "arena_open"]);
    }
    Ok(())
}

/// A profile that matches nothing: every object that was looked at and every symbol that was missed.
#[test]
fn nothing_matches() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep", &[])?;
        let outcome = attach(&target.pid().to_string(), "bulk")?;
        refused(
            &outcome,
            4,
            &["psweep", "libc", "pool_make", "pool_kill", "pool_take", "pool_give"],
        );
    }
    Ok(())
}

/// A profile that exists neither as a file nor built in.
#[test]
fn no_such_profile() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep", &[])?;
        let pid = target.pid().to_string();
        refused(&attach(&pid, "/nonexistent/profile.toml")?, 78, &["/nonexistent/profile.toml"]);
    }
    Ok(())
}

/// Profiles that do not parse are refused with file, line and column, before any process is looked at.
#[test]
fn bad_profiles() -> Result<()> {
    if requires_root() {
        let good = fs::read_to_string(environment::profile("arena"))?;
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("bad.toml");
        let target = Target::start("psweep", &[])?;
        let pid = target.pid().to_string();
        for (text, place) in [
            (good.replacen("summary", "sumary", 1), "bad.toml:4:1"),
            (good.replacen("granule = \"arg1\"", "granule = \"arg1 +\"", 1), "bad.toml:13:"),
            (good.replacen("granule = \"arg1\"", "granule = \"arg9\"", 1), "bad.toml:13:"),
            (good.replacen("role = \"open\"", "role = \"opne\"", 1), "bad.toml:10:"),
            (good.replacen("kind = \"drain\"", "kind = 7", 1), "bad.toml:3:"),
            (good.replacen("schema = 1", "schema = 99", 1), "bad.toml:1:"),
            (good.replacen("[match]", "[match", 1), "bad.toml:6:"),
            (good.replacen("\"arg1\"", "\"*(u128)(arg1)\"", 1), "bad.toml:13:"),
            (
                good.replacen("\"arg1\"", &format!("\"{}arg1\"", "(".repeat(100_000)), 1),
                "bad.toml:13:",
            ),
        ] {
            fs::write(&path, &text)?;
            let outcome = attach(&pid, &path.display().to_string())?;
            refused(&outcome, 78, &[place]);
        }
        for bytes in [&b"\xff\xfe\x00garbage"[..], b"", &[0; 5000]] {
            fs::write(&path, bytes)?;
            refused(&attach(&pid, &path.display().to_string())?, 78, &["bad.toml"]);
        }
        let folder = directory.path().display().to_string();
        refused(&attach(&pid, &folder)?, 78, &[&folder]);
    }
    Ok(())
}

/// Usage errors are exit code 2.
#[test]
fn usage() -> Result<()> {
    if requires_root() {
        for args in [
            &["attach"][..],
            &["attach", "-p", "1", "--no-such-flag"],
            &["attach", "-p", "1", "--level", "deepest"],
            &["attach", "-p", "1", "-o", "xml"],
            &["attach", "-p", "1", "--fail-under", "1.5"],
            &["attach", "-p", "1", "--max-granules", "0"],
            &["attach", "-p", "1", "-d", "-3"],
            &["run"],
            &["run", "--"],
            &["no-such-command"],
        ] {
            let outcome = run_to_end(args)?;
            assert_eq!(outcome.code, Some(2), "{args:?}: {}", outcome.talk());
        }
    }
    Ok(())
}

/// Without privilege: exit 77, and the capability that is missing is named.
#[test]
fn no_privilege() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep", &[])?;
        // A copy where anybody can read it; the build directory may be closed to others.
        let directory = tempfile::tempdir()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let copy = directory.path().join("drainprof");
        fs::copy(environment::drainprof()?, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        let profile = directory.path().join("arena.toml");
        fs::copy(environment::profile("arena"), &profile)?;
        let mut command = Command::new(copy);
        command.args(["attach", "-p", &target.pid().to_string(), "--profile"]).arg(profile);
        command.current_dir("/").uid(65534).gid(65534);
        refused(&Tracer::spawn(command)?.finish()?, 77, &["cap_"]);
    }
    Ok(())
}

/// A program whose file was deleted while it runs is traced all the same.
#[test]
fn deleted_binary() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let copy = directory.path().join("psweep-deleted");
        fs::copy(environment::target("psweep")?, &copy)?;
        let mut command = Command::new(&copy);
        command.args(["closes=500", "late=2"]);
        let target = Target::start_command("psweep-deleted", command)?;
        fs::remove_file(&copy)?;
        to_the_end(target)?.exact();
    }
    Ok(())
}

/// A program in another mount namespace, at a path that here holds nothing.
#[test]
fn other_mount_namespace() -> Result<()> {
    if requires_root() && has_programs(&["unshare", "mount"]) {
        let directory = tempfile::tempdir()?;
        let program = environment::target("psweep")?;
        let copy = directory.path().join("hidden");
        let script = "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1/hidden\" && exec \"$1/hidden\" closes=500";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(directory.path()).arg(program);
        let target = Target::start_command("psweep in a mount namespace", command)?;
        assert!(!copy.exists(), "the copy is visible only inside");
        to_the_end(target)?.exact();
    }
    Ok(())
}

/// Process numbers of another PID namespace mean nothing to the kernel side: refused before any is used.
#[test]
fn other_pid_namespace() -> Result<()> {
    if requires_root() && has_programs(&["unshare"]) {
        let inside = command()?;
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc"]).arg(inside.get_program());
        command.args(["attach", "-p", "1", "-d", "1"]);
        let outcome = Tracer::spawn(command)?.finish()?;
        assert_eq!(outcome.code, Some(77), "{}", outcome.talk());
        assert!(outcome.talk().contains("PID namespace"), "{}", outcome.talk());
    }
    Ok(())
}

/// A path with spaces, quotes, newlines and the word that the kernel marks deleted files with.
#[test]
fn odd_path() -> Result<()> {
    if requires_root() {
        let directory = tempfile::tempdir()?;
        let copy = directory.path().join("a \"b\" \n c\\040 (deleted)");
        fs::copy(environment::target("psweep")?, &copy)?;
        let mut command = Command::new(&copy);
        command.arg("closes=300");
        to_the_end(Target::start_command("psweep at an odd path", command)?)?.exact();
    }
    Ok(())
}

/// The same pid twice is one target.
#[test]
fn the_same_pid_twice() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=300"])?;
        let pids = [target.pid(), target.pid()];
        let tracer = Tracer::attach(&pids, "arena", &OBJECTS)?;
        target.go()?;
        let truths = target.finish()?.truths;
        Traced { truths, outcome: tracer.finish()? }.exact();
    }
    Ok(())
}

/// A reader that has gone away before the first record disturbs nobody, and is reported.
#[test]
fn broken_pipe() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=3000"])?;
        let mut command = command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "-o", "ndjson", "--events"]);
        command.args(["--profile", &environment::profile("arena")]).args(OBJECTS);
        let mut tracer = Process::start_with_broken_stdout("drainprof", command)?;
        tracer.expect_err("drainprof: attached")?;
        target.go()?;
        target.finish()?;
        let ended = tracer.finish()?;
        let talk = ended.stderr.join("\n");
        assert_eq!(ended.status.code(), Some(1), "{talk}");
        assert!(talk.contains("Broken pipe") && !talk.contains("panicked"), "{talk}");
    }
    Ok(())
}

/// Attaching to drainprof itself, or to this test, finds nothing to probe and harms nobody.
#[test]
fn no_allocator_of_ours() -> Result<()> {
    if requires_root() {
        let me = std::process::id().to_string();
        let outcome = attach(&me, "arena")?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
    }
    Ok(())
}

fn to_the_end(mut target: Target) -> Result<Traced> {
    let tracer = Tracer::attach(&[target.pid()], "arena", &OBJECTS)?;
    target.go()?;
    let truths = target.finish().context("the target came to its end")?.truths;
    Ok(Traced { truths, outcome: tracer.finish()? })
}

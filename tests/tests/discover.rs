//! `drainprof discover`: what it finds, what it says is missing, and what it must not look into.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    nginx::Nginx,
    target::Target,
    tracer::{self, Outcome, Tracer},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs `discover -o json` with more arguments.
fn discover(more: &[&str]) -> Result<(Outcome, Value)> {
    let outcome = tracer::run_to_end(&[&["discover", "-o", "json"], more].concat())?;
    let document = serde_json::from_str(&outcome.stdout.join("\n"))
        .with_context(|| format!("no document; stderr: {}", outcome.talk()))?;
    Ok((outcome, document))
}

/// nginx's master and worker are one entry, and the command that it proposes is one that attaches to both.
#[test]
fn master_and_worker_are_one() -> Result<()> {
    if requires_root() && has_programs(&["nginx"]) {
        let nginx = Nginx::start(true)?;
        let (master, worker) = (nginx.process.pid(), nginx.worker);
        let (outcome, document) = discover(&["-p", &format!("{worker},{master}")])?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        assert_eq!(document["schema"], "drainprof.discover/1");
        assert_eq!(document["groups"].as_array().map(Vec::len), Some(1), "{document}");
        let group = &document["groups"][0];
        assert_eq!(group["pids"], json!([master, worker]));
        let fit = &group["fits"][0];
        assert_eq!((&fit["profile"], &fit["kind"]), (&json!("nginx"), &json!("bulk")));
        assert_eq!((&fit["default_level"], &fit["unusable"]), (&json!("objects"), &Value::Null));
        let levels = fit["levels"].as_array().context("a list of levels")?;
        let of_granules: Vec<_> = levels
            .iter()
            .filter(|level| level["object_ns"].is_null())
            .map(|l| &l["level"])
            .collect();
        assert_eq!(of_granules, ["close", "boundary"]);
        assert!(levels[2]["object_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{fit}");
        // Nothing was attached, and the very words of the command work.
        let command = group["attach"].as_str().context("a command")?;
        assert_eq!(command, format!("drainprof attach --family -p {master}"));
        let mut words: Vec<&str> = command.split(' ').skip(1).collect();
        words.extend(["--dry-run", "-o", "json"]);
        let plan = tracer::run_to_end(&words)?;
        let plan: Value = serde_json::from_str(&plan.stdout.join("\n"))?;
        assert_eq!(plan["processes"].as_array().map(Vec::len), Some(2));
        // Without -p it is found among all that run here.
        let (_, all) = discover(&["--profile", "nginx"])?;
        let groups = all["groups"].as_array().context("a list of groups")?;
        let found = |pid: u32| {
            groups.iter().filter_map(|group| group["pids"].as_array()).flatten().any(|p| *p == pid)
        };
        assert!(found(master) && found(worker), "{all}");
        nginx.quit()?;
    }
    Ok(())
}

fn tool(name: &str, args: &[&Path]) -> Result<()> {
    let output = Command::new(name).args(args).output()?;
    ensure!(output.status.success(), "{name} {args:?}: {output:?}");
    Ok(())
}

/// A stripped program is no match, but it is told what is missing and where its debug file is looked for;
/// with the debug file at that place under another root it is a match.
#[test]
fn stripped_programs_are_named() -> Result<()> {
    if requires_root() {
        let directory = TempDir::new()?;
        let at = |name: &str| directory.path().join(name);
        let built = environment::target("epoch_ring")?;
        fs::copy(&built, at("stripped_ring"))?;
        tool("strip", &[&at("stripped_ring")])?;
        let profile = fs::read_to_string(environment::targets().join("profiles/epoch_ring.toml"))?;
        let named = profile.replacen("[match]", "[match]\nexe = [\"stripped_*\"]", 1);
        ensure!(named != profile, "the profile has a rule to add to");
        fs::write(at("ring.toml"), named)?;
        let program = Command::new(at("stripped_ring"));
        let target = Target::start_command("stripped_ring", program)?;
        let pid = target.pid().to_string();
        let profile = at("ring.toml").display().to_string();
        let arguments = ["-p", &pid, "--profile", &profile];
        let (outcome, document) = discover(&arguments)?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        let group = &document["groups"][0];
        assert_eq!((&group["fits"], &group["attach"]), (&json!([]), &Value::Null), "{document}");
        let hint = &group["hints"][0];
        assert!(hint["missing"].as_str().is_some_and(|text| text.contains("stripped")), "{hint}");
        // "put its debug file at /usr/lib/debug/.build-id/…, or use --debug-dir"
        let mend = hint["mend"].as_str().context("it says what helps")?;
        let place = mend
            .split_once("/usr/lib/debug/")
            .and_then(|(_, rest)| rest.split_once(','))
            .context("it names a place")?
            .0;
        let debug = at("debug").join(place);
        fs::create_dir_all(debug.parent().context("a directory")?)?;
        tool("objcopy", &[Path::new("--only-keep-debug"), &built, &debug])?;
        let debug_dir = at("debug").display().to_string();
        let (outcome, document) =
            discover(&[&arguments[..], &["--debug-dir", &debug_dir]].concat())?;
        assert_eq!(outcome.code, Some(0), "{document}");
        assert_eq!(document["groups"][0]["fits"].as_array().map(Vec::len), Some(1));
        drop(target);
    }
    Ok(())
}

/// Without privileges, what cannot be looked into is said, with the exit code for it; nothing that needs
/// them is tried.
#[test]
fn without_privileges() -> Result<()> {
    use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
    if requires_root() {
        let target = Target::start("epoch_ring", &[])?;
        // The build directory may be closed to others.
        let directory = TempDir::new()?;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let binary = directory.path().join("drainprof");
        fs::copy(environment::drainprof()?, &binary)?;
        let mut command = Command::new(&binary);
        command.args(["discover", "-o", "json", "-p", &target.pid().to_string()]);
        command.current_dir("/").uid(65534).gid(65534);
        let outcome = Tracer::spawn(command)?.finish()?;
        assert_eq!(outcome.code, Some(77), "{}", outcome.talk());
        let document: Value = serde_json::from_str(&outcome.stdout.join("\n"))?;
        let passed = &document["passed_over"][0];
        assert_eq!((&passed["reason"], &passed["processes"]), (&json!("permission"), &json!(1)));
        assert_eq!(
            (&document["looked"]["processes"], &document["groups"]),
            (&json!(0), &json!([]))
        );
        drop(target);
    }
    Ok(())
}

/// Numbers that nobody has, a profile that there is not, and a process that nothing fits.
#[test]
fn nothing_to_find() -> Result<()> {
    if requires_root() {
        let (outcome, document) = discover(&["-p", "4194303"])?;
        assert_eq!(
            (outcome.code, &document["passed_over"][0]["reason"]),
            (Some(4), &json!("gone"))
        );
        let outcome = tracer::run_to_end(&["discover", "--profile", "no-such-profile"])?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        let target = Target::start("pause", &[])?;
        let pid = target.pid().to_string();
        let named = ["-p", &pid, "--profile", "nginx"];
        let (outcome, document) = discover(&named)?;
        assert_eq!((outcome.code, &document["looked"]["without_profile"]), (Some(4), &json!(1)));
        assert_eq!(document["groups"], json!([]));
        let (_, document) = discover(&[&named[..], &["--all"]].concat())?;
        assert_eq!(document["groups"][0]["pids"], json!([target.pid()]));
        drop(target);
    }
    Ok(())
}

/// What only a profile fits that must be asked for is not listed unasked, but one line says that there is such, and the
/// document has it, with a command that asks for it and works.
#[test]
fn on_request_only() -> Result<()> {
    if requires_root() {
        let target = Target::start("pause", &[])?;
        let pid = target.pid();
        let outcome = tracer::run_to_end(&["discover"])?;
        assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
        let text = outcome.stdout.join("\n");
        assert!(text.contains(" could be examined on request: "), "{text}");
        assert!(!text.contains(&format!("pid {pid} ")), "{text}");
        let (_, document) = discover(&["-p", &pid.to_string()])?;
        assert_eq!(document["looked"]["on_request"], json!(1), "{document}");
        let command = document["groups"][0]["attach"].as_str().context("a command")?;
        let mut words: Vec<&str> = command.split(' ').skip(1).collect();
        assert!(words.contains(&"--profile"), "{command}");
        words.extend(["--dry-run", "-o", "json"]);
        let plan = tracer::run_to_end(&words)?;
        assert_eq!(plan.code, Some(0), "{command}: {}", plan.talk());
        let full = tracer::run_to_end(&["discover", "-p", &pid.to_string()])?;
        let full = full.stdout.join("\n");
        assert!(full.contains("malloc-glibc (slab, on request only)"), "{full}");
        drop(target);
    }
    Ok(())
}

//! `drainprof profile check` at work, and `profile new`: a profile is proven, or it is said what is missing;
//! a draft of a known allocator names the functions that its finished profile names.

use std::{collections::BTreeSet, fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, has_programs, requires_root},
    nginx::Nginx,
    process::Process,
    target::Target,
    tracer::{self, Outcome, Tracer},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Starts `profile check -o json` on a process, with its probes in place.
fn check(profile: &str, pid: u32, more: &[&str]) -> Result<Tracer> {
    let mut command = tracer::command()?;
    command.args(["profile", "check", profile, "-p", &pid.to_string(), "-o", "json"]).args(more);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    Ok(tracer)
}

fn document(outcome: &Outcome) -> Result<Value> {
    serde_json::from_str(&outcome.stdout.join("\n"))
        .with_context(|| format!("no document; stderr: {}", outcome.talk()))
}

/// Every probe fires, as often as the target says that it called: proven, exit 0.
#[test]
fn a_good_profile_is_proven() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=500", "late=2"])?;
        let profile = environment::profile("arena");
        let tracer = check(&profile, target.pid(), &["--for", "1h", "--level", "objects"])?;
        target.go()?;
        let truth = target.finish()?.truths.remove(0);
        // It ends with the process that it watches.
        let outcome = tracer.finish()?;
        let document = document(&outcome)?;
        assert_eq!(document["schema"], "drainprof.check/1");
        let coverage = &document["coverage"];
        assert_eq!((outcome.code, &coverage["proven"]), (Some(0), &json!(true)), "{coverage}");
        assert_eq!(coverage["warnings"], json!([]));
        let balance = &coverage["balances"][0];
        let truth = &truth["allocators"][0];
        assert_eq!(balance["opened"], truth["granules"]["opened"], "{truth}");
        assert_eq!(balance["closed"], truth["granules"]["closed"]);
        assert_eq!(balance["allocated"], truth["objects"]["allocated"]);
        assert_eq!(balance["freed"], truth["objects"]["freed"]);
        assert_eq!(coverage["unmatched_frees"], 0);
    }
    Ok(())
}

/// A profile that takes a drain allocator for bulk is contradicted by the frees that come after the closes: each of them,
/// and the warning says which line to change.
#[test]
fn the_kind_is_found_out() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=1000", "p=2000", "late=2"])?;
        let text = fs::read_to_string(environment::profile("arena"))?;
        let lines = text.lines().filter(|line| !line.starts_with("live ="));
        let text = lines.collect::<Vec<_>>().join("\n").replace("\"drain\"", "\"bulk\"");
        let directory = TempDir::new()?;
        let profile = directory.path().join("bulk.toml");
        fs::write(&profile, text)?;
        let profile = profile.display().to_string();
        let tracer = check(&profile, target.pid(), &["--for", "1h", "--level", "objects"])?;
        target.go()?;
        let truth = target.finish()?.truths.remove(0);
        let outcome = tracer.finish()?;
        let document = document(&outcome)?;
        let coverage = &document["coverage"];
        assert_eq!((outcome.code, &coverage["proven"]), (Some(5), &json!(false)), "{coverage}");
        let warnings = coverage["warnings"].as_array().context("warnings")?;
        let found = warnings.iter().find(|warning| warning["code"] == "freed_after_close");
        let message = found.and_then(|warning| warning["message"].as_str()).unwrap_or_default();
        let late = &truth["allocators"][0]["retention"]["late_drained"];
        assert!(message.starts_with(&format!("{late} objects were freed after")), "{warnings:?}");
        assert!(message.contains("kind = \"drain\""), "{message}");
    }
    Ok(())
}

/// Nothing is called: every probe says why it may be silent, exit 5.
#[test]
fn silence_is_not_proof() -> Result<()> {
    if requires_root() {
        let target = Target::start("psweep", &[])?;
        let profile = environment::profile("arena");
        let outcome = check(&profile, target.pid(), &["--for", "300ms"])?.finish()?;
        let coverage = document(&outcome)?["coverage"].take();
        assert_eq!((outcome.code, &coverage["proven"]), (Some(5), &json!(false)), "{coverage}");
        let probes = coverage["probes"].as_array().context("a list of probes")?;
        assert!(!probes.is_empty());
        for probe in probes {
            let why = probe["silent"].as_str().unwrap_or_default();
            assert!(why.contains("generate load"), "{probe}");
        }
        drop(target);
    }
    Ok(())
}

/// A realloc that never fires is named by every report, as where a newer library has moved it, and is no warning; the
/// probes that fired are not.
#[test]
fn a_silent_realloc_is_named() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("psweep", &["closes=100"])?;
        let text = fs::read_to_string(environment::profile("arena"))?;
        let moved = "\n[[probe]]\nrole = \"realloc\"\nat = \"main\"\ninstance = \"arg0\"\ngranule = \"arg1\"\n\
                     object = \"arg2\"\nsize = \"arg3\"\n";
        let directory = TempDir::new()?;
        let file = |name: &str| directory.path().join(name).display().to_string();
        fs::write(file("moved.toml"), text + moved)?;
        let mut command = tracer::command()?;
        command.args(["attach", "-p", &target.pid().to_string(), "--level", "objects"]);
        command.args(["--profile", &file("moved.toml"), "-o", "json", "-O", &file("report.json")]);
        let mut tracer = Tracer::spawn(command)?;
        tracer.attached()?;
        target.go()?;
        target.finish()?;
        tracer.finish()?;
        let report: Value = serde_json::from_str(&fs::read_to_string(file("report.json"))?)?;
        let findings = report["targets"][0]["findings"].as_array().context("findings")?;
        let silent: Vec<_> = findings.iter().filter(|one| one["code"] == "never_fired").collect();
        let message = silent.first().and_then(|one| one["message"].as_str()).unwrap_or_default();
        assert!(message.starts_with("1 of 5 probes attached, never fired"), "{findings:?}");
        assert!(message.contains(": realloc main in "), "{message}");
        assert_eq!((silent.len(), &silent[0]["weight"]), (1, &json!("info")));
    }
    Ok(())
}

/// A Go program is told by its sections: no draft of it, and no probe at a return, which would crash it.
#[test]
fn go_programs_are_left_alone() -> Result<()> {
    if requires_root() {
        let directory = TempDir::new()?;
        let file = |name: &str| directory.path().join(name).display().to_string();
        let source = "#include <unistd.h>\n\
            __attribute__((section(\".go.buildinfo\"), used)) static const char info[16] = \"Go\";\n\
            __attribute__((noinline)) void *arena_open(void) { return (void *)&info; }\n\
            __attribute__((noinline)) void arena_close(void *arena) { (void)arena; }\n\
            int main(void) { for (;;) { arena_close(arena_open()); pause(); } }\n";
        fs::write(file("go.c"), source)?;
        let built = Command::new("cc").args(["-g", "-o", &file("go"), &file("go.c")]).status()?;
        ensure!(built.success(), "{built}");
        let outcome = tracer::run_to_end(&["profile", "new", "--from-symbols", &file("go")])?;
        assert_eq!(outcome.code, Some(4), "{}", outcome.talk());
        assert!(outcome.talk().contains("a Go program"), "{}", outcome.talk());
        let profile = "schema = 1\nname = \"go\"\nkind = \"bulk\"\nsummary = \"s\"\n\
            [match]\nsymbols = [\"arena_open\"]\n\
            [[probe]]\nrole = \"open\"\nat = \"arena_open\"\ngranule = \"ret\"\n\
            [[probe]]\nrole = \"close\"\nat = \"arena_close\"\ngranule = \"arg0\"\n";
        fs::write(file("go.toml"), profile)?;
        let process = Process::start("go", Command::new(file("go")))?;
        let pid = process.pid().to_string();
        let attach = ["attach", "-p", &pid, "--profile", &file("go.toml"), "-d", "100ms"];
        let outcome = tracer::run_to_end(&attach)?;
        assert_ne!(outcome.code, Some(0), "{}", outcome.talk());
        assert!(outcome.talk().contains("crashes a Go program"), "{}", outcome.talk());
    }
    Ok(())
}

/// Drafts a profile of a binary to a file.
fn draft(binary: &str, file: &str, more: &[&str]) -> Result<String> {
    let arguments = [&["profile", "new", "--from-symbols", binary, "-O", file], more].concat();
    let outcome = tracer::run_to_end(&arguments)?;
    ensure!(outcome.code == Some(0), "exit {:?}: {}", outcome.code, outcome.talk());
    Ok(fs::read_to_string(file)?)
}

/// The lines of a profile that say where probes go.
fn places(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| line.starts_with("at = ")).map(ToOwned::to_owned).collect()
}

/// The draft from nginx's names alone has the very functions of the finished profile, and each that a request
/// calls fires; what it calls twice is left out.
#[test]
fn nginx_is_drafted() -> Result<()> {
    if requires_root() && has_programs(&["nginx", "ab"]) {
        let directory = TempDir::new()?;
        let file = directory.path().join("draft.toml").display().to_string();
        let nginx = Nginx::start(false)?;
        let binary = fs::read_link(format!("/proc/{}/exe", nginx.worker))?.display().to_string();
        let text = draft(&binary, &file, &["--name", "my-nginx"])?;
        let finished = tracer::run_to_end(&["profile", "show", "nginx"])?.stdout.join("\n");
        assert_eq!(places(&text), places(&finished), "{text}");
        assert!(text.contains("ngx_pcalloc: it calls ngx_palloc"), "{text}");
        let tracer = check(&file, nginx.worker, &["--for", "1h", "--level", "objects"])?;
        nginx.ab(&["-n", "100", "-c", "1"])?;
        nginx.settle()?;
        tracer.interrupt()?;
        let outcome = tracer.finish()?;
        let coverage = document(&outcome)?["coverage"].take();
        let balance = &coverage["balances"][0];
        assert_eq!((&balance["opened"], &balance["closed"]), (&json!(200), &json!(200)));
        // A draft that exists is not overwritten: somebody may have finished it.
        let again = ["profile", "new", "--from-symbols", &binary, "-O", &file];
        assert_eq!(tracer::run_to_end(&again)?.code, Some(1));
        nginx.quit()?;
    }
    Ok(())
}

/// Prototypes tell arguments: the draft of the ring, but for the number of the epoch that it opens, says what
/// the finished profile says.
#[test]
fn a_target_is_drafted() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("draft.toml").display().to_string();
    let binary = environment::target("epoch_ring")?.display().to_string();
    let text = draft(&binary, &file, &[])?;
    for line in
        ["granule = \"arg2\"", "object = \"*(u64)(arg3)\"", "size = \"arg1\"", "object = \"arg1\""]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("# TO DECIDE: granules have numbers (`epoch`)"), "{text}");
    let checked = tracer::run_to_end(&["profile", "check", &file])?;
    assert_eq!(checked.code, Some(0), "{}", checked.talk());
    // Names of Rust are patterns: their hashes change with each build.
    let rust = environment::target("rust_arena")?.display().to_string();
    let file = directory.path().join("rust.toml").display().to_string();
    let text = draft(&rust, &file, &["--prefix", "rust_arena::"])?;
    let wanted = ["open", "close", "take", "give"]
        .map(|name| format!("at = \"demangled:rust_arena::Arena::{name}\""));
    assert_eq!(places(&text), BTreeSet::from(wanted), "{text}");
    Ok(())
}

/// Drafts of C++ and Rust programs probe the type that is an arena: each of its instances once, under whatever names;
/// and what is drafted fits the program and can be compiled for it.
#[test]
fn types_are_drafted() -> Result<()> {
    let directory = TempDir::new()?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let mangled = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|name| format!("at = \"{name}\"")).collect()
    };
    let drafted = |target: &str| -> Result<String> {
        let binary = environment::target(target)?.display().to_string();
        let text = draft(&binary, &at(target), &[])?;
        let checked = tracer::run_to_end(&["profile", "check", &at(target)])?;
        assert_eq!(checked.code, Some(0), "{}", checked.talk());
        Ok(text)
    };
    let text = drafted("arenas_cpp")?;
    let wanted = mangled(&[
        "_ZN4pool5ArenaIcEC1Em",
        "_ZN4pool5ArenaIcED1Ev",
        "_ZN4pool5ArenaIcE4takeEm",
        "_ZN4pool5ArenaIcE4giveEPc",
        "_ZN4pool5ArenaImEC1Ev",
        "_ZN4pool5ArenaImED1Ev",
        "_ZN4pool5ArenaImE4takeEm",
        "_ZN4pool5ArenaImE4giveEPm",
    ]);
    assert_eq!(places(&text), wanted, "{text}");
    assert!(text.contains("_ZN4pool5ArenaIcEC2Em: another name of a function above"), "{text}");
    let text = drafted("rust_bumpalo")?;
    let wanted = mangled(&[
        "demangled:bumpalo::Bump::new",
        "demangled:<bumpalo::Bump<_> as core::ops::drop::Drop>::drop",
        "demangled:bumpalo::Bump<_>::reset",
    ]);
    assert_eq!(places(&text), wanted, "{text}");
    assert!(text.contains("# TO DECIDE: it is returned by value"), "{text}");
    Ok(())
}

/// What has no allocator, or is no program, gets a reason and no file.
#[test]
fn no_draft() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("draft.toml");
    let shown = file.display().to_string();
    let ring = environment::target("epoch_ring")?.display().to_string();
    for (binary, code) in [(ring.as_str(), 4), ("/etc/passwd", 1)] {
        let arguments =
            ["profile", "new", "--from-symbols", binary, "--prefix", "zzz_", "-O", &shown];
        let outcome = tracer::run_to_end(&arguments)?;
        assert_eq!(outcome.code, Some(code), "{binary}: {}", outcome.talk());
        assert!(!file.exists(), "{binary}");
    }
    let missing = Command::new(environment::drainprof()?)
        .args(["profile", "new", "--from-symbols", "/nowhere"])
        .output()?;
    assert!(!missing.status.success());
    Ok(())
}

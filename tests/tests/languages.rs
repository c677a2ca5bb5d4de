//! C++ and Rust: patterns over demangled names find all instances of a function, in every mangling, each place
//! once; and where the compiler has left no function, that is said.

use anyhow::{Context as _, Result};
use drainprof_tests::{
    compare::Expect,
    environment::{profile, requires_root},
    target::Target,
    tracer::{Tracer, run_to_end, trace},
};

const OBJECTS: [&str; 2] = ["--level", "objects"];

/// Class templates, constructors and destructors with several symbols, a virtual destructor, a virtual base,
/// `operator new`, a memory resource and a namespace without a name: exact to the last object.
#[test]
fn arenas_of_cpp() -> Result<()> {
    if requires_root() {
        trace("arenas_cpp", &["rounds=500"], "arenas_cpp", &OBJECTS)?.exact();
    }
    Ok(())
}

/// Symbols that are one place are one probe, all instances of a template belong to one pattern, and of functions
/// that call one another for one destructor only the innermost is probed.
#[test]
fn one_place_is_one_probe() -> Result<()> {
    if requires_root() {
        let target = Target::start("arenas_cpp", &[])?;
        let pid = target.pid().to_string();
        let checked = run_to_end(&["profile", "check", &profile("arenas_cpp"), "-p", &pid])?
            .stdout
            .join("\n");
        let rows = |role: &str, name: &str| {
            let of_role = checked.lines().filter(|line| line.trim_start().starts_with(role));
            of_role.filter(|line| line.contains(name)).count()
        };
        // One instance is made from nothing, the other from a number.
        assert_eq!(rows("open", " pool::Arena<unsigned long>::Arena()"), 1, "{checked}");
        assert_eq!(rows("open", " pool::Arena<char>::Arena(unsigned long)"), 1, "{checked}");
        assert_eq!(rows("close", " pool::Arena<"), 2, "{checked}");
        assert_eq!(rows("close", " pool::Region::~Region()"), 1, "{checked}");
        assert_eq!(rows("open", " (anonymous namespace)::Scratch::Scratch()"), 1, "{checked}");
        assert!(
            checked.contains("wrapper: _ZN4pool6RegionD0Ev only calls _ZN4pool6RegionD"),
            "{checked}"
        );
        target.kill()
    } else {
        Ok(())
    }
}

/// The memory resources of the stock standard library, by the shipped profile: what they take is counted upstream, and
/// agrees to the last buffer and byte.
#[test]
fn memory_resources() -> Result<()> {
    if requires_root() {
        trace("pmr", &["rounds=300"], "cxx-pmr", &OBJECTS)?.exact();
    }
    Ok(())
}

/// An arena crate whose functions stay out of line: arenas, resets and chunks are exact, in both manglings, with
/// one pattern for all instances of the generic type.
#[test]
fn arena_crate_out_of_line() -> Result<()> {
    if requires_root() {
        for target in ["rust_bumpalo", "rust_bumpalo_v0"] {
            trace(target, &[], "bumpalo", &OBJECTS)?.exact();
        }
    }
    Ok(())
}

/// The same, optimised across crates: no function that opens or closes an arena is left, which is told with what is
/// there instead; nothing is reported as if it were whole.
#[test]
fn arena_crate_inlined() -> Result<()> {
    if requires_root() {
        let target = Target::start("rust_bumpalo_lto", &[])?;
        let pid = target.pid().to_string();
        for (name, telling) in [
            (
                "bumpalo",
                "demangled:bumpalo::Bump::new: no function has such a name: it is inlined wherever it is called",
            ),
            (
                "bumpalo_inlined",
                "missing demangled:bumpalo::Bump::reset (of bumpalo::Bump there is bumpalo::Bump",
            ),
        ] {
            let refused =
                run_to_end(&["attach", "-p", &pid, "--profile", &profile(name), "-d", "1s"])?;
            let talk = refused.talk();
            assert_eq!(refused.code, Some(4), "{talk}");
            assert!(talk.contains(telling), "{talk}");
            assert!(talk.contains("alloc_layout_slow"), "the way out is named: {talk}");
        }
        target.kill()?;
    }
    Ok(())
}

/// The slow path is never inlined: through it, the chunks that arenas take are exact in every build.
#[test]
fn slow_path_is_always_there() -> Result<()> {
    if requires_root() {
        for target in ["rust_bumpalo", "rust_bumpalo_v0", "rust_bumpalo_lto"] {
            let traced = trace(target, &[], "bumpalo_slow", &OBJECTS)?;
            // Opens and closes are not looked at.
            Expect::default().leave_out("granules").check(&traced);
        }
    }
    Ok(())
}

/// A function that is there while all its callers have it inlined: the probe never fires, and the report says what
/// can be used instead.
#[test]
fn never_fired_says_what_to_use() -> Result<()> {
    if requires_root() {
        let mut target = Target::start("inlined", &[])?;
        let tracer = Tracer::attach(&[target.pid()], "inlined", &OBJECTS)?;
        target.go()?;
        let truths = target.finish()?.truths;
        let outcome = tracer.finish()?;
        let findings = outcome.report()["findings"].as_array().context("a list of findings")?;
        let all: Vec<_> = findings
            .iter()
            .chain(outcome.report()["targets"][0]["findings"].as_array().into_iter().flatten())
            .collect();
        let silent = all.iter().find(|finding| finding["code"] == "never_fired");
        let message = silent.context("a finding never_fired")?["message"].to_string();
        assert!(message.contains("alloc pool::Arena::take(unsigned long)"), "{message}");
        for advice in ["no alloc at all", "slow path", "#[inline(never)]", "USDT"] {
            assert!(message.contains(advice), "{message}");
        }
        let allocator = &outcome.report()["targets"][0]["allocators"][0];
        assert_eq!(allocator["granules"]["opened"], truths[0]["opened"], "{allocator}");
        assert_eq!(allocator["objects"]["allocated"], 0, "{allocator}");
    }
    Ok(())
}

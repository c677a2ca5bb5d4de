use std::{path::Path, sync::Arc};

use bytemuck::Zeroable as _;
use drainprof_common::spec::ProbeSpec;
use drainprof_process::testing::cc;
use drainprof_profile::{Address, Expr, Key, Level, Phase, Probe, Profile, Role};

use crate::plan::{
    AttachPlan, Member, ObjectResolver, PlanError, Request, Sites,
    cost::{Costs, InstructionKind},
    plan,
    testing::{by_symbols, image, probe, profile, symbol},
};

/// `outer` begins with something cheap, `inner` with something expensive; `part` has a clone beside it.
const SOURCE: &str = r#"
__asm__(".globl outer\n.type outer,@function\nouter:\n\tpush %rbx\n\tpop %rbx\n\tret\n.size outer,.-outer\n"
        ".globl inner\n.type inner,@function\ninner:\n\txor %eax,%eax\n\tret\n.size inner,.-inner\n"
        ".globl hook\n.type hook,@function\nhook:\n\tpush %rbx\n\tpop %rbx\n\tret\n.size hook,.-hook\n"
        ".globl noted\n.type noted,@function\nnoted:\n\txor %eax,%eax\n9:\tnop\n\tret\n.size noted,.-noted\n"
        ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 8, 3f-2f, 3\n.asciz \"stapsdt\"\n"
        "2:\t.8byte 9b\n.8byte 0\n.8byte 0\n.asciz \"pool\"\n.asciz \"made\"\n.asciz \"8@%rdi 8f@%xmm0\"\n"
        "3:\t.balign 4\n.popsection\n"
        ".globl second\n.type second,@function\nsecond:\n\tpush %rbp\n\tpop %rbp\n\tret\n.size second,.-second\n"
        ".globl part\n.type part,@function\npart:\n\tpush %rbp\n\tpop %rbp\n\tret\n.size part,.-part\n"
        ".globl part.part.0\n.type part.part.0,@function\npart.part.0:\n\tret\n.size part.part.0,.-part.part.0\n"
        ".globl only.part.0\n.type only.part.0,@function\nonly.part.0:\n\tpush %rbp\n\tret\n.size only.part.0,.-only.part.0\n");
"#;

fn member(role: Role, name: &str) -> Probe {
    Probe { one_of: Some("made".into()), ..probe(role, symbol(name)) }
}

fn returning(name: &str) -> Probe {
    Probe { phase: Phase::Return, ..member(Role::Alloc, name) }
}

fn planned(
    directory: &Path,
    probes: Vec<Probe>,
    costs: &Costs,
    sites: Sites,
) -> Result<AttachPlan, PlanError> {
    let path = cc(directory, "libeither.so", SOURCE, &["-shared", "-fPIC", "-nostdlib"]);
    let image = image(&[&path]);
    let profile: Arc<Profile> = profile(by_symbols(&["outer"]), probes);
    let request = Request {
        profile: &profile,
        level: Level::Objects,
        allocator: 0,
        image: &image,
        followed: &[],
        costs,
        sites,
    };
    let compile = |_: &Profile, probe: &Probe, _: Level, _: u32, _: &ObjectResolver<'_>| {
        if probe.at == symbol("second") && probe.has(Key::Size) {
            return Err("no type `x`".to_owned());
        }
        Ok(ProbeSpec { role: probe.role as u32, ..ProbeSpec::zeroed() })
    };
    plan(request, &|_, _| true, &compile)
}

fn plan_of(probes: Vec<Probe>) -> AttachPlan {
    let dir = tempfile::tempdir().unwrap();
    planned(dir.path(), probes, &Costs::assumed(), Sites::Cheapest).unwrap()
}

fn symbols(plan: &AttachPlan) -> Vec<&str> {
    plan.probes.iter().map(|probe| probe.site.symbol.as_str()).collect()
}

fn used(plan: &AttachPlan) -> Vec<(&str, bool)> {
    plan.groups[0].members.iter().map(|member| (member.at.as_str(), member.used)).collect()
}

/// Of an entry and a return on equal instructions the entry is placed, and nothing else; the list says what
/// each would have cost.
#[test]
fn the_cheapest_is_placed() {
    let plan = plan_of(vec![returning("outer"), member(Role::Alloc, "hook")]);
    assert_eq!((symbols(&plan), plan.probes[0].phase), (vec!["hook"], Phase::Entry));
    let group = &plan.groups[0];
    assert_eq!((group.group.as_str(), group.role), ("made", "alloc"));
    let outer = Member {
        at: "outer".into(),
        phase: "return",
        cost_ns: Some(840.0),
        used: false,
        drawback: None,
    };
    assert_eq!(group.members[0], outer);
    let hook = &group.members[1];
    assert_eq!((hook.used, hook.cost_ns, hook.phase), (true, Some(550.0), "entry"));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

/// The costs decide, not the phase: a return on a cheap instruction is placed before an entry on an expensive
/// one, and the other way round where this machine has other costs; so does `--sites entry`.
#[test]
fn prices_decide() {
    let dir = tempfile::tempdir().unwrap();
    let probes = || vec![member(Role::Alloc, "inner"), returning("outer")];
    let plan = planned(dir.path(), probes(), &Costs::assumed(), Sites::Cheapest).unwrap();
    assert_eq!(symbols(&plan), ["outer"]);
    let mut even = Costs::assumed();
    even.entry_ns = [Some(500.0); InstructionKind::ALL.len()];
    let plan = planned(dir.path(), probes(), &even, Sites::Cheapest).unwrap();
    assert_eq!(symbols(&plan), ["inner"]);
    let plan = planned(dir.path(), probes(), &even, Sites::Entry).unwrap();
    assert_eq!(symbols(&plan), ["inner"]);
}

/// Of equal costs the first of the profile is placed.
#[test]
fn the_first_of_equals() {
    let both = |one, other| vec![member(Role::Alloc, one), member(Role::Alloc, other)];
    assert_eq!(symbols(&plan_of(both("hook", "second"))), ["hook"]);
    assert_eq!(symbols(&plan_of(both("second", "hook"))), ["second"]);
}

/// Costs that are about equal do not decide: the first of the profile is placed.
#[test]
fn the_first_of_alike() {
    let dir = tempfile::tempdir().unwrap();
    let mut costs = Costs::assumed();
    let probes = || vec![member(Role::Alloc, "inner"), member(Role::Alloc, "hook")];
    for (nanoseconds, placed) in [(590.0, "inner"), (700.0, "hook")] {
        costs.entry_ns = [Some(nanoseconds); InstructionKind::ALL.len()];
        costs.entry_ns[InstructionKind::Push as usize] = Some(500.0);
        let plan = planned(dir.path(), probes(), &costs, Sites::Cheapest).unwrap();
        assert_eq!(symbols(&plan), [placed], "{nanoseconds}");
    }
}

/// A USDT probe is a member like any other: the cost is that of its own instruction, and it drops out where the note is
/// absent, or an argument that it names cannot be followed.
#[test]
fn a_usdt_probe_among_them() {
    let usdt = |name: &str, arg: u8| {
        let at = Address::Usdt { provider: "pool".into(), name: name.into() };
        Probe { one_of: Some("made".into()), ..probe(Role::Alloc, at) }
            .with(Key::Object, Expr::Arg(arg))
    };
    let plan = plan_of(vec![member(Role::Alloc, "inner"), usdt("made", 0)]);
    assert_eq!(symbols(&plan), ["usdt:pool:made"]);
    assert_eq!(plan.rows()[0].moved, ["arg0=8@%rdi", "arg1=8f@%xmm0"]);
    assert_eq!(plan.rows()[0].instruction_kind, Some("nop"));

    for (absent, why) in
        [(usdt("gone", 0), "no such USDT probe"), (usdt("made", 1), "floating-point numbers")]
    {
        let plan = plan_of(vec![member(Role::Alloc, "inner"), absent]);
        assert_eq!(symbols(&plan), ["inner"]);
        let drawback = plan.groups[0].members[1].drawback.as_deref().unwrap();
        assert!(drawback.contains(why), "{drawback}");
    }
}

/// A member that is not there, or that cannot be compiled for the object, leaves its place to another one
/// without a finding.
#[test]
fn members_that_drop_out() {
    let plan = plan_of(vec![member(Role::Alloc, "gone"), returning("outer")]);
    assert_eq!(symbols(&plan), ["outer"]);
    assert_eq!(used(&plan), [("gone", false), ("outer", true)]);
    assert_eq!(plan.groups[0].members[0].drawback.as_deref(), Some("no such symbol"));
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);

    let uncompiled = member(Role::Alloc, "second").with(Key::Size, Expr::Arg(1));
    let plan = plan_of(vec![uncompiled.clone(), returning("outer")]);
    assert_eq!(symbols(&plan), ["outer"]);
    assert_eq!(plan.groups[0].members[0].drawback.as_deref(), Some("no type `x`"));

    let dir = tempfile::tempdir().unwrap();
    let probes = vec![member(Role::Alloc, "gone"), uncompiled];
    let error = planned(dir.path(), probes, &Costs::assumed(), Sites::Cheapest).unwrap_err();
    assert!(error.to_string().contains("probe second in") && error.to_string().contains("`x`"));
}

/// A member of which clones exist, or nothing but clones, is placed only if there is no better one, however
/// cheap it is; then with the finding that any such probe has.
#[test]
fn clones_are_the_last_resort() {
    for (clone, code) in [("part", "clones"), ("only", "clone_only")] {
        let plan = plan_of(vec![member(Role::Alloc, clone), returning("outer")]);
        assert_eq!(used(&plan), [(clone, false), ("outer", true)]);
        assert!(plan.groups[0].members[0].drawback.as_deref().unwrap().contains("clones"));
        assert!(plan.findings.is_empty(), "{:?}", plan.findings);
        let plan = plan_of(vec![member(Role::Alloc, clone), member(Role::Alloc, "gone")]);
        assert_eq!(used(&plan), [(clone, true), ("gone", false)]);
        assert_eq!(plan.findings[0].code, code);
    }
}

/// A group without any place is reported once, with the reason of each; if nothing else has its role, there is no
/// plan, and the error names them all.
#[test]
fn none_can_be_placed() {
    let gone = || vec![member(Role::Alloc, "gone"), member(Role::Alloc, "lost")];
    let mut probes = gone();
    probes.push(probe(Role::Alloc, symbol("outer")));
    let plan = plan_of(probes);
    assert_eq!(symbols(&plan), ["outer"]);
    let codes: Vec<_> = plan.findings.iter().map(|finding| finding.code.as_str()).collect();
    assert_eq!(codes, ["no_alternative"]);
    let message = &plan.findings[0].message;
    assert!(message.contains("gone: no such symbol; lost: no such symbol"), "{message}");

    let dir = tempfile::tempdir().unwrap();
    let error = planned(dir.path(), gone(), &Costs::assumed(), Sites::Cheapest).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("none of its `alloc` probes"), "{message}");
    assert!(message.contains("gone: no such symbol") && message.contains("lost"), "{message}");
}

/// Each object decides for itself: of two that match, the one that lacks a symbol has another member than the
/// one that has it.
#[test]
fn each_object_decides() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["-shared", "-fPIC", "-nostdlib"];
    let full = cc(dir.path(), "libfull.so", SOURCE, &args);
    let bare = cc(dir.path(), "libbare.so", &SOURCE.replace("hook", "other"), &args);
    let image = image(&[&full, &bare]);
    let probes = vec![member(Role::Alloc, "hook"), returning("outer")];
    let profile: Arc<Profile> = profile(by_symbols(&["outer"]), probes);
    let request = Request {
        profile: &profile,
        level: Level::Objects,
        allocator: 0,
        image: &image,
        followed: &[],
        costs: &Costs::assumed(),
        sites: Sites::Cheapest,
    };
    let plan = plan(request, &|_, _| true, &crate::plan::testing::compile).unwrap();
    let mut placed = symbols(&plan);
    placed.sort_unstable();
    assert_eq!(placed, ["hook", "outer"]);
    assert_eq!(plan.groups.len(), 2);
    assert_ne!(plan.groups[0].object, plan.groups[1].object);
}

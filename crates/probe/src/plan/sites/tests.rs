//! Places of a plan's probes, on objects that the compiler made.

use std::{path::Path, sync::Arc};

use bytemuck::Zeroable as _;
use drainprof_common::spec::Insn;
use drainprof_process::testing::{cc, library};
use drainprof_profile::{Level, Probe, Profile};

use super::*;
use crate::plan::{
    AttachPlan, ObjectResolver, Request, plan,
    testing::{by_symbols, image, probe, profile, symbol},
};

/// Functions with an expensive beginning, as assembly so that they stay what they are: `two` loses its second
/// argument before anything is cheap.
const SOURCE: &str = r#"
__asm__(".globl one\n.type one,@function\none:\n\ttest %rdi,%rdi\n\tje 1f\n1:\tret\n.size one,.-one\n"
        ".globl two\n.type two,@function\ntwo:\n\tmov %rdi,%rax\n\txor %esi,%esi\n\txor %edi,%edi\n\tpush %rbx\n\tpop %rbx\n\tret\n.size two,.-two\n"
        ".globl odd\n.type odd,@function\nodd:\n\txor %eax,%eax\n\tpush %rbx\n\tpop %rbx\n\tret\n"
        ".globl again\n.type again,@function\nagain:\n\tdec %edi\n\tjne again\n\tret\n.size again,.-again\n");
"#;

/// A spec whose entry side reads these arguments.
fn reads(arguments: &[u8], caller: bool) -> ProbeSpec {
    let mut spec = ProbeSpec::zeroed();
    let all = arguments.iter().map(|&arg| Insn { op: op::ARG, arg, target: 0 });
    let caller = caller.then_some(Insn { op: op::CALLER, arg: op::INPUT_CALLER, target: 0 });
    for insn in all.chain(caller) {
        spec.code[usize::from(spec.entry_len)] = insn;
        spec.entry_len += 1;
    }
    spec
}

fn planned(dir: &Path, probes: Vec<Probe>, sites: Sites, arguments: &[u8]) -> AttachPlan {
    let args = ["-shared", "-fPIC", "-nostdlib", "-Wl,--build-id"];
    let image = image(&[&cc(dir, "libsites.so", SOURCE, &args)]);
    let profile: Arc<Profile> = profile(by_symbols(&["one"]), probes);
    let request = Request {
        profile: &profile,
        level: Level::Objects,
        allocator: 0,
        image: &image,
        followed: &[],
        costs: &Costs::assumed(),
        sites,
    };
    let compile = |_: &Profile, probe: &Probe, _: Level, _: u32, _: &ObjectResolver<'_>| {
        Ok(ProbeSpec { role: probe.role as u32, ..reads(arguments, false) })
    };
    plan(request, &|_, _| true, &compile).unwrap()
}

/// What a probe needs is what its two sides read, no more.
#[test]
fn needs_of_specs() {
    let all = Needs { args: 0b10_0101, caller: true, ..Needs::default() };
    assert_eq!(needs(&reads(&[0, 5, 2, 0], true)), all);
    assert_eq!(needs(&reads(&[], false)), Needs::default());
    let mut at_return = reads(&[1], true);
    (at_return.return_len, at_return.entry_len) = (at_return.entry_len, 0);
    assert_eq!(needs(&at_return), Needs { args: 2, caller: true, ..Needs::default() });
    at_return.return_len = 0;
    assert_eq!(needs(&at_return), Needs::default());
}

/// A chosen place is written into the probe and its spec; the function is still known by its entry.
#[test]
fn places_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let probes = vec![probe(Role::Open, symbol("one")), probe(Role::Alloc, symbol("two"))];
    let plan = planned(dir.path(), probes.clone(), Sites::Cheapest, &[0]);
    let (two, one) = (&plan.probes[0], &plan.probes[1]);
    assert_eq!(one.site.file_offset, one.site.entry_offset + 3);
    assert_eq!((one.spec.moved, one.spec.stack_moved), (0, 0));
    assert_eq!((two.choice.offset, two.spec.moved), (7, 1));
    assert_eq!(two.spec.arg_locations[0], ArgLocation { register: 0, offset: 0 });
    let rows = plan.rows();
    assert_eq!((rows[0].moved.as_slice(), rows[0].offset), (&["arg0=rax".to_owned()][..], 7));
    assert!(rows[0].cost_ns < rows[0].entry_cost_ns && !rows[0].costs_measured);

    let plan = planned(dir.path(), probes, Sites::Entry, &[0]);
    assert!(plan.probes.iter().all(|probe| probe.choice.offset == 0 && probe.spec.moved == 0));
    assert!(plan.probes.iter().all(|probe| probe.site.file_offset == probe.site.entry_offset));
}

/// Probes of one function sit at one place, also with one of them at the return; where that one cannot move, none does.
#[test]
fn one_place_per_function() {
    let dir = tempfile::tempdir().unwrap();
    let close = probe(Role::Close, symbol("one"));
    let both = vec![probe(Role::Open, symbol("one")), close.clone()];
    let plan = planned(dir.path(), both, Sites::Cheapest, &[0]);
    assert_eq!(plan.probes.iter().map(|probe| probe.choice.offset).collect::<Vec<_>>(), [3, 3]);
    let returning = |name: &str| Probe { phase: Phase::Return, ..probe(Role::Open, symbol(name)) };
    let both = vec![returning("two"), probe(Role::Close, symbol("two"))];
    let plan = planned(dir.path(), both, Sites::Cheapest, &[0]);
    for probe in &plan.probes {
        assert_eq!((probe.choice.offset, probe.choice.stop), (0, Stop::ArgumentLost(0)));
    }
    let plan = planned(dir.path(), vec![returning("one"), close], Sites::Cheapest, &[0]);
    assert_eq!(plan.probes.iter().map(|probe| probe.choice.offset).collect::<Vec<_>>(), [3, 3]);
    let rows = plan.rows();
    let at_return = rows.iter().find(|row| row.phase == "return").unwrap();
    let at_entry = rows.iter().find(|row| row.phase == "entry").unwrap();
    assert!(at_return.cost_ns > at_entry.cost_ns, "a return costs more");
}

/// What stays expensive is reported with its cost and reason, once per place; so is a function that jumps to its
/// own first instruction, and nothing is chosen where the size is not known.
#[test]
fn dear_places_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let probes = vec![
        probe(Role::Open, symbol("one")),
        probe(Role::Close, symbol("two")),
        probe(Role::Free, symbol("two")),
        probe(Role::Alloc, symbol("odd")),
        probe(Role::Alloc, symbol("again")),
    ];
    let plan = planned(dir.path(), probes, Sites::Cheapest, &[1]);
    let message = |code: &str| {
        let found = plan.findings.iter().find(|finding| finding.code == code);
        found.map(|finding| finding.message.clone()).unwrap_or_default()
    };
    let expensive = message("expensive_site");
    assert!(
        expensive.starts_with("2 probes are expensive") && expensive.contains("assumed"),
        "{expensive}"
    );
    assert!(
        expensive.contains("two+0x0 `mov rax, rdi` 18500 ns (arg1 is not kept any longer)"),
        "{expensive}"
    );
    assert!(
        expensive.contains("odd+0x0") && expensive.contains("size is not known"),
        "{expensive}"
    );
    assert!(message("entered_again").contains("again"), "{:?}", plan.findings);
}

/// An object that is gone since it was looked at is probed at first instructions.
#[test]
fn unreadable_objects() {
    let dir = tempfile::tempdir().unwrap();
    let path = library(dir.path(), "libpool.so", &[]);
    let image = image(&[&path]);
    let elf = image.objects[0].elf.as_ref().unwrap();
    let offset = elf.resolve("pool_open")[0].file_offset.unwrap();
    let needs = Needs { args: 3, caller: true, ..Needs::default() };
    let costs = Costs::assumed();
    assert!(Chooser::new(elf).choose(offset, needs, &costs, None).here.is_some());
    assert_eq!(Chooser::new(elf).choose(u64::MAX, needs, &costs, None).stop, Stop::Unread);
    std::fs::remove_file(&path).unwrap();
    let choice = Chooser::new(elf).choose(offset, needs, &costs, None);
    assert_eq!((choice.offset, choice.stop, choice.here), (0, Stop::Unread, None));
}

/// A place that is taken back is the first instruction, with all that the spec says of it: arguments in
/// their registers, the stack pointer not moved; what is on the first one cannot be taken back.
#[test]
fn falls_back() {
    let dir = tempfile::tempdir().unwrap();
    let probes = vec![probe(Role::Alloc, symbol("two")), probe(Role::Free, symbol("odd"))];
    let plan = planned(dir.path(), probes, Sites::Cheapest, &[0]);
    let find = |name: &str| plan.probes.iter().find(|probe| probe.site.symbol == name).unwrap();
    let two = find("two");
    assert_eq!((two.choice.offset, two.spec.moved), (7, 1));
    let back = fall_back(two).unwrap();
    assert_eq!(back.site.file_offset, two.site.entry_offset);
    assert_eq!((back.spec.moved, back.spec.stack_moved), (0, 0));
    assert_eq!((back.choice.offset, back.choice.stop), (0, Stop::Refused));
    assert_eq!(back.choice.here, two.choice.entry);
    let again = planned(dir.path(), vec![probe(Role::Alloc, symbol("two"))], Sites::Entry, &[0]);
    assert_eq!(bytemuck::bytes_of(&back.spec), bytemuck::bytes_of(&again.probes[0].spec));
    assert!(fall_back(find("odd")).is_none());
    let mut unusable = two.clone();
    unusable.choice.entry.as_mut().unwrap().cost_ns = f64::INFINITY;
    assert!(fall_back(&unusable).is_none(), "no probe may sit there");
}

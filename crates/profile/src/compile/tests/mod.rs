//! What specs say, and that their code means what the expressions mean.

use drainprof_common::{
    interp::{Outcome, Values, run},
    spec::{MAX_CODE, MAX_CONSTS, MAX_STACK, op, value},
};
use proptest::prelude::*;

use super::*;

use crate::{
    Address, EvalError, MatchRule, Source, eval, expr, parse,
    samples::{KnowsAll, SampleMachine, expressions_of, machines},
};

mod simple;

fn profile_of(kind: &str, probes: &str) -> Profile {
    let text = format!(
        "schema = 1\nname = \"t\"\nkind = \"{kind}\"\n[match]\nsymbols = [\"s\"]\n{probes}"
    );
    parse(&text, &Source::File("t.toml".into())).unwrap_or_else(|error| panic!("{error}"))
}

/// `role at key=expr …` lines to a profile; values have no spaces.
fn profile(kind: &str, lines: &str) -> Profile {
    let probe = |line: &str| {
        let mut words = line.split(' ');
        let (role, at) = (words.next().unwrap(), words.next().unwrap());
        let keys = words.map(|word| word.split_once('=').unwrap());
        let keys: Vec<_> = keys.map(|(key, value)| format!("{key} = '{value}'")).collect();
        format!("[[probe]]\nrole = '{role}'\nat = '{at}'\n{}\n", keys.join("\n"))
    };
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    profile_of(kind, &lines.map(probe).collect::<String>())
}

fn spec(profile: &Profile, index: usize, level: Level) -> ProbeSpec {
    compile(profile, &profile.probes[index], level, 7, &KnowsAll).unwrap()
}

fn operations(spec: &ProbeSpec, start: u16, len: u16) -> Vec<u8> {
    let all = &spec.code[usize::from(start)..usize::from(start + len)];
    all.iter().map(|insn| insn.op).collect()
}

/// An open at entry: everything runs at entry, and the flags name what is computed.
#[test]
fn entry_probes_run_at_entry() {
    let profile = profile(
        "bulk",
        "open create granule=arg0 parent=arg3 label=str(arg4) bytes=arg1 when=arg0!=0
         close destroy granule=arg0",
    );
    let spec = spec(&profile, 0, Level::Boundary);
    assert_eq!((spec.role, spec.kind, spec.allocator), (Role::Open as u32, Kind::Bulk as u32, 7));
    assert_eq!(
        spec.flags,
        flags::HAS_OPEN
            | flags::BOUNDARY
            | flags::HAS_GRANULE
            | flags::HAS_PARENT
            | flags::HAS_LABEL
            | flags::HAS_CALLER
            | flags::HAS_BYTES
    );
    assert_eq!((spec.entry_start, spec.return_len), (0, 0));
    let code = operations(&spec, 0, spec.entry_len);
    assert_eq!(code[..4], [op::ARG, op::CONST, op::NE, op::GUARD], "`when` comes first");
    assert_eq!(code.iter().filter(|op| [op::STORE].contains(op)).count(), 4);
    assert_eq!(code.last(), Some(&op::END));
}

/// An alloc that needs the return value: nothing at entry, everything at return.
#[test]
fn return_probes_run_at_return() {
    let profile = profile(
        "bulk",
        "open create granule=ret when=ret!=0
         alloc take granule=arg0 size=arg1 when=ret!=0",
    );
    let spec = spec(&profile, 1, Level::Objects);
    assert_eq!(spec.flags & flags::AT_RETURN, flags::AT_RETURN);
    assert_eq!(spec.flags & (flags::TAKE_AT_ENTRY | flags::BY_OBJECT | flags::BOUNDARY), 0);
    assert_eq!((spec.entry_len, spec.return_start), (0, 0));
    assert_eq!(operations(&spec, 0, spec.return_len).last(), Some(&op::END));
}

const HANDLES: &str = "open advance instance=arg0 granule=arg1
    close shut instance=arg0 granule=arg1
    alloc take instance=arg0 granule=arg2 object=*(u64)(arg3) when=ret!=0
    free drop object=arg1 when=ret!=0";

/// A free that knows its object at entry takes it there, without asking `when`, and computes all again at
/// return.
#[test]
fn frees_at_return_take_their_object_at_entry() {
    let profile = profile("drain", HANDLES);
    let spec = spec(&profile, 3, Level::Objects);
    let wanted = flags::BY_OBJECT | flags::TAKE_AT_ENTRY | flags::AT_RETURN | flags::HAS_OBJECT;
    assert_eq!(spec.flags, wanted | flags::HAS_OPEN, "ids are unique across instances here");
    assert_eq!(operations(&spec, 0, spec.entry_len), [op::ARG, op::STORE, op::END]);
    assert_eq!(spec.return_start, spec.entry_len);
    assert_eq!(
        operations(&spec, spec.return_start, spec.return_len),
        [op::RET, op::CONST, op::NE, op::GUARD, op::ARG, op::STORE, op::END]
    );
}

/// Nothing is taken at entry where the object or its instance is only known at return, or where the free
/// is evaluated at entry anyway.
#[test]
fn nothing_is_taken_at_entry_that_is_not_known_there() {
    for free in
        ["free drop object=ret", "free drop object=arg1 instance=ret", "free drop object=arg1"]
    {
        let lines = HANDLES.replace("free drop object=arg1 when=ret!=0", free);
        let spec = spec(&profile("drain", &lines), 3, Level::Objects);
        assert_eq!(spec.flags & flags::TAKE_AT_ENTRY, 0, "{free}");
        assert_eq!(spec.flags & flags::BY_OBJECT, flags::BY_OBJECT, "{free}");
        assert!((spec.entry_len == 0) != (spec.return_len == 0), "{free}: one phase only");
    }
}

/// Objects are per instance only where every probe of objects names one.
#[test]
fn objects_are_per_instance_where_all_say_so() {
    let per_instance = HANDLES.replace("free drop", "free drop instance=arg0");
    for (lines, expected) in [(HANDLES, 0), (&*per_instance, flags::OBJECT_PER_INSTANCE)] {
        let profile = profile("drain", lines);
        for index in 0..4 {
            let flags = spec(&profile, index, Level::Objects).flags;
            assert_eq!(flags & flags::OBJECT_PER_INSTANCE, expected, "{lines}");
        }
    }
}

/// Bulk allocators follow objects only where a free cannot name its granule.
#[test]
fn bulk_follows_objects_only_where_it_must() {
    for (free, expected) in
        [("free drop granule=arg0 object=arg1", 0), ("free drop object=arg1", flags::BY_OBJECT)]
    {
        let lines = format!("close shut granule=arg0\nalloc take granule=arg0 object=ret\n{free}");
        let flags = spec(&profile("bulk", &lines), 1, Level::Objects).flags;
        assert_eq!(flags & flags::BY_OBJECT, expected, "{free}");
    }
}

/// A realloc always waits for its return and brings a new id: `ret`, unless the profile names one.
#[test]
fn reallocs_bring_a_new_object() {
    let lines = |more: &str| {
        format!(
            "close shut granule=arg0\nalloc take granule=arg0 object=ret\nfree drop object=arg0\nrealloc move object=arg0 size=arg1{more}"
        )
    };
    for (more, operation) in [("", op::RET), (" new_object=arg2", op::ARG)] {
        let spec = spec(&profile("drain", &lines(more)), 3, Level::Objects);
        assert_eq!(spec.flags & flags::TAKE_AT_ENTRY, flags::TAKE_AT_ENTRY);
        let code = &spec.code[usize::from(spec.return_start)..];
        let store =
            code.iter().position(|insn| insn.op == op::STORE && insn.arg == value::NEW_OBJECT);
        assert_eq!(store.map(|at| code[at - 1].op), Some(operation), "{more}");
    }
}

/// Which probes a level wants, which levels a profile has, and which of them is the default.
#[test]
fn levels_follow_from_kind_and_probes() {
    use Level::{Boundary, Close, Objects, Stacks};
    let open_close = "open create granule=ret\nclose shut granule=arg0";
    let with_live = "close shut granule=arg0 live=*(u32)(arg0)";
    let objects = "\nalloc take granule=arg0\nfree drop granule=arg0";
    let reset = "\nreset clear granule=arg0";
    for (kind, lines, all, default) in [
        ("bulk", open_close.to_owned(), vec![Close, Boundary], Boundary),
        ("bulk", format!("{open_close}{objects}"), vec![Close, Boundary, Objects, Stacks], Objects),
        ("slab", format!("{open_close}{objects}"), vec![Close, Boundary, Objects, Stacks], Objects),
        ("drain", format!("{open_close}{objects}"), vec![Objects, Stacks], Objects),
        ("drain", with_live.to_owned(), vec![Close, Boundary], Boundary),
        (
            "drain",
            format!("{with_live}{objects}"),
            vec![Close, Boundary, Objects, Stacks],
            Boundary,
        ),
        ("drain", format!("{with_live}{objects}{reset}"), vec![Objects, Stacks], Objects),
    ] {
        let profile = profile(kind, &lines);
        assert_eq!(levels(&profile), all, "{kind}: {lines}");
        assert_eq!(default_level(&profile), default, "{kind}: {lines}");
        let judges = judging_levels(&profile).any(|level| level == Close);
        assert_eq!(judges, kind == "drain" && all[0] == Close, "{kind}: {lines}");
        for probe in &profile.probes {
            let of_objects = matches!(probe.role, Role::Alloc | Role::Free | Role::Realloc);
            assert_eq!(wanted(probe, Boundary), !of_objects);
            assert_eq!(wanted(probe, Close), matches!(probe.role, Role::Close | Role::Reset));
            assert!(wanted(probe, Objects));
        }
    }
}

fn free_with(granule: Expr) -> Probe {
    Probe::bare(Role::Free, Address::Symbol("drop".to_owned())).with(Key::Granule, granule)
}

fn guarded(probe: Probe, when: Option<Expr>) -> Probe {
    when.into_iter().fold(probe, |probe, when| probe.with(Key::When, when))
}

fn profile_with(probe: Probe) -> Profile {
    Profile {
        name: "t".to_owned(),
        kind: Kind::Bulk,
        summary: String::new(),
        rule: MatchRule::default(),
        granule_bytes: None,
        granule_pages: None,
        structures: Vec::new(),
        implicit: false,
        on_request: false,
        nested: false,
        versions: Vec::new(),
        not_measurable: Vec::new(),
        probes: vec![probe],
        source: Source::BuiltIn("t"),
    }
}

fn compile_granule(granule: Expr) -> Result<ProbeSpec, CompileError> {
    let profile = profile_with(free_with(granule));
    compile(&profile, &profile.probes[0], Level::Objects, 0, &KnowsAll)
}

/// What is constant is computed at once; what may fault is not, and neither is what must be read.
#[test]
fn folding_leaves_faults_and_reads() {
    for (text, operations_expected) in [
        ("1 + 2 * 3", vec![op::CONST]),
        ("popcount(~0) == 64", vec![op::CONST]),
        ("offsetof(a, b) + var(\"x\") - arg0", vec![op::CONST, op::ARG, op::SUB]),
        ("arg0 + offsetof(a, b)", vec![op::ARG]),
        ("1 % 0", vec![op::CONST, op::CONST, op::MOD]),
        ("0 && *(u8)(arg0)", vec![op::CONST]),
        ("1 || 1 % 0", vec![op::CONST]),
        ("1 && arg0", vec![op::ARG, op::BOOL]),
        ("0 || arg0 == 1", vec![op::ARG, op::CONST, op::EQ]),
        (
            "*(u8)(arg0) && 0",
            vec![op::ARG, op::READ, op::BOOL, op::JUMP_IF_ZERO, op::POP, op::CONST],
        ),
        ("*(u8)(0) * 0", vec![op::CONST, op::READ, op::CONST, op::MUL]),
    ] {
        let spec = compile_granule(expr::parse(text).unwrap()).unwrap();
        let mut code = operations(&spec, 0, spec.entry_len);
        assert_eq!(code.split_off(code.len() - 2), [op::STORE, op::END]);
        assert_eq!(code, operations_expected, "{text}");
    }
}

/// Constants are kept once, and each bound of the interpreter has an error that names probe and key.
#[test]
fn bounds_are_errors() {
    let sum = |terms: &mut dyn Iterator<Item = String>| terms.collect::<Vec<_>>().join(" + ");
    let spec =
        compile_granule(expr::parse(&sum(&mut (0..20).map(|_| "arg0 * 3".to_owned()))).unwrap())
            .unwrap();
    assert_eq!(spec.consts[..2], [3, 0], "one constant, twenty uses");

    let many_consts = sum(&mut (1..26).map(|n| format!("arg0 * {}", n + 100)));
    let long = sum(&mut (0..80).map(|_| "arg0".to_owned()));
    let nested = |depth| format!("{}arg0{}", "arg0 + (".repeat(depth), ")".repeat(depth));
    for (text, says) in [
        (many_consts, format!("more than {MAX_CONSTS} different constants")),
        (long, format!("more than {MAX_CODE} instructions")),
        (nested(MAX_STACK), format!("more than {MAX_STACK} operands")),
    ] {
        let error = compile_granule(expr::parse(&text).unwrap()).unwrap_err();
        assert!(error.to_string().contains(&says), "{error}");
        assert!(error.to_string().contains("the free probe at drop, `granule`"), "{error}");
    }
    let fits = expr::parse(&nested(MAX_STACK - 1)).unwrap();
    assert!(compile_granule(fits).is_ok(), "as many operands as the stack holds fit");
}

/// A name that the binary does not have is an error with its place and the name.
#[test]
fn unknown_names_are_errors_with_a_place() {
    struct KnowsNothing;
    impl Resolver for KnowsNothing {
        fn var(&self, _symbol: &str) -> Option<u64> {
            None
        }
        fn offset_of(&self, _type_name: &str, _field: &str) -> Result<u64, String> {
            Err("no debug information".to_owned())
        }
    }
    for (text, says, span) in [
        ("1 + var(\"Current\")", "no global symbol `Current`", 4..18),
        ("offsetof(struct a, b)", "offsetof(struct a, b): no debug information", 0..21),
    ] {
        let profile = profile_with(free_with(expr::parse(text).unwrap()));
        let error =
            compile(&profile, &profile.probes[0], Level::Objects, 0, &KnowsNothing).unwrap_err();
        assert!(error.message.contains(says), "{error}");
        assert_eq!(error.span, Some(span));
    }
}

/// A spec's outcome as the plain evaluator has it: `when` first, then the values, up to the first fault.
fn plain_outcome(probe: &Probe, machine: &SampleMachine) -> (Outcome, Option<u64>) {
    if let Some(when) = probe.expression(Key::When) {
        match eval(when, machine, &KnowsAll) {
            Err(EvalError::Cut) => return (Outcome::Cut, None),
            Err(_) => return (Outcome::Fault, None),
            Ok(0) => return (Outcome::Rejected, None),
            Ok(_) => {}
        }
    }
    match probe.expression(Key::Granule).map(|granule| eval(granule, machine, &KnowsAll)) {
        Some(Ok(value)) => (Outcome::Accepted, Some(value)),
        Some(Err(EvalError::Cut)) => (Outcome::Cut, None),
        _ => (Outcome::Fault, None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    /// Byte code and plain evaluation agree on random expressions and machines: the same value or the
    /// same kind of end, and exactly the same number of reads (what is not needed is not read).
    #[test]
    fn code_means_what_the_expression_means(
        granule in expressions_of(4, 24),
        when in prop::option::of(expressions_of(3, 8)),
        machine in machines(),
    ) {
        let probe = guarded(free_with(granule), when);
        let profile = profile_with(probe);
        let probe = &profile.probes[0];
        // The few that do not fit into a spec are refused; that is tested elsewhere.
        let Ok(spec) = compile(&profile, probe, Level::Objects, 0, &KnowsAll) else {
            return Ok(());
        };
        let plain_machine = machine.clone();
        let (outcome, value) = plain_outcome(probe, &plain_machine);
        let mut values: Values = [0; value::COUNT];
        let ran = run(&spec, spec.entry_start, &machine, &mut values);
        prop_assert_eq!(ran, outcome);
        prop_assert_eq!(machine.reads(), plain_machine.reads());
        if let Some(value) = value {
            prop_assert_eq!(values[usize::from(value::GRANULE)], value);
        }
    }

    /// All jumps of compiled code go forward and stay inside it, but for the step of a walk, which goes
    /// back to right behind where the walk began; and END comes last.
    #[test]
    fn jumps_go_forward(granule in expressions_of(4, 24)) {
        let Ok(spec) = compile_granule(granule) else { return Ok(()) };
        let code = &spec.code[..usize::from(spec.entry_len)];
        for (at, insn) in code.iter().enumerate() {
            if matches!(insn.op, op::JUMP_IF_ZERO | op::JUMP_IF_NONZERO) {
                prop_assert!(usize::from(insn.target) > at && usize::from(insn.target) < code.len());
            }
            if insn.op == op::WALK {
                let exit = usize::from(insn.target);
                prop_assert!(exit > at + 1 && exit < code.len());
                prop_assert_eq!((code[exit - 1].op, usize::from(code[exit - 1].target)), (op::STEP, at + 1));
            }
            prop_assert_eq!(insn.op == op::END, at + 1 == code.len());
        }
    }
}

/// The property above is not vacuous: its samples end in every way, and nearly all of them compile.
#[test]
fn samples_end_in_every_way() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let mut seen = [0; 4];
    let mut refused = 0;
    for _ in 0..500 {
        let mut draw = |when: bool| {
            let depth = if when { (3, 8) } else { (4, 24) };
            expressions_of(depth.0, depth.1).new_tree(&mut runner).unwrap().current()
        };
        let probe = free_with(draw(false)).with(Key::When, draw(true));
        let machine = machines().new_tree(&mut runner).unwrap().current();
        let profile = profile_with(probe);
        refused +=
            u32::from(compile(&profile, &profile.probes[0], Level::Objects, 0, &KnowsAll).is_err());
        seen[plain_outcome(&profile.probes[0], &machine).0 as usize] += 1;
    }
    assert!(seen[..3].iter().all(|count| *count > 25) && seen[3] > 5, "{seen:?}");
    assert!(refused < 25, "{refused} of 500 do not compile");
}

//! Simple forms mean what the expressions mean.

use drainprof_common::interp::{Machine as _, Registers, run_simple};

use super::*;
use crate::model::{BinaryOp, ReadType, UnaryOp};

/// The entry of a simple spec, as the kernel side runs it.
fn run_simply(spec: &ProbeSpec, machine: &SampleMachine) -> (Outcome, Registers) {
    let mut registers = Registers::default();
    for (index, word) in registers.inputs.iter_mut().enumerate() {
        *word = machine.input(index as u8);
    }
    for simple in &spec.simple[..usize::from(spec.entry_simple + spec.return_simple)] {
        if let Some(outcome) = run_simple(simple, machine, &mut registers.values) {
            return (outcome, registers);
        }
    }
    (Outcome::Accepted, registers)
}

fn located(spec: &ProbeSpec, registers: &Registers, value: u8) -> u64 {
    let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(registers));
    words.get(usize::from(spec.locations[usize::from(value)])).copied().unwrap_or(0)
}

/// Expressions of the shapes that profiles mostly have; nearly all have a simple form.
fn simple_shapes() -> impl Strategy<Value = Expr> {
    let constant = || prop_oneof![0u64..40, Just(0xffff_ffff), Just(!0xfff), any::<u64>()];
    let input = || prop_oneof![5 => (0u8..6).prop_map(Expr::Arg), 1 => Just(Expr::Ret)];
    let binary = |op, left, right: Expr| Expr::Binary(op, Box::new(left), Box::new(right));
    let index = (input(), constant(), 0u64..8, any::<bool>()).prop_map(
        move |(input, mask, scale, masked)| {
            let word =
                if masked { binary(BinaryOp::BitAnd, input, Expr::Const(mask)) } else { input };
            binary(BinaryOp::Mul, word, Expr::Const(1 << scale))
        },
    );
    let leaf = prop_oneof![
        4 => input(),
        1 => constant().prop_map(Expr::Const),
        2 => (input(), index).prop_map(move |(base, index)| binary(BinaryOp::Add, base, index)),
    ];
    leaf.prop_recursive(3, 4, 1, move |inner| {
        let operators = vec![BinaryOp::Add, BinaryOp::Add, BinaryOp::Sub, BinaryOp::BitAnd];
        let reads = vec![ReadType::U8, ReadType::U32, ReadType::I32, ReadType::U64];
        prop_oneof![
            2 => (prop::sample::select(reads), inner.clone())
                .prop_map(|(read, address)| Expr::Read(read, address.into())),
            3 => (prop::sample::select(operators), inner.clone(), constant())
                .prop_map(move |(op, left, right)| binary(op, left, Expr::Const(right))),
            1 => (inner, 0u64..9)
                .prop_map(move |(left, log)| binary(BinaryOp::Mod, left, Expr::Const(1 << log))),
        ]
    })
}

/// Conditions on them.
fn simple_conditions() -> impl Strategy<Value = Expr> {
    let compare = prop::sample::select(vec![BinaryOp::Eq, BinaryOp::Ne]);
    let one = (compare, simple_shapes(), 0u64..3)
        .prop_map(|(op, word, with)| Expr::Binary(op, word.into(), Expr::Const(with).into()));
    let one = prop_oneof![
        3 => one,
        1 => simple_shapes(),
        1 => simple_shapes().prop_map(|word| Expr::Unary(UnaryOp::Not, word.into())),
    ];
    (one.clone(), prop::option::of(one)).prop_map(|(left, right)| match right {
        Some(right) => Expr::Binary(BinaryOp::And, left.into(), right.into()),
        None => left,
    })
}

/// The property below is not vacuous: most of its samples have a simple form and end in every way.
#[test]
fn simple_samples_are_simple() {
    use proptest::{strategy::ValueTree, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut simple, mut seen) = (0, [0; 3]);
    for _ in 0..500 {
        let probe = free_with(simple_shapes().new_tree(&mut runner).unwrap().current())
            .with(Key::When, simple_conditions().new_tree(&mut runner).unwrap().current());
        let profile = profile_with(probe);
        let spec = compile(&profile, &profile.probes[0], Level::Objects, 0, &KnowsAll).unwrap();
        if spec.is_simple != 0 {
            simple += 1;
            let machine = machines().new_tree(&mut runner).unwrap().current();
            seen[run_simply(&spec, &machine).0 as usize] += 1;
        }
    }
    assert!(simple > 150, "{simple} of 500");
    assert!(seen.iter().all(|count| *count > 15), "{seen:?}");
}

/// What shipped profiles say of their hottest probes needs no interpreter.
#[test]
fn usual_probes_are_simple() {
    for (line, is_simple) in [
        ("alloc a granule=arg0 object=ret size=arg1 when=ret!=0", true),
        ("alloc a granule=*(u64)(ret-8) object=ret size=arg1 when=ret!=0", true),
        ("alloc a granule=arg2&0xffffffff object=*(u64)(arg3) when=(ret&0xff)!=0", true),
        ("free a object=arg0 when=arg0!=0&&*(u8)(arg0)==1", true),
        ("close a granule=arg1 live=*(u32)(arg0+(arg1&15)*8+0x40)", true),
        ("open a granule=(*(u32)(arg0+0xc80)+1)%16", true),
        ("open a granule=(*(u32)(arg0+0xc80)+1)%10", false),
        ("close a granule=arg1 live=popcount(*(u64)(arg0+0x80))", false),
    ] {
        let rest = "open x granule=arg0\nclose y granule=arg0 live=arg1\nalloc z granule=arg0 object=ret\n\
                    free w object=arg0";
        let profile = profile("drain", &format!("{line}\n{rest}"));
        for level in [Level::Boundary, Level::Objects] {
            if level == Level::Boundary || !line.starts_with("close") {
                assert_eq!(spec(&profile, 0, level).is_simple != 0, is_simple, "{line}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    /// What is computed without the interpreter is the same, too: the outcome, the value and the reads.
    #[test]
    fn simple_forms_mean_what_the_expression_means(
        granule in simple_shapes(),
        when in prop::option::of(simple_conditions()),
        machine in machines(),
    ) {
        let probe = guarded(free_with(granule), when);
        let profile = profile_with(probe);
        let probe = &profile.probes[0];
        let spec = compile(&profile, probe, Level::Objects, 0, &KnowsAll).unwrap();
        if spec.is_simple != 0 {
            let plain_machine = machine.clone();
            let (outcome, value) = plain_outcome(probe, &plain_machine);
            let (ran, registers) = run_simply(&spec, &machine);
            prop_assert_eq!(ran, outcome);
            prop_assert_eq!(machine.reads(), plain_machine.reads());
            if let Some(value) = value {
                prop_assert_eq!(located(&spec, &registers, value::GRANULE), value);
            }
        }
    }
}

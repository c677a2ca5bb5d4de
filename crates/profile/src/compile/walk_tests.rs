//! Walks on lists that are really there: what the byte code sums, where it ends, and what its failure
//! costs.

use std::{cell::Cell, collections::HashMap};

use drainprof_common::{
    interp::{Machine, Outcome, Values, run},
    spec::{MAX_STACK, WALK_NODES, op, value},
};
use proptest::prelude::*;

use super::*;
use crate::{EvalError, Source, eval, expr, parse, samples::KnowsAll};

/// Nodes are this far apart, and none is at 0.
const STRIDE: u64 = 0x40;
const BASE: u64 = 0x1000;
/// The head of circular lists.
const HEAD: u64 = 0x800;

/// A memory of words: what is not there faults. `arg0` is the list's first node, `arg1` its end.
struct Memory {
    words: HashMap<u64, u64>,
    args: [u64; 2],
    reads: Cell<usize>,
}

impl Machine for Memory {
    fn arg(&self, index: u8) -> u64 {
        self.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    fn ret(&self) -> u64 {
        0
    }

    fn caller(&self) -> Option<u64> {
        None
    }

    fn read(&self, address: u64, _size: u8) -> Option<u64> {
        self.reads.set(self.reads.get() + 1);
        self.words.get(&address).copied()
    }
}

/// The list of these values: the next node's address at 0, the value at 8; `last` stands behind the last.
fn list(values: &[u64], end: u64, last: u64) -> Memory {
    let at = |index: usize| BASE + STRIDE * index as u64;
    let mut words = HashMap::new();
    for (index, value) in values.iter().enumerate() {
        let next = if index + 1 < values.len() { at(index + 1) } else { last };
        words.extend([(at(index), next), (at(index) + 8, *value)]);
    }
    let first = if values.is_empty() { last } else { BASE };
    Memory { words, args: [first, end], reads: Cell::new(0) }
}

/// A close whose live count is this expression.
fn close_spec(live: &str) -> ProbeSpec {
    let text = format!(
        "schema = 1\nname = 't'\nkind = 'drain'\n[match]\nsymbols = ['s']\n[[probe]]\nrole = 'close'\n\
         at = 'shut'\ngranule = 'arg0'\nwhen = 'arg0 != 1'\nbytes = '*(u64)(arg0)'\nlive = '{live}'"
    );
    let profile = parse(&text, &Source::File("t.toml".into())).unwrap_or_else(|e| panic!("{e}"));
    compile(&profile, &profile.probes[0], Level::Boundary, 0, &KnowsAll).unwrap()
}

fn live_of(spec: &ProbeSpec, memory: &Memory) -> (Outcome, u64) {
    let mut values: Values = [0; value::COUNT];
    let outcome = run(spec, spec.entry_start, memory, &mut values);
    (outcome, values[usize::from(value::LIVE)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Lists with an end and without one, of any length around the bound: the byte code and the plain
    /// evaluator say what a loop in Rust says, and read no more than they must.
    #[test]
    fn sums_are_those_of_a_plain_loop(
        values in prop::collection::vec(any::<u64>(), 0..12),
        max in 1usize..12,
        shape in 0..4,
        back_to in any::<prop::sample::Index>(),
    ) {
        let (end, last) = match shape {
            0 => (0, 0),
            1 => (HEAD, HEAD),
            // Ends with 0, although another end is named.
            2 => (HEAD, 0),
            // A circle that passes its head by: never an end, if there is a node.
            _ if values.is_empty() => (0, 0),
            _ => (HEAD, BASE + STRIDE * back_to.index(values.len()) as u64),
        };
        let endless = shape == 3 && !values.is_empty();
        let memory = list(&values, end, last);
        let text = format!("walk(arg0, *(u64)(it), *(u64)(it + 8), end = arg1, max = {max})");
        let expr = expr::parse(&text).unwrap();
        let spec = close_spec(&text);
        let expected = if endless || values.len() > max {
            Err(EvalError::Cut)
        } else {
            Ok(values.iter().fold(0u64, |sum, value| sum.wrapping_add(*value)))
        };
        prop_assert_eq!(eval(&expr, &memory, &KnowsAll), expected.clone());
        let walked = if endless { max } else { values.len().min(max) };
        prop_assert_eq!(memory.reads.get(), 2 * walked);
        let mut memory = memory;
        // For the granule's bytes, which the close reads as well.
        memory.words.entry(memory.args[0]).or_insert(0);
        let ran = live_of(&spec, &memory);
        prop_assert_eq!(ran, match expected {
            Ok(sum) => (Outcome::Accepted, sum),
            Err(_) => (Outcome::Cut, value::UNREAD),
        });
    }
}

/// The bounds are exact: as many nodes as are allowed, and not one more; the usual bound is 512.
#[test]
fn bounds_are_exact() {
    for (more, max) in [("", usize::from(WALK_NODES)), (", max = 4096", 4096), (", max = 1", 1)] {
        for (end, last) in [(0, 0), (HEAD, HEAD)] {
            let spec = close_spec(&format!("walk(arg0, *(u64)(it), 2, end = arg1{more})"));
            let whole = list(&vec![0; max], end, last);
            assert_eq!(live_of(&spec, &whole), (Outcome::Accepted, 2 * max as u64), "{max}");
            let longer = list(&vec![0; max + 1], end, last);
            assert_eq!(live_of(&spec, &longer), (Outcome::Cut, value::UNREAD), "{max}");
        }
    }
}

/// Walks side by side, in conditions, and over an array; one with `when` on an empty list.
#[test]
fn walks_are_operands() {
    for (text, expected) in [
        ("walk(arg0, *(u64)(it), *(u64)(it + 8)) + 2 * walk(arg0, *(u64)(it), 1)", 15 + 6),
        ("walk(arg0, *(u64)(it), *(u64)(it + 8) > 4) == 2 && walk(0, it, 1) == 0", 1),
        ("walk(arg0, it + 64, popcount(*(u64)(it + 8)), end = arg0 + 3 * 64)", 1 + 2 + 2),
        ("walk(arg0, *(u64)(it), *(u64)(it + 8) != 5 || *(u64)(0))", 0),
        // A walk of one node computes what is named twice only once.
        ("walk(walk(arg0, 0, it), *(u64)(it), *(u64)(it + 8))", 15),
    ] {
        let memory = list(&[4, 5, 6], 0, 0);
        let ran = live_of(&close_spec(text), &memory);
        let plain = eval(&expr::parse(text).unwrap(), &memory, &KnowsAll);
        match plain {
            Ok(sum) => assert_eq!((ran, sum), ((Outcome::Accepted, expected), expected), "{text}"),
            Err(error) => {
                assert_eq!((ran.0, error), (Outcome::Fault, EvalError::Fault), "{text}");
            }
        }
    }
}

/// What fails in the live count costs the live count; what fails before it costs the hit. The live
/// count is the last that a close computes.
#[test]
fn a_failed_live_count_is_told_apart() {
    let spec = close_spec("walk(arg0, *(u64)(it), *(u64)(it + 8))");
    let code = &spec.code[..usize::from(spec.entry_len)];
    let stored: Vec<u8> = code.iter().filter(|i| i.op == op::STORE).map(|i| i.arg).collect();
    assert_eq!(stored.last(), Some(&value::LIVE), "{stored:?}");
    assert_eq!(code[spec.live_start as usize - 1].op, op::STORE, "right behind the value before");

    let wild = list(&[1, 2], 0, 0xdead);
    assert_eq!(live_of(&spec, &wild), (Outcome::Fault, value::UNREAD));
    let mut unreadable = list(&[1, 2], 0, 0);
    unreadable.words.remove(&BASE);
    assert_eq!(live_of(&spec, &unreadable), (Outcome::Fault, 0), "the bytes are read first");
    let mut left_out = list(&[1, 2], 0, 0);
    left_out.args[0] = 1;
    assert_eq!(live_of(&spec, &left_out), (Outcome::Rejected, 0));
    assert_eq!(live_of(&spec, &list(&[1, 2], 0, 0)), (Outcome::Accepted, 3));
}

/// The sum waits while a node's value is computed: it counts among the operands.
#[test]
fn the_sum_is_an_operand_that_waits() {
    let nested = |depth| {
        let each = format!("{}it{}", "it + (".repeat(depth), ")".repeat(depth));
        let text = format!("walk(arg0, *(u64)(it), {each})");
        let mut probe = parse(
            "schema = 1\nname = 't'\nkind = 'drain'\n[match]\nsymbols = ['s']\n[[probe]]\nrole = 'close'\n\
             at = 'shut'\ngranule = 'arg0'\nlive = 'arg1'",
            &Source::File("t.toml".into()),
        )
        .unwrap();
        let live = expr::parse(&text).unwrap();
        probe.probes[0] = probe.probes[0].clone().with(Key::Live, live);
        compile(&probe, &probe.probes[0], Level::Boundary, 0, &KnowsAll)
    };
    assert!(nested(MAX_STACK - 2).is_ok());
    let error = nested(MAX_STACK - 1).unwrap_err();
    assert!(error.message.contains("operands wait at once"), "{error}");
}

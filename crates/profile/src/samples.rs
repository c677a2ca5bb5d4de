//! Random expressions and machines for the property tests of this module.

use std::cell::Cell;

use drainprof_common::{
    interp::Machine,
    spec::{MAX_WALK_NODES, WALK_NODES},
};
use proptest::prelude::*;

use super::{BinaryOp, Expr, ReadType, Resolver, UnaryOp, Walk};

/// Expressions of every form, whose places are all 0.
pub(super) fn expressions() -> impl Strategy<Value = Expr> {
    expressions_of(5, 40)
}

/// Expressions of every form with a bound on depth and size.
pub(super) fn expressions_of(depth: u32, size: u32) -> impl Strategy<Value = Expr> {
    grown(
        prop_oneof![16 => leaf(), 1 => walks().prop_map(|walk| Expr::Walk(walk.into()))],
        depth,
        size,
    )
}

/// Walks, with small expressions in them: they do not nest.
pub(super) fn walks() -> impl Strategy<Value = Walk> {
    let once = || grown(leaf(), 1, 3);
    let node = || grown(prop_oneof![leaf(), Just(Expr::It)], 2, 4);
    let max = prop_oneof![4 => 1u16..8, 4 => Just(WALK_NODES), 1 => 1..=MAX_WALK_NODES];
    (once(), node(), node(), prop::option::of(once()), max)
        .prop_map(|(first, next, each, end, max)| Walk { first, next, each, end, max })
}

fn leaf() -> impl Strategy<Value = Expr> {
    prop_oneof![
        4 => prop_oneof![0u64..10, any::<u64>(), Just(u64::MAX)].prop_map(Expr::Const),
        4 => (0u8..6).prop_map(Expr::Arg),
        2 => Just(Expr::Ret),
        1 => Just(Expr::Caller),
        1 => "[a-zA-Z_.]{1,8}".prop_map(|symbol| Expr::Var(symbol, 0..0)),
        1 => ("[a-z]{1,5}", "[a-z]{1,3}(\\.[a-z]{1,3}){0,2}").prop_map(|(type_name, field)| {
            Expr::OffsetOf { type_name, field, span: 0..0 }
        }),
    ]
}

fn grown(
    leaf: impl Strategy<Value = Expr> + 'static,
    depth: u32,
    size: u32,
) -> impl Strategy<Value = Expr> {
    leaf.prop_recursive(depth, size, 2, |inner| {
        let read = prop::sample::select(vec![
            ReadType::U8,
            ReadType::U16,
            ReadType::U32,
            ReadType::U64,
            ReadType::I32,
            ReadType::I64,
        ]);
        let unary = prop::sample::select(vec![
            UnaryOp::Not,
            UnaryOp::Neg,
            UnaryOp::BitNot,
            UnaryOp::Popcount,
        ]);
        let binary =
            prop::sample::select(BinaryOp::TABLE.iter().map(|row| row.0).collect::<Vec<_>>());
        prop_oneof![
            2 => (read, inner.clone()).prop_map(|(read, address)| Expr::Read(read, address.into())),
            1 => (unary, inner.clone()).prop_map(|(op, operand)| Expr::Unary(op, operand.into())),
            4 => (binary, inner.clone(), inner)
                .prop_map(|(op, left, right)| Expr::Binary(op, left.into(), right.into())),
        ]
    })
}

/// A machine whose memory faults at one address in `faulting`, and which counts its reads.
#[derive(Clone, Debug)]
pub(super) struct SampleMachine {
    args: [u64; 6],
    ret: u64,
    caller: Option<u64>,
    seed: u64,
    faulting: u64,
    reads: Cell<u32>,
}

impl SampleMachine {
    pub(super) fn reads(&self) -> u32 {
        self.reads.get()
    }
}

impl Machine for SampleMachine {
    fn arg(&self, index: u8) -> u64 {
        self.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    fn ret(&self) -> u64 {
        self.ret
    }

    fn caller(&self) -> Option<u64> {
        self.caller
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        self.reads.set(self.reads.get() + 1);
        let mixed = (address ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let word = mixed ^ (mixed >> 29);
        if word.is_multiple_of(self.faulting) {
            return None;
        }
        // Small values are as likely as large ones, so that comparisons go both ways.
        let word = if word & 64 == 0 { word >> 60 } else { word };
        Some(word & (u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))))
    }
}

/// Machines of all sorts.
pub(super) fn machines() -> impl Strategy<Value = SampleMachine> {
    let word = || prop_oneof![0u64..10, any::<u64>()];
    let args = (word(), word(), word(), word(), word(), word());
    (args, word(), prop::option::weighted(0.8, any::<u64>()), any::<u64>(), 2u64..20).prop_map(
        |(args, ret, caller, seed, faulting)| SampleMachine {
            args: [args.0, args.1, args.2, args.3, args.4, args.5],
            ret,
            caller,
            seed,
            faulting,
            reads: Cell::new(0),
        },
    )
}

/// Knows every name.
pub(super) struct KnowsAll;

impl Resolver for KnowsAll {
    fn var(&self, symbol: &str) -> Option<u64> {
        Some(symbol.len() as u64)
    }

    fn offset_of(&self, _type_name: &str, field: &str) -> Result<u64, String> {
        Ok(field.len() as u64 - 1)
    }
}

//! Allocator profiles: data, not code.

mod model;

pub use drainprof_common::spec::{Kind, Role};
pub use model::{
    Address, BinaryOp, Expr, Level, MatchRule, Phase, Probe, Profile, ReadType, Source, Span,
    UnaryOp,
};

//! Allocator profiles: data, not code.
//!
//! In running order: [`Library`] reads files, [`parse()`] turns a file's text into a checked [`Profile`],
//! [`compile()`] turns one of its probes into the spec that the kernel side runs. Expressions have a module
//! of their own (`expr`), and `eval` says what they mean. Which processes and objects a profile matches,
//! `plan` finds out; nothing here opens a process or an ELF object.

mod address;
mod check;
mod compile;
pub mod draft;
mod error;
mod eval;
pub mod expr;
mod finding;
mod keys;
mod library;
mod model;
mod nesting;
mod parse;
mod raw;
mod resolver;
mod structures;
mod versions;

pub use compile::{
    CompileError, compile, default_level, follows_objects, judging_levels, levels, wanted,
};
pub use drainprof_common::spec::{Kind, Role};
pub use error::ProfileError;
pub use eval::{EvalError, eval, eval_all};
pub use finding::Finding;
pub use keys::Key;
pub use library::{Library, LibraryError, built_in_text};
pub use model::{
    Address, BinaryOp, Expr, GranulePages, KINDS, Level, MatchRule, NotMeasurable, Phase, Probe,
    Profile, ReadType, Source, Span, Structure, UnaryOp, Version, Walk,
};
pub use nesting::too_deep;
pub use parse::{MAX_PROBES, MAX_PROFILE_BYTES, SCHEMA, parse};
pub use raw::{MAX_MATCHES, MAX_NAME_BYTES};
pub use resolver::Resolver;

#[cfg(test)]
mod samples;

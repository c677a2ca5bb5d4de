//! A profile once it is parsed and checked.

use std::{collections::BTreeMap, path::PathBuf};

use drainprof_common::spec::{Kind, Role};

use super::keys::Key;

/// All kinds.
pub const KINDS: [Kind; 3] = [Kind::Drain, Kind::Bulk, Kind::Slab];

/// How deep to look.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Closes only; each is judged by the live count that is read from the target's memory, and counts as an open, too.
    Close,
    /// Opens and closes only; the live count is read from the target's memory at the close.
    Boundary,
    /// Every alloc and free as well.
    Objects,
    /// And the call stack of every alloc.
    Stacks,
}

impl Level {
    /// All levels, the cheapest first.
    pub const ALL: [Self; 4] = [Self::Close, Self::Boundary, Self::Objects, Self::Stacks];

    /// The level's name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Boundary => "boundary",
            Self::Objects => "objects",
            Self::Stacks => "stacks",
        }
    }

    /// Whether allocs and frees are observed.
    #[must_use]
    pub const fn has_objects(self) -> bool {
        matches!(self, Self::Objects | Self::Stacks)
    }
}

/// Where a profile came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built into the binary; the file's name under `profiles/`.
    BuiltIn(&'static str),
    /// Read from a file.
    File(PathBuf),
}

/// A range of bytes in the profile's text.
pub type Span = std::ops::Range<usize>;

/// One allocator profile.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Its name, unique in the library.
    pub name: String,
    /// The allocator's kind.
    pub kind: Kind,
    /// One line on what this is.
    pub summary: String,
    /// Which objects it is about.
    pub rule: MatchRule,
    /// Bytes per granule, where constant.
    pub granule_bytes: Option<u64>,
    /// Where a granule's memory is, if its id is not its address.
    pub granule_pages: Option<GranulePages>,
    /// Granules are neither opened nor closed by a call: each begins with the first object seen in it and ends
    /// with its last.
    pub implicit: bool,
    /// Whether it takes part only where it is named.
    pub on_request: bool,
    /// Whether a granule ends with the one that it is nested in (`parent`), without an event of its own.
    pub nested: bool,
    /// Named guards: what distinguishes versions of the allocator.
    pub versions: Vec<Version>,
    /// Builds of the allocator of which the probes cannot see enough.
    pub not_measurable: Vec<NotMeasurable>,
    /// The probes, in the file's order.
    pub probes: Vec<Probe>,
    /// Structures that a census reads.
    pub structures: Vec<Structure>,
    /// Where it came from.
    pub source: Source,
}

/// Where a granule's memory is: pieces of one size. User space reads it between hits.
#[derive(Clone, Debug)]
pub struct GranulePages {
    /// The pieces' addresses: of each expression all values. `arg0` is the instance, `arg1` the granule's id.
    pub at: Vec<Expr>,
    /// Bytes of each piece.
    pub bytes: u64,
}

/// Granules that a census finds in a program's own structures. No expression knows anything of a hit.
#[derive(Clone, Debug)]
pub struct Structure {
    /// What the granules are called.
    pub name: String,
    /// The granules' addresses: of each expression all values.
    pub at: Vec<Expr>,
    /// The addresses of further granules, which the granule at `arg0` leads to; 0: none. `arg0` is its address below, too.
    pub branches: Vec<Expr>,
    /// Bytes of a granule.
    pub bytes: Expr,
    /// Live objects in it.
    pub live: Expr,
    /// Bytes of these.
    pub live_bytes: Expr,
}

/// Which ELF objects, mapped by a process, a profile is about: every line given must hold.
#[derive(Clone, Debug, Default)]
pub struct MatchRule {
    /// All of these resolve in one object.
    pub symbols: Vec<Address>,
    /// The object's `DT_SONAME` or file name matches one of these globs.
    pub soname: Vec<String>,
    /// The name of the process's executable matches one of these globs.
    pub exe: Vec<String>,
    /// The object's build id (lower-case hex) is one of these.
    pub build_id: Vec<String>,
}

/// A named guard: what must hold in a matched object for the probes that name it. Every line given must hold.
#[derive(Clone, Debug)]
pub struct Version {
    /// Its name, unique in the profile.
    pub name: String,
    /// All of these resolve in the object.
    pub symbols: Vec<Address>,
    /// None of these does.
    pub no_symbols: Vec<Address>,
    /// The object's build id (lower-case hex) is one of these.
    pub build_id: Vec<String>,
}

/// Builds of the allocator of which the profile's probes cannot see enough, and why.
#[derive(Clone, Debug)]
pub struct NotMeasurable {
    /// What holds of such a build.
    pub guard: Version,
    /// What the probes cannot see, for people.
    pub because: String,
}

/// Where a probe goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A symbol by its (mangled) name.
    Symbol(String),
    /// Symbols whose demangled name matches a glob: `demangled:bumpalo::Bump::reset*`.
    Demangled(String),
    /// A USDT probe: `usdt:provider:name`.
    Usdt {
        /// The provider.
        provider: String,
        /// The probe's name.
        name: String,
    },
    /// An offset in the file: `offset:0x1234`; the match rule then names a build id.
    Offset(u64),
}

/// When a probe is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// At the function's entry.
    Entry,
    /// At its return; arguments are still those at entry.
    Return,
}

/// One probe of a profile.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What a hit means.
    pub role: Role,
    /// Where it goes.
    pub at: Address,
    /// The group of probes that stand for one another: of them one is placed per object.
    pub one_of: Option<String>,
    /// The versions of which one must hold in an object for the probe to go there; empty: it is for all.
    pub versions: Vec<String>,
    /// When it is evaluated: at return if any expression names `ret` or the profile says so.
    pub phase: Phase,
    /// Its expressions; a label's is the address inside `str(…)`.
    pub expressions: BTreeMap<Key, Expr>,
    /// An open that only the calling thread knows of before it returns: the probe may sit behind what
    /// the function writes.
    pub unshared: bool,
    /// Where the probe's table stands in the text.
    pub span: Span,
}

impl Probe {
    /// A probe at entry that says nothing but its role and its address.
    #[must_use]
    pub const fn bare(role: Role, at: Address) -> Self {
        Self {
            role,
            at,
            one_of: None,
            versions: Vec::new(),
            phase: Phase::Entry,
            expressions: BTreeMap::new(),
            unshared: false,
            span: 0..0,
        }
    }

    /// Whether both can be meant for one object, by their versions' names.
    #[must_use]
    pub fn may_meet(&self, other: &Self) -> bool {
        self.versions.is_empty()
            || other.versions.is_empty()
            || self.versions.iter().any(|name| other.versions.contains(name))
    }

    /// The same with an expression more.
    #[must_use]
    pub fn with(mut self, key: Key, expr: Expr) -> Self {
        self.expressions.insert(key, expr);
        self
    }

    /// The expression of a key.
    #[must_use]
    pub fn expression(&self, key: Key) -> Option<&Expr> {
        self.expressions.get(&key)
    }

    /// Whether it has an expression for a key.
    #[must_use]
    pub fn has(&self, key: Key) -> bool {
        self.expressions.contains_key(&key)
    }

    /// What a key's value is computed by, which may go without saying; `None`: it is not computed.
    pub(super) fn computed_by(&self, key: Key) -> Option<&Expr> {
        let unsaid = key.defaults_to_ret() && key.is_used_by(self.role);
        self.expression(key).or(unsaid.then_some(&Expr::Ret))
    }
}

/// An expression; every node knows where it stands in the profile's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// A constant.
    Const(u64),
    /// `arg0` … `arg5`, at entry.
    Arg(u8),
    /// `ret`.
    Ret,
    /// `caller`: the probed call's return address.
    Caller,
    /// `*(u32)(address)`.
    Read(ReadType, Box<Self>),
    /// A unary operation.
    Unary(UnaryOp, Box<Self>),
    /// A binary operation; `&&` and `||` evaluate their right side only if needed.
    Binary(BinaryOp, Box<Self>, Box<Self>),
    /// `var("symbol")`: the address of a global symbol of the matched object in this process.
    Var(String, Span),
    /// `offsetof(type, field.path)`: from the object's debug information.
    OffsetOf {
        /// The type's name.
        type_name: String,
        /// The field's path, dots between members.
        field: String,
        /// Where it stands.
        span: Span,
    },
    /// `it`: the address of the node, in a walk's [`Walk::next`] and [`Walk::each`] only.
    It,
    /// `walk(first, next, each)`.
    Walk(Box<Walk>),
}

/// A sum over a linked list in target memory; a node of 0 ends the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// The first node's address.
    pub first: Expr,
    /// The address of the node after `it`.
    pub next: Expr,
    /// What is summed; wraps.
    pub each: Expr,
    /// `end = …`: the address that ends the list as 0 does, and is no node: a circular list's head.
    pub end: Option<Expr>,
    /// `max = …`: nodes that are visited at most; a list that has more is a counted loss.
    pub max: u16,
}

/// What a read of target memory yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadType {
    /// One byte.
    U8,
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// Four bytes, sign-extended.
    I32,
    /// Eight bytes.
    I64,
}

/// Unary operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    /// `!a`: 1 where a is 0, else 0.
    Not,
    /// `-a`, wrapping.
    Neg,
    /// `~a`.
    BitNot,
    /// `popcount(a)`.
    Popcount,
}

/// Binary operations, on unsigned 64-bit words that wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the operator of its name")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Mod,
    BitAnd,
    BitOr,
    BitXor,
    Shl,
    Shr,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

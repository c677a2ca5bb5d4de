//! Probe specs: what a probe means, as data for the generic eBPF programs.
//!
//! A spec is one entry of the `PROBES` map; the attach cookie of a probe holds its index.

use bytemuck::{Pod, Zeroable};

/// Instructions that one spec can hold, both phases together.
pub const MAX_CODE: usize = 120;
/// Steps that one phase can take outside of lists: jumps go forward, so each instruction runs at most once.
pub const MAX_STEPS: usize = MAX_CODE;
/// Nodes that a walk over a list visits at most, unless its profile says otherwise.
pub const WALK_NODES: u16 = 512;
/// Nodes that a profile can let a walk visit.
pub const MAX_WALK_NODES: u16 = 4096;
/// Constants that one spec can hold.
pub const MAX_CONSTS: usize = 24;
/// Depth of the interpreter's stack; the compiler refuses what needs more.
pub const MAX_STACK: usize = 8;
/// Bytes kept of a granule's label, the terminating NUL included.
pub const LABEL_BYTES: usize = 32;

/// What a probe's hit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Role {
    /// A granule comes to life.
    Open = 1,
    /// A granule should now be reclaimable.
    Close = 2,
    /// A granule's members are freed and the granule lives on (`bulk`), or it closes and opens at once (`drain`).
    Reset = 3,
    /// An object is allocated in a granule.
    Alloc = 4,
    /// An object is freed.
    Free = 5,
    /// An object changes size and perhaps place.
    Realloc = 6,
    /// An allocator instance is created.
    Init = 7,
    /// An allocator instance is torn down; its open granules end with it.
    Destroy = 8,
    /// An open granule gets another parent.
    Reparent = 9,
    /// A granule closes, and its live objects go on elsewhere.
    Migrate = 10,
    /// An open granule gets a name.
    Label = 11,
    /// An open granule gets another id: its memory is elsewhere now.
    Move = 12,
}

impl Role {
    /// All roles, in the order in which documentation lists them.
    pub const ALL: [Self; 12] = [
        Self::Open,
        Self::Close,
        Self::Reset,
        Self::Alloc,
        Self::Free,
        Self::Realloc,
        Self::Init,
        Self::Destroy,
        Self::Reparent,
        Self::Migrate,
        Self::Label,
        Self::Move,
    ];

    /// The role's name in profiles and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Close => "close",
            Self::Reset => "reset",
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Realloc => "realloc",
            Self::Init => "init",
            Self::Destroy => "destroy",
            Self::Reparent => "reparent",
            Self::Migrate => "migrate",
            Self::Label => "label",
            Self::Move => "move",
        }
    }
}

/// The kind of an allocator, without which one DSR number would mislead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// A close does not free the members: pins are possible, DSR is the measure.
    Drain = 1,
    /// A close frees every member: the leak is a granule that outlives its peers.
    Bulk = 2,
    /// A granule is closed only once it is empty: the leak is granules held open by few objects.
    Slab = 3,
}

impl Kind {
    /// The kind's name in profiles and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Bulk => "bulk",
            Self::Slab => "slab",
        }
    }
}

/// Bits of [`ProbeSpec::flags`].
pub mod flags {
    /// The allocator's objects are followed by id through the `OBJECTS` map; without it, allocs and
    /// frees only move the granule's live count.
    pub const BY_OBJECT: u32 = 1;
    /// Object ids are unique per instance only, so the instance is part of the object's key.
    pub const OBJECT_PER_INSTANCE: u32 = 1 << 1;
    /// The profile has an `open` probe: an id that was closed stays closed until it is opened again.
    pub const HAS_OPEN: u32 = 1 << 2;
    /// The close is decided by the live count read from the target's memory (level `boundary`).
    pub const BOUNDARY: u32 = 1 << 3;
    /// The spec computes the bytes that the granule retains ([`super::value::BYTES`]).
    pub const HAS_BYTES: u32 = 1 << 4;
    /// The spec computes the object's size ([`super::value::SIZE`]).
    pub const HAS_SIZE: u32 = 1 << 5;
    /// The spec computes a granule ([`super::value::GRANULE`]); a free without one finds it through the object.
    pub const HAS_GRANULE: u32 = 1 << 6;
    /// The spec computes the address of a label string ([`super::value::LABEL`]).
    pub const HAS_LABEL: u32 = 1 << 7;
    /// The spec is evaluated when the function returns.
    pub const AT_RETURN: u32 = 1 << 8;
    /// A free or realloc evaluated at return takes its object out of `OBJECTS` at entry already and puts
    /// it back if the call turns out to have failed, so that another thread that is handed the same id
    /// in between is never mistaken for this one.
    pub const TAKE_AT_ENTRY: u32 = 1 << 9;
    /// The spec computes an object id ([`super::value::OBJECT`]).
    pub const HAS_OBJECT: u32 = 1 << 10;
    /// The spec computes a live count ([`super::value::LIVE`]).
    pub const HAS_LIVE: u32 = 1 << 11;
    /// The spec computes a parent ([`super::value::PARENT`]).
    pub const HAS_PARENT: u32 = 1 << 12;
    /// The allocator has more than one probe that allocates, so that one may be called inside another.
    pub const MAY_NEST: u32 = 1 << 13;
    /// The return address of the call is wanted.
    pub const HAS_CALLER: u32 = 1 << 14;
    /// The probe may sit behind what its function writes.
    pub const UNSHARED: u32 = 1 << 15;
    /// The call path of the hit is wanted (level `stacks`).
    pub const STACKS: u32 = 1 << 16;
    /// Granules are neither opened nor closed by a call: each begins with the first object that is seen in it and
    /// ends with its last. Objects larger than [`super::ProbeSpec::granule_bytes`] belong to none.
    pub const IMPLICIT: u32 = 1 << 23;
    /// A granule ends with the granule that it is nested in (`[granule] nested`).
    pub const NESTED: u32 = 1 << 17;
    /// Opens are not observed: a close is judged by itself, and counts as an open, too (level `close`).
    pub const CLOSES_ONLY: u32 = 1 << 18;
}

/// Indices into [`crate::interp::Values`]: what expressions compute.
pub mod value {
    /// The allocator instance; 0 where the profile names none.
    pub const INSTANCE: u8 = 0;
    /// The granule's id.
    pub const GRANULE: u8 = 1;
    /// The object's id; for a realloc the old one.
    pub const OBJECT: u8 = 2;
    /// The object's size in bytes.
    pub const SIZE: u8 = 3;
    /// The bytes that the granule retains.
    pub const BYTES: u8 = 4;
    /// Objects live in the granule now, as the allocator's own memory says; [`UNREAD`] where that could
    /// not be computed.
    pub const LIVE: u8 = 5;
    /// A live count that is none. What is negative as a signed number is none either: see
    /// [`crate::state::verdict_of`].
    pub const UNREAD: u64 = u64::MAX;
    /// The parent granule's id.
    pub const PARENT: u8 = 6;
    /// Address of the NUL-terminated label in the target's memory.
    pub const LABEL: u8 = 7;
    /// For a realloc, the object's new id; for a move the granule's.
    pub const NEW_OBJECT: u8 = 8;
    /// Where an alloc keeps one more than the number of its call path: it has no label.
    pub const PATH: u8 = LABEL;
    /// How many values there are.
    pub const COUNT: usize = 9;
}

/// Operation codes of the byte code. The machine is a stack of unsigned 64-bit words.
///
/// "pops a, b" means that `b` was on top. All arithmetic wraps; shifts take their count modulo 64;
/// comparisons are unsigned and push 0 or 1.
pub mod op {
    /// Ends the phase; the hit is accepted.
    pub const END: u8 = 0;
    /// Pushes constant `arg`.
    pub const CONST: u8 = 1;
    /// Pushes argument `arg` (0–5) as it was at entry.
    pub const ARG: u8 = 2;
    /// Pushes the return value; `arg` is [`INPUT_RET`].
    pub const RET: u8 = 3;
    /// Pushes the return address of the probed call, a fault where it could not be read; `arg` is
    /// [`INPUT_CALLER`].
    pub const CALLER: u8 = 4;
    /// The return value's number among the inputs; arguments have 0 to 5.
    pub const INPUT_RET: u8 = 6;
    /// The return address's number among the inputs.
    pub const INPUT_CALLER: u8 = 7;
    /// Pops an address, pushes the `arg & 15` bytes there, little-endian; bit 4 of `arg`: sign-extended.
    pub const READ: u8 = 5;
    /// Pops a, b, pushes a + b.
    pub const ADD: u8 = 6;
    /// Pops a, b, pushes a − b.
    pub const SUB: u8 = 7;
    /// Pops a, b, pushes a × b.
    pub const MUL: u8 = 8;
    /// Pops a, b, pushes a & b.
    pub const AND: u8 = 9;
    /// Pops a, b, pushes a | b.
    pub const OR: u8 = 10;
    /// Pops a, b, pushes a ^ b.
    pub const XOR: u8 = 11;
    /// Pops a, b, pushes a << (b mod 64).
    pub const SHL: u8 = 12;
    /// Pops a, b, pushes a >> (b mod 64).
    pub const SHR: u8 = 13;
    /// Pops a, b, pushes a % b; a fault where b is 0.
    pub const MOD: u8 = 14;
    /// Pops a, b, pushes a == b.
    pub const EQ: u8 = 15;
    /// Pops a, b, pushes a != b.
    pub const NE: u8 = 16;
    /// Pops a, b, pushes a < b.
    pub const LT: u8 = 17;
    /// Pops a, b, pushes a <= b.
    pub const LE: u8 = 18;
    /// Pops a, pushes a == 0.
    pub const NOT: u8 = 19;
    /// Pops a, pushes a != 0.
    pub const BOOL: u8 = 20;
    /// Pops a, pushes the number of its bits that are set.
    pub const POPCOUNT: u8 = 21;
    /// Drops the top.
    pub const POP: u8 = 22;
    /// Jumps forward to `target` if the top is 0, without popping it.
    pub const JUMP_IF_ZERO: u8 = 23;
    /// Jumps forward to `target` if the top is not 0, without popping it.
    pub const JUMP_IF_NONZERO: u8 = 24;
    /// Pops into value `arg`.
    pub const STORE: u8 = 25;
    /// Pops; if it is 0 the hit is rejected (`when`).
    pub const GUARD: u8 = 26;
    /// Begins a walk. Pops node, end: `node` is the list's first, which [`IT`] pushes from now on, and
    /// a node that is 0 or `end` ends the list: then jumps forward to `target`. Constant `arg` is how
    /// many nodes the walk may visit.
    pub const WALK: u8 = 27;
    /// Goes on in a walk. Pops the next node and jumps *back* to `target`, unless the node ends the list.
    /// The only jump that goes back; it counts down what [`WALK`] allows, and at 0 the run ends as cut.
    pub const STEP: u8 = 28;
    /// Pushes the walk's node.
    pub const IT: u8 = 29;
}

/// One instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Insn {
    /// One of [`op`].
    pub op: u8,
    /// Operand, by operation.
    pub arg: u8,
    /// Jump target: an index into the code; forward, but for [`op::STEP`].
    pub target: u16,
}

/// A value or condition that needs no interpreter: most of what profiles say is of this form. (A value that is
/// just an input needs nothing at all: its location says so.)
///
/// The word is an input, plus another one masked and shifted (an index into an array), plus [`Self::add`].
/// It is an address if [`Self::read`] says so, and what is read there plus [`Self::add_2`] is another
/// one if [`Self::read_2`] does. Then [`Self::bias`] is added, the whole is masked, and [`Self::plus`] is
/// added. All arithmetic wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Simple {
    /// Added to the inputs.
    pub add: u64,
    /// Bits that are kept of the second input; 0: there is none.
    pub index_mask: u64,
    /// Added to what the first read yielded, as the second one's address.
    pub add_2: u64,
    /// Added before masking.
    pub bias: u64,
    /// Bits that are kept; 0 for a constant.
    pub mask: u64,
    /// Added last.
    pub plus: u64,
    /// What a condition compares with.
    pub operand: u64,
    /// Number of the input: 0 to 5 are arguments, [`op::INPUT_RET`] is the return value.
    pub input: u8,
    /// Number of the second input.
    pub index: u8,
    /// How far left the second input is shifted once masked.
    pub shift: u8,
    /// The first read, as [`op::READ`]'s operand; 0: none.
    pub read: u8,
    /// The second read; 0: none.
    pub read_2: u8,
    /// One of [`value`], or one of [`simple`]'s conditions.
    pub value: u8,
    /// Zero.
    pub reserved: u16,
}

/// [`ProbeSpec::stack_moved`] of a probe that stands for its own instruction, somewhere within a function, and not for a
/// call of that function (USDT): call paths begin there, and it is where granules are opened.
pub const AT_SITE: u32 = u32::MAX;

/// The location of a value that a spec does not have; it reads as 0.
pub const NOWHERE: u8 = 0xff;

/// Values and conditions of a spec, both phases together.
pub const MAX_SIMPLE: usize = 8;

/// [`Simple::value`] where it is no value but a condition.
pub mod simple {
    /// The hit is rejected where the word equals the operand.
    pub const REJECT_IF_EQUAL: u8 = 0xfe;
    /// The hit is rejected where the word differs from the operand.
    pub const REJECT_UNLESS_EQUAL: u8 = 0xff;
}

/// What the attach cookie of a probe says: its spec, and the one process that it was attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index of the spec.
    pub index: u32,
    /// The process (`tgid`); 0 where the probe is meant for all that map its object.
    pub tgid: u32,
}

impl Cookie {
    /// As the kernel keeps it.
    #[must_use]
    pub const fn pack(self) -> u64 {
        (self.tgid as u64) << 32 | self.index as u64
    }

    /// From what the kernel keeps.
    #[must_use]
    #[inline(always)]
    pub const fn unpack(cookie: u64) -> Self {
        Self { index: cookie as u32, tgid: (cookie >> 32) as u32 }
    }

    /// Whether a hit in process `tgid` is meant. Older kernels (seen: 6.1 and 6.12; not 6.18) run at a
    /// return the programs of every process that is probed at the same site, not only its own.
    #[must_use]
    #[inline(always)]
    pub const fn means(self, tgid: u32) -> bool {
        self.tgid == 0 || self.tgid == tgid
    }
}

/// Where an argument is at a probe that does not sit on its function's first instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ArgLocation {
    /// The register, in the order in which x86 encodes them (rax rcx rdx rbx rsp rbp rsi rdi r8 … r15);
    /// [`ArgLocation::ON_STACK`]: in memory.
    pub register: u16,
    /// In memory: bytes from the stack pointer at the probe.
    pub offset: i16,
}

impl ArgLocation {
    /// Instead of a register.
    pub const ON_STACK: u16 = 16;
}

/// One probe, as the kernel programs see it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ProbeSpec {
    /// A [`Role`].
    pub role: u32,
    /// A [`Kind`].
    pub kind: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Which allocator (profile on one set of mapped objects) this belongs to; unique per session.
    pub allocator: u32,
    /// Where the code that runs at entry starts.
    pub entry_start: u16,
    /// Instructions that run at entry; 0: none.
    pub entry_len: u16,
    /// Where the code that runs at return starts.
    pub return_start: u16,
    /// Instructions that run at return; 0: none.
    pub return_len: u16,
    /// 1: the code is not needed, because [`Self::simple`] says the same.
    pub is_simple: u32,
    /// How many of [`Self::simple`], from the first, belong to the entry.
    pub entry_simple: u16,
    /// How many after those belong to the return.
    pub return_simple: u16,
    /// Where each value ([`value`]) stands in [`crate::interp::Registers`]; [`NOWHERE`] for one that there is not.
    pub locations: [u8; 16],
    /// Where the code of [`value::LIVE`] starts, which is the last that a close computes; 0: it computes
    /// none. What fails from there on costs the live count alone, not the hit.
    pub live_start: u64,
    /// Bytes per granule where they are a constant of the profile; 0: unknown.
    pub granule_bytes: u64,
    /// Bytes by which the stack pointer at the probe lies below where it was at the function's entry; [`AT_SITE`] where
    /// the probe's own address is reported.
    pub stack_moved: u32,
    /// Bit *i*: argument *i* is not in the register that the calling convention gives it, but where
    /// `arg_locations` says.
    pub moved: u32,
    /// Where the arguments are that have moved.
    pub arg_locations: [ArgLocation; 6],
    /// What needs no code, both phases.
    pub simple: [Simple; MAX_SIMPLE],
    /// The code, both phases.
    pub code: [Insn; MAX_CODE],
    /// The constants.
    pub consts: [u64; MAX_CONSTS],
}

#[cfg(test)]
mod tests {
    use super::Cookie;

    /// A cookie keeps both halves apart, and only the process that it names, if any, is meant.
    #[test]
    fn cookie_names_spec_and_process() {
        let one = Cookie { index: u32::MAX, tgid: 4242 };
        assert_eq!(Cookie::unpack(one.pack()), one);
        assert!(one.means(4242) && !one.means(4243));
        let all = Cookie { index: 7, tgid: 0 };
        assert_eq!(all.pack(), 7);
        assert!(all.means(1) && all.means(u32::MAX));
    }
}

//! Unwinding by rules: from a frame to its caller's, the same code in the kernel and in user space.
//!
//! A rule is what unwind tables (`.eh_frame`, `.debug_frame`) say of one code address: where the caller's frame
//! begins (the CFA, the stack pointer before the call), and where the caller's frame pointer is saved. User
//! space reads the tables; the kernel side is taught the rules of the addresses that it meets. Only the stack
//! pointer and `rbp` are followed: compilers for x86-64 describe frames by these.

/// The rule of one code address, in one word.
///
/// ```text
/// 63            32 31      16 15     8 7    0
/// │ CFA offset i32 │ bp i16  │  flags  │ kind │
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Rule(pub u64);

/// Kinds of rules.
pub mod kind {
    /// Not a rule: nothing is known.
    pub const UNKNOWN: u64 = 0;
    /// CFA = stack pointer + offset.
    pub const SP: u64 = 1;
    /// CFA = frame pointer + offset.
    pub const BP: u64 = 2;
    /// CFA = the word at frame pointer + offset (a function that aligns its stack).
    pub const BP_WORD: u64 = 3;
    /// The return from a signal handler: the kernel's signal frame stands at the stack pointer.
    pub const SIGNAL: u64 = 4;
    /// The outermost frame.
    pub const START: u64 = 5;
    /// Code that cannot be unwound.
    pub const STOP: u64 = 6;
    /// No code at all: the frame before has led astray.
    pub const NO_CODE: u64 = 7;
}

/// The caller's frame pointer is saved at the rule's second offset from the CFA.
const BP_AT_CFA: u64 = 1 << 8;
/// It is saved at that offset from the frame pointer.
const BP_AT_BP: u64 = 2 << 8;

/// Where a function keeps its caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedBp {
    /// It has not been changed.
    Kept,
    /// In memory, so many bytes from the CFA.
    AtCfa(i16),
    /// In memory, so many bytes from the present frame pointer.
    AtBp(i16),
}

impl Rule {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(kind::UNKNOWN);
    /// The return from a signal handler.
    pub const SIGNAL: Self = Self(kind::SIGNAL);
    /// The outermost frame.
    pub const START: Self = Self(kind::START);
    /// Code that cannot be unwound.
    pub const STOP: Self = Self(kind::STOP);
    /// No code at all.
    pub const NO_CODE: Self = Self(kind::NO_CODE);
    /// A function that has set up a frame pointer.
    pub const FRAME_POINTER: Self = Self::new(kind::BP, 16, SavedBp::AtCfa(-16));

    /// A rule with a CFA of this kind and offset.
    #[must_use]
    pub const fn new(kind: u64, cfa: i32, bp: SavedBp) -> Self {
        let (flags, offset) = match bp {
            SavedBp::Kept => (0, 0),
            SavedBp::AtCfa(offset) => (BP_AT_CFA, offset),
            SavedBp::AtBp(offset) => (BP_AT_BP, offset),
        };
        Self(
            kind | flags
                | (offset.cast_unsigned() as u64) << 16
                | (cfa.cast_unsigned() as u64) << 32,
        )
    }

    /// Which [`kind`].
    #[inline(always)]
    #[must_use]
    pub const fn kind(self) -> u64 {
        self.0 & 0xff
    }

    #[inline(always)]
    const fn cfa(self) -> u64 {
        (self.0.cast_signed() >> 32).cast_unsigned()
    }

    #[inline(always)]
    const fn bp(self) -> u64 {
        ((self.0 << 32).cast_signed() >> 48).cast_unsigned()
    }
}

/// One frame on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Cursor {
    /// Code address: where the frame goes on.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer register, whatever the code uses it for.
    pub bp: u64,
    /// Not 0: `pc` is the instruction that runs next there, because the frame was interrupted; else it is a
    /// return address, and what counts is the call before it.
    pub interrupted: u64,
}

/// The address under which a frame is reported. Its name is that of the byte before it, which belongs to the call that it
/// returns from. An interrupted frame goes on with the very instruction, so it is reported one byte later.
#[inline(always)]
#[must_use]
pub const fn shown(at: &Cursor) -> u64 {
    if at.interrupted == 0 { at.pc } else { at.pc.wrapping_add(1) }
}

/// Where a step leads. A plain number, because the kernel side passes it through a call.
pub mod step {
    /// To the caller's frame.
    pub const CALLER: u32 = 0;
    /// This was the outermost frame.
    pub const START: u32 = 1;
    /// The frame cannot be unwound.
    pub const STOP: u32 = 2;
    /// The stack could not be read.
    pub const UNREADABLE: u32 = 3;
    /// No rule is known for the frame.
    pub const UNKNOWN: u32 = 4;
    /// There is no frame: what was taken for its code address is none.
    pub const NO_FRAME: u32 = 5;
}

/// The stack, word by word.
pub trait Stack {
    /// The word at an address; `None` where it cannot be read.
    fn word(&mut self, address: u64) -> Option<u64>;
}

/// Offsets of the interrupted frame's registers in the kernel's signal frame on x86-64: of `struct rt_sigframe`
/// behind its return address (`arch/x86/include/asm/sigframe.h`, `struct sigcontext_64`).
pub mod signal_frame {
    /// `rbp`.
    pub const BP: u64 = 120;
    /// `rsp`.
    pub const SP: u64 = 160;
    /// `rip`.
    pub const PC: u64 = 168;
}

/// Goes from a frame to its caller's: a [`step`]; the cursor is changed only if it is [`step::CALLER`].
#[inline(always)]
pub fn advance(rule: Rule, at: &mut Cursor, stack: &mut impl Stack) -> u32 {
    let kind = rule.kind();
    if kind == kind::SIGNAL {
        let (Some(bp), Some(sp), Some(pc)) = (
            stack.word(at.sp.wrapping_add(signal_frame::BP)),
            stack.word(at.sp.wrapping_add(signal_frame::SP)),
            stack.word(at.sp.wrapping_add(signal_frame::PC)),
        ) else {
            return step::UNREADABLE;
        };
        *at = Cursor { pc, sp, bp, interrupted: 1 };
        return step::CALLER;
    }
    let cfa = if kind == kind::SP {
        at.sp.wrapping_add(rule.cfa())
    } else if kind == kind::BP {
        at.bp.wrapping_add(rule.cfa())
    } else if kind == kind::BP_WORD {
        match stack.word(at.bp.wrapping_add(rule.cfa())) {
            Some(word) => word,
            None => return step::UNREADABLE,
        }
    } else if kind == kind::START {
        return step::START;
    } else if kind == kind::STOP {
        return step::STOP;
    } else if kind == kind::NO_CODE {
        return step::NO_FRAME;
    } else {
        return step::UNKNOWN;
    };
    // The stack grows downwards: a caller's frame that is not above is none.
    if cfa <= at.sp || cfa & 7 != 0 {
        return step::STOP;
    }
    let mut bp = at.bp;
    if rule.0 & (BP_AT_CFA | BP_AT_BP) != 0 {
        let base = if rule.0 & BP_AT_CFA != 0 { cfa } else { at.bp };
        match stack.word(base.wrapping_add(rule.bp())) {
            Some(word) => bp = word,
            None => return step::UNREADABLE,
        }
    }
    let Some(pc) = stack.word(cfa.wrapping_sub(8)) else { return step::UNREADABLE };
    *at = Cursor { pc, sp: cfa, bp, interrupted: 0 };
    step::CALLER
}

/// Bits of a code address; what lies above is the kernel's.
pub const ADDRESS_BITS: u32 = 47;

/// The key of a rule: which address space (its number's low 16 bits), which code address, and whether the frame
/// was interrupted there. 0 is never a key of code that runs.
#[inline(always)]
#[must_use]
pub const fn rule_key(space: u32, at: &Cursor) -> u64 {
    let interrupted = if at.interrupted == 0 { 0 } else { 1 << ADDRESS_BITS };
    (space as u64) << 48 | interrupted | (at.pc & ((1 << ADDRESS_BITS) - 1))
}

/// Rules in a bucket of the table of rules.
pub const RULE_WAYS: usize = 8;

/// A bucket of the table of rules: each rule with its key; a key of 0 is a free place.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct RuleBucket {
    /// The keys.
    pub keys: [u64; RULE_WAYS],
    /// The rules.
    pub rules: [u64; RULE_WAYS],
}

/// Which of `buckets` (a power of two) a key belongs to.
#[inline(always)]
#[must_use]
pub const fn rule_bucket(key: u64, buckets: u32) -> u32 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 & (buckets - 1)
}

/// The hash of a call path, before its first frame.
pub const PATH_SEED: u64 = 0x243f_6a88_85a3_08d3;

/// The hash of a call path with one more word.
#[inline(always)]
#[must_use]
pub const fn path_hash(hash: u64, word: u64) -> u64 {
    let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Frames of a call path that are followed at most.
pub const MAX_PATH: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack whose words are known by address.
    struct Words(std::collections::BTreeMap<u64, u64>);

    impl Stack for Words {
        fn word(&mut self, address: u64) -> Option<u64> {
            self.0.get(&address).copied()
        }
    }

    fn words<const N: usize>(words: [(u64, u64); N]) -> Words {
        Words(words.into())
    }

    const AT: Cursor = Cursor { pc: 0x40_1000, sp: 0x7000, bp: 0x7100, interrupted: 0 };

    /// Each kind of rule leads to the caller's frame.
    #[test]
    fn rules_lead_to_callers() {
        let mut at = AT;
        let mut stack = words([(0x7018, 0x40_2000)]);
        assert_eq!(
            advance(Rule::new(kind::SP, 0x20, SavedBp::Kept), &mut at, &mut stack),
            step::CALLER
        );
        assert_eq!(at, Cursor { pc: 0x40_2000, sp: 0x7020, bp: 0x7100, interrupted: 0 });

        let mut at = AT;
        let mut stack = words([(0x7100, 0x7200), (0x7108, 0x40_2000)]);
        assert_eq!(advance(Rule::FRAME_POINTER, &mut at, &mut stack), step::CALLER);
        assert_eq!(at, Cursor { pc: 0x40_2000, sp: 0x7110, bp: 0x7200, interrupted: 0 });

        let mut at = AT;
        let rule = Rule::new(kind::BP_WORD, -8, SavedBp::AtBp(0));
        let mut stack = words([(0x70f8, 0x7180), (0x7100, 9), (0x7178, 0x40_2000)]);
        assert_eq!(advance(rule, &mut at, &mut stack), step::CALLER);
        assert_eq!(at, Cursor { pc: 0x40_2000, sp: 0x7180, bp: 9, interrupted: 0 });

        let mut at = AT;
        let mut stack = words([(0x7078, 5), (0x70a0, 0x8000), (0x70a8, 0x40_2000)]);
        assert_eq!(advance(Rule::SIGNAL, &mut at, &mut stack), step::CALLER);
        assert_eq!(at, Cursor { pc: 0x40_2000, sp: 0x8000, bp: 5, interrupted: 1 });
    }

    /// What leads nowhere leaves the cursor where it is.
    #[test]
    fn other_rules_stay() {
        for (rule, expected) in [
            (Rule::START, step::START),
            (Rule::STOP, step::STOP),
            (Rule::NO_CODE, step::NO_FRAME),
            (Rule::UNKNOWN, step::UNKNOWN),
            (Rule::new(kind::SP, 0x20, SavedBp::Kept), step::UNREADABLE),
            (Rule::new(kind::SP, 0, SavedBp::Kept), step::STOP),
            (Rule::new(kind::SP, -8, SavedBp::Kept), step::STOP),
            (Rule::new(kind::SP, 12, SavedBp::Kept), step::STOP),
            (Rule::new(kind::BP, -0x200, SavedBp::Kept), step::STOP),
            (Rule::SIGNAL, step::UNREADABLE),
        ] {
            let mut at = AT;
            assert_eq!(advance(rule, &mut at, &mut words([])), expected, "{rule:?}");
            assert_eq!(at, AT);
        }
    }

    /// Spaces and interrupted frames have rules of their own.
    #[test]
    fn keys_are_apart() {
        let interrupted = Cursor { interrupted: 1, ..AT };
        let keys = [rule_key(1, &AT), rule_key(2, &AT), rule_key(1, &interrupted)];
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert!(keys.iter().all(|key| *key != 0));
    }
}

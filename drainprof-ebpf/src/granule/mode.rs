//! What a global function must know of its probe and target, in one number.

use core::ops::BitOr;

use drainprof_common::spec::{Kind, flags};

use crate::global::scalars;

/// Bits of a spec's flags, its kind, and what the caller adds.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Mode(u32);

scalars! {
    Mode as u32: |mode: Mode| mode.0, Mode;
}

impl Mode {
    pub(crate) const BY_OBJECT: Self = Self(flags::BY_OBJECT);
    pub(crate) const HAS_OPEN: Self = Self(flags::HAS_OPEN);
    pub(crate) const BOUNDARY: Self = Self(flags::BOUNDARY);
    pub(crate) const HAS_BYTES: Self = Self(flags::HAS_BYTES);
    pub(crate) const IMPLICIT: Self = Self(flags::IMPLICIT);
    /// The target is observed since its first instruction.
    pub(crate) const FROM_START: Self = Self(1 << 16);
    /// An open begins the generation.
    pub(crate) const BY_OPEN: Self = Self(1 << 17);
    /// An alloc inside an open that has not returned begins it.
    pub(crate) const IN_FLIGHT: Self = Self(1 << 18);
    /// If it is the first one seen of its id, it may be older than the attach.
    pub(crate) const BEFORE: Self = Self(1 << 19);
    /// If it is the first one seen of its id, its open was not.
    pub(crate) const UNSEEN: Self = Self(1 << 20);
    /// The close hands the live objects over.
    pub(crate) const MIGRATE: Self = Self(1 << 21);
    /// Granules end with those that they are nested in.
    pub(crate) const NESTED: Self = Self(1 << 22);
    /// No bit.
    pub(crate) const NONE: Self = Self(0);
    /// The bits that are the spec's flags.
    const FLAGS: u32 = 0xffff | flags::IMPLICIT;
    /// The kind's first bit.
    const KIND_SHIFT: u32 = 24;

    /// Of a spec's flags and kind.
    #[inline(always)]
    pub(crate) fn of(spec_flags: u32, kind: u32) -> Self {
        let nested = if spec_flags & flags::NESTED != 0 { Self::NESTED.0 } else { 0 };
        Self((spec_flags & Self::FLAGS) | nested | (kind << Self::KIND_SHIFT))
    }

    #[inline(always)]
    pub(crate) fn has(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// 1 where the bit is set, else 0; without a branch.
    #[inline(always)]
    pub(crate) fn bit(self, bit: Self) -> u32 {
        (self.0 / bit.0) & 1
    }

    #[inline(always)]
    pub(crate) fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    #[inline(always)]
    pub(crate) fn is_bulk(self) -> bool {
        self.0 >> Self::KIND_SHIFT == Kind::Bulk as u32
    }

    #[inline(always)]
    pub(crate) fn is_implicit(self) -> bool {
        self.has(Self::IMPLICIT)
    }

    /// Whether a pinned close is waited out: elsewhere the last free is no late drain.
    #[inline(always)]
    pub(crate) fn is_judged(self) -> bool {
        self.is_drain() && !self.has(Self::BOUNDARY)
    }

    #[inline(always)]
    pub(crate) fn is_drain(self) -> bool {
        self.0 >> Self::KIND_SHIFT == Kind::Drain as u32
    }
}

impl BitOr for Mode {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

//! What granules are judged by: what must be known of a probe and its target, in one number.
//!
//! The kernel side passes it to global functions, which take numbers only.

use core::ops::BitOr;

use crate::spec::{Kind, flags};

/// Bits of a spec's flags, its kind, and what the caller adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Mode(u32);

impl Mode {
    /// Objects are followed by id.
    pub const BY_OBJECT: Self = Self(flags::BY_OBJECT);
    /// The profile has `open` probes.
    pub const HAS_OPEN: Self = Self(flags::HAS_OPEN);
    /// The live count is read from memory at the close.
    pub const BOUNDARY: Self = Self(flags::BOUNDARY);
    /// The probe knows the granule's bytes.
    pub const HAS_BYTES: Self = Self(flags::HAS_BYTES);
    /// Granules begin and end with their objects.
    pub const IMPLICIT: Self = Self(flags::IMPLICIT);
    /// The target is observed since its first instruction.
    pub const FROM_START: Self = Self(1 << 16);
    /// An open begins the generation.
    pub const BY_OPEN: Self = Self(1 << 17);
    /// An alloc inside an open that has not returned begins it.
    pub const IN_FLIGHT: Self = Self(1 << 18);
    /// If it is the first one seen of its id, it may be older than the attach.
    pub const BEFORE: Self = Self(1 << 19);
    /// If it is the first one seen of its id, its open was not.
    pub const UNSEEN: Self = Self(1 << 20);
    /// The close hands the live objects over.
    pub const MIGRATE: Self = Self(1 << 21);
    /// Granules end with those that they are nested in.
    pub const NESTED: Self = Self(1 << 22);
    /// No bit.
    pub const NONE: Self = Self(0);
    /// The bits that are the spec's flags.
    const FLAGS: u32 = 0xffff | flags::IMPLICIT;
    /// The kind's first bit.
    const KIND_SHIFT: u32 = 24;

    /// From the border of a global function.
    #[inline(always)]
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// For the border of a global function.
    #[inline(always)]
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Of a spec's flags and kind.
    #[inline(always)]
    #[must_use]
    pub const fn of(spec_flags: u32, kind: u32) -> Self {
        let nested = if spec_flags & flags::NESTED != 0 { Self::NESTED.0 } else { 0 };
        Self((spec_flags & Self::FLAGS) | nested | (kind << Self::KIND_SHIFT))
    }

    /// Whether any of `bits` is set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 != 0
    }

    /// 1 where the bit is set, else 0; without a branch.
    #[inline(always)]
    #[must_use]
    pub const fn bit(self, bit: Self) -> u32 {
        (self.0 / bit.0) & 1
    }

    /// With `bits` not set.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, bits: Self) -> Self {
        Self(self.0 & !bits.0)
    }

    /// Whether a close frees what is in the granule.
    #[inline(always)]
    #[must_use]
    pub const fn is_bulk(self) -> bool {
        self.0 >> Self::KIND_SHIFT == Kind::Bulk as u32
    }

    /// Whether granules begin and end with their objects.
    #[inline(always)]
    #[must_use]
    pub const fn is_implicit(self) -> bool {
        self.has(Self::IMPLICIT)
    }

    /// Whether a pinned close is waited out: elsewhere the last free is no late drain.
    #[inline(always)]
    #[must_use]
    pub const fn is_judged(self) -> bool {
        self.is_drain() && !self.has(Self::BOUNDARY)
    }

    /// Whether closes have a verdict.
    #[inline(always)]
    #[must_use]
    pub const fn is_drain(self) -> bool {
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

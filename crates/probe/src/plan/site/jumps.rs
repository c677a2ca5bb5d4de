//! What can jump into the middle of a function.
//!
//! [`Inner`] looks at the function itself, instruction by instruction. [`FarJumps`] looks at a whole
//! object, byte by byte: every place where a jump or call with a displacement of 32 bits *could* stand
//! counts as one, so that parts of functions that lie elsewhere (`.cold`) need not be found, and nothing
//! depends on where instructions begin. A false alarm costs a cheaper place, nothing more.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// Bytes before and behind a function that are looked at for short jumps into it.
pub const NEIGHBOUR: usize = 192;

/// The jumps of one function.
#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    /// Targets of its direct jumps and calls, sorted.
    targets: Vec<u64>,
    /// Whether it jumps to where a register or a table says.
    pub(super) indirect: bool,
    /// Whether all of it could be decoded.
    pub(super) whole: bool,
}

impl Inner {
    /// Decodes all of `bytes`, which begin at `address`.
    pub(super) fn of(bytes: &[u8], address: u64) -> Self {
        let mut found = Self { whole: true, ..Self::default() };
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                found.whole = false;
                break;
            }
            found.targets.extend(target(&instruction));
            // Through a fixed place in memory (the GOT) goes a call at the function's end, to another one.
            let fixed = instruction.is_ip_rel_memory_operand();
            if instruction.flow_control() == FlowControl::IndirectBranch && !fixed {
                found.indirect = true;
            }
        }
        found.targets.sort_unstable();
        found
    }

    /// Whether it jumps to an address from `first` to `last`.
    pub(super) fn reaches(&self, first: u64, last: u64) -> bool {
        any_within(&self.targets, first, last)
    }
}

/// Whether what stands right before a function jumps to an address from `first` to `last`: only
/// hand-written code does. `before` ends where the function begins, at `address`.
pub(super) fn neighbour_jumps(before: &[u8], address: u64, first: u64, last: u64) -> bool {
    let Some(start) = address.checked_sub(before.len() as u64) else { return false };
    // Where its instructions begin is not known: the reading that ends exactly at the function is right,
    // as readings that begin wrong fall into step after a few instructions.
    (0..before.len().min(32)).any(|skip| {
        let bytes = &before[skip..];
        let decoder = Decoder::with_ip(64, bytes, start + skip as u64, DecoderOptions::NONE);
        let mut end = start + skip as u64;
        let mut jumps = false;
        for instruction in decoder {
            if instruction.is_invalid() {
                return false;
            }
            end = instruction.next_ip();
            jumps |= target(&instruction).is_some_and(|to| (first..=last).contains(&to));
        }
        jumps && end == address
    })
}

/// Whether what stands right behind a function, from `address` on, jumps to an address from `first` to
/// `last`.
pub(super) fn follower_jumps(after: &[u8], address: u64, first: u64, last: u64) -> bool {
    Decoder::with_ip(64, after, address, DecoderOptions::NONE)
        .into_iter()
        .any(|instruction| target(&instruction).is_some_and(|to| (first..=last).contains(&to)))
}

fn target(instruction: &Instruction) -> Option<u64> {
    let near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    near.then(|| instruction.near_branch_target())
}

fn any_within(sorted: &[u64], first: u64, last: u64) -> bool {
    let at = sorted.partition_point(|target| *target < first);
    sorted.get(at).is_some_and(|target| *target <= last)
}

/// All that could be a jump or call with a displacement of 32 bits, in the code of one object.
#[derive(Clone, Debug, Default)]
pub struct FarJumps {
    targets: Vec<u64>,
}

impl FarJumps {
    /// Looks through pieces of code, each with its address.
    #[must_use]
    pub fn of<'a>(pieces: impl IntoIterator<Item = (u64, &'a [u8])>) -> Self {
        let mut targets = Vec::new();
        for (address, bytes) in pieces {
            let end = address.saturating_add(bytes.len() as u64);
            for (at, window) in bytes.windows(5).enumerate() {
                let opcode = match window[0] {
                    0xe8 | 0xe9 => true,
                    0x80..=0x8f => at > 0 && bytes[at - 1] == 0x0f,
                    _ => false,
                };
                if !opcode {
                    continue;
                }
                let by = i32::from_le_bytes([window[1], window[2], window[3], window[4]]);
                let next = address.wrapping_add(at as u64 + 5);
                let to = next.wrapping_add_signed(i64::from(by));
                // Code jumps within its own segment; what lies elsewhere is no jump.
                if (address..end).contains(&to) {
                    targets.push(to);
                }
            }
        }
        targets.sort_unstable();
        targets.dedup();
        Self { targets }
    }

    /// Whether something could jump to an address from `first` to `last`.
    #[must_use]
    pub fn reaches(&self, first: u64, last: u64) -> bool {
        any_within(&self.targets, first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far jumps are found wherever they stand, and only those that stay in the code.
    #[test]
    fn far_jumps() {
        let mut code = vec![0x90_u8; 64];
        code[10..15].copy_from_slice(&[0xe9, 5, 0, 0, 0]);
        code[30..36].copy_from_slice(&[0x0f, 0x85, 0xe0, 0xff, 0xff, 0xff]);
        code[50..55].copy_from_slice(&[0xe8, 0, 1, 0, 0]);
        let jumps = FarJumps::of([(0x1000, code.as_slice())]);
        assert!(jumps.reaches(0x1014, 0x1014), "a jmp");
        assert!(jumps.reaches(0x1004, 0x1004), "a jcc backwards");
        assert!(!jumps.reaches(0x1005, 0x1013), "nothing between");
        assert!(!jumps.reaches(0x1100, 0x1200), "a call out of the code is no jump in it");
    }

    /// A short jump from the code before a function is seen, whatever its start would be read as.
    #[test]
    fn neighbour() {
        let mut before = vec![0x90_u8; 40];
        before[30..32].copy_from_slice(&[0x75, 12]);
        assert!(neighbour_jumps(&before, 0x2000, 0x2001, 0x2004));
        assert!(!neighbour_jumps(&before, 0x2000, 0x2005, 0x2008));
    }

    /// A short jump back from the code behind a function is seen, also behind bytes that are no code.
    #[test]
    fn follower() {
        let after = [0x06, 0x90, 0xeb, 0xf0];
        assert!(follower_jumps(&after, 0x2010, 0x2001, 0x2004));
        assert!(!follower_jumps(&after, 0x2010, 0x2001, 0x2003));
    }

    /// A function's own jumps, the short ones too; a jump through a register is distinguished from one
    /// through the GOT.
    #[test]
    fn inner() {
        let inner = Inner::of(&[0x90, 0x75, 0xfd, 0xff, 0xe0], 0x10);
        assert!(inner.whole && inner.indirect && inner.reaches(0x10, 0x10));
        let through_got = Inner::of(&[0xff, 0x25, 0, 0, 0, 0], 0x10);
        assert!(through_got.whole && !through_got.indirect);
        assert!(!Inner::of(&[0x06], 0x10).whole, "not an instruction of 64-bit code");
    }
}

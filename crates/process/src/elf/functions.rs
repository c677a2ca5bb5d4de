//! The functions of an object, to draft profiles: which there are, and which of them call one another,
//! directly or through the object's linkage table.
//!
//! Calls through other tables (vtables, function pointers) are not seen here.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};

use super::{
    object::Elf,
    symbols::{self, CloneKind, SymbolHit, SymbolKind, SymbolTable},
};

/// Most functions that are listed.
const MAX_FUNCTIONS: usize = 200_000;
/// Most bytes of one function that are searched for calls.
const MAX_CODE: u64 = 64 << 10;
/// Bytes of a stub that calls a function through the linkage table.
const STUB: usize = 16;

/// Where code goes, as far as its instructions say.
#[derive(Debug, Default)]
pub struct Targets {
    /// To these addresses.
    pub direct: Vec<u64>,
    /// To what stands in these words of memory.
    pub through: Vec<u64>,
}

/// The words of its linkage table through which an object calls its own functions.
#[derive(Debug, Default)]
pub struct OwnCalls {
    /// The function whose address a word gets.
    functions: BTreeMap<u64, u64>,
    /// What a stub is for: the function, if it is one of those.
    stubs: BTreeMap<u64, Option<u64>>,
}

impl Elf {
    /// The functions whose names `wanted` takes, by address and name, IFUNCs and copies that the compiler
    /// made included; at most some 200,000.
    #[must_use]
    pub fn functions(&self, wanted: impl Fn(&[u8]) -> bool) -> Vec<SymbolHit> {
        self.collect(
            self.tables()
                .flat_map(SymbolTable::all)
                .filter(|symbol| symbol.kind != SymbolKind::Object && self.is_code(symbol.vaddr))
                .filter(|symbol| wanted(symbol.name))
                .take(MAX_FUNCTIONS),
        )
    }

    /// What the compiler made of another function, if the symbol's name says that it is such.
    #[must_use]
    pub fn clone_kind(name: &str) -> Option<CloneKind> {
        symbols::clone_kind(name.as_bytes())
    }

    /// The words through which the object may call `functions` of its own: where a library exports a function,
    /// another object may stand in for it. None where the table cannot be read.
    #[must_use]
    pub fn own_calls(&self, functions: &[SymbolHit]) -> OwnCalls {
        let exported: Vec<&SymbolHit> = functions.iter().filter(|hit| hit.global).collect();
        let names: Vec<Vec<u8>> =
            exported.iter().map(|hit| hit.name.clone().into_bytes()).collect();
        let slots = self.slots(&names, None).unwrap_or_default();
        let function = |name: Option<usize>| exported.get(name?).map(|hit| hit.vaddr);
        let functions =
            slots.iter().filter_map(|slot| Some((slot.vaddr, function(slot.name)?))).collect();
        OwnCalls { functions, stubs: BTreeMap::new() }
    }

    /// The addresses outside of a function that it calls or jumps to; empty where its code cannot be read or
    /// the table does not say how long it is.
    #[must_use]
    pub fn calls(&self, function: &SymbolHit, known: &mut OwnCalls) -> BTreeSet<u64> {
        let size = usize::try_from(function.size.min(MAX_CODE)).unwrap_or_default();
        let own = function.vaddr..function.vaddr.saturating_add(function.size);
        let Targets { mut direct, through } = self.targets(function.vaddr, size);
        direct.retain(|target| !own.contains(target));
        let OwnCalls { functions, stubs } = known;
        let mut called: BTreeSet<u64> =
            through.iter().filter_map(|slot| functions.get(slot).copied()).collect();
        if !functions.is_empty() {
            called.extend(direct.iter().filter_map(|&target| {
                *stubs.entry(target).or_insert_with(|| {
                    let slot = *self.targets(target, STUB).through.first()?;
                    functions.get(&slot).copied()
                })
            }));
        }
        called.extend(direct);
        called
    }

    /// Where `size` bytes of code at `vaddr` go; nowhere, if they cannot be read.
    #[must_use]
    pub fn targets(&self, vaddr: u64, size: usize) -> Targets {
        let mut targets = Targets::default();
        let Ok(code) = self.code().and_then(|code| code.read(vaddr, size)) else { return targets };
        let mut instruction = Instruction::default();
        let mut decoder = Decoder::with_ip(64, &code, vaddr, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                break;
            }
            let goes = instruction.is_call_near()
                || instruction.is_jmp_short_or_near()
                || instruction.is_jcc_short_or_near();
            if goes && instruction.op0_kind() == OpKind::NearBranch64 {
                targets.direct.push(instruction.near_branch_target());
            }
            let indirect =
                instruction.is_call_near_indirect() || instruction.is_jmp_near_indirect();
            if indirect && instruction.is_ip_rel_memory_operand() {
                targets.through.push(instruction.ip_rel_memory_address());
            }
        }
        targets
    }
}

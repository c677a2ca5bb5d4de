//! The functions of an object, for whoever drafts a profile: which there are, and which of them call one
//! another directly.
//!
//! Calls through tables (the PLT, vtables, function pointers) are not seen here.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};

use super::{CloneKind, Elf, SymbolHit, SymbolKind, symbols, symbols::SymbolTable};

/// Most functions that are listed.
const MAX_FUNCTIONS: usize = 200_000;
/// Most bytes of one function that are searched for calls.
const MAX_CODE: u64 = 64 << 10;

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

    /// The addresses outside of a function that it calls or jumps to directly; empty where its code cannot
    /// be read or the table does not say how long it is.
    #[must_use]
    pub fn direct_calls(&self, function: &SymbolHit) -> BTreeSet<u64> {
        let size = usize::try_from(function.size.min(MAX_CODE)).unwrap_or_default();
        let Ok(code) = self.code(function.vaddr, size) else { return BTreeSet::new() };
        let own = function.vaddr..function.vaddr.saturating_add(function.size);
        Decoder::with_ip(64, &code, function.vaddr, DecoderOptions::NONE)
            .into_iter()
            .filter(|instruction| {
                matches!(
                    instruction.flow_control(),
                    FlowControl::Call
                        | FlowControl::UnconditionalBranch
                        | FlowControl::ConditionalBranch
                ) && instruction.op0_kind() == OpKind::NearBranch64
            })
            .map(|instruction| instruction.near_branch_target())
            .filter(|target| !own.contains(target))
            .collect()
    }
}

//! How much stack each eBPF program takes with the functions that it calls, as older kernels count it.
//!
//! Up to Linux 6.6 at least a frame counts as a multiple of 32 bytes, and no chain of calls may have more than 512
//! (`check_max_stack_depth` in `kernel/bpf/verifier.c`). Newer kernels with a JIT round to 16, so the kernel that builds
//! the object may take what an older one refuses. Works on bytes; asks no kernel. Called by `build-ebpf` and `ci`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use anyhow::{Context, Result, bail};
use object::{
    Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind, SymbolKind,
};

/// Bytes of stack that a program and the functions below it may have.
pub(super) const MAX_STACK_BYTES: u64 = 512;
/// A frame is a multiple of this, and at least one.
const FRAME_STEP_BYTES: u64 = 32;
/// Frames that a chain of calls may have (`MAX_CALL_FRAMES`).
const MAX_FRAMES: usize = 8;
/// The register that points to the end of a frame.
const FRAME: u8 = 10;
/// Where functions are that are no programs.
const FUNCTIONS: &str = ".text";

/// What one program needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// In all, of the chain of calls that takes most.
    pub(super) bytes: u64,
    /// That chain, the program first, with the bytes that each has in its frame.
    pub(super) chain: Vec<(String, u64)>,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames = self.chain.iter().map(|(name, bytes)| format!("{name} {bytes}"));
        write!(f, "{} bytes: {}", self.bytes, frames.collect::<Vec<_>>().join(", "))
    }
}

/// Where a function begins.
type Place = (SectionIndex, u64);

struct Function {
    name: String,
    /// Bytes of its frame, as its instructions reach them.
    frame: u64,
    calls: Vec<Place>,
    is_program: bool,
}

/// What every program of an object needs, those that need most first.
pub(super) fn needs(bytes: &[u8]) -> Result<Vec<Need>> {
    let functions = functions(bytes)?;
    let mut needs = functions
        .iter()
        .filter(|(_, function)| function.is_program)
        .map(|(place, _)| deepest(&functions, *place, MAX_FRAMES))
        .collect::<Result<Vec<_>>>()?;
    needs.sort_by(|one, other| {
        other.bytes.cmp(&one.bytes).then_with(|| one.chain.cmp(&other.chain))
    });
    Ok(needs)
}

/// The chain of calls from a function on that takes most.
fn deepest(functions: &HashMap<Place, Function>, place: Place, frames: usize) -> Result<Need> {
    let function = functions.get(&place).context("a call leads to no function")?;
    if frames == 0 {
        bail!("{} is called over more than {MAX_FRAMES} frames, or by itself", function.name);
    }
    let mut below = Need { bytes: 0, chain: Vec::new() };
    for call in &function.calls {
        let need = deepest(functions, *call, frames - 1)
            .with_context(|| format!("a call in {}", function.name))?;
        if need.bytes > below.bytes {
            below = need;
        }
    }
    let mut chain = vec![(function.name.clone(), function.frame)];
    chain.append(&mut below.chain);
    Ok(Need {
        bytes: function.frame.max(1).next_multiple_of(FRAME_STEP_BYTES) + below.bytes,
        chain,
    })
}

fn functions(bytes: &[u8]) -> Result<HashMap<Place, Function>> {
    let file = object::File::parse(bytes).context("parse the object")?;
    let mut functions = HashMap::new();
    for section in file.sections().filter(|section| section.kind() == SectionKind::Text) {
        let code = section.data().context("read a section of programs")?;
        // Calls to other sections, and of functions that are handed to the kernel: the symbol's place.
        let mut targets = BTreeMap::new();
        for (at, relocation) in section.relocations() {
            if let RelocationTarget::Symbol(index) = relocation.target() {
                let symbol = file.symbol_by_index(index).context("find what is called")?;
                if let Some(section) = symbol.section_index()
                    && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Section)
                {
                    targets.insert(at, (section, symbol.address(), symbol.kind()));
                }
            }
        }
        let symbols = file.symbols().filter(|symbol| {
            symbol.kind() == SymbolKind::Text && symbol.section_index() == Some(section.index())
        });
        for symbol in symbols.filter(|symbol| symbol.size() > 0) {
            let (from, size) = (symbol.address(), symbol.size());
            let body = usize::try_from(from)
                .ok()
                .zip(usize::try_from(from.saturating_add(size)).ok())
                .and_then(|(from, to)| code.get(from..to))
                .context("a function is outside of its section")?;
            let (frame, calls) = walk(body, |offset, steps| {
                let at = from + offset;
                let distance = (i64::from(steps) + 1) * 8;
                match targets.get(&at) {
                    Some((section, address, SymbolKind::Text)) => (*section, *address),
                    Some((section, address, _)) => {
                        (*section, address.wrapping_add_signed(distance))
                    }
                    None => (section.index(), at.wrapping_add_signed(distance)),
                }
            });
            let name = rustc_demangle::demangle(symbol.name().unwrap_or("?"));
            let is_program = section.name().is_ok_and(|name| name != FUNCTIONS);
            let name = format!("{name:#}");
            functions.insert((section.index(), from), Function { name, frame, calls, is_program });
        }
    }
    Ok(functions)
}

/// How far the instructions reach into their frame, and what they call. `target` says where a call leads, given the
/// instruction's offset and the distance that it names, in instructions from the next one.
fn walk(code: &[u8], target: impl Fn(u64, i32) -> Place) -> (u64, Vec<Place>) {
    const LOAD: u8 = 0x01;
    const STORE: u8 = 0x02;
    const STORE_REGISTER: u8 = 0x03;
    const MOVE: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const CALL: u8 = 0x85;
    const LOAD_WIDE: u8 = 0x18;
    // Of a call: not to a helper, but to a function. Of a wide load: a function's address.
    const TO_FUNCTION: u8 = 1;
    const OF_FUNCTION: u8 = 4;

    let mut lowest = 0_i64;
    let mut calls = Vec::new();
    // Registers that hold the frame's address.
    let mut copies = [false; 16];
    let mut at = 0;
    while let Some(&[code_of, registers, low, high, a, b, c, d]) = code.get(at..at + 8) {
        let (to, from) = (registers & 15, registers >> 4);
        let offset = i64::from(i16::from_le_bytes([low, high]));
        let value = i32::from_le_bytes([a, b, c, d]);
        match code_of & 7 {
            STORE | STORE_REGISTER if to == FRAME => lowest = lowest.min(offset),
            LOAD if from == FRAME => lowest = lowest.min(offset),
            _ => {}
        }
        let mut width = 8;
        match code_of {
            MOVE => copies[usize::from(to)] = from == FRAME,
            ADD if copies[usize::from(to)] => {
                lowest = lowest.min(i64::from(value));
                copies[usize::from(to)] = false;
            }
            CALL if from == TO_FUNCTION => calls.push(target(at as u64, value)),
            LOAD_WIDE => {
                if from == OF_FUNCTION {
                    calls.push(target(at as u64, value));
                }
                width = 16;
            }
            _ => {}
        }
        at += width;
    }
    (lowest.unsigned_abs(), calls)
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, Symbol, SymbolSection};
    use object::{
        Architecture, BinaryFormat, Endianness, RelocationFlags, SymbolFlags, SymbolScope, elf,
    };

    use super::*;

    /// `*(u64 *)(r10 + offset) = r1`.
    fn store(offset: i16) -> [u8; 8] {
        let [low, high] = offset.to_le_bytes();
        [0x7b, 0x1a, low, high, 0, 0, 0, 0]
    }

    const CALL: [u8; 8] = [0x85, 0x10, 0, 0, 0xff, 0xff, 0xff, 0xff];
    const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

    fn no_call(_: u64, _: i32) -> Place {
        unreachable!("nothing is called")
    }

    /// A frame reaches down to the lowest place that is stored to, read, or whose address is taken.
    #[test]
    fn frames() {
        assert_eq!(walk(&EXIT, no_call), (0, Vec::new()));
        assert_eq!(walk(&[store(-24), store(-8), EXIT].concat(), no_call).0, 24);
        let read = [0x79, 0xa1, 0xd8, 0xff, 0, 0, 0, 0];
        assert_eq!(walk(&[read, EXIT].concat(), no_call).0, 40);
        // r2 = r10; r2 += -64
        let taken = [[0xbf, 0xa2, 0, 0, 0, 0, 0, 0], [0x07, 2, 0, 0, 0xc0, 0xff, 0xff, 0xff]];
        assert_eq!(walk(&taken.concat(), no_call).0, 64);
        // r2 = r1; r2 += -64 is none of the frame.
        let other = [[0xbf, 0x12, 0, 0, 0, 0, 0, 0], [0x07, 2, 0, 0, 0xc0, 0xff, 0xff, 0xff]];
        assert_eq!(walk(&other.concat(), no_call).0, 0);
    }

    /// An object with one program that calls a function, `frames` bytes deep each.
    fn object(frames: [i16; 2]) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let mut add = |section: &str, name: &str, code: &[u8]| {
            let id = object.add_section(vec![], section.into(), SectionKind::Text);
            let value = object.append_section_data(id, code, 8);
            let symbol = object.add_symbol(Symbol {
                name: name.into(),
                value,
                size: code.len() as u64,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(id),
                flags: SymbolFlags::None,
            });
            (id, symbol)
        };
        let (_, called) = add(FUNCTIONS, "below", &[store(-frames[1]), EXIT].concat());
        let (program, _) = add("uprobe", "program", &[store(-frames[0]), CALL, EXIT].concat());
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_32 };
        let relocation = Relocation { offset: 8, symbol: called, addend: 0, flags };
        object.add_relocation(program, relocation).unwrap();
        object.write().unwrap()
    }

    /// A chain takes each frame's bytes, up to a multiple of 32; the function alone is no program.
    #[test]
    fn chains() {
        let needs = needs(&object([100, 8])).unwrap();
        let chain = vec![("program".to_owned(), 100), ("below".to_owned(), 8)];
        assert_eq!(needs, [Need { bytes: 128 + 32, chain }]);
        assert_eq!(needs[0].to_string(), "160 bytes: program 100, below 8");
    }

    /// What is no object is an error.
    #[test]
    fn refuses_what_is_no_object() {
        assert!(needs(b"").is_err());
    }
}

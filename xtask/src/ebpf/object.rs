//! The eBPF object file: without debug sections, without paths, and counted.
//!
//! Works on bytes; reads and writes no file. Called by `build-ebpf`.

use anyhow::{Context, Result};
use object::build::elf::{Builder, SectionData};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind, elf};

/// One eBPF instruction, in bytes.
const INSTRUCTION: u64 = 8;

/// Removes the DWARF sections; BTF, which the kernel and aya read, stays.
///
/// They are ten times the code, and change with every edit.
pub(super) fn strip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(bytes).context("parse the object")?;
    for section in &mut builder.sections {
        let name = section.name.to_string();
        if name.starts_with(".debug_") || name.starts_with(".rel.debug_") {
            section.delete = true;
        }
    }
    // LLVM keeps section names and symbol names in one table; the writer wants one for each.
    if !builder.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = builder.sections.add();
        names.name = ".shstrtab".into();
        names.sh_type = elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("write the object without its debug sections")?;
    Ok(stripped)
}

/// Whether `bytes` hold `wanted`.
pub(super) fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    !wanted.is_empty() && bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// Every program and every function that was not inlined, by name, with its number of instructions.
///
/// A mangled name holds a hash, which another compiler would change, so it is shown as it is in the source.
pub(super) fn programs(bytes: &[u8]) -> Result<Vec<(String, u64)>> {
    let file = object::File::parse(bytes).context("parse the object")?;
    let mut found = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(index) = symbol.section_index() else { continue };
        let section = file.section_by_index(index).context("find a program's section")?;
        if section.kind() == SectionKind::Text && symbol.size() > 0 {
            let name = rustc_demangle::demangle(symbol.name().unwrap_or("?"));
            found.push((format!("{name:#}"), symbol.size() / INSTRUCTION));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{contains, programs, strip};

    /// The byte search finds a path anywhere and nothing where there is none.
    #[test]
    fn finds_bytes() {
        assert!(contains(b"\0/home/me/x.rs\0", b"/home/me"));
        assert!(!contains(b"\0/drainprof/x.rs\0", b"/home/me"));
        assert!(!contains(b"x", b""));
    }

    /// What is no ELF file is an error, not a panic or an empty answer.
    #[test]
    fn refuses_what_is_no_object() {
        assert!(strip(b"not an object").is_err());
        assert!(programs(b"").is_err());
    }
}

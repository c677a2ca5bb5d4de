//! What a target's file says: symbols, build id, and whether a process's text is still the file's.

use std::{
    fmt::Write as _,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

/// File offset of a function, by its name in one of the symbol tables.
pub fn file_offset(path: &Path, symbol: &str) -> Result<u64> {
    let data = fs::read(path)?;
    let file = object::File::parse(&*data)?;
    let address = file
        .symbols()
        .chain(file.dynamic_symbols())
        .find(|candidate| candidate.name() == Ok(symbol))
        .with_context(|| format!("{} has no symbol {symbol}", path.display()))?
        .address();
    let segment = file
        .segments()
        .find(|segment| (segment.address()..segment.address() + segment.size()).contains(&address))
        .with_context(|| format!("{symbol} is in no segment"))?;
    Ok(address - segment.address() + segment.file_range().0)
}

/// The build id, in lower-case hex.
pub fn build_id(path: &Path) -> Result<String> {
    let data = fs::read(path)?;
    let file = object::File::parse(&*data)?;
    let id = file.build_id()?.with_context(|| format!("{} has no build id", path.display()))?;
    let mut text = String::new();
    for byte in id {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

/// How many bytes of the process's executable mappings of `path` differ from the file.
///
/// A probe in place is such a difference; so the number is 0 before the attach and after the detach. The operands of a nop
/// of ten bytes do not count: kernels that replaced it by a call leave the call's in them.
pub fn changed_text_bytes(pid: u32, path: &Path) -> Result<usize> {
    let file = fs::read(path)?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let path = path.canonicalize()?;
    let mut changed = 0;
    let mut compared = 0;
    for line in maps.lines().filter(|line| line.ends_with(&path.display().to_string())) {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights), Some(offset)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if !rights.contains('x') {
            continue;
        }
        let (start, end) = range.split_once('-').context("a mapping has a start and an end")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let offset = usize::try_from(u64::from_str_radix(offset, 16)?)?;
        let length = usize::try_from(end - start)?.min(file.len().saturating_sub(offset));
        let mut bytes = vec![0; length];
        memory.read_exact_at(&mut bytes, start)?;
        let text = &file[offset..offset + length];
        let differs = |at: &usize| bytes[*at] != text[*at] && !is_operand(&bytes, text, *at);
        changed += (0..length).filter(differs).count();
        compared += length;
    }
    ensure!(compared > 0, "process {pid} maps no code of {}", path.display());
    Ok(changed)
}

/// Whether a byte is an operand of a nop of ten bytes, in memory as in the file.
fn is_operand(memory: &[u8], file: &[u8], at: usize) -> bool {
    const NOP10: [u8; 5] = [0x66, 0x2e, 0x0f, 0x1f, 0x84];
    (5..10).filter_map(|distance| at.checked_sub(distance)).any(|start| {
        [memory, file].iter().all(|bytes| bytes.get(start..start + 5) == Some(&NOP10[..]))
    })
}

/// The address of a function in a process that has mapped `path`.
pub fn address_in(pid: u32, path: &Path, symbol: &str) -> Result<u64> {
    let offset = file_offset(path, symbol)?;
    let path = path.canonicalize()?.display().to_string();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    for line in maps.lines().filter(|line| line.ends_with(&path)) {
        let mut fields = line.split_whitespace();
        let (range, at) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        let (start, end) = range.split_once('-').context("a mapping has a start and an end")?;
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let at = u64::from_str_radix(at, 16)?;
        if (at..at + (end - start)).contains(&offset) {
            return Ok(start + (offset - at));
        }
    }
    anyhow::bail!("process {pid} does not map {symbol} of {path}")
}

/// The semaphores of USDT probes in a process that has mapped `path`, by their symbols (`…_semaphore`), sorted.
pub fn semaphores(pid: u32, path: &Path) -> Result<Vec<(String, u16)>> {
    let data = fs::read(path)?;
    let file = object::File::parse(&*data)?;
    let names = file.symbols().filter_map(|symbol| symbol.name().ok());
    let mut names: Vec<&str> = names.filter(|name| name.ends_with("_semaphore")).collect();
    names.sort_unstable();
    let shown = path.canonicalize()?.display().to_string();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut found = Vec::new();
    for name in names {
        let offset = file_offset(path, name)?;
        for line in maps.lines().filter(|line| line.ends_with(&shown)) {
            let mut fields = line.split_whitespace();
            let (Some(range), Some(rights), Some(at)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let (start, end) = range.split_once('-').context("a mapping has a start and an end")?;
            let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
            let at = u64::from_str_radix(at, 16)?;
            // The same bytes of the file may be mapped with code, too.
            if rights.contains('w') && (at..at + (end - start)).contains(&offset) {
                let mut word = [0; 2];
                memory.read_exact_at(&mut word, start + (offset - at))?;
                found.push((name.to_owned(), u16::from_le_bytes(word)));
            }
        }
    }
    ensure!(!found.is_empty(), "process {pid} maps no semaphore of {}", path.display());
    Ok(found)
}

//! Ways to the parsers that are private, for fuzzing. Each takes hostile bytes and says whether they are what it reads.

use std::{fs::File, path::Path};

use crate::{
    DebugSearch, Elf, FrameSections, container,
    elf::{self, OwnCalls},
    maps, memory, mounts, process, status, symbolize, unwind,
};

/// Asks the ELF file at `path` everything that can be asked; the answers do not matter.
pub fn elf(path: &Path) -> bool {
    let _ = FrameSections::read(File::open(path).unwrap(), "damaged", 1 << 20);
    let search = DebugSearch {
        process_root: None,
        object_path: Some(path.to_owned()),
        debug_dirs: Vec::new(),
    };
    let Ok(elf) = Elf::open(path, "damaged", search) else { return false };
    for name in ["pool_open", "helper", "the_pool", "nothing"] {
        for hit in elf.resolve(name) {
            let _ = elf.symbol_at(hit.vaddr);
            let _ = hit.file_offset.map(|offset| elf.code_at(offset));
        }
        let _ = elf.clones(name);
    }
    let _ = elf.resolve_demangled("*pool*");
    if let Ok(code) = elf.code() {
        for (vaddr, size) in elf.code_symbols() {
            let _ = code.read(vaddr, usize::try_from(size).unwrap_or(usize::MAX));
        }
        let _ = code.read_all(1 << 20);
    }
    let hits = elf.functions(|_| true);
    for hit in hits.iter().take(20) {
        let _ = elf.calls(hit, &mut OwnCalls::default());
    }
    let _ = elf.slots(&[b"the_pool".to_vec(), b"in_bss".to_vec()], Some(0));
    let _ = elf.usdt("provider", "probe");
    if let Ok(types) = elf.types() {
        let addresses = hits.iter().map(|hit| hit.vaddr).collect();
        let _ = types.prototypes(&addresses, Some(&|_| true));
        for field in ["live", "d.nested.high", "next", "gone"] {
            let _ = types.offset_of("pool_t", field);
        }
        let _ = types.offset_of("ns::x", "y");
    }
    true
}

/// A mangled name, made readable. A panic is not caught.
pub fn demangled(mangled: &str) -> Option<String> {
    elf::demangled(mangled)
}

/// `.eh_frame`, `.eh_frame_hdr`, `.debug_frame`, and the rules in them.
pub fn unwind_tables(sections: FrameSections) -> bool {
    unwind::count_rules(sections) > 0
}

/// `/proc/PID/maps` and `smaps`.
pub fn mappings(text: &[u8]) -> bool {
    let maps = maps::group(text).unwrap();
    maps::executed(text).unwrap();
    let all = maps::memory_of(text).unwrap();
    assert!(all.iter().all(|one| one.mapping.start < one.mapping.end));
    !(maps.files.is_empty() && maps.nameless.is_empty() && all.is_empty())
}

/// The other texts and vectors of `/proc`: `stat`, `status`, `smaps_rollup`, `cgroup`, `mountinfo`, `auxv`, pressure.
pub fn process_texts(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let status = [status::number(&text, "Uid", 1), status::last_number(&text, "NSpid")];
    let is_mount = bytes.split(|byte| *byte == b'\n').any(|line| mounts::parse(line).is_some());
    let is_narrow = process::is_narrow(bytes);
    process::parse_stat(bytes).is_some()
        | status.iter().any(Option::is_some)
        | container::of_text(&text).is_some()
        | memory::is_any(&text)
        | is_mount
        | is_narrow
}

/// `/tmp/perf-PID.map`.
pub fn perf_map(map: &[u8]) -> bool {
    let addresses: Vec<u64> = (0..255).map(|step| 0x1000 + step * 8).chain([u64::MAX]).collect();
    symbolize::names_in_perf_map(map, &addresses).iter().any(Option::is_some)
}

/// Functions, files and lines of addresses in an ELF file: `.debug_line`, and what leads there.
pub fn lines(file: File, addresses: &[u64]) -> bool {
    let (lines, names) = symbolize::named_in(file, addresses);
    assert!(lines <= names && names <= addresses.len());
    lines > 0
}

//! Executable memory of a process that is no file: generated code, and what the kernel maps itself.
//!
//! Called by `symbolize` and `unwind`, beside `maps`, which has the files.

use std::path::Path;

use super::read_proc;

/// Longest `/proc/PID/maps` that is looked through.
const MAX_MAPS: u64 = 32 << 20;
/// Mappings that are kept.
const MAX_NAMELESS: usize = 10_000;

/// What such memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamelessKind {
    /// Code that the process has made itself.
    Generated,
    /// The vDSO.
    Vdso,
    /// Where the kernel executes instructions that uprobes stand on, and where calls return to whose return
    /// is probed: its first address.
    Uprobes,
}

/// Executable memory without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nameless {
    /// First address.
    pub(crate) start: u64,
    /// First address after it.
    pub(crate) end: u64,
    /// What it is.
    pub(crate) kind: NamelessKind,
}

/// Such memory of process `pid`; nothing where that cannot be read.
pub(crate) fn nameless_memory(pid: u32) -> Vec<Nameless> {
    let maps = read_proc(Path::new(&format!("/proc/{pid}/maps")), MAX_MAPS);
    parse(&maps.unwrap_or_default())
}

fn parse(maps: &[u8]) -> Vec<Nameless> {
    let text = String::from_utf8_lossy(maps);
    text.lines().filter_map(parse_line).take(MAX_NAMELESS).collect()
}

fn parse_line(line: &str) -> Option<Nameless> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let executable = words.next()?.as_bytes().get(2) == Some(&b'x');
    let name = words.nth(3).unwrap_or_default();
    if !executable || name.starts_with('/') || name == "[vsyscall]" {
        return None;
    }
    let kind = match name {
        "[vdso]" => NamelessKind::Vdso,
        "[uprobes]" => NamelessKind::Uprobes,
        _ => NamelessKind::Generated,
    };
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (start < end).then_some(Nameless { start, end, kind })
}

#[cfg(test)]
mod tests {
    use super::{
        NamelessKind::{Generated, Uprobes, Vdso},
        *,
    };

    /// Generated code, the vDSO and the kernel's page for probes are told apart; data and files are none of
    /// these.
    #[test]
    fn memory_without_a_file() {
        let maps = "55e0-55f0 r-xp 00001000 08:01 99 /usr/bin/x\n\
                    7000-8000 rwxp 00000000 00:00 0 \n\
                    8000-9000 rw-p 00000000 00:00 0 [heap]\n\
                    9000-a000 r-xp 00000000 00:00 0 [vdso]\n\
                    a000-b000 r-xp 00000000 00:00 0 [anon: JIT code]\n\
                    b000-c000 --xp 00000000 00:00 0 [uprobes]\n\
                    d000-c000 r-xp 00000000 00:00 0 \n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n\
                    nonsense\n-\nx-y r-xp 0 0 0\n";
        let found: Vec<_> =
            parse(maps.as_bytes()).iter().map(|range| (range.start, range.kind)).collect();
        assert_eq!(
            found,
            [(0x7000, Generated), (0x9000, Vdso), (0xa000, Generated), (0xb000, Uprobes)]
        );
    }
}

//! ELF files, and the unwind tables in them. The C compiler makes the seeds.

use std::{fs::File, io::Write as _, os::fd::AsRawFd as _, path::PathBuf};

use anyhow::{Context as _, Result};
use drainprof_process::{
    FrameSections, PlacedBytes,
    testing::{MAIN, cc, library, parsers},
};
use rustix::fs::{MemfdFlags, memfd_create};

/// Symbols, types and notes of an ELF file, through the path of a file that is open, as of a process's object.
pub(super) fn elf(bytes: &[u8]) -> bool {
    let Ok(memory) = memfd_create("fuzz", MemfdFlags::CLOEXEC) else { return false };
    let mut file = File::from(memory);
    if file.write_all(bytes).is_err() {
        return false;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    parsers::elf(&path)
}

/// With types of DWARF 5, of DWARF 4 compressed and in units of their own, without any, and a program.
pub(super) fn elf_seeds() -> Result<Vec<Vec<u8>>> {
    let dir = tempfile::tempdir().context("make a directory")?;
    // Small pages: the file is no larger than its contents.
    let small = "-Wl,-z,max-page-size=16,-z,noseparate-code";
    let variants: [&[&str]; 4] = [
        &["-gdwarf-5", small],
        &["-gdwarf-4", "-gz=zlib", "-fdebug-types-section", small],
        &["-s", small],
        &["-gdwarf-5", "-fno-asynchronous-unwind-tables", small],
    ];
    let made = variants.iter().enumerate().map(|(number, flags)| {
        let path = library(dir.path(), &format!("libseed{number}.so"), flags);
        std::fs::read(path).context("read a seed")
    });
    made.collect()
}

/// Addresses of small files that are asked for.
const ADDRESSES: std::ops::Range<u64> = 0..0x1000;

/// Functions, files and lines of an ELF file.
pub(super) fn lines(bytes: &[u8]) -> bool {
    let Ok(memory) = memfd_create("fuzz", MemfdFlags::CLOEXEC) else { return false };
    let mut file = File::from(memory);
    if file.write_all(bytes).is_err() {
        return false;
    }
    parsers::lines(file, &ADDRESSES.step_by(16).collect::<Vec<_>>())
}

/// With the tables of DWARF 5, of DWARF 4, and of DWARF 5 where code was inlined.
pub(super) fn line_seeds() -> Result<Vec<Vec<u8>>> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let small = "-Wl,-z,max-page-size=16,-z,noseparate-code";
    let variants =
        [["-gdwarf-5", "-O0", small], ["-gdwarf-4", "-O0", small], ["-gdwarf-5", "-O2", small]];
    let made = variants.iter().enumerate().map(|(number, flags)| {
        let path = library(dir.path(), &format!("liblines{number}.so"), flags);
        std::fs::read(path).context("read a seed")
    });
    made.collect()
}

/// Lengths of `.eh_frame` and `.eh_frame_hdr` as two bytes each, these, and what remains is `.debug_frame`.
pub(super) fn unwind_tables(bytes: &[u8]) -> bool {
    let Some((&[a, b, c, d], rest)) = bytes.split_first_chunk() else { return false };
    let mut rest = rest;
    let mut take = |length: [u8; 2]| {
        let length = usize::from(u16::from_le_bytes(length)).min(rest.len());
        let (taken, left) = rest.split_at(length);
        rest = left;
        taken.to_vec()
    };
    let [eh_frame, eh_frame_hdr] = [take([a, b]), take([c, d])];
    let placed =
        |vaddr, bytes: Vec<u8>| (!bytes.is_empty()).then_some(PlacedBytes { vaddr, bytes });
    parsers::unwind_tables(FrameSections {
        segments: Vec::new(),
        // As far from each other as in a file: the one's addresses are relative to the other's.
        eh_frame_hdr: placed(TABLE, eh_frame_hdr),
        eh_frame: placed(FRAMES, eh_frame),
        debug_frame: rest.to_vec(),
    })
}

/// Where the tables of all inputs are.
const TABLE: u64 = 0x2000;
const FRAMES: u64 = 0x3000;

/// The tables of the same library; with the linker's search table, without, and for a debugger.
pub(super) fn table_seeds() -> Result<Vec<Vec<u8>>> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let source = format!("{}{MAIN}", drainprof_process::testing::ALLOCATOR);
    let place = format!(
        "-Wl,--section-start=.eh_frame_hdr={TABLE:#x},--section-start=.eh_frame={FRAMES:#x}"
    );
    let variants: [&[&str]; 3] = [
        &["-Wl,--eh-frame-hdr"],
        &["-Wl,--no-eh-frame-hdr"],
        &["-g", "-fno-asynchronous-unwind-tables", "-Wl,--no-eh-frame-hdr"],
    ];
    let made = variants.iter().enumerate().map(|(number, flags)| {
        let mut all = vec!["-O1", "-nostdlib", "-no-pie", "-static", &place];
        all.extend(*flags);
        let path = cc(dir.path(), &format!("seed{number}"), &source, &all);
        let sections = FrameSections::read(File::open(path)?, "seed", 1 << 20)?;
        let [eh_frame, header] = [sections.eh_frame, sections.eh_frame_hdr]
            .map(|placed| placed.map(|placed| placed.bytes).unwrap_or_default());
        let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
        let lengths = [length(&eh_frame), length(&header)].concat();
        Ok([lengths, eh_frame, header, sections.debug_frame].concat())
    });
    made.collect()
}

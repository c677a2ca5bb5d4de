//! `/proc/PID/pagemap`: which pages of a process are present, parts of huge pages, or guard pages. Looking touches none of
//! them.

use std::{
    fs::File,
    io,
    os::{fd::AsRawFd as _, unix::fs::FileExt as _},
};

use drainprof_process::ask_process;
use nix::{errno::Errno, libc};

use crate::{present::Present, space::PAGE};

/// The request of Linux 6.7 and later that skips what has no page tables: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = (3 << 30 | (size_of::<Scan>() << 16) | 0x66 << 8 | 16) as _;
/// In memory.
const PRESENT: u64 = 1 << 3;
/// The page of zeros, which every process shares: it holds nothing, and costs a process nothing.
const ZERO: u64 = 1 << 5;
/// A part of a transparent huge page that is mapped as one.
const HUGE: u64 = 1 << 6;
/// A page of `MADV_GUARD_INSTALL`; Linux 6.15 and later.
const GUARD: u64 = 1 << 8;
/// Stretches of pages that one request returns.
const STRETCHES: usize = 1024;
/// Pages whose entries are read at once, where the kernel lacks the request.
const ENTRIES: u64 = 64 << 10;

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Where the request ended.
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Stretch {
    start: u64,
    end: u64,
    categories: u64,
}

/// The file of a process.
pub(crate) struct Pagemap {
    pid: u32,
    file: File,
    skips_holes: bool,
}

impl Pagemap {
    pub(crate) fn open(pid: u32, path: &str) -> io::Result<Self> {
        let mut pagemap = Self { pid, file: File::open(path)?, skips_holes: true };
        // Linux before 6.7 knows no request of this file.
        pagemap.skips_holes = pagemap.request(0, PAGE, PRESENT, &mut [Stretch::default()]).is_ok();
        Ok(pagemap)
    }

    /// Whether it costs nothing to ask for pages where nothing is present.
    pub(crate) fn skips_holes(&self) -> bool {
        self.skips_holes
    }

    /// The pages between two page boundaries that are present. What cannot be known counts as absent.
    pub(crate) fn present(&self, start: u64, end: u64) -> Present {
        if self.skips_holes { self.scan(start, end) } else { self.read(start, end) }
    }

    /// The pages between two page boundaries that are parts of huge pages; `None` where the kernel does not say.
    pub(crate) fn huge(&self, start: u64, end: u64) -> Option<Present> {
        self.find(start, end, PRESENT | HUGE).ok()
    }

    /// Whether all pages between two page boundaries are guard pages; `None` where the kernel does not say.
    pub(crate) fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        let found = self.find(start, end, GUARD).ok()?;
        Some(start < end && found.bytes(start, end) == end - start)
    }

    fn scan(&self, start: u64, end: u64) -> Present {
        let mut found = Present::default();
        // What was found before an error is present.
        let _ = self.each(start, end, PRESENT, |start, end| found.push(start, end));
        found
    }

    fn find(&self, start: u64, end: u64, categories: u64) -> nix::Result<Present> {
        let mut found = Present::default();
        self.each(start, end, categories, |start, end| found.push(start, end))?;
        Ok(found)
    }

    /// All stretches of pages that are of each of these categories.
    fn each(
        &self,
        mut start: u64,
        end: u64,
        categories: u64,
        mut each: impl FnMut(u64, u64),
    ) -> nix::Result<()> {
        let most = (end.saturating_sub(start) / PAGE).min(STRETCHES as u64);
        let mut stretches = vec![Stretch::default(); most as usize];
        while start < end {
            let (found, next) = self.request(start, end, categories, &mut stretches)?;
            for one in stretches.iter().take(found) {
                each(one.start, one.end);
            }
            if next <= start {
                break;
            }
            start = next;
        }
        Ok(())
    }

    /// Finds stretches of pages of all of these categories, but for the page of zeros; returns how many, and where it
    /// ended.
    fn request(
        &self,
        start: u64,
        end: u64,
        categories: u64,
        stretches: &mut [Stretch],
    ) -> nix::Result<(usize, u64)> {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end,
            vec: stretches.as_mut_ptr() as u64,
            vec_len: stretches.len() as u64,
            category_inverted: ZERO,
            category_mask: categories | ZERO,
            return_mask: categories,
            ..Scan::default()
        };
        // SAFETY: `scan` is what the request takes, and `stretches` has room for the `vec_len` that it names; the kernel
        // writes to nothing else.
        let request = || unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let found = ask_process(self.pid, request);
        let found = usize::try_from(Errno::result(found)?).unwrap_or_default();
        Ok((found, scan.walk_end))
    }

    /// As Linux before 6.7 has it: an entry of eight bytes for each page, whether anything is there or not.
    fn read(&self, mut start: u64, end: u64) -> Present {
        let mut present = Present::default();
        let most = (end.saturating_sub(start) / PAGE).min(ENTRIES);
        let mut buffer = vec![0; (most * 8) as usize];
        while start < end {
            let pages = ((end - start) / PAGE).min(most);
            let entries = &mut buffer[..(pages * 8) as usize];
            let read = || self.file.read_exact_at(entries, start / PAGE * 8);
            if pages == 0 || ask_process(self.pid, read).is_err() {
                break;
            }
            // Bit 63: in memory; bit 62: swapped.
            for (entry, page) in entries.chunks_exact(8).zip((start..).step_by(PAGE as usize)) {
                if entry[7] & 0x80 != 0 {
                    present.push(page, page + PAGE);
                }
            }
            start += pages * PAGE;
        }
        present
    }
}

#[cfg(test)]
mod tests {
    use memmap2::{Advice, MmapOptions};

    use super::*;

    /// Of 160 GiB that are reserved, three pages that were written and one that was read: either way finds the written
    /// ones, and nothing is touched. The kernel's older way does not distinguish a page of zeros.
    #[test]
    fn reservations() {
        let bytes = 160 << 30;
        let mut options = MmapOptions::new();
        let mut memory = options.len(bytes).no_reserve_swap().map_anon().unwrap();
        memory.advise(Advice::NoHugePage).unwrap();
        let written = [0, bytes / 2 + 5 * PAGE as usize, bytes - PAGE as usize];
        for at in written {
            memory[at] = 1;
        }
        let read = bytes / 4;
        assert_eq!(memory[read], 0);
        let start = memory.as_ptr() as u64;
        let pagemap = Pagemap::open(std::process::id(), "/proc/self/pagemap").unwrap();
        let pages = |present: &Present| -> Vec<usize> {
            let next = |at: &u64| present.next(at + PAGE);
            std::iter::successors(present.next(0), next).map(|at| (at - start) as usize).collect()
        };
        let end = start + bytes as u64;
        if pagemap.skips_holes() {
            let present = pagemap.scan(start, end);
            assert_eq!(pages(&present), written);
            assert_eq!(present.bytes(start, end), 3 * PAGE);
        }
        let present = pagemap.read(start + read as u64 - (1 << 30), start + read as u64 + PAGE);
        assert_eq!(pages(&present), [read]);
        let present = pagemap.read(end - PAGE, end);
        assert_eq!(pages(&present), [written[2]]);
    }

    /// Huge pages are as many as the kernel counts. A guard page is distinguished from others where the kernel reports
    /// guards.
    #[test]
    fn guards_and_huge_pages() {
        const INSTALL: libc::c_int = 102;
        let mut memory = MmapOptions::new().len(8 << 20).map_anon().unwrap();
        memory.advise(Advice::HugePage).unwrap();
        memory.fill(1);
        let start = memory.as_ptr() as u64;
        let end = start + memory.len() as u64;
        let pagemap = Pagemap::open(std::process::id(), "/proc/self/pagemap").unwrap();
        let all = drainprof_process::mapped_memory(std::process::id()).unwrap();
        let own = all.iter().filter(|one| one.mapping.start < end && start < one.mapping.end);
        let counted: u64 = own.map(|one| one.huge_bytes).sum();
        if let Some(huge) = pagemap.huge(start, end) {
            assert_eq!(huge.bytes(start, end), counted);
        }
        // SAFETY: the page is the first of `memory`, which is not read any more.
        let installed =
            unsafe { libc::madvise(memory.as_mut_ptr().cast(), PAGE as usize, INSTALL) };
        let known = |start, end| pagemap.guarded(start, end);
        if let (0, Some(is_guard)) = (installed, known(start, start + PAGE)) {
            assert!(is_guard);
            let others = [(start + PAGE, start + 2 * PAGE), (start, start + 2 * PAGE)];
            assert_eq!(others.map(|(start, end)| known(start, end)), [Some(false); 2]);
        }
    }
}

//! The vDSO as a file: the kernel maps the same code into every process, so ours is read.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
};

use rustix::fs::{MemfdFlags, memfd_create};

/// What it is called in reports.
pub(crate) const NAME: &str = "[vdso]";
/// Largest vDSO; they have two to four pages.
const MAX_BYTES: u64 = 1 << 20;

/// Our own vDSO, in a file that exists in memory alone.
pub fn image() -> io::Result<File> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let range = maps
        .lines()
        .find(|line| line.ends_with(NAME))
        .and_then(|line| line.split(' ').next()?.split_once('-'))
        .and_then(|(start, end)| {
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        });
    let Some((start, end)) = range.filter(|(start, end)| end - start <= MAX_BYTES) else {
        return Err(io::Error::other("this process has no vDSO"));
    };
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, start)?;
    let mut file = File::from(memfd_create("vdso", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DebugSearch, Elf};

    /// What is read is an ELF object with the functions that the kernel promises.
    #[test]
    fn is_an_object_with_names() {
        use std::os::fd::AsRawFd as _;
        let file = image().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let elf = Elf::open(path.as_ref(), NAME, DebugSearch::default()).unwrap();
        #[cfg(target_arch = "x86_64")]
        assert_eq!(elf.resolve("__vdso_clock_gettime").len(), 1);
        assert!(elf.soname().is_some_and(|name| name.starts_with("linux-vdso")));
    }
}

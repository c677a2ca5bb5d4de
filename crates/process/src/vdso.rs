//! The vDSO as a file: the kernel maps the same code into every process, so ours is read.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::maps::{NamelessKind, read_maps};

/// What it is called in reports.
pub(crate) const NAME: &str = "[vdso]";
/// Largest vDSO; they have two to four pages.
const MAX_BYTES: u64 = 1 << 20;

/// Our own vDSO, in a file that exists in memory alone.
pub fn image() -> io::Result<File> {
    let maps = read_maps(std::process::id()).map_err(io::Error::other)?;
    let vdso = maps.nameless.iter().find(|(_, kind)| *kind == NamelessKind::Vdso);
    let size = vdso.map(|(mapping, _)| (mapping.start, mapping.end - mapping.start));
    let Some((start, size)) = size.filter(|(_, size)| *size <= MAX_BYTES) else {
        return Err(io::Error::other("this process has no vDSO"));
    };
    let mut bytes = vec![0; size as usize];
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

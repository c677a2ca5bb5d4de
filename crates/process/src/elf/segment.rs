//! The segments of an object: where in the file an address is, and back.

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address in the file's own address space.
    pub vaddr: u64,
    /// Bytes in memory.
    pub memory_size: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Bytes in the file.
    pub file_size: u64,
    /// Whether it is executable.
    pub executable: bool,
}

impl Segment {
    /// Where in the file `vaddr` is, and how many bytes of the segment follow there.
    pub(crate) fn in_file(&self, vaddr: u64) -> Option<(u64, u64)> {
        let into = vaddr.checked_sub(self.vaddr).filter(|into| *into < self.file_size)?;
        Some((self.file_offset.checked_add(into)?, self.file_size - into))
    }

    /// The address of the code at `offset` of the file.
    pub(crate) fn code_at(&self, offset: u64) -> Option<u64> {
        let into = offset.checked_sub(self.file_offset)?;
        (self.executable && into < self.file_size).then(|| self.vaddr.checked_add(into))?
    }
}

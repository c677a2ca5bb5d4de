//! Array maps mapped into our memory: read there without system calls, word by word.

use std::{
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytemuck::Pod;
use memmap2::{MmapOptions, MmapRaw};

use super::BpfError;

/// One array map.
pub(super) struct Mapped<T> {
    memory: MmapRaw,
    entries: usize,
    of: PhantomData<T>,
}

impl<T: Pod> Mapped<T> {
    const WORDS: usize = size_of::<T>() / 8;

    /// Maps `entries` values of an array map that was made with `BPF_F_MMAPABLE`.
    pub(super) fn new(map: &'static str, fd: &impl AsFd, entries: usize) -> Result<Self, BpfError> {
        const { assert!(size_of::<T>().is_multiple_of(8), "map values are whole words") };
        let memory = MmapOptions::new()
            .len(entries * size_of::<T>())
            .map_raw(fd.as_fd().as_raw_fd())
            .map_err(|source| BpfError::map("mapping", map, source))?;
        Ok(Self { memory, entries, of: PhantomData })
    }

    fn words(&self) -> &[AtomicU64] {
        #[allow(clippy::cast_ptr_alignment, reason = "a mapping is page-aligned")]
        // SAFETY: the mapping is page-aligned, lives as long as `self`, has `entries * size_of::<T>()`
        // bytes, and is shared with the kernel, which is what atomics are for.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.as_ptr().cast::<AtomicU64>(),
                self.entries * Self::WORDS,
            )
        }
    }

    /// How many values there are.
    pub(super) const fn len(&self) -> usize {
        self.entries
    }

    /// The value at `index`, each of its words read at once; zeroed beyond the end.
    pub(super) fn get(&self, index: usize) -> T {
        self.part(index, 0)
    }

    /// What stands from word `first` of the value at `index` on; zeroed where that does not fit into the value.
    pub(super) fn part<P: Pod>(&self, index: usize, first: usize) -> P {
        const { assert!(size_of::<P>().is_multiple_of(8), "parts are whole words") };
        let mut part = P::zeroed();
        let end = first + size_of::<P>() / 8;
        let at = index * Self::WORDS;
        let Some(words) = self.words().get(at + first..at + end).filter(|_| end <= Self::WORDS)
        else {
            return part;
        };
        let bytes = bytemuck::bytes_of_mut(&mut part);
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
        }
        part
    }

    /// Zeroes the value at `index`. Nothing else changes it meanwhile.
    pub(super) fn clear(&self, index: usize) {
        for word in self.words().iter().skip(index * Self::WORDS).take(Self::WORDS) {
            word.store(0, Ordering::Release);
        }
    }

    /// One word of the value at `index`, for atomic changes.
    pub(super) fn word(&self, index: usize, word: usize) -> Option<&AtomicU64> {
        if word >= Self::WORDS {
            return None;
        }
        self.words().get(index * Self::WORDS + word)
    }
}

/// Fill levels that the kernel side and we both change; every owner of a table has a copy.
#[derive(Clone)]
pub(super) struct Cursors(Arc<Mapped<u64>>);

impl Cursors {
    pub(super) fn new(levels: Mapped<u64>) -> Self {
        Self(Arc::new(levels))
    }

    /// One level; `which` is one of [`drainprof_common::maps::cursor`].
    pub(super) fn level(&self, which: u32) -> u64 {
        self.0.get(which as usize)
    }

    /// How many of `limit` entries an array has handed out.
    pub(super) fn filled(&self, which: u32, limit: usize) -> usize {
        usize::try_from(self.level(which)).unwrap_or(usize::MAX).min(limit)
    }

    /// Whether three quarters of `limit` are taken.
    pub(super) fn is_filling(&self, which: u32, limit: u32) -> bool {
        self.level(which) > u64::from(limit) / 4 * 3
    }

    /// Adds (wrapping), and returns what the level was before.
    pub(super) fn add(&self, which: u32, by: u64) -> u64 {
        self.0.word(which as usize, 0).map_or(0, |word| word.fetch_add(by, Ordering::SeqCst))
    }

    /// Raises a level to at least `to`.
    pub(super) fn raise(&self, which: u32, to: u64) {
        if let Some(word) = self.0.word(which as usize, 0) {
            word.fetch_max(to, Ordering::SeqCst);
        }
    }
}

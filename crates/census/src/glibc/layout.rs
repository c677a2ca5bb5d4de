//! What differs between versions of glibc: data only. Sources: `struct malloc_state`, `malloc_par` and
//! `tcache_perthread_struct` in `malloc/malloc.c`, `heap_info` in `malloc/arena.c`, 2.27 to 2.43.

use crate::present::PAGE;

/// Bytes of a chunk that are the allocator's.
pub(super) const OVERHEAD: u64 = 8;
/// Bytes before an object.
pub(super) const HEADER: u64 = 16;
/// The smallest chunk.
pub(super) const SMALLEST: u64 = 32;

/// Chunks that must follow each other before a chain that broke is believed again.
pub(super) const PROOF: u32 = 8;
/// Reads of a piece that makes no sense, before it is passed over.
pub(super) const ATTEMPTS: u32 = 3;

/// Where `struct malloc_state` has what, bytes.
pub(super) struct Layout {
    /// The versions that have it.
    pub(super) versions: &'static str,
    /// A word that says whether fastbins are in use, and the fastbins; `None` where there are none.
    pub(super) fastbins: Option<(u64, u64)>,
    pub(super) top: u64,
    pub(super) last_remainder: u64,
    pub(super) bins: u64,
    pub(super) next: u64,
    pub(super) next_free: u64,
    pub(super) attached_threads: u64,
    pub(super) system_mem: u64,
    pub(super) max_system_mem: u64,
    /// Bytes of the structure.
    pub(super) bytes: u64,
    /// What the size word of a chunk with a mapping of its own does not count.
    pub(super) mapped_less: u64,
}

/// All of them are tried. An arena's `next` leads back to its exact address, so at most one validates.
pub(super) const LAYOUTS: [Layout; 2] = [
    Layout {
        versions: "2.27 to 2.42",
        fastbins: Some((8, 16)),
        top: 96,
        last_remainder: 104,
        bins: 112,
        next: 2160,
        next_free: 2168,
        attached_threads: 2176,
        system_mem: 2184,
        max_system_mem: 2192,
        bytes: 2200,
        mapped_less: 0,
    },
    Layout {
        versions: "2.43",
        fastbins: None,
        top: 8,
        last_remainder: 16,
        bins: 24,
        next: 2072,
        next_free: 2080,
        attached_threads: 2088,
        system_mem: 2096,
        max_system_mem: 2104,
        bytes: 2112,
        mapped_less: 16,
    },
];

/// Fastbins of an arena, and its other bins: each has two pointers, and is a chunk whose header is not there.
pub(super) const FASTBINS: u64 = 10;
pub(super) const BINS: u64 = 127;
pub(super) const BIN_HEADER: u64 = 16;

/// Bytes of `heap_info`: to 2.34, and from 2.35 on. A thread's arena follows the one of its first heap.
pub(super) const HEAP_INFOS: [u64; 2] = [32, 48];
/// Threads' heaps begin at multiples of this; …
pub(super) const HEAP_ALIGN: u64 = 64 << 20;
/// … with `glibc.malloc.hugetlb=2` of so many huge pages (2.35 to 2.41).
pub(super) const HUGE_PAGES_OF_HEAP: u64 = 4;

/// A design of threads' caches.
pub(super) struct CacheLayout {
    /// Bytes of the chunk that holds one. It has up to [`CACHE_SLACK`] more.
    pub(super) chunk: u64,
    /// Lists, and how many of them have one size each, in steps of 16 bytes.
    pub(super) lists: u64,
    pub(super) small: u64,
    /// Bytes of a counter.
    pub(super) width: u64,
    /// Whether counters say how many more chunks fit, not how many there are.
    pub(super) counts_left: bool,
    /// Whether the second word of each cached chunk is the same: the cache itself (2.29 to 2.33), or a key.
    pub(super) has_key: bool,
}

/// A size that is rounded up twice (2.43), and a rest that is too small for a chunk of its own.
pub(super) const CACHE_SLACK: u64 = 32;

/// Caches of 2.27 to 2.29, of 2.30 to 2.41, and from 2.42 on.
pub(super) const CACHES: [CacheLayout; 3] = [
    CacheLayout {
        chunk: 0x250,
        lists: 64,
        small: 64,
        width: 1,
        counts_left: false,
        has_key: false,
    },
    CacheLayout { chunk: 0x290, lists: 64, small: 64, width: 2, counts_left: false, has_key: true },
    CacheLayout { chunk: 0x300, lists: 76, small: 64, width: 2, counts_left: true, has_key: true },
];

/// The design whose caches lie in chunks of so many bytes.
pub(super) fn cache_of(chunk: u64) -> Option<&'static CacheLayout> {
    CACHES.iter().find(|one| (one.chunk..=one.chunk + CACHE_SLACK).contains(&chunk))
}

/// Where `struct malloc_par` has what, as bytes before `sbrk_base`.
pub(super) struct ParamsLayout {
    /// Four numbers of 32 bits: mappings in use, the limit for them, the most there were, and a flag.
    pub(super) n_mmaps: u64,
    /// The sizes of transparent and of other huge pages.
    pub(super) huge_pages: Option<(u64, u64)>,
}

/// Bytes in mappings of their own, and the most there were, before `sbrk_base`.
pub(super) const MMAPPED_MEM: u64 = 16;
pub(super) const MAX_MMAPPED_MEM: u64 = 8;
/// Lists of a cache, its largest chunk, and the most chunks in one list, behind `sbrk_base`.
pub(super) const TCACHE_BINS: u64 = 8;
pub(super) const TCACHE_MAX_BYTES: u64 = 16;
pub(super) const TCACHE_COUNT: u64 = 24;
/// All that is read before `sbrk_base`, and behind it.
pub(super) const PARAMS_BEFORE: u64 = 56;
pub(super) const PARAMS_BYTES: usize = 56 + 32;

/// To 2.34, and from 2.35 on.
pub(super) const PARAMS: [ParamsLayout; 2] = [
    ParamsLayout { n_mmaps: 32, huge_pages: None },
    ParamsLayout { n_mmaps: 36, huge_pages: Some((56, 48)) },
];

/// Sizes that huge pages can have.
pub(super) const fn is_huge_page(bytes: u64) -> bool {
    bytes == 0 || bytes.is_power_of_two() && bytes > PAGE && bytes <= 16 << 30
}

//! What a census says: `drainprof.census/1`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The schema that [`Census`] follows.
pub const SCHEMA: &str = "drainprof.census/1";

/// A census of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Census {
    /// `drainprof.census/1`.
    pub schema: String,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Seconds that the reading took.
    pub seconds: f64,
    /// Seconds for which the process was stopped for it; null where it ran on.
    pub frozen_seconds: Option<f64>,
    /// Bytes that were read of its memory.
    pub read_bytes: u64,
    /// Resident bytes: the sum over its mappings, with `hugetlb_bytes`.
    pub rss_bytes: u64,
    /// Of these, bytes of anonymous memory in huge pages of hugetlbfs, which the kernel's RSS does not contain.
    pub hugetlb_bytes: u64,
    /// Bytes that are swapped out. They are not read.
    pub swap_bytes: u64,
    /// Bytes of its page tables, which RSS does not contain.
    pub page_table_bytes: u64,
    /// Resident memory by what it is used for. The bytes add up to `rss_bytes`.
    pub parts: Vec<Part>,
    /// Resident bytes whose use was read and validated, or that the kernel accounts for: parts whose `known_by` is not
    /// `nothing`. Of files and shared memory no more is known than that they are such.
    pub validated_bytes: u64,
    /// The rest of resident memory, with the reasons, the most bytes first: the bytes and `validated_bytes` add up to
    /// `rss_bytes`.
    pub unknown: Vec<Unknown>,
    /// Resident bytes of anonymous memory in transparent huge pages.
    pub huge_bytes: u64,
    /// Of these, bytes of 4 KiB pages of heaps without a live byte, in huge pages that hold one: at least so many are
    /// resident only because a huge page fills the holes. Granules that hold an object count as live as a whole. Null where
    /// the kernel does not say which pages are huge (Linux before 6.7), or such a heap was not read well enough.
    pub huge_idle_bytes: Option<u64>,
    /// The heaps that were found.
    pub heaps: Vec<Heap>,
    /// Structures of the program that a profile describes (`[[walk]]`), as heaps. They lie in the heaps above.
    pub structures: Vec<Heap>,
    /// What to do, the most bytes first.
    pub next: Vec<Step>,
    /// The memory contexts of a PostgreSQL backend, each after its parent. They lie in the heap of glibc.
    pub contexts: Vec<Context>,
    /// What was not found or not read, in sentences.
    pub notes: Vec<String>,
    /// What the reading has used up before all was read, with the bound; null where all was read. What was not read is
    /// unknown.
    pub ran_out: Option<String>,
}

/// What to do about memory that is held, or free and kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Step {
    /// Resident bytes that it is about.
    pub bytes: u64,
    /// A sentence.
    pub text: String,
    /// The command that says more; null where there is none.
    pub command: Option<String>,
}

/// Resident memory of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// How that is known.
    pub known_by: KnownBy,
    /// The allocator, of heaps; else null.
    pub allocator: Option<String>,
    /// Resident bytes.
    pub bytes: u64,
}

/// How the use of memory is known.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// The allocator's structures were read and validated: they account for the bytes.
    Structures,
    /// A thread's stack pointer lies in it, behind a guard, and the thread's library or the kernel says how large it is.
    Thread,
    /// The kernel accounts for it, as files or as shared memory. What lies in it was not read.
    Kernel,
    /// It was not read, or did not validate.
    Nothing,
}

/// Resident memory that was not read, or did not validate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unknown {
    /// The allocator whose heap it is in; null: no known heap.
    pub allocator: Option<String>,
    /// Resident bytes.
    pub bytes: u64,
    /// Why, in sentences: what the heap's reader says; for memory of no known heap, what readers say that found none.
    pub reasons: Vec<String>,
}

/// What resident memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Granules of a heap that hold a live object, whole.
    HeapHeld,
    /// Granules of a heap without a live object.
    HeapFree,
    /// Memory of a heap that could not be read, or made no sense.
    HeapUnknown,
    /// Anonymous memory of no known heap.
    Anonymous,
    /// Stacks of threads, as far as they are known as such.
    Stack,
    /// Mapped files, private copies of their pages included.
    File,
    /// Shared memory.
    Shared,
}

impl PartKind {
    /// How the use of such memory is known.
    #[must_use]
    pub const fn known_by(self) -> KnownBy {
        match self {
            Self::HeapHeld | Self::HeapFree => KnownBy::Structures,
            Self::Stack => KnownBy::Thread,
            Self::File | Self::Shared => KnownBy::Kernel,
            Self::HeapUnknown | Self::Anonymous => KnownBy::Nothing,
        }
    }
}

/// A heap: all arenas of one allocator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Heap {
    /// `glibc`, `cpython`, `ruby`, `go`, `jemalloc`, `mimalloc`, `tcmalloc`.
    pub allocator: String,
    /// Bytes that the allocator has from the system.
    pub mapped_bytes: u64,
    /// Of these, resident.
    pub resident_bytes: u64,
    /// Live objects.
    pub live_objects: u64,
    /// Bytes of live objects, with what the allocator adds to each.
    pub live_bytes: u64,
    /// Of these, bytes of objects with a mapping of their own; of glibc only.
    pub mapped_alone_bytes: u64,
    /// Bytes of objects that the program has freed and the cache of a thread, or a list for it, keeps.
    pub cached_bytes: u64,
    /// Bytes that are free, whether resident or not.
    pub free_bytes: u64,
    /// Bytes that could not be read, or made no sense.
    pub unknown_bytes: u64,
    /// Resident bytes that `malloc_trim(0)` would give back now; null where the allocator has nothing like it, or too much of
    /// the heap is unknown. Of a huge page, it gives back the 4 KiB pages: resident memory falls at once, the system gets
    /// them when it splits the page.
    pub trimmable_bytes: Option<u64>,
    /// Resident bytes that would be free if live objects lay side by side, at most: sizes are rounded up, and live objects
    /// count as resident.
    pub compaction_bytes: u64,
    /// Pages, pools or slabs, by how many live objects hold them.
    pub granules: Granules,
    /// Arenas: glibc's and jemalloc's by number, `CPython`'s 256 KiB or 1 MiB each.
    pub arenas: Vec<Arena>,
    /// Live objects by size, by bytes in granules that they alone hold.
    pub classes: Vec<Class>,
    /// Its granules by address, where they were asked for; not part of the document.
    #[serde(skip)]
    pub map: Vec<MapCell>,
    /// Live objects by type where it is known: Python types, Ruby's built-in ones, C++ classes with virtual functions.
    pub types: Vec<Type>,
}

/// Of what is resident, a heap is read well enough where no more than a part of so many is unknown.
const MAX_UNKNOWN: u64 = 32;

/// Whether so much of a heap is unknown that nothing can be said of what is free in it as a whole.
pub(crate) const fn is_partial(unknown_bytes: u64, resident_bytes: u64) -> bool {
    unknown_bytes > resident_bytes / MAX_UNKNOWN
}

impl Heap {
    /// Whether so much of it is unknown that nothing can be said of what is free in it as a whole.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        is_partial(self.unknown_bytes, self.resident_bytes)
    }
}

/// Granules side by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapCell {
    /// The first address.
    pub address: u64,
    /// Granules.
    pub granules: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Live objects in them.
    pub objects: u64,
    /// Bytes of these.
    pub live_bytes: u64,
}

/// A memory context of PostgreSQL, with the numbers of `pg_backend_memory_contexts`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Context {
    /// Its name; of a hash table, its own.
    pub name: String,
    /// Its ident, at most 64 characters; null if it has none or idents were not asked for. It can be SQL text.
    pub ident: Option<String>,
    /// Its level: 0 is the root.
    pub level: u64,
    /// The index of its parent in this list; null at level 0.
    pub parent: Option<u64>,
    /// What it is made of.
    pub kind: ContextKind,
    /// Bytes that it has from `malloc`.
    pub total_bytes: u64,
    /// Bytes of these that are free; null where its blocks are not known.
    pub free_bytes: Option<u64>,
    /// Its blocks; null where they are not known.
    pub blocks: Option<u64>,
}

/// What a memory context is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextKind {
    /// Blocks with chunks of any size, and lists of free ones.
    AllocSet,
    /// Blocks that are freed when all of their chunks are.
    Generation,
    /// Blocks of chunks of one size.
    Slab,
    /// Blocks whose chunks are not freed one by one.
    Bump,
    /// Blocks and large objects that are given back with the pool (nginx, APR).
    Pool,
    /// No known layout.
    #[default]
    Unknown,
}

/// What is given back as a whole, or not at all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Granules {
    /// `page`, `pool`, `slab`, `heap page` (Ruby), `mimalloc page`, `span` (Go, tcmalloc).
    pub unit: String,
    /// Granules without a live object that are resident in part.
    pub empty: u64,
    /// Bytes of these.
    pub empty_bytes: u64,
    /// Granules that one object fills: they are no loss.
    pub full: u64,
    /// Bytes of these.
    pub full_bytes: u64,
    /// All others that are held, by the number of live objects in them.
    pub held: Vec<HeldBy>,
}

/// Granules that so many objects hold.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct HeldBy {
    /// At least so many objects.
    pub objects_min: u64,
    /// At most so many; null: any number.
    pub objects_max: Option<u64>,
    /// Granules.
    pub granules: u64,
    /// Bytes of these granules.
    pub bytes: u64,
}

/// An arena.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Arena {
    /// Its number. The first of glibc's is the main heap.
    pub number: u64,
    /// Bytes that it has from the system.
    pub mapped_bytes: u64,
    /// Live objects.
    pub live_objects: u64,
    /// Bytes of live objects.
    pub live_bytes: u64,
}

/// Objects of one size class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Class {
    /// The largest object of the class, bytes.
    pub size: u64,
    /// Live objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Granules that only objects of this class hold: they would be free if these were gone.
    pub alone: u64,
    /// Bytes of these granules.
    pub alone_bytes: u64,
    /// Granules of the class, where a granule has one class (pools, slabs); else null.
    pub granules: Option<u64>,
}

/// Objects of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Type {
    /// Its name.
    pub name: String,
    /// Live objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Arenas (of Ruby: heap pages; of C++ classes: pages or slabs) with at least one of them.
    pub arenas: u64,
    /// Arenas in which no object is of another type.
    pub arenas_alone: u64,
    /// Bytes of these: they would come free if the objects were gone.
    pub alone_bytes: u64,
}

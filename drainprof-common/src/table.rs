//! A bucket of the table of objects: objects are entered and taken out by a compare-and-swap of an entry's tag,
//! without a lock.
//!
//! The same code runs in the kernel and, with threads that get in one another's way, in the tests below. It
//! knows neither where buckets are nor what becomes of objects that find theirs full; `drainprof-ebpf`'s `objects`
//! does.

use crate::maps::{ObjectKey, ObjectValue, WAYS, tag};

/// A bucket's memory, which others change at the same time. `way` is below [`WAYS`].
pub trait Memory {
    /// Reads a tag at once; what is read from its entry afterwards is at least as new.
    fn tag(&self, way: u32) -> u64;
    /// Replaces the tag if it is `expected`: what it was.
    fn swap_tag(&self, way: u32, expected: u64, tag: u64) -> u64;
    /// Writes the tag of an entry that is owned, after all that was done with the entry.
    fn set_tag(&self, way: u32, tag: u64);
    /// Whether the entry is of this key, as far as can be said without owning it.
    fn is_of(&self, way: u32, key: &ObjectKey) -> bool;
    /// Writes an entry that is owned.
    fn write(&self, way: u32, key: &ObjectKey, value: &ObjectValue);
    /// Reads an entry that is owned.
    fn read(&self, way: u32) -> ObjectValue;
}

/// What became of an object that was to be entered in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It is there.
    Here,
    /// Its id is there already.
    Exists,
    /// There is no room, or another CPU was first to take it.
    NoRoom,
}

/// Enters an object, unless its id is in the bucket, or `elsewhere`.
///
/// Two programs enter the same id at the same time only if the target was given it twice at once; then the bucket may
/// hold it twice.
#[inline(always)]
pub fn enter<M: Memory>(
    bucket: &M,
    hash: u64,
    key: &ObjectKey,
    value: &ObjectValue,
    elsewhere: impl FnOnce() -> bool,
) -> Entered {
    let full = tag::full(hash);
    let mut free = WAYS as u32;
    let mut free_tag = 0;
    for way in 0..WAYS as u32 {
        let seen = bucket.tag(way);
        if tag::is_free(seen) {
            (free, free_tag) = (way, seen);
        } else if tag::plain(seen) == full && bucket.is_of(way, key) {
            return Entered::Exists;
        }
    }
    if elsewhere() {
        return Entered::Exists;
    }
    if free >= WAYS as u32 {
        return Entered::NoRoom;
    }
    // The compiler must not see how it came about: the verifier would not follow.
    let way = core::hint::black_box(free);
    let owned = tag::with(free_tag.wrapping_add(tag::VERSION), tag::OWNED);
    if bucket.swap_tag(way, free_tag, owned) != free_tag {
        return Entered::NoRoom;
    }
    bucket.write(way, key, value);
    bucket.set_tag(way, tag::with(owned, full));
    Entered::Here
}

/// Takes an object out. Only one of several that try gets it.
#[inline(always)]
pub fn take<M: Memory>(bucket: &M, hash: u64, key: &ObjectKey) -> Option<ObjectValue> {
    let full = tag::full(hash);
    for way in 0..WAYS as u32 {
        let seen = bucket.tag(way);
        // The swap fails if the entry has changed since its tag was read.
        if tag::plain(seen) == full
            && bucket.is_of(way, key)
            && bucket.swap_tag(way, seen, tag::with(seen, tag::OWNED)) == seen
        {
            let value = bucket.read(way);
            bucket.set_tag(way, tag::with(seen, 0));
            return Some(value);
        }
    }
    None
}

/// Whether an object is there.
#[inline(always)]
pub fn has<M: Memory>(bucket: &M, hash: u64, key: &ObjectKey) -> bool {
    let full = tag::full(hash);
    for way in 0..WAYS as u32 {
        if tag::plain(bucket.tag(way)) == full && bucket.is_of(way, key) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use std::{collections::HashMap, sync::Mutex, thread, vec::Vec};

    use super::*;
    use crate::{
        granule::{Generation, SlotNumber},
        maps::ObjectEntry,
    };

    const WORDS: usize = size_of::<ObjectEntry>() / 8;

    /// A bucket in ordinary memory. Between any two of its steps another thread may run: each yields now and then.
    #[derive(Default)]
    struct Shared {
        tags: [AtomicU64; WAYS],
        entries: [[AtomicU64; WORDS]; WAYS],
        steps: AtomicU64,
    }

    impl Shared {
        fn step(&self) {
            if (self.steps.fetch_add(0x9e37_79b9, Ordering::Relaxed) >> 5).is_multiple_of(8) {
                thread::yield_now();
            }
        }

        fn entry(&self, way: u32) -> ObjectEntry {
            let mut words = [0u64; WORDS];
            for (to, from) in words.iter_mut().zip(&self.entries[way as usize]) {
                *to = from.load(Ordering::Relaxed);
                self.step();
            }
            bytemuck::cast(words)
        }
    }

    impl Memory for Shared {
        fn tag(&self, way: u32) -> u64 {
            self.step();
            self.tags[way as usize].load(Ordering::Acquire)
        }
        fn swap_tag(&self, way: u32, expected: u64, tag: u64) -> u64 {
            self.step();
            let tags = &self.tags[way as usize];
            match tags.compare_exchange(expected, tag, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(seen) | Err(seen) => seen,
            }
        }
        fn set_tag(&self, way: u32, tag: u64) {
            self.step();
            self.tags[way as usize].store(tag, Ordering::Release);
        }
        fn is_of(&self, way: u32, key: &ObjectKey) -> bool {
            self.entry(way).key == *key
        }
        fn write(&self, way: u32, key: &ObjectKey, value: &ObjectValue) {
            let words: [u64; WORDS] = bytemuck::cast(ObjectEntry { key: *key, value: *value });
            for (to, from) in self.entries[way as usize].iter().zip(words) {
                to.store(from, Ordering::Relaxed);
                self.step();
            }
        }
        fn read(&self, way: u32) -> ObjectValue {
            self.entry(way).value
        }
    }

    fn key(id: u64) -> ObjectKey {
        ObjectKey { target: 1, scope: 2, id }
    }

    /// Its parts belong together, so that a mixture of two is recognised.
    fn value(id: u64, use_of_it: u64) -> ObjectValue {
        let mixed = id.wrapping_mul(0x9e37_79b9) ^ use_of_it;
        ObjectValue {
            slot: SlotNumber::new(mixed as u32),
            generation: Generation::new(!mixed as u32),
            size: use_of_it,
            series: id as u32,
            site: 0,
            born_ns: !mixed,
        }
    }

    /// Twelve ids for eight ways, whose fingerprints collide in fours; four threads own each for one use after
    /// another. What one entered the next takes out, as it was, from the bucket or from behind it.
    #[test]
    fn ids_go_from_thread_to_thread() {
        const IDS: usize = 12;
        const USES: u64 = 40_000;
        let bucket = Shared::default();
        let behind = Mutex::new(HashMap::new());
        // Each id's number of uses; odd while it is entered. Its owner may go on.
        let uses: [AtomicU64; IDS] = Default::default();
        let owned: [AtomicBool; IDS] = Default::default();
        let overflown = AtomicUsize::new(0);
        let work = |seed: usize| {
            for turn in 0..USES as usize {
                let id = (turn * 7 + seed * 5 + turn / 11) % IDS;
                if owned[id].swap(true, Ordering::Acquire) {
                    continue;
                }
                let (key, hash) = (key(id as u64), (id % 3) as u64);
                let number = uses[id].load(Ordering::Relaxed);
                if number.is_multiple_of(2) {
                    assert!(!has(&bucket, hash, &key), "id {id} is not there before use {number}");
                    let value = value(id as u64, number);
                    match enter(&bucket, hash, &key, &value, || false) {
                        Entered::Here => {}
                        Entered::NoRoom => {
                            overflown.fetch_add(1, Ordering::Relaxed);
                            behind.lock().map(|mut map| map.insert(id, value)).ok();
                        }
                        Entered::Exists => panic!("id {id} is there before use {number}"),
                    }
                } else {
                    let found = take(&bucket, hash, &key)
                        .or_else(|| behind.lock().ok().and_then(|mut map| map.remove(&id)));
                    assert_eq!(found, Some(value(id as u64, number - 1)), "id {id}, use {number}");
                }
                uses[id].store(number + 1, Ordering::Relaxed);
                owned[id].store(false, Ordering::Release);
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
        });
        assert!(overflown.into_inner() > 0, "the bucket was never full");
        assert!(uses.iter().all(|uses| uses.load(Ordering::Relaxed) > 2 * WAYS as u64));
    }

    /// Of threads that take one object at the same time one gets it, each time.
    #[test]
    fn one_taker_gets_it() {
        const ROUNDS: usize = 3_000;
        const TAKERS: usize = 3;
        let bucket = Shared::default();
        let barrier = std::sync::Barrier::new(TAKERS);
        let got = AtomicUsize::new(0);
        thread::scope(|scope| {
            for taker in 0..TAKERS {
                let (bucket, barrier, got) = (&bucket, &barrier, &got);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let key = key(round as u64 % 3);
                        if taker == 0 {
                            let value = value(key.id, round as u64);
                            assert_eq!(enter(bucket, 7, &key, &value, || false), Entered::Here);
                        }
                        barrier.wait();
                        if take(bucket, 7, &key).is_some() {
                            got.fetch_add(1, Ordering::Relaxed);
                        }
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(got.into_inner(), ROUNDS);
    }

    /// An entry that has changed hands while another thread read it is recognised, also where key and
    /// fingerprint are the same again.
    #[test]
    fn each_use_has_a_version() {
        let bucket = Shared::default();
        let (key, hash) = (key(9), 5);
        assert_eq!(enter(&bucket, hash, &key, &value(9, 0), || false), Entered::Here);
        let way = (0..WAYS as u32).find(|way| !tag::is_free(bucket.tag(*way)));
        let Some(way) = way else { panic!("no entry is taken") };
        let seen = bucket.tag(way);
        assert_eq!(take(&bucket, hash, &key), Some(value(9, 0)));
        assert_eq!(enter(&bucket, hash, &key, &value(9, 1), || false), Entered::Here);
        assert_ne!(bucket.tag(way), seen);
        assert_eq!(tag::plain(bucket.tag(way)), tag::plain(seen));
    }

    /// An id is refused while it is in the bucket or behind it; a full bucket takes none.
    #[test]
    fn what_is_refused() {
        let bucket = Shared::default();
        for id in 0..WAYS as u64 {
            assert_eq!(enter(&bucket, 1, &key(id), &value(id, 0), || false), Entered::Here);
        }
        assert_eq!(enter(&bucket, 1, &key(3), &value(3, 1), || false), Entered::Exists);
        assert_eq!(enter(&bucket, 1, &key(99), &value(99, 0), || true), Entered::Exists);
        assert_eq!(enter(&bucket, 1, &key(99), &value(99, 0), || false), Entered::NoRoom);
        assert_eq!(take(&bucket, 1, &key(99)), None);
        assert_eq!(take(&bucket, 1, &key(3)), Some(value(3, 0)));
        assert!(!has(&bucket, 1, &key(3)) && has(&bucket, 1, &key(4)));
        assert_eq!(enter(&bucket, 1, &key(99), &value(99, 0), || false), Entered::Here);
    }

    /// Versions wrap into one another and leave state and fingerprint alone.
    #[test]
    fn versions_wrap() {
        let last = tag::with(!0, 0);
        assert!(tag::is_free(last));
        let owned = tag::with(last.wrapping_add(tag::VERSION), tag::OWNED);
        assert_eq!(owned, tag::OWNED);
    }
}

//! The table of live objects, and the map behind it.

use std::{mem::offset_of, os::fd::OwnedFd, sync::atomic::Ordering};

use aya::{
    Ebpf,
    maps::{HashMap, MapData},
};
use drainprof_common::maps::{Bucket, ObjectEntry, ObjectKey, ObjectValue, WAYS, cursor, tag};

use super::{
    BpfError, Sizes,
    granules::BPF_NOEXIST,
    load::{Plain, descriptor, mapped, take},
    memory::{Cursors, Mapped},
    names,
    removal::take_out,
};

/// Objects by their ids.
pub(super) struct Objects {
    buckets: Mapped<Bucket>,
    /// Those that found their bucket full.
    map: HashMap<MapData, Plain<ObjectKey>, Plain<ObjectValue>>,
    /// The same map, for what aya does not do with it.
    map_fd: OwnedFd,
    /// Objects that the map has room for.
    most: u32,
    cursors: Cursors,
}

impl Objects {
    pub(super) fn take(
        ebpf: &mut Ebpf,
        sizes: &Sizes,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
        Ok(Self {
            buckets: mapped(ebpf, names::OBJECT_BUCKETS, sizes.buckets() as usize)?,
            map_fd: descriptor(ebpf, names::OBJECTS)?,
            map: take(ebpf, names::OBJECTS)?,
            most: sizes.overflow(),
            cursors: cursors.clone(),
        })
    }

    /// Shows every object with its id. While programs run, some that come or go meanwhile are missed.
    pub(super) fn each(&self, mut show: impl FnMut(u64, ObjectValue)) {
        // Most words of buckets are not looked at: empty entries.
        for index in 0..self.buckets.len() {
            let tags: [u64; WAYS] = self.buckets.part(index, 0);
            for (way, seen) in tags.into_iter().enumerate() {
                if seen & tag::STATE != tag::FULL {
                    continue;
                }
                let entry = (offset_of!(Bucket, entries) + way * size_of::<ObjectEntry>()) / 8;
                let object: ObjectEntry = self.buckets.part(index, entry);
                // Where the tag has changed the object went, and another may stand in its place.
                let tag = self.buckets.word(index, way);
                if tag.is_some_and(|tag| tag.load(Ordering::Acquire) == seen) {
                    show(object.key.id, object.value);
                }
            }
        }
        if self.cursors.level(cursor::OBJECTS) != 0 {
            for (key, object) in self.map.iter().filter_map(Result::ok) {
                show(key.0.id, object.0);
            }
        }
    }

    /// Takes out stale objects, if they crowd the table out; returns how many, and how many were used in that instant.
    pub(super) fn reclaim(&mut self, is_stale: impl Fn(&ObjectValue) -> bool) -> (usize, u64) {
        if !self.cursors.is_filling(cursor::OBJECTS, self.most) {
            return (0, 0);
        }
        let (mut removed, mut raced) = (0, 0);
        for index in 0..self.buckets.len() {
            let bucket = self.buckets.get(index);
            for way in 0..WAYS {
                let seen = bucket.tags[way];
                if seen & tag::STATE != tag::FULL || !is_stale(&bucket.entries[way].value) {
                    continue;
                }
                // Tags come first in a bucket. The swap fails if the entry is another one by now.
                let Some(word) = self.buckets.word(index, way) else { continue };
                let free = tag::with(seen, 0);
                if word.compare_exchange(seen, free, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    removed += 1;
                }
            }
        }
        let overflown = self.map.iter().filter_map(Result::ok);
        let stale: Vec<_> =
            overflown.filter(|(_, object)| is_stale(&object.0)).map(|(key, _)| key).collect();
        for key in stale {
            // Some ids have been given out again since the first of them was listed.
            if !self.map.get(&key, 0).is_ok_and(|object| is_stale(&object.0)) {
                continue;
            }
            let Ok(Some(object)) = take_out::<_, ObjectValue>(&self.map_fd, &key.0) else {
                continue;
            };
            if !is_stale(&object) {
                // In this very instant. A free may have looked for it meanwhile.
                raced += 1;
                if self.map.insert(key, Plain(object), BPF_NOEXIST).is_ok() {
                    continue;
                }
            }
            self.cursors.add(cursor::OBJECTS, u64::MAX);
            removed += 1;
        }
        (removed, raced)
    }
}

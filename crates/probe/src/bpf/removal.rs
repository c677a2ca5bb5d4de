//! The two commands of the system call bpf(2) that aya lacks for hash maps: one takes an entry out and returns it (a
//! removal by key alone would also remove what a probe has put there an instant before), one reads many entries.
//!
//! Called by `granules` and `objects`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use aya_obj::generated::bpf_cmd;
use bytemuck::Pod;
use nix::libc;

use super::syscall;

/// Entries that are asked for at once, to begin with.
const FIRST_BATCH: u32 = 4096;
/// Entries that are asked for at most, where one bucket of the map has more than were asked for.
const MAX_BATCH: u32 = 1 << 20;

/// Calls `each` with entries of a hash map, a part at a time, until all were shown. Entries that come or go meanwhile may
/// be missing, or be shown twice.
pub(super) fn read_parts<K: Pod, V: Pod>(
    map: &OwnedFd,
    mut each: impl FnMut(&[K], &[V]) -> io::Result<()>,
) -> io::Result<()> {
    let mut room = FIRST_BATCH;
    let (mut keys, mut values) = (Vec::<K>::new(), Vec::<V>::new());
    // Where the kernel goes on: a bucket's number, in a hash map.
    let mut position = 0u32;
    let mut begun = false;
    loop {
        keys.resize(room as usize, K::zeroed());
        values.resize(room as usize, V::zeroed());
        let mut next = 0u32;
        let mut arguments = syscall::nothing();
        arguments.batch.in_batch = if begun { std::ptr::from_ref(&position) as u64 } else { 0 };
        arguments.batch.out_batch = std::ptr::from_mut(&mut next) as u64;
        arguments.batch.keys = keys.as_mut_ptr() as u64;
        arguments.batch.values = values.as_mut_ptr() as u64;
        arguments.batch.count = room;
        arguments.batch.map_fd = map.as_raw_fd().cast_unsigned();
        // Hash maps have this since Linux 5.6.
        // SAFETY: the kernel writes at most `count` keys and values, for which there is room, the position, and the
        // count itself into the arguments.
        let result = unsafe { syscall::call(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut arguments) };
        let error = (result != 0).then(io::Error::last_os_error);
        let last = match error.as_ref().map(io::Error::raw_os_error) {
            None => false,
            Some(Some(libc::ENOENT)) => true,
            // A bucket has more entries than there is room for.
            Some(Some(libc::ENOSPC)) if room < MAX_BATCH => {
                room *= 4;
                continue;
            }
            Some(_) => return Err(error.unwrap_or_else(|| io::ErrorKind::Other.into())),
        };
        // SAFETY: integers, which the kernel has written.
        let count = unsafe { arguments.batch.count };
        let read = (count as usize).min(keys.len());
        each(&keys[..read], &values[..read])?;
        if last {
            return Ok(());
        }
        (position, begun) = (next, true);
    }
}

/// Takes the entry of `key` out of a hash map: what it was; `None` where there is no such entry. `K` and `V` are the
/// types of the map's keys and values.
pub(super) fn take_out<K: Pod, V: Pod>(map: &OwnedFd, key: &K) -> io::Result<Option<V>> {
    let mut value = V::zeroed();
    let mut arguments = syscall::nothing();
    arguments.__bindgen_anon_2.map_fd = map.as_raw_fd().cast_unsigned();
    arguments.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
    arguments.__bindgen_anon_2.__bindgen_anon_1.value = std::ptr::from_mut(&mut value) as u64;
    // Hash maps have this since Linux 5.14.
    // SAFETY: the kernel reads the key and writes the value, both of the map's sizes.
    let result = unsafe { syscall::call(bpf_cmd::BPF_MAP_LOOKUP_AND_DELETE_ELEM, &mut arguments) };
    if result == 0 {
        return Ok(Some(value));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        error => Err(error),
    }
}

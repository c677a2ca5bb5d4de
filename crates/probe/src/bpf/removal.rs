//! The two commands of the system call bpf(2) that aya lacks for hash maps: one takes an entry out and returns it (a
//! removal by key alone would also remove what a probe has put there an instant before), one reads many entries.
//!
//! Called by `granules` and `objects`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use bytemuck::Pod;
use nix::libc;

/// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`; hash maps know it since Linux 5.14.
const LOOKUP_AND_DELETE: libc::c_long = 21;

/// `BPF_MAP_LOOKUP_BATCH`; hash maps know it since Linux 5.6.
const LOOKUP_BATCH: libc::c_long = 24;
/// Entries that are asked for at once, to begin with.
const BATCH: u32 = 4096;
/// Entries that are asked for at most, where one bucket of the map has more than were asked for.
const MOST: u32 = 1 << 20;

/// What the kernel calls `union bpf_attr`, as far as reading many entries reads it.
#[repr(C)]
struct Batch {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// Calls `each` with entries of a hash map, a part at a time, until all were shown. Entries that come or go meanwhile may
/// be missing, or be shown twice.
pub(super) fn read_parts<K: Pod, V: Pod>(
    map: &OwnedFd,
    mut each: impl FnMut(&[K], &[V]) -> io::Result<()>,
) -> io::Result<()> {
    let mut room = BATCH;
    let (mut keys, mut values) = (Vec::<K>::new(), Vec::<V>::new());
    // Where the kernel goes on: a bucket's number, in a hash map.
    let mut position = 0u32;
    let mut begun = false;
    loop {
        keys.resize(room as usize, K::zeroed());
        values.resize(room as usize, V::zeroed());
        let mut next = 0u32;
        let mut arguments = Batch {
            from: if begun { std::ptr::from_ref(&position) as u64 } else { 0 },
            to: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: room,
            map: map.as_raw_fd().cast_unsigned(),
            element_flags: 0,
            flags: 0,
        };
        // SAFETY: the kernel writes at most `count` keys and values, for which there is room, the position, and the
        // count itself into the arguments.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, LOOKUP_BATCH, &raw mut arguments, size_of::<Batch>())
        };
        let error = (result != 0).then(io::Error::last_os_error);
        let last = match error.as_ref().map(io::Error::raw_os_error) {
            None => false,
            Some(Some(libc::ENOENT)) => true,
            // A bucket has more entries than there is room for.
            Some(Some(libc::ENOSPC)) if room < MOST => {
                room *= 4;
                continue;
            }
            Some(_) => return Err(error.unwrap_or_else(|| io::ErrorKind::Other.into())),
        };
        let read = (arguments.count as usize).min(keys.len());
        each(&keys[..read], &values[..read])?;
        if last {
            return Ok(());
        }
        (position, begun) = (next, true);
    }
}

/// What the kernel calls `union bpf_attr`, as far as taking an entry out reads it.
#[repr(C)]
struct Arguments {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Takes the entry of `key` out of a hash map: what it was; `None` where there is no such entry. `K` and `V` are the
/// types of the map's keys and values.
pub(super) fn take_out<K: Pod, V: Pod>(map: &OwnedFd, key: &K) -> io::Result<Option<V>> {
    let mut value = V::zeroed();
    let arguments = Arguments {
        map: map.as_raw_fd().cast_unsigned(),
        reserved: 0,
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_mut(&mut value) as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads the arguments and the key, both of the stated sizes, and writes the value.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            LOOKUP_AND_DELETE,
            &raw const arguments,
            size_of::<Arguments>(),
        )
    };
    if result == 0 {
        return Ok(Some(value));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        error => Err(error),
    }
}

//! The one command of the system call bpf(2) that aya has not got for hash maps: to take an entry out and be
//! told what was in it. A removal by key alone would also remove what a probe has put there an instant before.
//!
//! Called by `relieve`.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use bytemuck::Pod;
use nix::libc;

/// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`; hash maps know it since Linux 5.14.
const LOOKUP_AND_DELETE: libc::c_long = 21;

/// What the kernel calls `union bpf_attr`, as far as this command reads it.
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

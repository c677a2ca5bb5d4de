//! The kernel's maps of a process, as the kernel reports them: how many entries its hash maps have.

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use nix::libc;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Of `enum bpf_cmd` in `linux/bpf.h`.
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
/// `BPF_MAP_TYPE_HASH`.
const HASH: u32 = 1;
/// More keys than that are not counted.
const MAX_ENTRIES: u64 = 10_000_000;
/// Bytes of the largest key.
const KEY: usize = 256;

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct InfoAsked {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
struct NextAsked {
    fd: u32,
    reserved: u32,
    key: u64,
    next: u64,
}

/// How many entries the hash maps of a process have, by their names; several of one name are added up.
///
/// # Errors
/// If the process is gone, or may not be asked.
pub fn hash_entries(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    let process = Pid::from_raw(pid.cast_signed()).context("a pid is not 0")?;
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        // It may have been closed since it was listed.
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        if link.as_os_str() != "anon_inode:bpf-map" {
            continue;
        }
        let number: i32 = entry.file_name().to_string_lossy().parse()?;
        let Ok(map) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else { continue };
        let info = info(&map)?;
        if info.kind == HASH {
            let name = info.name.split(|byte| *byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            *all.entry(name).or_default() += entries(&map, &info)?;
        }
    }
    Ok(all)
}

fn info(map: &OwnedFd) -> Result<Info> {
    let mut info = Info::default();
    let asked = InfoAsked {
        fd: map.as_raw_fd().cast_unsigned(),
        length: u32::try_from(size_of::<Info>())?,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the kernel reads what is asked, of the stated size, and writes as many bytes as `info` has.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, &raw const asked, size_of::<InfoAsked>())
    };
    ensure!(result == 0, "ask about a map: {}", io::Error::last_os_error());
    Ok(info)
}

fn entries(map: &OwnedFd, info: &Info) -> Result<u64> {
    ensure!(info.key_size as usize <= KEY, "a key of {} bytes", info.key_size);
    let (mut key, mut next) = ([0u8; KEY], [0u8; KEY]);
    let mut count = 0;
    while count < MAX_ENTRIES {
        let asked = NextAsked {
            fd: map.as_raw_fd().cast_unsigned(),
            reserved: 0,
            key: if count == 0 { 0 } else { key.as_mut_ptr() as u64 },
            next: next.as_mut_ptr() as u64,
        };
        // SAFETY: the kernel reads what is asked, and reads and writes keys, for which there is room.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, MAP_GET_NEXT_KEY, &raw const asked, size_of::<NextAsked>())
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            ensure!(error.raw_os_error() == Some(libc::ENOENT), "list a map: {error}");
            break;
        }
        (key, count) = (next, count + 1);
    }
    Ok(count)
}

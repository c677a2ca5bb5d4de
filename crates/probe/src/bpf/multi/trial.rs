//! Whether links that go quickly work here, asked of the kernel: with one on a function of drainprof itself.

use std::{
    fs::File,
    hint::black_box,
    io,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use aya_obj::{
    copy_instructions,
    generated::{bpf_cmd, bpf_map_type},
};
use drainprof_process::mapped_objects;
use nix::libc;

use super::super::{location::Location, placing, syscall};

/// The file that is probed.
const OWN: &str = "/proc/self/exe";
/// Longest time for that.
const PATIENCE: Duration = Duration::from_secs(1);
/// r0 = 0; return
const RETURN: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// What is probed.
#[inline(never)]
extern "C" fn landing() {
    black_box(());
}

/// Whether the kernel has such links at all: then it refuses a directory for what it is.
pub(super) fn are_known() -> io::Result<bool> {
    let program = load(&RETURN)?;
    let path = PathBuf::from("/");
    let location = Location { path, offset: 0, counter: None, cookie: 0, pid: None };
    let refused = syscall::link(program.as_fd(), false, &location).err();
    Ok(refused.is_some_and(|error| error.raw_os_error() == Some(libc::EBADF)))
}

/// Whether a hit counts in a thread that is not the process's first: before Linux 6.10 some kernels let these links count
/// in that one alone.
pub(super) fn counts_in_all_threads() -> io::Result<bool> {
    let count = array()?;
    let program = program(&count)?;
    let own = mapped_objects(std::process::id()).map_err(io::Error::other)?;
    let offset = own.iter().find_map(|object| object.file_offset(landing as *const () as u64));
    let location = Location {
        path: PathBuf::from(OWN),
        offset: offset.ok_or(io::ErrorKind::NotFound)?,
        counter: None,
        cookie: 0,
        pid: NonZeroU32::new(std::process::id()),
    };
    let own = Arc::new(File::open(OWN)?);
    let work = move || syscall::link(program.as_fd(), false, &location);
    let link = placing::place(&own, PATIENCE, (), work)
        .map_err(|refused| io::Error::other(format!("{refused:?}")))?;
    // In a thread of its own, also where the caller is not the first.
    let thread = thread::Builder::new().name("trial".to_owned()).spawn(|| black_box(landing)())?;
    let ended = thread.join();
    drop(link);
    Ok(ended.is_ok() && read(&count)? == 1)
}

/// An array of one number.
fn array() -> io::Result<OwnedFd> {
    let kind = bpf_map_type::BPF_MAP_TYPE_ARRAY;
    syscall::create_map(kind, size_of::<u32>(), size_of::<u64>(), 1)
}

fn read(array: &OwnedFd) -> io::Result<u64> {
    let (key, mut value) = (0u32, 0u64);
    let mut arguments = syscall::nothing();
    arguments.__bindgen_anon_2.map_fd = array.as_raw_fd().cast_unsigned();
    arguments.__bindgen_anon_2.key = std::ptr::from_ref(&key) as u64;
    arguments.__bindgen_anon_2.__bindgen_anon_1.value = std::ptr::from_mut(&mut value) as u64;
    // SAFETY: the kernel reads the key and writes the value, of the map's sizes.
    let result = unsafe { syscall::call(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut arguments) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A program that adds one to the number.
fn program(array: &OwnedFd) -> io::Result<OwnedFd> {
    let mut code = Vec::new();
    // r1 = the address of the map's value, in two parts
    code.extend([0x18, 0x21, 0, 0]);
    code.extend(array.as_raw_fd().to_ne_bytes());
    code.extend([0; 8]);
    // r2 = 1
    code.extend([0xb7, 0x02, 0, 0, 1, 0, 0, 0]);
    // *(u64 *)r1 += r2, atomically
    code.extend([0xdb, 0x21, 0, 0, 0, 0, 0, 0]);
    code.extend(RETURN);
    load(&code)
}

fn load(code: &[u8]) -> io::Result<OwnedFd> {
    let instructions = copy_instructions(code).map_err(io::Error::other)?;
    syscall::load(syscall::UPROBE_MULTI, c"GPL", &instructions, None)
}

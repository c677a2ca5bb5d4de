//! The system call bpf(2), for what aya 0.14 cannot do: links of many probes, maps of our own, the machine code of programs.

use std::{
    ffi::{CStr, CString},
    io,
    num::NonZeroU32,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
};

use aya_obj::{
    btf::FuncSecInfo,
    generated::{
        BPF_F_UPROBE_MULTI_RETURN, bpf_attach_type, bpf_attr,
        bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_7, bpf_cmd, bpf_insn, bpf_map_type,
        bpf_prog_info, bpf_prog_type,
    },
};
use nix::libc;

use super::location::Location;

/// Attached through `perf_event_open`.
pub(super) const PLAIN: u32 = 0;
/// Attached through links of many probes.
pub(super) const UPROBE_MULTI: u32 = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
/// How often a load that was interrupted is tried.
const TRIES: u32 = 10;

/// Arguments of which nothing is set.
pub(super) fn nothing() -> bpf_attr {
    // SAFETY: a union of structures of integers, for which zeros are valid, and mean "not given".
    unsafe { std::mem::zeroed() }
}

/// Calls bpf(2).
///
/// # Safety
///
/// The pointers in `arguments` are those that the command asks for, and valid.
pub(super) unsafe fn call(command: bpf_cmd, arguments: &mut bpf_attr) -> libc::c_long {
    let arguments = std::ptr::from_mut(arguments);
    // SAFETY: the kernel reads the arguments, of the stated size, and what the caller vouches for.
    unsafe { libc::syscall(libc::SYS_bpf, command as u32, arguments, size_of::<bpf_attr>()) }
}

/// The same for a new descriptor.
///
/// # Safety
///
/// As for [`call`].
pub(super) unsafe fn descriptor(command: bpf_cmd, arguments: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for the arguments.
    owned(unsafe { call(command, arguments) })
}

/// The descriptor that a system call has just returned, or its error.
pub(super) fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the system call has just returned it: it has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Loads the types of an object (BTF).
pub(super) fn load_types(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut arguments = nothing();
    arguments.__bindgen_anon_7.btf = bytes.as_ptr() as u64;
    arguments.__bindgen_anon_7.btf_size = bytes.len() as u32;
    // SAFETY: the bytes outlive the call.
    unsafe { descriptor(bpf_cmd::BPF_BTF_LOAD, &mut arguments) }
}

/// Creates a map without types.
pub(super) fn create_map(
    kind: bpf_map_type,
    key_size: usize,
    value_size: usize,
    entries: u32,
) -> io::Result<OwnedFd> {
    create(kind, key_size, value_size, entries, None)
}

/// An array of programs that stays empty, as `NO_PROGRAM` is. Kernels let programs share one only if they are attached in
/// the same way.
pub(super) fn no_program() -> io::Result<OwnedFd> {
    create_map(bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 1)
}

/// Creates an array of one map, of the kind of `inner`.
pub(super) fn create_array_of_maps(inner: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    create(bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 1, Some(inner))
}

fn create(
    kind: bpf_map_type,
    key_size: usize,
    value_size: usize,
    entries: u32,
    inner: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut arguments = nothing();
    arguments.__bindgen_anon_1.map_type = kind as u32;
    arguments.__bindgen_anon_1.key_size = key_size as u32;
    arguments.__bindgen_anon_1.value_size = value_size as u32;
    arguments.__bindgen_anon_1.max_entries = entries;
    if let Some(inner) = inner {
        arguments.__bindgen_anon_1.inner_map_fd = inner.as_raw_fd().cast_unsigned();
    }
    // SAFETY: there are no pointers.
    unsafe { descriptor(bpf_cmd::BPF_MAP_CREATE, &mut arguments) }
}

/// Puts a map into an array of maps, and waits until no program uses what was there before.
pub(super) fn set(array: BorrowedFd<'_>, index: u32, map: BorrowedFd<'_>) -> io::Result<()> {
    let map = map.as_raw_fd();
    let mut arguments = nothing();
    arguments.__bindgen_anon_2.map_fd = array.as_raw_fd().cast_unsigned();
    arguments.__bindgen_anon_2.key = std::ptr::from_ref(&index) as u64;
    arguments.__bindgen_anon_2.__bindgen_anon_1.value = std::ptr::from_ref(&map) as u64;
    // SAFETY: the kernel reads the key and the value, of the map's sizes.
    let result = unsafe { call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut arguments) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The machine code of a program and of the functions that it calls, one behind the other; `None` where the kernel does not
/// show it (without `CAP_SYSLOG`, or by `kernel.kptr_restrict`), or has made none.
pub(super) fn machine_code(program: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut code = vec![0; info(program, &mut [], &mut [])?.jited_prog_len as usize];
    let read = info(program, &mut code, &mut [])?;
    let is_shown = read.jited_prog_insns != 0 && read.jited_prog_len as usize == code.len();
    Ok((is_shown && !code.is_empty()).then_some(code))
}

/// The instructions of a program and of the functions that it calls, as the verifier has left them; `None` where the kernel
/// does not show them.
pub(super) fn instructions(program: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut code = vec![0; info(program, &mut [], &mut [])?.xlated_prog_len as usize];
    let read = info(program, &mut [], &mut code)?;
    let is_shown = read.xlated_prog_insns != 0 && read.xlated_prog_len as usize == code.len();
    Ok((is_shown && !code.is_empty()).then_some(code))
}

/// How often a program was not run, since it was running on that CPU already, or another was.
pub(super) fn missed(program: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(info(program, &mut [], &mut [])?.recursion_misses)
}

/// What the kernel says of a program, with as much of its machine code and its instructions as there is room for.
fn info(
    program: BorrowedFd<'_>,
    machine_code: &mut [u8],
    instructions: &mut [u8],
) -> io::Result<bpf_prog_info> {
    // SAFETY: a structure of integers, for which zeros are valid, and mean "not asked for".
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    info.jited_prog_len = machine_code.len() as u32;
    info.jited_prog_insns = machine_code.as_mut_ptr() as u64;
    info.xlated_prog_len = instructions.len() as u32;
    info.xlated_prog_insns = instructions.as_mut_ptr() as u64;
    let mut arguments = nothing();
    arguments.info.bpf_fd = program.as_raw_fd().cast_unsigned();
    arguments.info.info_len = size_of::<bpf_prog_info>() as u32;
    arguments.info.info = std::ptr::from_mut(&mut info) as u64;
    // SAFETY: the kernel writes the structure, and as much into both slices as they are long.
    let result = unsafe { call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut arguments) };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// Loads instructions for such places. `functions`: the descriptor of the types, and what they say of the functions, in
/// records of the stated size.
pub(super) fn load(
    places: u32,
    license: &CStr,
    instructions: &[bpf_insn],
    functions: Option<(BorrowedFd<'_>, &FuncSecInfo, usize)>,
) -> io::Result<OwnedFd> {
    let mut arguments = nothing();
    let of = &mut arguments;
    of.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    of.__bindgen_anon_3.expected_attach_type = places;
    of.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    of.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
    of.__bindgen_anon_3.license = license.as_ptr() as u64;
    let records = functions.map_or_else(Vec::new, |(_, records, _)| records.func_info_bytes());
    if let Some((types, functions, size)) = functions.filter(|(.., size)| *size > 0) {
        of.__bindgen_anon_3.prog_btf_fd = types.as_raw_fd().cast_unsigned();
        of.__bindgen_anon_3.func_info = records.as_ptr() as u64;
        of.__bindgen_anon_3.func_info_cnt = functions.len() as u32;
        of.__bindgen_anon_3.func_info_rec_size = size as u32;
    }
    let mut tries = 0;
    loop {
        // SAFETY: the instructions, the licence and the records outlive the call.
        match unsafe { descriptor(bpf_cmd::BPF_PROG_LOAD, &mut arguments) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < TRIES => tries += 1,
            result => return result,
        }
    }
}

/// A link from a program to an event, with a cookie (since Linux 5.15). It keeps the event.
pub(super) fn link_event(
    program: BorrowedFd<'_>,
    event: BorrowedFd<'_>,
    cookie: u64,
) -> io::Result<OwnedFd> {
    let mut arguments = nothing();
    let of = &mut arguments;
    of.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    of.link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
    of.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    of.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    // SAFETY: there are no pointers.
    unsafe { descriptor(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
}

/// A link of many probes from a program to one location, at the entry or at the return of the function that begins there.
pub(super) fn link(
    program: BorrowedFd<'_>,
    at_return: bool,
    location: &Location,
) -> io::Result<OwnedFd> {
    let path = CString::new(location.path.as_os_str().as_bytes())?;
    let counter = location.counter.map(u64::from);
    let mut arguments = nothing();
    let of = &mut arguments;
    of.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    of.link_create.attach_type = UPROBE_MULTI;
    of.link_create.__bindgen_anon_3.uprobe_multi =
        bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_7 {
            path: path.as_ptr() as u64,
            offsets: std::ptr::from_ref(&location.offset) as u64,
            ref_ctr_offsets: counter
                .as_ref()
                .map_or(0, |counter| std::ptr::from_ref(counter) as u64),
            cookies: std::ptr::from_ref(&location.cookie) as u64,
            cnt: 1,
            flags: if at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
            pid: location.pid.map_or(0, NonZeroU32::get),
        };
    // SAFETY: the path, the offset, the counter and the cookie outlive the call; there is one of each.
    unsafe { descriptor(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
}

//! Three small eBPF programs that only read: which tasks have an address space whose lock is held, which object in the
//! kernel stands for a file, and what a word of the kernel's memory is.
//!
//! They are written instruction by instruction, since where fields stand is known only here and now (`types`). None of
//! them takes a lock of a process other than drainprof.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use aya_obj::{
    copy_instructions,
    generated::{
        BPF_F_SLEEPABLE, bpf_attach_type, bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_1,
        bpf_cmd, bpf_prog_type,
    },
};
use bytemuck::{Pod, Zeroable};

use super::{super::syscall, types::Types};

/// Numbers of helpers.
const PROBE_READ_KERNEL: i32 = 113;
const SEQ_WRITE: i32 = 127;
/// Bits of a lock's count that say nothing of who holds it: others wait, and one of them is to be next.
const WAITING: i32 = 0b110;
/// The operation that skips instructions where a register is a constant.
const IF_ZERO: u8 = 0x15;
/// Most that an iterator may say: records of more tasks than a machine has.
const MAX_BYTES: u64 = 64 << 20;

/// A task whose address space is locked, for reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Held {
    /// The address space.
    pub(super) space: u64,
    pub(super) count: u64,
    pub(super) pid: u32,
    pub(super) thread: u32,
    /// 0 where it runs.
    pub(super) state: u64,
}

/// A mapping of drainprof, and the kernel's object for what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Mapped {
    start: u64,
    object: u64,
}

/// What `peek` is given, and what it answers.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Word {
    address: u64,
    status: i64,
    value: u64,
}

/// The programs, loaded.
pub(super) struct Programs {
    /// The iterator over all tasks.
    tasks: OwnedFd,
    /// The program for one over mappings: each thread that asks needs a link of its own.
    mappings: OwnedFd,
    peek: OwnedFd,
}

impl Programs {
    pub(super) fn load(types: &Types) -> io::Result<Self> {
        let tracing = |name, code: Vec<[u8; 8]>| {
            let function = Some(types.function(name)?);
            load(bpf_prog_type::BPF_PROG_TYPE_TRACING, &code.concat(), function)
        };
        let tasks = tracing("bpf_iter_task", tasks(types)?)?;
        let mappings = tracing("bpf_iter_task_vma", mappings(types)?)?;
        let peek = load(bpf_prog_type::BPF_PROG_TYPE_SYSCALL, &peek().concat(), None)?;
        Ok(Self { tasks: link(tasks.as_fd(), None)?, mappings, peek })
    }

    /// All tasks whose address space is locked now.
    pub(super) fn held(&self) -> io::Result<Vec<Held>> {
        run(self.tasks.as_fd())
    }

    /// The kernel's object for what this process has mapped at `start`.
    pub(super) fn object_at(&self, start: u64) -> io::Result<u64> {
        let thread = nix::unistd::gettid().as_raw().cast_unsigned();
        let own = link(self.mappings.as_fd(), Some(thread))?;
        let all: Vec<Mapped> = run(own.as_fd())?;
        let found = all.into_iter().find(|one| one.start == start);
        found.map(|one| one.object).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// A word of the kernel's memory.
    pub(super) fn peek(&self, address: u64) -> io::Result<u64> {
        let mut word = Word { address, status: -1, value: 0 };
        let mut arguments = syscall::nothing();
        arguments.test.prog_fd = self.peek.as_raw_fd().cast_unsigned();
        arguments.test.ctx_in = std::ptr::from_mut(&mut word) as u64;
        arguments.test.ctx_size_in = size_of::<Word>() as u32;
        // SAFETY: the kernel reads and writes the word, of the stated size.
        let result = unsafe { syscall::call(bpf_cmd::BPF_PROG_TEST_RUN, &mut arguments) };
        match (result, word.status) {
            (0, 0) => Ok(word.value),
            (0, _) => Err(io::ErrorKind::InvalidData.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Writes a record for each task whose address space is locked.
fn tasks(types: &Types) -> io::Result<Vec<[u8; 8]>> {
    let task = |field| types.offset("task_struct", &[field]);
    let count = types.offset("mm_struct", &["mmap_lock", "count"])?;
    Ok(sending(
        32,
        vec![
            read(8, 6, 1, 0),
            read(8, 7, 1, 8),
            is_zero(7),
            read(8, 8, 7, task("mm")?),
            is_zero(8),
            read(8, 9, 8, count),
            copy(1, 9),
            op(0x57, 1, 0, 0, !WAITING),
            is_zero(1),
            write(8, 8, -32),
            write(8, 9, -24),
            read(4, 1, 7, task("tgid")?),
            write(4, 1, -16),
            read(4, 1, 7, task("pid")?),
            write(4, 1, -12),
            read(4, 1, 7, task("__state")?),
            write(8, 1, -8),
        ],
    ))
}

/// Writes a record for each mapping of a file.
fn mappings(types: &Types) -> io::Result<Vec<[u8; 8]>> {
    let mapping = |field| types.offset("vm_area_struct", &[field]);
    Ok(sending(
        16,
        vec![
            read(8, 6, 1, 0),
            read(8, 7, 1, 16),
            is_zero(7),
            read(8, 8, 7, mapping("vm_start")?),
            read(8, 9, 7, mapping("vm_file")?),
            is_zero(9),
            read(8, 9, 9, types.offset("file", &["f_mapping"])?),
            write(8, 8, -16),
            write(8, 9, -8),
        ],
    ))
}

/// Reads the word that its argument names.
fn peek() -> Vec<[u8; 8]> {
    vec![
        copy(6, 1),
        read(8, 3, 6, 0),
        op(0x7a, 10, 0, -8, 0),
        copy(1, 10),
        op(0x07, 1, 0, 0, -8),
        constant(2, 8),
        call(PROBE_READ_KERNEL),
        op(0x7b, 6, 0, 8, 0),
        read(8, 1, 10, -8),
        op(0x7b, 6, 1, 16, 0),
        constant(0, 0),
        end(),
    ]
}

/// A program that sends so many bytes from the end of its stack, and does not where a register was 0.
fn sending(bytes: i32, mut code: Vec<[u8; 8]>) -> Vec<[u8; 8]> {
    code.extend([
        read(8, 1, 6, 0),
        copy(2, 10),
        op(0x07, 2, 0, 0, -bytes),
        constant(3, bytes),
        call(SEQ_WRITE),
        constant(0, 0),
        end(),
    ]);
    let last = code.len() - 2;
    for (at, instruction) in code.iter_mut().enumerate().filter(|(_, one)| one[0] == IF_ZERO) {
        let skip = i16::try_from(last - at - 1).unwrap_or_default().to_ne_bytes();
        instruction[2..4].copy_from_slice(&skip);
    }
    code
}

/// One instruction.
const fn op(code: u8, to: u8, from: u8, offset: i16, value: i32) -> [u8; 8] {
    let (offset, value) = (offset.to_ne_bytes(), value.to_ne_bytes());
    [code, from << 4 | to, offset[0], offset[1], value[0], value[1], value[2], value[3]]
}

/// `to = *(from + offset)`, of 4 or 8 bytes.
const fn read(bytes: u8, to: u8, from: u8, offset: i16) -> [u8; 8] {
    op(if bytes == 8 { 0x79 } else { 0x61 }, to, from, offset, 0)
}

/// `*(stack + offset) = from`, of 4 or 8 bytes.
const fn write(bytes: u8, from: u8, offset: i16) -> [u8; 8] {
    op(if bytes == 8 { 0x7b } else { 0x63 }, 10, from, offset, 0)
}

const fn copy(to: u8, from: u8) -> [u8; 8] {
    op(0xbf, to, from, 0, 0)
}

const fn constant(to: u8, value: i32) -> [u8; 8] {
    op(0xb7, to, 0, 0, value)
}

/// Ends where a register is 0 (`sending`).
const fn is_zero(register: u8) -> [u8; 8] {
    op(IF_ZERO, register, 0, 0, 0)
}

const fn call(helper: i32) -> [u8; 8] {
    op(0x85, 0, 0, 0, helper)
}

const fn end() -> [u8; 8] {
    op(0x95, 0, 0, 0, 0)
}

/// Loads an iterator's program, or one that is run by a system call.
fn load(kind: bpf_prog_type, code: &[u8], function: Option<u32>) -> io::Result<OwnedFd> {
    let instructions = copy_instructions(code).map_err(io::Error::other)?;
    let mut arguments = syscall::nothing();
    let of = &mut arguments;
    of.__bindgen_anon_3.prog_type = kind as u32;
    of.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    of.__bindgen_anon_3.insn_cnt = instructions.len() as u32;
    of.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    if let Some(function) = function {
        of.__bindgen_anon_3.expected_attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
        of.__bindgen_anon_3.attach_btf_id = function;
    } else {
        of.__bindgen_anon_3.prog_flags = BPF_F_SLEEPABLE;
    }
    // SAFETY: the instructions and the licence outlive the call.
    unsafe { syscall::descriptor(bpf_cmd::BPF_PROG_LOAD, &mut arguments) }
}

/// An iterator over all tasks, or over one thread alone.
fn link(program: BorrowedFd<'_>, thread: Option<u32>) -> io::Result<OwnedFd> {
    // What the kernel calls `union bpf_iter_link_info`, for tasks: a thread, a process, a descriptor of one.
    let only = [thread.unwrap_or_default(), 0, 0, 0];
    let mut arguments = syscall::nothing();
    let of = &mut arguments;
    of.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    of.link_create.attach_type = bpf_attach_type::BPF_TRACE_ITER as u32;
    if thread.is_some() {
        of.link_create.__bindgen_anon_3.__bindgen_anon_1 =
            bpf_attr__bindgen_ty_14__bindgen_ty_3__bindgen_ty_1 {
                iter_info: only.as_ptr() as u64,
                iter_info_len: size_of_val(&only) as u32,
            };
    }
    // SAFETY: what is said of the thread outlives the call. A kernel that does not know it refuses it.
    unsafe { syscall::descriptor(bpf_cmd::BPF_LINK_CREATE, &mut arguments) }
}

/// Lets an iterator run, and returns its records.
fn run<T: Pod>(link: BorrowedFd<'_>) -> io::Result<Vec<T>> {
    let mut arguments = syscall::nothing();
    arguments.iter_create.link_fd = link.as_raw_fd().cast_unsigned();
    // SAFETY: there are no pointers.
    let iterator = unsafe { syscall::descriptor(bpf_cmd::BPF_ITER_CREATE, &mut arguments) }?;
    let mut bytes = Vec::new();
    File::from(iterator).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
}

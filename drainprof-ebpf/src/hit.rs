//! One hit of a probe: whose it is, what its spec says, and what its expressions yield.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{
        bpf_get_attach_cookie, bpf_get_current_pid_tgid, bpf_ktime_get_ns,
        generated::bpf_probe_read_user,
    },
};
use drainprof_common::{
    interp::{self, FILE_WORDS, File, INPUTS, Machine, Outcome, Values},
    loss::Loss,
    maps::{TargetValue, target_flags, target_word},
    spec::{AT_PLACE, Cookie, Kind, MAX_SIMPLE, ProbeSpec, Simple, flags, op, value},
};

use crate::{
    atomic, config,
    global::{global, scalars},
    granule::Mode,
    losses, maps, moved, walk,
};

/// A hit in a traced process.
pub(crate) struct Hit {
    /// Process and thread, as `bpf_get_current_pid_tgid` has them; 0 where the hit did not need to know.
    pub(crate) pid_tgid: u64,
    /// Index of the spec.
    pub(crate) index: u32,
    /// The spec, in map memory that nobody writes while probes are attached.
    pub(crate) spec: *const ProbeSpec,
    /// The target's index.
    pub(crate) target: u32,
    /// Its flags.
    pub(crate) target_flags: u32,
    /// Inputs, and what the expressions yield; in the program's own stack frame or in the call's.
    pub(crate) file: *mut File,
    /// Stack pointer at entry.
    pub(crate) rsp: u64,
    /// Allocs that were counted inside this call.
    pub(crate) nested: u64,
    /// Whether the program is one that asks for call paths: known when it is compiled, so that the others have
    /// nothing of it.
    pub(crate) asks_path: bool,
}

impl Hit {
    /// Bits of [`flags`].
    #[inline(always)]
    pub(crate) fn flags(&self) -> u32 {
        // SAFETY: the spec is a live value of the array map.
        unsafe { (*self.spec).flags }
    }

    /// Whether the spec has the flag.
    #[inline(always)]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    /// Which allocator.
    #[inline(always)]
    pub(crate) fn allocator(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.spec).allocator }
    }

    /// Whether the allocator is of this kind.
    #[inline(always)]
    pub(crate) fn is(&self, kind: Kind) -> bool {
        // SAFETY: as above.
        unsafe { (*self.spec).kind == kind as u32 }
    }

    /// One value; 0 where the spec does not have it.
    #[inline(always)]
    pub(crate) fn value(&self, index: u8) -> u64 {
        // SAFETY: the file lives as long as the hit; the location is checked.
        unsafe {
            let location = (*self.spec).locations[index as usize & 15] as usize;
            if location >= FILE_WORDS {
                return 0;
            }
            self.file.cast::<u64>().add(location).read()
        }
    }

    /// Notes the stack pointer as it was at the function's entry; the return address, 0 where it is not wanted or
    /// cannot be read.
    #[inline(always)]
    pub(crate) fn enter<C: EbpfContext>(&mut self, ctx: &C) -> u64 {
        let regs: *const pt_regs = ctx.as_ptr().cast();
        // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load. The spec is a live value.
        self.rsp = unsafe { (*regs).rsp.wrapping_add(u64::from((*self.spec).stack_moved)) };
        if !self.has(flags::HAS_CALLER) {
            return 0;
        }
        // SAFETY: as above.
        let (moved, pc) = unsafe { ((*self.spec).stack_moved, (*regs).rip) };
        // A return address has the name of the byte before it, so the probe's own address is reported one byte later.
        if moved == AT_PLACE { pc.wrapping_add(1) } else { return_address(self.rsp) }
    }

    /// Return address of the call; 0 where unknown.
    #[inline(always)]
    pub(crate) fn caller(&self) -> u64 {
        // SAFETY: the file lives as long as the hit.
        unsafe { (*self.file).inputs[op::INPUT_CALLER as usize] }
    }

    /// One more than the number of the alloc's call path; 0 where none is wanted, or it is not known.
    #[inline(always)]
    pub(crate) fn path(&self) -> u32 {
        if !self.asks_path {
            return 0;
        }
        // SAFETY: the file lives as long as the hit.
        unsafe { (*self.file).values[value::PATH as usize] as u32 }
    }

    /// Notes it.
    #[inline(always)]
    pub(crate) fn set_path(&self, path: u32) {
        // SAFETY: as above.
        unsafe { (*self.file).values[value::PATH as usize] = u64::from(path) };
    }

    /// Whether the target is observed since its first instruction.
    #[inline(always)]
    pub(crate) fn is_from_start(&self) -> bool {
        self.target_flags & target_flags::FROM_START != 0
    }

    /// What global functions must know of the probe and the target.
    #[inline(always)]
    pub(crate) fn mode(&self) -> Mode {
        // SAFETY: as above.
        let mode = unsafe { Mode::of((*self.spec).flags, (*self.spec).kind) };
        if self.is_from_start() { mode | Mode::FROM_START } else { mode }
    }

    /// Bytes that every granule retains, by the profile; 0 where it does not say.
    #[inline(always)]
    pub(crate) fn constant_bytes(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.spec).granule_bytes }
    }

    /// Bytes that the granule retains: by expression or constant; 0 where unknown.
    #[inline(always)]
    pub(crate) fn granule_bytes(&self) -> u64 {
        if self.has(flags::HAS_BYTES) { self.value(value::BYTES) } else { self.constant_bytes() }
    }
}

/// `CLOCK_MONOTONIC` nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_ktime_get_ns() }
}

/// What the interpreter works on: the inputs of a [`File`].
#[repr(C)]
pub(crate) struct Operands([u64; INPUTS]);

impl Machine for Operands {
    #[inline(always)]
    fn arg(&self, index: u8) -> u64 {
        self.input(index)
    }

    #[inline(always)]
    fn ret(&self) -> u64 {
        self.input(op::INPUT_RET)
    }

    #[inline(always)]
    fn caller(&self) -> Option<u64> {
        Some(self.input(op::INPUT_CALLER))
    }

    #[inline(always)]
    fn read(&self, address: u64, size: u8) -> Option<u64> {
        read_user(address, u32::from(size))
    }

    #[inline(always)]
    fn input(&self, index: u8) -> u64 {
        self.0[index as usize & 7]
    }
}

/// Reads 1 to 8 bytes of the target's memory, zero-extended.
#[inline(always)]
pub(crate) fn read_user(address: u64, size: u32) -> Option<u64> {
    if size == 0 || size > 8 {
        return None;
    }
    let mut word = 0u64;
    // SAFETY: `word` has room for the at most eight bytes; the helper checks the user address.
    let result =
        unsafe { bpf_probe_read_user((&raw mut word).cast(), size, address as *const c_void) };
    if result == 0 { Some(word) } else { None }
}

/// The target that runs now, if it is traced.
#[inline(always)]
pub(crate) fn current_target() -> Option<TargetValue> {
    target_of((bpf_get_current_pid_tgid() >> 32) as u32)
}

/// The return address of a call that was entered with this stack pointer: its frame is not set up yet. 0 where
/// it cannot be read.
#[inline(always)]
pub(crate) fn return_address(rsp: u64) -> u64 {
    read_user(rsp, 8).unwrap_or(0)
}

#[inline(always)]
fn target_of(tgid: u32) -> Option<TargetValue> {
    if let Some(word) = maps::TARGET_WORDS.get_ptr(target_word::index(tgid)) {
        // SAFETY: map memory, one word.
        let found = target_word::unpack(unsafe { atomic::load(word) }, tgid);
        if found.is_some() {
            return found;
        }
    }
    // SAFETY: copied out at once; user space removes a target only after it has ended.
    unsafe { maps::TARGETS.get(tgid).copied() }
}

/// Begins a hit at a function's entry: `None` where the process is not traced, or the cookie unknown.
#[inline(always)]
pub(crate) fn begin<C: EbpfContext>(ctx: &C, needs_thread: bool) -> Option<Hit> {
    // SAFETY: the context is the program's own.
    let cookie = Cookie::unpack(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    // At an entry the kernel runs only the programs of the process whose memory it is; so a child of vfork,
    // which works on its parent's, counts as its parent.
    let pid_tgid = if needs_thread || cookie.tgid == 0 { bpf_get_current_pid_tgid() } else { 0 };
    let tgid = if cookie.tgid == 0 { (pid_tgid >> 32) as u32 } else { cookie.tgid };
    started(pid_tgid, cookie.index, target_of(tgid)?, false)
}

/// Begins a hit at a function's return: `None` where the process is not traced, or not meant by the probe, or
/// the cookie unknown.
#[inline(always)]
pub(crate) fn begin_at_return<C: EbpfContext>(ctx: &C) -> Option<Hit> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    // SAFETY: the context is the program's own.
    let cookie = Cookie::unpack(unsafe { bpf_get_attach_cookie(ctx.as_ptr()) });
    let target = target_of(tgid)?;
    if !cookie.means(tgid) {
        // A child of vfork works on its parent's memory: what it does is meant where the parent is.
        let borrowed = target.flags & target_flags::BORROWED != 0;
        if !borrowed || target_of(cookie.tgid)?.target != target.target {
            return None;
        }
    }
    started(pid_tgid, cookie.index, target, true)
}

#[inline(always)]
fn started(pid_tgid: u64, index: u32, target: TargetValue, at_return: bool) -> Option<Hit> {
    let spec = maps::PROBES.get_ptr(index)?;
    let counts =
        maps::PROBE_COUNTS.get_ptr_mut(losses::counter_slot() * config::max_probes() + index);
    if let Some(counts) = counts {
        // SAFETY: map memory.
        unsafe {
            if at_return {
                atomic::add(&raw mut (*counts).returns, 1);
            } else {
                atomic::add(&raw mut (*counts).entries, 1);
            }
        }
    }
    Some(Hit {
        pid_tgid,
        index,
        spec,
        target: target.target,
        target_flags: target.flags,
        file: core::ptr::null_mut(),
        rsp: 0,
        nested: 0,
        asks_path: false,
    })
}

/// Fills the file at a function's entry; `false` where an argument cannot be read.
///
/// # Safety
/// `file` points to a file that lives as long as the hit; it need not be initialised.
#[inline(always)]
pub(crate) unsafe fn enter<C: EbpfContext>(ctx: &C, hit: &mut Hit, file: *mut File) -> bool {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    let caller = hit.enter(ctx);
    let words = file.cast::<u64>();
    // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load. All words are written: Linux 6.1
    // lets nobody read others. Word by word: a plain zeroed array becomes a call of a byte-wise `memset`.
    unsafe {
        words.write((*regs).rdi);
        words.add(1).write((*regs).rsi);
        words.add(2).write((*regs).rdx);
        words.add(3).write((*regs).rcx);
        words.add(4).write((*regs).r8);
        words.add(5).write((*regs).r9);
        words.add(op::INPUT_RET as usize).write(0);
        words.add(op::INPUT_CALLER as usize).write(caller);
        for value in INPUTS..FILE_WORDS {
            words.add(value).write_volatile(0);
        }
        if (*hit.spec).moved != 0 && !moved::fetch(regs, hit.spec, words) {
            return false;
        }
    }
    hit.file = file;
    true
}

/// Runs one phase of the spec's code; `false` where the hit is not to be counted. What failed is counted.
#[inline(always)]
pub(crate) fn evaluate(hit: &Hit, at_return: bool) -> bool {
    // SAFETY: the spec is a live value of the array map.
    let spec = unsafe { &*hit.spec };
    let outcome = if spec.is_simple != 0 {
        let (first, count) = if at_return {
            (spec.entry_simple, spec.return_simple)
        } else {
            (0, spec.entry_simple)
        };
        run_simple(hit, u32::from(first), u32::from(count))
    } else {
        let start = if at_return { spec.return_start } else { spec.entry_start };
        // SAFETY: the file lives as long as the hit.
        let (inputs, values) =
            unsafe { ((&raw const (*hit.file).inputs).cast(), &raw mut (*hit.file).values) };
        run(hit.spec, start, inputs, values)
    };
    if outcome.is(Outcome::Accepted) {
        return true;
    }
    let counts =
        maps::PROBE_COUNTS.get_ptr_mut(losses::counter_slot() * config::max_probes() + hit.index);
    if let Some(counts) = counts {
        // SAFETY: map memory.
        unsafe {
            if outcome.is(Outcome::Rejected) {
                atomic::add(&raw mut (*counts).rejected, 1);
            } else {
                atomic::add(&raw mut (*counts).faults, 1);
            }
        }
    }
    if outcome.is(Outcome::Fault) {
        losses::count(Loss::ReadFault);
    } else if outcome.is(Outcome::Cut) {
        losses::count(Loss::WalkCut);
    }
    // A close whose live count alone could not be computed is a close all the same.
    hit.value(value::LIVE) == value::UNREAD
}

#[inline(always)]
unsafe fn clear_words<const N: usize>(words: *mut u64) {
    for index in 0..N {
        // SAFETY: the caller's promise.
        unsafe { words.add(index).write_volatile(0) };
    }
}

/// Computes one phase that needs no code, without a single call but the reads of target memory.
#[inline(always)]
fn run_simple(hit: &Hit, first: u32, count: u32) -> Progress {
    // SAFETY: the spec is a live value of the array map; the file lives as long as the hit.
    let (all, operands, values) = unsafe {
        let all: *const Simple = (&raw const (*hit.spec).simple).cast();
        let operands: *const Operands = (&raw const (*hit.file).inputs).cast();
        (all, &*operands, &mut (*hit.file).values)
    };
    for number in 0..MAX_SIMPLE as u32 {
        if number >= count {
            break;
        }
        let index = core::hint::black_box(first + number) & (MAX_SIMPLE as u32 - 1);
        // SAFETY: the index is masked to the array's length.
        let simple = unsafe { &*all.add(index as usize) };
        if let Some(outcome) = interp::run_simple(simple, operands, values) {
            return Progress::ended(outcome);
        }
    }
    Progress::ended(Outcome::Accepted)
}

/// Runs one phase's code. A function of its own, so that its stack is not added to its caller's frame.
#[inline(never)]
fn run(
    spec: *const ProbeSpec,
    start: u16,
    operands: *const Operands,
    values: *mut Values,
) -> Progress {
    let mut state = MaybeUninit::<interp::State>::uninit();
    let state = state.as_mut_ptr();
    // SAFETY: every field is written before it is read; the spec is a live value of the array map.
    unsafe {
        clear_words::<{ size_of::<interp::State>() / 8 }>(state.cast());
        (*state).pc = u32::from(start);
    }
    walk::to_the_end(state, spec, operands, values)
}

/// How far a run has come. Not an enum: to decode one in the loops takes stack that there is not.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Progress(u32);

scalars! {
    Progress as u32: |progress: Progress| progress.0, Progress;
}

impl Progress {
    /// The run has not ended.
    pub(crate) const GOES_ON: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) fn ended(outcome: Outcome) -> Self {
        Self(outcome as u32)
    }

    #[inline(always)]
    pub(crate) fn has_ended(self) -> bool {
        self.0 != Self::GOES_ON.0
    }

    /// Whether the run has ended so.
    #[inline(always)]
    pub(crate) fn is(self, outcome: Outcome) -> bool {
        self.0 == outcome as u32
    }
}

global! {
    /// One step: the verifier follows it once, instead of once per step with all that it could know of the stack.
    pub(crate) fn interpret(
        state: *mut interp::State, spec: *const ProbeSpec, operands: *const Operands, values: *mut Values
    ) -> Progress = step;
}

#[inline(always)]
fn step(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> Progress {
    if state.is_null() || spec.is_null() || operands.is_null() || values.is_null() {
        return Progress::ended(Outcome::Fault);
    }
    // SAFETY: `run` passes its own; the spec is a live value of the array map.
    let outcome = unsafe { interp::step(&mut *state, &*spec, &*operands, &mut *values) };
    outcome.map_or(Progress::GOES_ON, Progress::ended)
}

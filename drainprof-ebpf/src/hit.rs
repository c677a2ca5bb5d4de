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
    interp::{self, Machine, Outcome, Values},
    loss::Loss,
    maps::{TargetValue, target_flags},
    spec::{Cookie, Kind, MAX_STACK, MAX_STEPS, ProbeSpec, flags, op, value},
};

use crate::{atomic, config, granule::mode, losses, maps, moved};

/// A hit in a traced process.
pub(crate) struct Hit {
    /// Index of the spec.
    pub(crate) index: u32,
    /// The spec, in map memory that nobody writes while probes are attached.
    pub(crate) spec: *const ProbeSpec,
    /// The target's index.
    pub(crate) target: u32,
    /// Its flags.
    pub(crate) target_flags: u32,
    /// What the expressions yielded; in the program's own stack frame.
    pub(crate) values: *mut Values,
    /// What the expressions compute from; once they are known.
    pub(crate) operands: *const Operands,
    /// Stack pointer at entry.
    pub(crate) rsp: u64,
    /// Allocs that were counted inside this call.
    pub(crate) nested: u64,
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

    /// One value.
    #[inline(always)]
    pub(crate) fn value(&self, index: u8) -> u64 {
        // SAFETY: `begin`'s caller keeps the values for as long as the hit.
        unsafe { (&*self.values)[index as usize] }
    }

    /// Notes the stack pointer as it was at the function's entry; the return address, 0 where it cannot be read.
    #[inline(always)]
    pub(crate) fn enter<C: EbpfContext>(&mut self, ctx: &C) -> u64 {
        let regs: *const pt_regs = ctx.as_ptr().cast();
        // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load. The spec is a live value.
        self.rsp = unsafe { (*regs).rsp.wrapping_add(u64::from((*self.spec).stack_moved)) };
        // There the return address is on top of the stack.
        read_user(self.rsp, 8).unwrap_or(0)
    }

    /// Return address of the call; 0 where unknown.
    #[inline(always)]
    pub(crate) fn caller(&self) -> u64 {
        // SAFETY: the operands live as long as the hit.
        unsafe { (*self.operands).0[op::INPUT_CALLER as usize] }
    }

    /// Whether the target is observed since its first instruction.
    #[inline(always)]
    pub(crate) fn is_from_start(&self) -> bool {
        self.target_flags & target_flags::FROM_START != 0
    }

    /// What global functions must know of the probe and the target.
    #[inline(always)]
    pub(crate) fn mode(&self) -> u32 {
        // SAFETY: as above.
        let (flags, kind) = unsafe { ((*self.spec).flags, (*self.spec).kind) };
        let from_start = if self.is_from_start() { mode::FROM_START } else { 0 };
        (flags & mode::FLAGS) | from_start | (kind << mode::KIND_SHIFT)
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

/// What the interpreter works on: arguments 0 to 5 at entry, return value, return address (0: unknown).
#[repr(C)]
pub(crate) struct Operands(pub(crate) [u64; 8]);

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

#[inline(always)]
fn target_of(tgid: u32) -> Option<TargetValue> {
    // SAFETY: copied out at once; user space removes a target only after it has ended.
    unsafe { maps::TARGETS.get(tgid).copied() }
}

/// Begins a hit: `None` where the process is not traced, or not meant by the probe, or the cookie unknown.
#[inline(always)]
pub(crate) fn begin<C: EbpfContext>(
    ctx: &C,
    values: &mut MaybeUninit<Values>,
    at_return: bool,
) -> Option<Hit> {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
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
    let index = cookie.index;
    let spec = maps::PROBES.get_ptr(index)?;
    let counts = maps::PROBE_COUNTS.get_ptr_mut(losses::cpu() * config::max_probes() + index);
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
        index,
        spec,
        target: target.target,
        target_flags: target.flags,
        values: clear(values),
        operands: core::ptr::null(),
        rsp: 0,
        nested: 0,
    })
}

/// The operands as they were at the function's entry, in the program's own stack frame; `false` where one
/// cannot be read.
#[inline(always)]
pub(crate) fn entry_operands<C: EbpfContext>(
    ctx: &C,
    hit: &mut Hit,
    operands: &mut MaybeUninit<Operands>,
) -> bool {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    let caller = hit.enter(ctx);
    let inputs = operands.as_mut_ptr().cast::<u64>();
    // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load. All eight words are written.
    unsafe {
        inputs.write((*regs).rdi);
        inputs.add(1).write((*regs).rsi);
        inputs.add(2).write((*regs).rdx);
        inputs.add(3).write((*regs).rcx);
        inputs.add(4).write((*regs).r8);
        inputs.add(5).write((*regs).r9);
        inputs.add(op::INPUT_RET as usize).write(0);
        inputs.add(op::INPUT_CALLER as usize).write(caller);
        if (*hit.spec).moved != 0 && !moved::fetch(regs, hit.spec, inputs) {
            return false;
        }
    }
    hit.operands = operands.as_ptr();
    true
}

/// Runs one phase of the spec's code; counts and returns `false` where the hit is not to be counted.
#[inline(always)]
pub(crate) fn evaluate(hit: &Hit, at_return: bool) -> bool {
    // SAFETY: the spec is a live value of the array map.
    let start =
        unsafe { if at_return { (*hit.spec).return_start } else { (*hit.spec).entry_start } };
    let outcome = run(hit.spec, start, hit.operands, hit.values);
    if outcome == Outcome::Accepted as u32 {
        return true;
    }
    let counts = maps::PROBE_COUNTS.get_ptr_mut(losses::cpu() * config::max_probes() + hit.index);
    if let Some(counts) = counts {
        // SAFETY: map memory.
        unsafe {
            if outcome == Outcome::Rejected as u32 {
                atomic::add(&raw mut (*counts).rejected, 1);
            } else {
                atomic::add(&raw mut (*counts).faults, 1);
            }
        }
    }
    if outcome == Outcome::Fault as u32 {
        losses::count(Loss::ReadFault);
    }
    false
}

/// Clears an array word by word: a plain zeroed array becomes a call of a byte-wise `memset`.
#[inline(always)]
pub(crate) fn clear<const N: usize>(array: &mut MaybeUninit<[u64; N]>) -> *mut [u64; N] {
    // SAFETY: the array's own words.
    unsafe { clear_words::<N>(array.as_mut_ptr().cast()) };
    array.as_mut_ptr()
}

#[inline(always)]
unsafe fn clear_words<const N: usize>(words: *mut u64) {
    for index in 0..N {
        // SAFETY: the caller's promise.
        unsafe { words.add(index).write_volatile(0) };
    }
}

/// Runs one phase's code. A function of its own, so that its stack is not added to its caller's frame.
#[inline(never)]
fn run(spec: *const ProbeSpec, start: u16, operands: *const Operands, values: *mut Values) -> u32 {
    let mut state = MaybeUninit::<interp::State>::uninit();
    let state = state.as_mut_ptr();
    // SAFETY: every field is written before it is read; the spec is a live value of the array map.
    unsafe {
        (*state).pc = u64::from(start);
        (*state).sp = 0;
        clear_words::<MAX_STACK>((&raw mut (*state).stack).cast());
    }
    for _ in 0..MAX_STEPS {
        let outcome = interpret(state, spec, operands, values);
        if outcome != GO_ON {
            return outcome;
        }
    }
    Outcome::Fault as u32
}

/// [`interpret`]'s answer where the run has not ended; else it is an [`Outcome`].
const GO_ON: u32 = u32::MAX;

/// One step. A global function: the verifier follows it once, with nothing known of its arguments,
/// instead of once per step with all that it could know of the stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn interpret(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> u32 {
    if state.is_null() || spec.is_null() || operands.is_null() || values.is_null() {
        return Outcome::Fault as u32;
    }
    // SAFETY: `run` passes its own; the spec is a live value of the array map.
    unsafe {
        let (spec, operands) = (&*spec, &*operands);
        interp::step(&mut *state, &spec.code, &spec.consts, operands, &mut *values)
            .map_or(GO_ON, |outcome| outcome as u32)
    }
}

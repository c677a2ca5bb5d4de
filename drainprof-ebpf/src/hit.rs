//! One hit of a probe: whose it is, what its spec says, and what its expressions yield.

use aya_ebpf::{
    EbpfContext,
    bindings::pt_regs,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid},
};
use drainprof_common::{
    interp::{INPUTS, Outcome, REGISTER_WORDS, Registers},
    loss::Loss,
    maps::{TargetValue, target_flags, target_word},
    mode::Mode,
    spec::{AT_SITE, Cookie, Kind, ProbeSpec, flags, op, value},
};

use crate::{atomic, config, interpreter, losses, maps, memory::return_address, moved, walk};

/// A hit in a traced process.
pub(crate) struct Hit {
    /// Process and thread, as `bpf_get_current_pid_tgid` has them; 0 where the hit did not need to know.
    pub(crate) pid_tgid: u64,
    /// Index of the spec.
    pub(crate) index: u32,
    /// The spec, in map memory that is not written while probes are attached.
    pub(crate) spec: *const ProbeSpec,
    /// The target's index.
    pub(crate) target: u32,
    /// Its flags.
    pub(crate) target_flags: u32,
    /// Inputs, and what the expressions yield; in the program's own stack frame or in the call's.
    pub(crate) registers: *mut Registers,
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
        // SAFETY: the registers live as long as the hit; the location is checked.
        unsafe {
            let location = (*self.spec).locations[index as usize & 15] as usize;
            if location >= REGISTER_WORDS {
                return 0;
            }
            self.registers.cast::<u64>().add(location).read()
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
        if moved == AT_SITE { pc.wrapping_add(1) } else { return_address(self.rsp) }
    }

    /// Return address of the call; 0 where unknown.
    #[inline(always)]
    pub(crate) fn caller(&self) -> u64 {
        // SAFETY: the registers live as long as the hit.
        unsafe { (*self.registers).inputs[op::INPUT_CALLER as usize] }
    }

    /// One more than the number of the alloc's call path; 0 where none is wanted, or it is not known.
    #[inline(always)]
    pub(crate) fn path(&self) -> u32 {
        if !self.asks_path {
            return 0;
        }
        // SAFETY: the registers live as long as the hit.
        unsafe { (*self.registers).values[value::PATH as usize] as u32 }
    }

    /// Notes it.
    #[inline(always)]
    pub(crate) fn set_path(&self, path: u32) {
        // SAFETY: as above.
        unsafe { (*self.registers).values[value::PATH as usize] = u64::from(path) };
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

/// The target that runs now, if it is traced.
#[inline(always)]
pub(crate) fn current_target() -> Option<TargetValue> {
    target_of((bpf_get_current_pid_tgid() >> 32) as u32)
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
        registers: core::ptr::null_mut(),
        rsp: 0,
        nested: 0,
        asks_path: false,
    })
}

/// Fills the registers at a function's entry; `false` where an argument cannot be read.
///
/// # Safety
/// `registers` points to some that live as long as the hit; they need not be initialised.
#[inline(always)]
pub(crate) unsafe fn enter<C: EbpfContext>(
    ctx: &C,
    hit: &mut Hit,
    registers: *mut Registers,
) -> bool {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    let caller = hit.enter(ctx);
    let words = registers.cast::<u64>();
    // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load. All words are written: Linux 6.1
    // lets no program read others. Word by word: a plain zeroed array becomes a call of a byte-wise `memset`.
    unsafe {
        words.write((*regs).rdi);
        words.add(1).write((*regs).rsi);
        words.add(2).write((*regs).rdx);
        words.add(3).write((*regs).rcx);
        words.add(4).write((*regs).r8);
        words.add(5).write((*regs).r9);
        words.add(op::INPUT_RET as usize).write(0);
        words.add(op::INPUT_CALLER as usize).write(caller);
        for value in INPUTS..REGISTER_WORDS {
            words.add(value).write_volatile(0);
        }
        if (*hit.spec).moved != 0 && !moved::fetch(regs, hit.spec, words) {
            return false;
        }
    }
    hit.registers = registers;
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
        interpreter::run_simple(hit.spec, hit.registers, u32::from(first), u32::from(count))
    } else {
        let start = if at_return { spec.return_start } else { spec.entry_start };
        // SAFETY: the registers live as long as the hit.
        let (inputs, values) = unsafe {
            ((&raw const (*hit.registers).inputs).cast(), &raw mut (*hit.registers).values)
        };
        walk::run(hit.spec, start, inputs, values)
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

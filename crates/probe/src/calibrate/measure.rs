//! Timing probes on drainprof itself.
//!
//! Every sample is called in a loop, first bare, then with the empty program on it; the difference in time
//! is the cost. The best of several short rounds counts: whatever else happens on the machine only adds. The
//! rounds of one sample have those of all others between them, so that what goes on for some milliseconds
//! spoils one round of many samples and not all rounds of one. A round in which another thread was given the
//! CPU is repeated.
//!
//! The clock is the monotonic one. A thread's CPU time is no measure of a round: on a machine with an unstable
//! clock source the scheduler's clock stands still for up to a tick, so that a round takes no time at all.
//!
//! A kind that the kernel refuses has no cost. Nor has one that `harm` finds fault with.

use std::{
    hint::black_box,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use nix::sys::resource::{UsageWho, getrusage};

use super::{
    harm,
    model::CalibrateError,
    own::{Own, WARM_UP, own_object},
    samples::{Sample, samples},
};
use crate::{
    bpf::EmptyProbes,
    plan::cost::{Costs, InstructionKind},
};

/// Rounds of which the best counts.
const ROUNDS: u32 = 5;
/// How often a round is timed until no other thread was given the CPU in it.
const ROUND_ATTEMPTS: u32 = 8;
/// How long a round should take.
const ROUND: Duration = Duration::from_micros(800);
/// Calls in a round, at least and at most: a cost of 20 µs leaves 40, one of 0.25 µs the most.
const CALLS: (u32, u32) = (20, 2_000);

/// No trap takes less, in ns.
const MIN_COST_NS: f64 = 1.0;

/// Measures all kinds, and what a return adds. Takes about 0.15 s, and as long again to load and attach.
pub(super) fn measure() -> Result<Costs, CalibrateError> {
    if samples().is_empty() {
        return Err(CalibrateError::Architecture(std::env::consts::ARCH));
    }
    let pid = NonZeroU32::new(std::process::id())
        .ok_or_else(|| CalibrateError::own("find its own pid", None))?;
    let (object, mapped) = own_object()?;
    let own = Own { object: &object, mapped: &mapped, pid };
    let mut bare: Vec<_> = samples().iter().map(|sample| Timing::bare(sample.function)).collect();
    rounds(&mut bare)?;
    let mut probes = EmptyProbes::load()?;
    let measured = costs(&mut probes, own, &bare);
    probes.detach_in_background();
    corrected(measured?)
}

/// Attaches to all samples that the kernel does not refuse, and takes the bare calls' time off.
fn costs(probes: &mut EmptyProbes, own: Own<'_>, bare: &[Timing]) -> Result<Costs, CalibrateError> {
    let entry_ns = [None; InstructionKind::ALL.len()];
    let mut costs = Costs { entry_ns, return_ns: 0.0, measured: true };
    let mut placed = Vec::new();
    for (sample, bare) in samples().iter().zip(bare) {
        let at = sample.function as usize as u64;
        match probes.at_entry(own.object, own.offset(at)?, own.pid, sample.instruction) {
            Ok(()) => placed.push((sample, bare)),
            Err(error) if error.is_place_refused() => {
                tracing::debug!(instruction = sample.instruction, "the kernel refuses a probe");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let observed = placed.iter().map(|(sample, _)| Timing::probed(sample.function));
    let mut observed = observed.collect::<Result<Vec<_>, _>>()?;
    rounds(&mut observed)?;
    for ((sample, bare), observed) in placed.iter().zip(&observed) {
        let entry = &mut costs.entry_ns[sample.kind as usize];
        let cost = observed.per_call() - bare.per_call();
        *entry = Some(entry.unwrap_or(f64::MIN).max(cost));
    }
    harm::exclude(&mut costs, probes, own)?;
    if let Some(push) = placed.iter().position(|(sample, _)| is_push(sample)) {
        costs.return_ns = return_ns(probes, own, placed[push].0, push, &mut observed)?;
    }
    Ok(costs)
}

fn is_push(sample: &Sample) -> bool {
    sample.kind == InstructionKind::Push
}

/// What a probe at the return of `sample` adds to the one at its entry; all others are timed again beside it.
fn return_ns(
    probes: &mut EmptyProbes,
    own: Own<'_>,
    sample: &Sample,
    number: usize,
    observed: &mut [Timing],
) -> Result<f64, CalibrateError> {
    let at = own.offset(sample.function as usize as u64)?;
    probes.at_return(own.object, at, own.pid, sample.instruction)?;
    let both = Timing::probed(sample.function)?;
    let entry = std::mem::replace(&mut observed[number], both);
    rounds(observed)?;
    Ok(observed[number].per_call() - entry.per_call())
}

/// What is certain about any cost whatever the clock said: `Other` is never cheaper than a kind that was
/// looked at, and a return is not free. It is the difference of two costs, which may be lost in what a slow or
/// emulated machine adds to either; then it is taken for what the cheapest entry costs, a trap as well.
fn corrected(mut costs: Costs) -> Result<Costs, CalibrateError> {
    let fold = |of: fn(f64, f64) -> f64| costs.entry_ns.iter().copied().flatten().reduce(of);
    let (most_expensive, cheapest) = (fold(f64::max), fold(f64::min));
    costs.entry_ns[InstructionKind::Other as usize] = most_expensive;
    if costs.return_ns < MIN_COST_NS {
        costs.return_ns = cheapest.unwrap_or(f64::NAN);
    }
    if plausible(&costs) { Ok(costs) } else { Err(CalibrateError::Implausible) }
}

/// Whether these costs are possible: a trap costs more than the call that it is in, and far less than 10 ms; and what
/// every kernel can probe has one.
pub(super) fn plausible(costs: &Costs) -> bool {
    let mut all = costs.entry_ns.iter().flatten().chain([&costs.return_ns]);
    let kinds = [InstructionKind::Nop, InstructionKind::Push, InstructionKind::Other];
    let has_cost = |kind: InstructionKind| costs.entry_ns[kind as usize].is_some();
    all.all(|cost| (MIN_COST_NS..1e7).contains(cost)) && kinds.into_iter().all(has_cost)
}

/// A function that is timed: how many calls make a round, and the best round so far.
struct Timing {
    function: extern "C" fn(),
    calls: u32,
    best: Duration,
}

impl Timing {
    /// Of a function without a probe: its calls are so short that it takes many for the clock's own time to vanish.
    fn bare(function: extern "C" fn()) -> Self {
        Self { function, calls: CALLS.1, best: Duration::MAX }
    }

    /// Of a function with a probe, whose first hits choose the length of the rounds.
    fn probed(function: extern "C" fn()) -> Result<Self, CalibrateError> {
        let mut first = Duration::MAX;
        for _ in 0..ROUNDS {
            first = first.min(timed(function, WARM_UP)?);
        }
        let calls = ROUND.as_nanos() / (first.as_nanos() / u128::from(WARM_UP)).max(1);
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).clamp(CALLS.0, CALLS.1);
        Ok(Self { function, calls, best: Duration::MAX })
    }

    fn round(&mut self) -> Result<(), CalibrateError> {
        self.best = self.best.min(timed(self.function, self.calls)?);
        Ok(())
    }

    /// Nanoseconds of one call in the best round, the loop around it included.
    fn per_call(&self) -> f64 {
        self.best.as_nanos() as f64 / f64::from(self.calls)
    }
}

/// All their rounds, in turn.
fn rounds(timings: &mut [Timing]) -> Result<(), CalibrateError> {
    (0..ROUNDS).try_for_each(|_| timings.iter_mut().try_for_each(Timing::round))
}

/// Time of so many calls; the least of all attempts where each of them lost the CPU to another thread.
fn timed(function: extern "C" fn(), calls: u32) -> Result<Duration, CalibrateError> {
    let mut best = Duration::MAX;
    for _ in 0..ROUND_ATTEMPTS {
        let switches = involuntary_switches()?;
        let started = Instant::now();
        for _ in 0..calls {
            black_box(function)();
        }
        best = best.min(started.elapsed());
        if involuntary_switches()? == switches {
            break;
        }
    }
    Ok(best)
}

/// How often this thread lost the CPU to another one.
fn involuntary_switches() -> Result<i64, CalibrateError> {
    getrusage(UsageWho::RUSAGE_THREAD)
        .map(|usage| usage.involuntary_context_switches())
        .map_err(|errno| CalibrateError::own("read how often it lost the CPU", Some(errno.into())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    /// The bytes at the offset in the file are the function's own: that is what will be probed.
    #[test]
    fn offsets_lead_to_the_samples() {
        let (file, object) = own_object().unwrap();
        for sample in samples() {
            let offset = object.file_offset(sample.function as usize as u64).unwrap();
            let mut bytes = [0; 10];
            file.read_exact_at(&mut bytes, offset).unwrap();
            let first: &[u8] = match sample.kind {
                InstructionKind::Nop5 => &[0x0f, 0x1f, 0x44, 0x00, 0x00],
                InstructionKind::Nop10 => &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
                InstructionKind::Nop => &[0x90],
                InstructionKind::LongNop => &[0x0f, 0x1f, 0x40, 0x00],
                InstructionKind::Push => &[0x55],
                InstructionKind::Branch => &[0xeb, 0x00],
                InstructionKind::Endbr => &[0xf3, 0x0f, 0x1e, 0xfa],
                InstructionKind::Move => &[0x48, 0x89, 0xf8],
                InstructionKind::Memory => &[0x48, 0x8b, 0x04, 0x24],
                InstructionKind::Arithmetic => &[0x48, 0x83],
                InstructionKind::Compare => &[0x48, 0x85, 0xff],
                InstructionKind::Lea => &[0x48, 0x8d, 0x47, 0x08],
                InstructionKind::Return => &[0xc3],
                InstructionKind::Other => &[0x48, 0x99],
            };
            assert!(bytes.starts_with(first), "{}: {bytes:x?}", sample.instruction);
        }
    }

    /// An address outside of the executable's code has no offset.
    #[test]
    fn no_offset_outside() {
        let (_, object) = own_object().unwrap();
        let on_stack = 0_u8;
        assert_eq!(object.file_offset(0), None);
        assert_eq!(object.file_offset(&raw const on_stack as u64), None);
    }

    /// What was not looked at costs the most of what was; a return that measured below nothing costs what the
    /// cheapest entry does; and costs that cannot be are refused.
    #[test]
    fn settled() {
        let mut costs = Costs { measured: true, return_ns: -3.0, ..Costs::assumed() };
        costs.entry_ns[InstructionKind::Nop as usize] = Some(77.0);
        costs.entry_ns[InstructionKind::Lea as usize] = Some(20_000.0);
        costs.entry_ns[InstructionKind::Other as usize] = Some(500.0);
        let settled = corrected(costs.clone()).unwrap();
        assert!((settled.entry(InstructionKind::Other) - 20_000.0).abs() < 1e-9);
        assert!((settled.return_ns - 77.0).abs() < 1e-9);
        assert_eq!(settled.entry_ns[InstructionKind::Nop10 as usize], None, "it is refused");
        costs.return_ns = 9.0;
        assert!((corrected(costs.clone()).unwrap().return_ns - 9.0).abs() < 1e-9);
        for impossible in
            [f64::NAN, f64::INFINITY, -3.0, 0.0, 1e8].map(Some).into_iter().chain([None])
        {
            costs.entry_ns[InstructionKind::Push as usize] = impossible;
            assert!(corrected(costs.clone()).is_err(), "{impossible:?}");
            costs.entry_ns[InstructionKind::Push as usize] = Some(500.0);
        }
    }

    /// A call takes time, and more calls take more of it.
    #[test]
    fn bare_calls_are_timed() {
        let sample = samples()[0];
        let mut timing = Timing::bare(sample.function);
        rounds(std::slice::from_mut(&mut timing)).unwrap();
        assert!(timing.per_call() > 0.0 && timing.best < Duration::MAX);
        let few = timed(sample.function, 1_000).unwrap();
        assert!(timed(sample.function, 1_000_000).unwrap() > few);
    }
}

//! The cheapest instruction of a function at which a probe still sees what it needs: pure.
//!
//! What a hit costs depends on the instruction under the probe, by a factor of 30 on some machines. Most
//! functions begin with an expensive one and have a cheap one a few bytes further on. [`choose`] walks the
//! straight line from the first instruction to the first branch and takes the cheapest one that every
//! call passes exactly once, before it has any effect, and at which each needed argument is known to be
//! somewhere. It reads no file and knows no process: `sites` hands it the bytes. Only x86-64.
//!
//! A probe at a function's return goes to an instruction of the same line, as long as the stack pointer is
//! where it was at entry: the kernel swaps the return address that it points to.

mod beside;
mod flow;
mod jumps;
mod kind;
mod location;
mod price;
mod stop;

pub(super) use beside::call_beside;
use flow::{Found, State};
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory};
pub use jumps::{FarJumps, NEIGHBOUR};
use jumps::{Inner, follower_jumps, neighbour_jumps};
use kind::{is_eligible, is_empty};
pub use location::{ARGUMENTS, Location};
pub use price::InstructionCost;
pub(super) use price::calls;
use price::cost_of;
pub use stop::Stop;

use super::cost::{Costs, InstructionKind};

/// Most bytes of a function that are decoded; larger ones are probed at their first instruction.
pub const MAX_FUNCTION: usize = 1 << 20;
/// Most instructions of the straight line that are looked at.
const MAX_LINE: usize = 64;
/// An instruction must cost at most this share of an earlier one to be preferred. A second trap costs 2.7 times a single one
/// at least; without one, costs differ by less than 1.3, which is what measuring them on a busy machine may err by.
const MAX_COST_RATIO: f64 = 0.5;
/// What a probe needs of the function's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Bit *i*: argument *i*, of 0 to 5.
    pub args: u8,
    /// The return address; it is known everywhere on the line.
    pub caller: bool,
    /// The probe may sit behind a store that others can see.
    pub past_stores: bool,
    /// The probe is judged at the function's return: the stack pointer must point to the return address, and the
    /// kernel side keeps the arguments of their own registers only.
    pub at_return: bool,
}

impl Needs {
    /// What either of two probes needs.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            args: self.args | other.args,
            caller: self.caller || other.caller,
            past_stores: self.past_stores && other.past_stores,
            at_return: self.at_return || other.at_return,
        }
    }

    fn arguments(self) -> impl Iterator<Item = u8> {
        (0..6).filter(move |argument| self.args >> argument & 1 != 0)
    }
}

/// A function as its file has it.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Its bytes, from the first to the last.
    pub bytes: &'a [u8],
    /// The address of the first, in the file's own address space.
    pub address: u64,
    /// What stands before it, at most [`NEIGHBOUR`] bytes; empty where that is not known.
    pub before: &'a [u8],
    /// What stands behind it, likewise.
    pub after: &'a [u8],
    /// Where else within it functions begin, by the symbol tables; sorted.
    pub symbols: &'a [u64],
}

/// Where a probe goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Bytes from the function's first instruction.
    pub offset: u32,
    /// What the probe sits on; `None` where the function's bytes could not be read or decoded.
    pub here: Option<InstructionCost>,
    /// What it would sit on at the function's first instruction.
    pub entry: Option<InstructionCost>,
    /// Where each needed argument is; `None` for those that are not needed.
    pub locations: [Option<Location>; 6],
    /// Bytes by which the stack pointer lies below where it was at entry.
    pub stack_moved: u32,
    /// Why no later instruction was considered.
    pub stop: Stop,
    /// Whether the function jumps back to its own first instruction, which then counts as a call.
    pub entered_again: bool,
}

impl Choice {
    /// The function's first instruction, about which nothing is known.
    #[must_use]
    pub fn blind(stop: Stop, needs: Needs) -> Self {
        Self {
            offset: 0,
            here: None,
            entry: None,
            locations: locations(&State::at_entry(), needs).unwrap_or_default(),
            stack_moved: 0,
            stop,
            entered_again: false,
        }
    }

    /// The function's first instruction, with its cost where it can be decoded.
    #[must_use]
    pub fn at_entry(bytes: &[u8], address: u64, needs: Needs, costs: &Costs, stop: Stop) -> Self {
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let priced =
            (!instruction.is_invalid()).then(|| cost_of(&instruction, bytes, address, costs));
        Self { here: priced.clone(), entry: priced, ..Self::blind(stop, needs) }
    }

    /// The arguments that have moved, and where they are: `arg1=rbx`.
    #[must_use]
    pub fn moved_text(&self) -> Vec<String> {
        let moved = self.moved();
        let all = self.locations.iter().enumerate().filter(|(index, _)| moved >> index & 1 != 0);
        all.filter_map(|(index, location)| Some(format!("arg{index}={}", (*location)?))).collect()
    }

    /// Bit *i*: argument *i* is needed and not in its own register.
    #[must_use]
    pub fn moved(&self) -> u8 {
        let at_home = |argument: usize| Location::Register(ARGUMENTS[argument]);
        self.locations.iter().enumerate().fold(0, |mask, (argument, location)| match location {
            Some(location) if *location != at_home(argument) => mask | 1 << argument,
            _ => mask,
        })
    }
}

/// Chooses the instruction of a probe at a function's entry or return.
///
/// `jumps` says whether anything in the object could jump to an address between two others, both
/// included; it is asked at most once per instruction that would be better than the one before.
#[must_use]
pub fn choose(
    function: Function<'_>,
    needs: Needs,
    costs: &Costs,
    jumps: &dyn Fn(u64, u64) -> bool,
) -> Choice {
    let Function { bytes, address, .. } = function;
    let first = |stop| Choice::at_entry(bytes, address, needs, costs, stop);
    if bytes.is_empty() || bytes.len() > MAX_FUNCTION {
        return first(Stop::Size);
    }
    let inner = Inner::of(bytes, address);
    if !inner.whole {
        return first(Stop::Undecodable);
    }
    let Line { steps: line, end, mut stop } = straight_line(bytes, address, needs.past_stores);
    let Some(entry) = line.first() else { return first(stop) };
    let mut best = first(stop);
    best.entered_again = inner.reaches(address, address);
    let at_entry = cost_of(&entry.instruction, bytes, address, costs);
    let cheapest = cheapest(costs);
    let mut untouched = is_empty(at_entry.kind);
    for step in line.iter().skip(1) {
        if best.here.as_ref().unwrap_or(&at_entry).cost_ns * MAX_COST_RATIO <= cheapest {
            stop = Stop::Cheapest;
            break;
        }
        if needs.at_return && step.before.stack() != 0 {
            if !matches!(stop, Stop::ArgumentLost(_)) {
                stop = Stop::ReturnProbe;
            }
            break;
        }
        let here = cost_of(&step.instruction, bytes, address, costs);
        let best_ns = best.here.as_ref().unwrap_or(&at_entry).cost_ns;
        let eligible = is_eligible(here.kind, untouched);
        untouched &= is_empty(here.kind);
        if !eligible || here.cost_ns >= best_ns * MAX_COST_RATIO {
            continue;
        }
        let Some(locations) = locations(&step.before, needs) else {
            let lost = needs
                .arguments()
                .find(|argument| location(&step.before, *argument, needs).is_none());
            stop = lost.map_or(stop, Stop::ArgumentLost);
            continue;
        };
        let (second, at) = (entry.instruction.next_ip(), step.instruction.ip());
        let symbol = function.symbols.partition_point(|symbol| *symbol < second);
        let named = function.symbols.get(symbol).is_some_and(|symbol| *symbol <= at);
        if named
            || inner.reaches(second, at)
            || neighbour_jumps(function.before, address, second, at)
            || follower_jumps(function.after, address + bytes.len() as u64, second, at)
            || jumps(second, at)
        {
            stop = Stop::JumpTarget;
            break;
        }
        // A jump to here from further on would leave the stack unbalanced if the line goes on to move its
        // pointer: no compiler makes one.
        if inner.indirect && end.stack() == step.before.stack() {
            stop = Stop::UnknownJump;
            break;
        }
        best = Choice {
            offset: (at - address) as u32,
            here: Some(here),
            locations,
            stack_moved: u32::try_from(-step.before.stack()).unwrap_or_default(),
            ..best
        };
    }
    Choice { stop, ..best }
}

/// One instruction of the straight line.
struct Step {
    instruction: Instruction,
    /// What is known before it is executed.
    before: State,
}

/// The instructions that every call executes, one after the other, up to the first branch.
struct Line {
    steps: Vec<Step>,
    /// What is known where it ends.
    end: State,
    /// What ended it.
    stop: Stop,
}

fn straight_line(bytes: &[u8], address: u64, past_stores: bool) -> Line {
    let mut line = Line { steps: Vec::new(), end: State::at_entry(), stop: Stop::TooLong };
    let mut factory = InstructionInfoFactory::new();
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    while decoder.can_decode() && line.steps.len() < MAX_LINE {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            line.stop = Stop::Undecodable;
            break;
        }
        line.steps.push(Step { instruction, before: line.end.clone() });
        let mut next = line.end.clone();
        if let Err(stop) = next.step(&instruction, &mut factory, past_stores) {
            line.stop = stop;
            break;
        }
        line.end = next;
    }
    line
}

/// What a hit costs at best behind a function's first instruction.
fn cheapest(costs: &Costs) -> f64 {
    let kinds = InstructionKind::ALL.into_iter().filter(|kind| is_eligible(*kind, true));
    kinds.map(|kind| costs.entry(kind)).fold(f64::INFINITY, f64::min)
}

fn location(state: &State, argument: u8, needs: Needs) -> Option<Location> {
    let found = match state.find(argument)? {
        Found::Register(number) => Location::Register(number),
        Found::Stack(offset) => Location::Stack(i16::try_from(offset).ok()?),
    };
    let own = Location::Register(*ARGUMENTS.get(argument as usize)?);
    (!needs.at_return || found == own).then_some(found)
}

/// Where the needed arguments are; `None` where one is nowhere.
fn locations(state: &State, needs: Needs) -> Option<[Option<Location>; 6]> {
    let mut all = [None; 6];
    for argument in needs.arguments() {
        all[argument as usize] = Some(location(state, argument, needs)?);
    }
    Some(all)
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod executed_tests;
#[cfg(test)]
mod tests;

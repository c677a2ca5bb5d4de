//! Which instruction of its function each probe of a plan goes to.
//!
//! [`mod@crate::plan::site`] chooses for one function; this gathers what it needs of the object's file,
//! asks it once for all probes of a function, writes the answer into the probes and their specs, and says
//! which ones stay expensive. Called by `build` when all probes are planned, and before by `either`, which wants
//! to know what a probe would cost. [`fall_back`] takes a choice back that the kernel refuses.

use std::{cell::OnceCell, collections::BTreeMap};

use drainprof_common::spec::{ArgLocation, ProbeSpec, flags, op};
use drainprof_process::{Elf, ElfCode, Image, elf::readable, printable};
use drainprof_profile::{Finding, Phase, Role};

use super::{
    cost::{Costs, InstructionKind, Treatment},
    model::PlannedProbe,
    site::{
        self, Choice, FarJumps, Function, Location, MAX_FUNCTION, NEIGHBOUR, Needs, Stop, choose,
    },
};

/// Most bytes of code that are searched for jumps (the largest programs have 300 MB of it).
const MAX_CODE_BYTES: u64 = 512 << 20;
/// How many times an ordinary hit one must cost to be reported as expensive.
const EXPENSIVE_RATIO: f64 = 4.0;
/// Most probes that one finding names.
const MAX_NAMED: usize = 8;

/// Which instructions of functions are considered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sites {
    /// Each function's first.
    Entry,
    /// The cheapest at which everything that is needed is still known.
    #[default]
    Cheapest,
}

/// What a probe computes from: its entry side, and its return side with what the entry has kept.
#[must_use]
pub fn needs(spec: &ProbeSpec) -> Needs {
    let side = |start: u16, len: u16| spec.code.iter().skip(start.into()).take(len.into());
    let code =
        side(spec.entry_start, spec.entry_len).chain(side(spec.return_start, spec.return_len));
    let past_stores = spec.flags & flags::UNSHARED != 0;
    code.fold(Needs { past_stores, ..Needs::default() }, |needs, insn| match insn.op {
        op::ARG if insn.arg < 6 => Needs { args: needs.args | 1 << insn.arg, ..needs },
        op::CALLER => Needs { caller: true, ..needs },
        _ => needs,
    })
}

/// What a probe asks of its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) role: Role,
    pub(super) phase: Phase,
    pub(super) spec: &'a ProbeSpec,
    /// It is a USDT probe, which has its one instruction.
    pub(super) is_usdt: bool,
}

impl<'a> From<&'a PlannedProbe> for Ask<'a> {
    fn from(probe: &'a PlannedProbe) -> Self {
        let is_usdt = probe.site.usdt.is_some();
        Self { role: probe.role, phase: probe.phase, spec: &probe.spec, is_usdt }
    }
}

/// Chooses instructions in the objects of one process. Keeps what it has read of them.
#[derive(Debug)]
pub(super) struct Placer<'a> {
    image: &'a Image,
    costs: &'a Costs,
    sites: Sites,
    choosers: BTreeMap<(u64, u64), Chooser<'a>>,
}

impl<'a> Placer<'a> {
    pub(super) const fn new(image: &'a Image, costs: &'a Costs, sites: Sites) -> Self {
        Self { image, costs, sites, choosers: BTreeMap::new() }
    }

    /// Nanoseconds of a call of the function at `entry_offset` of the object `inode`, if this probe alone were
    /// in it; `None` where its code cannot be read.
    pub(super) fn cost(
        &mut self,
        inode: (u64, u64),
        entry_offset: u64,
        ask: Ask<'_>,
    ) -> Option<f64> {
        let choice = self.choose(inode, entry_offset, &[ask]);
        Some(self.costs.call(ask.phase == Phase::Return, choice.here.as_ref()?.cost_ns))
    }

    /// One place for all: each further place would be one more trap in every call.
    fn choose(&mut self, inode: (u64, u64), entry_offset: u64, asks: &[Ask<'_>]) -> Choice {
        let nothing = Needs { past_stores: true, ..Needs::default() };
        let together = asks.iter().fold(nothing, |all, ask| {
            let opens = matches!(ask.role, Role::Open | Role::Reset | Role::Move | Role::Alloc);
            let at_return = ask.phase == Phase::Return;
            all.and(needs(ask.spec)).and(Needs { caller: opens, at_return, ..nothing })
        });
        let kept = match self.sites {
            _ if asks.iter().any(|ask| ask.is_usdt) => Some(Stop::Usdt),
            Sites::Entry => Some(Stop::Asked),
            Sites::Cheapest => None,
        };
        let elf = self.image.objects.iter().find(|object| object.mapped.inode == inode);
        match elf.and_then(|object| object.elf.as_ref().ok()) {
            Some(elf) => {
                let chooser = self.choosers.entry(inode).or_insert_with(|| Chooser::new(elf));
                chooser.choose(entry_offset, together, self.costs, kept)
            }
            None => Choice::blind(kept.unwrap_or(Stop::Unread), together),
        }
    }

    /// Chooses the instruction of every probe.
    pub(super) fn place_all(&mut self, probes: &mut [&mut PlannedProbe]) -> Vec<Finding> {
        // A USDT probe may sit on a function's first instruction: its arguments are elsewhere all the same.
        let mut functions: BTreeMap<((u64, u64), u64, bool), Vec<usize>> = BTreeMap::new();
        for (index, probe) in probes.iter().enumerate() {
            let is_usdt = probe.site.usdt.is_some();
            let key = (probe.site.inode, probe.site.entry_offset, is_usdt);
            functions.entry(key).or_default().push(index);
        }
        let mut findings = Vec::new();
        for ((inode, entry_offset, is_usdt), members) in functions {
            let asks: Vec<_> = members.iter().map(|&index| Ask::from(&*probes[index])).collect();
            let mut choice = self.choose(inode, entry_offset, &asks);
            if is_usdt && let Some(chooser) = self.choosers.get(&inode) {
                choice = chooser.at_usdt(entry_offset, choice, self.costs);
            }
            if choice.entered_again {
                findings.extend(members.first().map(|&index| entered_again(probes[index])));
            }
            for index in members {
                take(probes[index], &choice);
            }
        }
        findings.extend(expensive(probes, self.costs));
        findings
    }
}

/// The probe on its function's first instruction, for where the kernel refuses the one that was chosen.
/// `None` if it is there already, or may not sit there.
#[must_use]
pub fn fall_back(probe: &PlannedProbe) -> Option<PlannedProbe> {
    let entry = probe.choice.entry.clone();
    let unusable = entry.as_ref().is_some_and(|entry| entry.cost_ns.is_infinite());
    if probe.choice.offset == 0 || unusable {
        return None;
    }
    let choice = Choice {
        here: entry.clone(),
        entry,
        entered_again: probe.choice.entered_again,
        ..Choice::blind(Stop::Refused, needs(&probe.spec))
    };
    let mut at_entry = probe.clone();
    take(&mut at_entry, &choice);
    Some(at_entry)
}

/// Chooses instructions in the functions of one object. Keeps what it has read of it for the next one.
#[derive(Debug)]
pub struct Chooser<'a> {
    elf: &'a Elf,
    /// Its file, open since its code was first asked for; `None` where it cannot be read.
    code: OnceCell<Option<ElfCode<'a>>>,
    /// Addresses and sizes, sorted.
    symbols: OnceCell<Vec<(u64, u64)>>,
    far: OnceCell<FarJumps>,
}

impl<'a> Chooser<'a> {
    /// For the functions of `elf`.
    #[must_use]
    pub fn new(elf: &'a Elf) -> Self {
        Self { elf, code: OnceCell::new(), symbols: OnceCell::new(), far: OnceCell::new() }
    }

    /// Chooses for the function whose first instruction lies at `entry_offset` of the file; `kept` says why
    /// it must be the first one, if it must.
    #[must_use]
    pub fn choose(
        &self,
        entry_offset: u64,
        needs: Needs,
        costs: &Costs,
        kept: Option<Stop>,
    ) -> Choice {
        let elf = self.elf;
        if !cfg!(target_arch = "x86_64") {
            return Choice::blind(Stop::Machine, needs);
        }
        let Ok(address) = elf.code_at(entry_offset) else {
            return Choice::blind(Stop::Unread, needs);
        };
        let (size, inner) = self.extent(address);
        let known = size > 0 && size <= MAX_FUNCTION;
        // An instruction has at most 15 bytes.
        let Some(bytes) = self.code(address, if known { size } else { 16 }) else {
            return Choice::blind(Stop::Unread, needs);
        };
        let kept = kept.or((!known || bytes.len() < size).then_some(Stop::Size));
        if let Some(stop) = kept {
            return Choice::at_entry(&bytes, address, needs, costs, stop);
        }
        let before = address.checked_sub(NEIGHBOUR as u64);
        let before = before.and_then(|from| self.code(from, NEIGHBOUR)).unwrap_or_default();
        let before = if before.len() == NEIGHBOUR { before.as_slice() } else { &[] };
        let end = address.saturating_add(size as u64);
        let after = self.code(end, NEIGHBOUR).unwrap_or_default();
        let function = Function { bytes: &bytes, address, before, after: &after, symbols: &inner };
        choose(function, needs, costs, &|first, last| self.far_jumps(first, last))
    }

    /// Where a USDT probe goes whose note names the instruction of `own`: to the nop behind it that the kernel replaces by
    /// a call, if there is one. The note may name such a nop itself: no probe may sit on one of five bytes where its call
    /// could overwrite what lies below the stack pointer.
    fn at_usdt(&self, offset: u64, own: Choice, costs: &Costs) -> Choice {
        let mut choice = own;
        let Some(here) = &mut choice.here else { return choice };
        let function = self.elf.code_at(offset).ok().and_then(|at| Some((at, self.around(at)?)));
        let is_call = costs.treatment(here.kind) == Treatment::Call;
        if here.kind == InstructionKind::Nop5 && is_call {
            let calls = function.is_some_and(|(_, (code, start))| site::calls(&code, start));
            here.cost_ns = if calls { here.cost_ns } else { f64::INFINITY };
        } else if let (InstructionKind::Nop, Some((address, (code, start)))) = (here.kind, function)
        {
            let jumps = |first, last| self.far_jumps(first, last);
            let beside = site::call_beside((&code, start), address, costs, &jumps);
            if let Some((distance, beside)) = beside {
                return Choice { offset: distance, here: Some(beside), ..choice };
            }
        }
        choice
    }

    fn opened(&self) -> Option<&ElfCode<'a>> {
        self.code.get_or_init(|| self.elf.code().ok()).as_ref()
    }

    /// At most `size` bytes of code from an address on.
    fn code(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        self.opened()?.read(address, size).ok()
    }

    /// The code of the function around an address, and where it begins; `None` where that is not known.
    fn around(&self, address: u64) -> Option<(Vec<u8>, u64)> {
        let symbols = self.symbols.get_or_init(|| self.elf.code_symbols());
        let before = symbols.partition_point(|symbol| symbol.0 <= address);
        let (start, size) = *symbols.get(before.checked_sub(1)?)?;
        let size = usize::try_from(size).ok().filter(|size| *size <= MAX_FUNCTION)?;
        let code = self.code(start, size).filter(|_| address - start < size as u64)?;
        Some((code, start))
    }

    /// The size of the function at `address`, 0 where it is not known, and where else in it code begins.
    fn extent(&self, address: u64) -> (usize, Vec<u64>) {
        let symbols = self.symbols.get_or_init(|| self.elf.code_symbols());
        let at = symbols.partition_point(|symbol| symbol.0 < address);
        let size = symbols.get(at).filter(|own| own.0 == address).map_or(0, |own| own.1);
        let inner = symbols
            .iter()
            .skip(at + 1)
            .map(|symbol| symbol.0)
            .take_while(|other| other - address < size)
            .collect();
        (usize::try_from(size).unwrap_or(usize::MAX), inner)
    }

    fn far_jumps(&self, first: u64, last: u64) -> bool {
        if let Some(far) = self.far.get() {
            return far.reaches(first, last);
        }
        // What cannot be searched is not known to be free of jumps.
        let code = self.opened().and_then(|code| code.read_all(MAX_CODE_BYTES).ok());
        let Some(code) = code else { return true };
        let pieces = code.iter().map(|(at, bytes)| (*at, bytes.as_slice()));
        self.far.get_or_init(|| FarJumps::of(pieces)).reaches(first, last)
    }
}

/// Writes the choice into a probe and its spec.
fn take(probe: &mut PlannedProbe, choice: &Choice) {
    probe.site.file_offset = probe.site.entry_offset + u64::from(choice.offset);
    probe.choice = choice.clone();
    // Where a USDT probe's arguments are, its spec says already.
    if probe.site.usdt.is_some() {
        return;
    }
    probe.spec.stack_moved = choice.stack_moved;
    probe.spec.moved = u32::from(choice.moved());
    for (location, found) in probe.spec.arg_locations.iter_mut().zip(choice.locations) {
        *location = match found {
            Some(Location::Register(number)) => ArgLocation { register: number.into(), offset: 0 },
            Some(Location::Stack(offset)) => {
                ArgLocation { register: ArgLocation::ON_STACK, offset }
            }
            None => ArgLocation::default(),
        };
    }
}

fn entered_again(probe: &PlannedProbe) -> Finding {
    Finding {
        code: "entered_again".into(),
        message: format!(
            "{} in {} jumps back to its own first instruction (a loop, or a call to itself that the compiler \
             made a jump): each time counts as a call",
            printable(&probe.site.symbol),
            probe.site.shown_path
        ),
    }
}

/// Says which probes stay on an expensive instruction.
fn expensive(probes: &[&mut PlannedProbe], costs: &Costs) -> Option<Finding> {
    let ordinary = costs.cheapest_trap();
    let mut named = Vec::new();
    for probe in probes {
        let expensive =
            probe.choice.here.as_ref().filter(|here| here.cost_ns > ordinary * EXPENSIVE_RATIO);
        if let Some(here) = expensive {
            let text = format!(
                "{}+{:#x} `{}` {:.0} ns ({})",
                printable(readable(&probe.site.symbol)),
                probe.choice.offset,
                here.instruction,
                here.cost_ns,
                probe.choice.stop
            );
            // Several probes at one place are one trap.
            if !named.contains(&text) {
                named.push(text);
            }
        }
    }
    if named.is_empty() {
        return None;
    }
    let count = named.len();
    let probes = if count == 1 {
        "1 probe is expensive".to_owned()
    } else {
        format!("{count} probes are expensive")
    };
    named.truncate(MAX_NAMED);
    let more = count - named.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let source = if costs.measured { "measured here" } else { "assumed, not measured here" };
    Some(Finding {
        code: "expensive_site".into(),
        message: format!(
            "{probes} and no cheaper site exists; an ordinary hit costs {ordinary:.0} ns ({source}): {}{more}",
            named.join("; ")
        ),
    })
}

#[cfg(test)]
mod tests;

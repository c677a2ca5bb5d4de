//! What `arg0` … `arg5` of a profile mean at one site of a USDT probe.
//!
//! Every site has its arguments elsewhere: in a register, on the stack, in a global variable, or nowhere (a
//! constant). So a probe is rewritten for each of its sites: `arg1` becomes the expression that yields it there, whose own
//! inputs are the registers that it needs. The kernel side already fetches up to six registers for probes that do not sit on
//! a function's first instruction ([`ProbeSpec::arg_locations`]); it needs to know nothing of USDT. Pure; called by `build` and
//! `either` for each site, before the rewritten probe is compiled.

use drainprof_common::spec::{AT_SITE, ArgLocation, ProbeSpec};
use drainprof_process::{
    Elf, printable,
    usdt::{Argument, Location, arguments},
};
use drainprof_profile::{BinaryOp, Expr, Probe, ReadType, Walk};

use super::{candidates::Candidate, compile::CompileOne, site::ARGUMENTS, usdt_site::UsdtSite};

/// Registers that one probe can use.
const MAX_REGISTERS: usize = ARGUMENTS.len();

/// The specs of a probe at its sites, in their order.
pub(super) fn specs(
    elf: Option<&Elf>,
    probe: &Probe,
    sites: &[Candidate],
    compile: &CompileOne<'_>,
) -> Result<Vec<ProbeSpec>, String> {
    let mut common = None;
    sites
        .iter()
        .map(|candidate| match (&candidate.usdt, elf) {
            (Some(site), Some(elf)) => at_place(elf, probe, site, compile)
                .map_err(|why| format!("at {:#x}: {why}", candidate.file_offset)),
            // All other sites of a probe have their arguments where the calling convention puts them.
            _ => match common {
                Some(spec) => Ok(spec),
                None => compile(probe).inspect(|spec| common = Some(*spec)),
            },
        })
        .collect()
}

fn at_place(
    elf: &Elf,
    probe: &Probe,
    site: &UsdtSite,
    compile: &CompileOne<'_>,
) -> Result<ProbeSpec, String> {
    let arguments = arguments(&site.arguments);
    let mut used = [false; 6];
    probe.expressions.values().for_each(|expr| mark(expr, &mut used));
    let mut operands: [Option<&Argument>; 6] = [None; 6];
    for (index, _) in used.iter().enumerate().filter(|(_, used)| **used) {
        let argument = arguments.get(index).ok_or_else(|| {
            format!("there is no arg{index}, the probe has {} arguments here", arguments.len())
        })?;
        let argument = argument.as_ref().map_err(|why| format!("arg{index} is {why}"))?;
        check_symbol(elf, index, argument)?;
        operands[index] = Some(argument);
    }
    let registers = Registers::of(operands.into_iter().flatten())?;
    let mut rewritten = probe.clone();
    for expr in rewritten.expressions.values_mut() {
        *expr = rewrite(expr, &|index| {
            let argument = operands.get(usize::from(index)).copied().flatten();
            // All that are used were found above.
            argument.map_or(Expr::Arg(index), |argument| registers.value(argument))
        });
    }
    let mut spec = compile(&rewritten)?;
    registers.put(&mut spec);
    spec.stack_moved = AT_SITE;
    Ok(spec)
}

/// A symbol that the compiler named can have gone from the symbol tables since.
fn check_symbol(elf: &Elf, index: usize, argument: &Argument) -> Result<(), String> {
    let (Location::Memory { symbol: Some(symbol), .. } | Location::Address { symbol, .. }) =
        &argument.location
    else {
        return Ok(());
    };
    if elf.resolve(symbol).is_empty() {
        return Err(format!(
            "arg{index} is at `{}`, a symbol that {} no longer has",
            printable(symbol),
            elf.shown_path()
        ));
    }
    Ok(())
}

/// Which registers are fetched into which inputs.
struct Registers([Option<u8>; MAX_REGISTERS]);

impl Registers {
    fn of<'a>(arguments: impl Iterator<Item = &'a Argument>) -> Result<Self, String> {
        let mut needed = Vec::new();
        for argument in arguments {
            let registers = match argument.location {
                Location::Constant(_) | Location::Address { .. } => [None, None],
                Location::Register { number, .. } => [Some(number), None],
                Location::Memory { base, index, .. } => [base, index.map(|index| index.0)],
            };
            for register in registers.into_iter().flatten() {
                if !needed.contains(&register) {
                    needed.push(register);
                }
            }
        }
        // What is an argument's register by the calling convention is fetched as such, at no further cost.
        let mut slots = ARGUMENTS.map(|home| needed.contains(&home).then_some(home));
        for register in needed.iter().filter(|register| !ARGUMENTS.contains(register)) {
            let free = slots.iter_mut().find(|slot| slot.is_none()).ok_or_else(|| {
                format!(
                    "its arguments need {} registers, more than {MAX_REGISTERS}; name fewer of them",
                    needed.len()
                )
            })?;
            *free = Some(*register);
        }
        Ok(Self(slots))
    }

    /// The input that a register is fetched into.
    fn input(&self, register: u8) -> Expr {
        let slot = self.0.iter().position(|slot| *slot == Some(register));
        // All that are needed have one.
        Expr::Arg(slot.unwrap_or_default() as u8)
    }

    /// The expression that yields an argument.
    fn value(&self, argument: &Argument) -> Expr {
        let Argument { width, signed, .. } = *argument;
        match &argument.location {
            Location::Constant(value) => Expr::Const(*value),
            Location::Address { symbol, offset } => narrow(global(symbol, *offset), width, signed),
            Location::Register { number, shift: 0 } => narrow(self.input(*number), width, signed),
            Location::Register { number, shift } => {
                let shifted =
                    binary(BinaryOp::Shr, self.input(*number), Expr::Const(u64::from(*shift)));
                narrow(shifted, width, signed)
            }
            Location::Memory { base, index, symbol, offset } => {
                let index = index.map(|(register, scale)| {
                    let scale = Expr::Const(u64::from(scale));
                    binary(BinaryOp::Mul, self.input(register), scale)
                });
                let constant = match symbol {
                    Some(symbol) => Some(global(symbol, *offset)),
                    None => (*offset != 0).then_some(Expr::Const(*offset)),
                };
                let base = base.map(|register| self.input(register));
                let address = [base, index, constant]
                    .into_iter()
                    .flatten()
                    .reduce(|sum, term| binary(BinaryOp::Add, sum, term))
                    .unwrap_or(Expr::Const(*offset));
                let (read, extended) = match (width, signed) {
                    (1, _) => (ReadType::U8, !signed),
                    (2, _) => (ReadType::U16, !signed),
                    (4, true) => (ReadType::I32, true),
                    (4, false) => (ReadType::U32, true),
                    _ => (ReadType::U64, true),
                };
                let word = Expr::Read(read, Box::new(address));
                if extended { word } else { sign_extended(word, width) }
            }
        }
    }

    /// Says in a spec where its inputs are.
    fn put(&self, spec: &mut ProbeSpec) {
        spec.moved = 0;
        for (slot, register) in self.0.iter().enumerate() {
            if let Some(register) = *register
                && ARGUMENTS[slot] != register
            {
                spec.moved |= 1 << slot;
                spec.arg_locations[slot] = ArgLocation { register: register.into(), offset: 0 };
            }
        }
    }
}

fn binary(operator: BinaryOp, left: Expr, right: Expr) -> Expr {
    Expr::Binary(operator, Box::new(left), Box::new(right))
}

fn global(symbol: &str, offset: u64) -> Expr {
    let address = Expr::Var(symbol.to_owned(), 0..0);
    if offset == 0 { address } else { binary(BinaryOp::Add, address, Expr::Const(offset)) }
}

/// The low bytes of a word, extended to the whole of it.
fn narrow(word: Expr, width: u8, signed: bool) -> Expr {
    if width >= 8 {
        return word;
    }
    let kept = binary(BinaryOp::BitAnd, word, Expr::Const((1 << (8 * u32::from(width))) - 1));
    if signed { sign_extended(kept, width) } else { kept }
}

/// A word whose upper bytes are 0 with its sign in them.
fn sign_extended(word: Expr, width: u8) -> Expr {
    let sign = Expr::Const(1 << (8 * u32::from(width) - 1));
    binary(BinaryOp::Sub, binary(BinaryOp::BitXor, word, sign.clone()), sign)
}

/// Which arguments an expression names.
fn mark(expr: &Expr, used: &mut [bool; 6]) {
    if let Expr::Arg(index) = expr
        && let Some(used) = used.get_mut(usize::from(*index))
    {
        *used = true;
    }
    expr.children().for_each(|child| mark(child, used));
}

/// The expression with `argument(i)` in place of every `arg i`.
fn rewrite(expr: &Expr, argument: &dyn Fn(u8) -> Expr) -> Expr {
    let inner = |expr: &Expr| rewrite(expr, argument);
    match expr {
        Expr::Arg(index) => argument(*index),
        Expr::Const(_)
        | Expr::Ret
        | Expr::Caller
        | Expr::Var(..)
        | Expr::OffsetOf { .. }
        | Expr::It => expr.clone(),
        Expr::Read(read, address) => Expr::Read(*read, Box::new(inner(address))),
        Expr::Unary(operator, operand) => Expr::Unary(*operator, Box::new(inner(operand))),
        Expr::Binary(operator, left, right) => binary(*operator, inner(left), inner(right)),
        Expr::Walk(walk) => Expr::Walk(Box::new(Walk {
            first: inner(&walk.first),
            next: inner(&walk.next),
            each: inner(&walk.each),
            end: walk.end.as_ref().map(inner),
            max: walk.max,
        })),
    }
}

#[cfg(test)]
mod tests;

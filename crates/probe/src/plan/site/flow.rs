//! Where the values are that a function was entered with: a small data flow over a straight line.
//!
//! What is not understood is not believed: a register that an instruction writes in any way holds
//! nothing known from then on, but for the few shapes that copy a value whole. The walk ends at the
//! first thing that another thread could see (a store outside of the function's own frame), so that a
//! probe never comes after the effect that it reports. Called by `site`, once per instruction.

use std::collections::BTreeMap;

use iced_x86::{
    FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, UsedMemory,
};

use super::{location::ARGUMENTS, stop::Stop};

/// Most bytes that a frame may have: more is taken for a mistake.
const MAX_FRAME: i64 = 1 << 20;
/// Bytes below the stack pointer that signal handlers leave alone.
const RED_ZONE: i64 = 128;

/// What a register or a slot of the stack holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The argument with this number, all 64 bits.
    Argument(u8),
    /// The stack pointer at entry, plus this.
    Stack(i64),
}

/// What is known between two instructions.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// By number, in the order in which x86 encodes registers.
    registers: [Option<Value>; 16],
    /// Words of the function's own frame, by their distance from the stack pointer at entry (negative).
    slots: BTreeMap<i64, Value>,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// In the register with this number.
    Register(u8),
    /// This many bytes from the stack pointer.
    Stack(i64),
}

const RSP: usize = 4;

/// The number of a general register's full width.
fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

impl State {
    /// At a function's first instruction.
    pub(super) fn at_entry() -> Self {
        let mut registers = [None; 16];
        for (argument, register) in ARGUMENTS.iter().enumerate() {
            registers[*register as usize] = Some(Value::Argument(argument as u8));
        }
        registers[RSP] = Some(Value::Stack(0));
        Self { registers, slots: BTreeMap::new() }
    }

    /// How far the stack pointer lies from where it was at entry; 0 or less.
    pub(super) fn stack(&self) -> i64 {
        match self.registers[RSP] {
            Some(Value::Stack(offset)) => offset,
            // `step` ends the walk before this can be.
            _ => 0,
        }
    }

    /// Where argument `argument` is, its own register preferred.
    pub(super) fn find(&self, argument: u8) -> Option<Found> {
        let wanted = Some(Value::Argument(argument));
        let home = ARGUMENTS.get(argument as usize).copied()?;
        if self.registers[home as usize] == wanted {
            return Some(Found::Register(home));
        }
        if let Some(register) = self.registers.iter().position(|held| *held == wanted) {
            return Some(Found::Register(register as u8));
        }
        let stack = self.stack();
        self.slots
            .iter()
            .find(|(at, value)| Some(**value) == wanted && **at >= stack - RED_ZONE)
            .map(|(at, _)| Found::Stack(at - stack))
    }

    /// All that is known of registers, by number.
    #[cfg(test)]
    pub(super) fn known_registers(&self) -> impl Iterator<Item = (usize, Value)> {
        self.registers.iter().enumerate().filter_map(|(number, value)| Some((number, (*value)?)))
    }

    /// All that is known of the stack, by distance from the stack pointer at entry.
    #[cfg(test)]
    pub(super) fn known_slots(&self) -> impl Iterator<Item = (i64, Value)> {
        self.slots.iter().map(|(at, value)| (*at, *value))
    }

    /// Steps over `instruction`; `Err`: nothing after it can be used, and why.
    pub(super) fn step(
        &mut self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
        past_stores: bool,
    ) -> Result<(), Stop> {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return => return Err(Stop::Return),
            FlowControl::Call | FlowControl::IndirectCall => return Err(Stop::Call),
            _ => return Err(Stop::Branch),
        }
        let before = self.clone();
        let info = factory.info(instruction);
        self.forget_registers(info);
        if let Err(stop) = self.forget_slots(&before, instruction, info) {
            if !past_stores {
                return Err(stop);
            }
            // It may have been anywhere but where the return address is: a function that overwrites that does
            // not return to its caller.
            self.slots.clear();
        }
        self.learn(&before, instruction)?;
        let Some(Value::Stack(stack)) = self.registers[RSP] else { return Err(Stop::StackPointer) };
        if !(-MAX_FRAME..=0).contains(&stack) {
            return Err(Stop::StackPointer);
        }
        // What lies below the red zone can be overwritten by a signal handler at any time.
        self.slots.retain(|at, _| *at >= stack - RED_ZONE);
        Ok(())
    }

    /// Whatever is written, fully, partly or perhaps, holds nothing known.
    fn forget_registers(&mut self, info: &InstructionInfo) {
        for used in info.used_registers() {
            let only_read = matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if let Some(number) = number(used.register()).filter(|_| !only_read) {
                self.registers[number] = None;
            }
        }
    }

    /// Drops the slots that are written to; a store elsewhere ends the walk.
    fn forget_slots(
        &mut self,
        before: &Self,
        instruction: &Instruction,
        info: &InstructionInfo,
    ) -> Result<(), Stop> {
        for used in info.used_memory() {
            let only_read = matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if only_read {
                continue;
            }
            // A repeated store is as long as a register says.
            if instruction.is_string_instruction() {
                return Err(Stop::Store);
            }
            let size = used.memory_size().size();
            let size = i64::try_from(size).map_err(|_| Stop::Store)?;
            let at = before.own_address(used).ok_or(Stop::Store)?;
            // The return address and what lies above belongs to the caller; what lies below the red zone, to signal handlers.
            if size == 0 || at + size > 0 || at < before.stack() - RED_ZONE {
                return Err(Stop::Store);
            }
            self.slots.retain(|slot, _| *slot + 8 <= at || at + size <= *slot);
        }
        Ok(())
    }

    /// The address of an access, from the stack pointer at entry, where it is known.
    fn own_address(&self, used: &UsedMemory) -> Option<i64> {
        let plain = used.index() == Register::None
            && !matches!(used.segment(), Register::FS | Register::GS);
        if !plain || !used.base().is_gpr64() {
            return None;
        }
        match self.registers[used.base().number()] {
            Some(Value::Stack(base)) => base.checked_add(used.displacement().cast_signed()),
            _ => None,
        }
    }

    /// The few shapes that carry a value on whole, and those that move the stack pointer by a constant.
    fn learn(&mut self, before: &Self, instruction: &Instruction) -> Result<(), Stop> {
        let wide = |operand: u32| {
            let register = instruction.op_register(operand);
            (instruction.op_kind(operand) == OpKind::Register && register.is_gpr64())
                .then(|| register.number())
        };
        match instruction.mnemonic() {
            Mnemonic::Mov => match (wide(0), wide(1)) {
                (Some(to), Some(from)) => self.registers[to] = before.registers[from],
                (None, Some(from)) if instruction.op0_kind() == OpKind::Memory => {
                    let at = before.operand_address(instruction);
                    if let (Some(at), Some(value)) = (at, before.registers[from]) {
                        self.slots.insert(at, value);
                    }
                }
                (Some(to), None) if instruction.op1_kind() == OpKind::Memory => {
                    let at = before.operand_address(instruction);
                    self.registers[to] = at.and_then(|at| before.slots.get(&at).copied());
                }
                _ => {}
            },
            Mnemonic::Push => {
                if instruction.stack_pointer_increment() != -8 {
                    return Err(Stop::StackPointer);
                }
                let stack = before.stack() - 8;
                self.registers[RSP] = Some(Value::Stack(stack));
                if let Some(value) = wide(0).and_then(|from| before.registers[from]) {
                    self.slots.insert(stack, value);
                }
            }
            Mnemonic::Pop => {
                let stack = before.stack();
                let Some(to) = wide(0).filter(|to| *to != RSP && stack < 0) else {
                    return Err(Stop::StackPointer);
                };
                self.registers[to] = before.slots.get(&stack).copied();
                self.registers[RSP] = Some(Value::Stack(stack + 8));
            }
            Mnemonic::Sub | Mnemonic::Add if wide(0) == Some(RSP) => {
                let Some(by) = immediate(instruction) else { return Err(Stop::StackPointer) };
                let by = if instruction.mnemonic() == Mnemonic::Sub { -by } else { by };
                self.registers[RSP] = Some(Value::Stack(before.stack() + by));
            }
            Mnemonic::Lea => {
                if let (Some(to), Some(at)) = (wide(0), before.operand_address(instruction)) {
                    self.registers[to] = Some(Value::Stack(at));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The address of the memory operand, from the stack pointer at entry, where it is known.
    fn operand_address(&self, instruction: &Instruction) -> Option<i64> {
        let plain = instruction.memory_index() == Register::None
            && !matches!(instruction.memory_segment(), Register::FS | Register::GS);
        let base = instruction.memory_base();
        if !plain || !base.is_gpr64() {
            return None;
        }
        match self.registers[base.number()] {
            Some(Value::Stack(offset)) => {
                offset.checked_add(instruction.memory_displacement64().cast_signed())
            }
            _ => None,
        }
    }
}

/// A sign-extended immediate second operand of reasonable size.
fn immediate(instruction: &Instruction) -> Option<i64> {
    let kind = instruction.op1_kind();
    let known = matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64);
    known.then(|| instruction.immediate(1).cast_signed()).filter(|by| by.abs() <= MAX_FRAME)
}

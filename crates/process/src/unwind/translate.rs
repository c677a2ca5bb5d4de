//! From a row of an unwind table to a rule.
//!
//! Pure: the row says how each register of the caller is found, the rule what is followed of it. Called by
//! `cfi`.

use drainprof_common::unwind::{Rule, SavedBp, kind, signal_frame};
use gimli::{
    CfaRule, Encoding, Register, RegisterRule, UnwindContextStorage, UnwindSection, UnwindTableRow,
    X86_64,
};

use super::expression::{Base, Bytes, Value, evaluate};

/// Room for the rows of one function: registers with a rule, rows that are remembered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Storage;

impl UnwindContextStorage<usize> for Storage {
    type Rules = [(Register, RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, Self>; 8]>;
}

/// A row, and what its expressions need.
pub(super) struct Row<'a, S> {
    /// The section that the row's expressions lie in.
    pub(super) section: &'a S,
    /// What the table says.
    pub(super) found: &'a UnwindTableRow<usize, Storage>,
    /// How its expressions are written.
    pub(super) encoding: Encoding,
    /// The column of the return address.
    pub(super) return_address: Register,
    /// The table calls it the frame of a signal handler's return.
    pub(super) is_signal: bool,
    /// The code address, in the address space of the file.
    pub(super) pc: u64,
}

impl<'a, S: UnwindSection<Bytes<'a>>> Row<'_, S> {
    /// The rule that the row amounts to; [`Rule::STOP`] where it is none that can be followed.
    pub(super) fn rule(&self) -> Rule {
        self.translate().unwrap_or(Rule::STOP)
    }

    fn translate(&self) -> Option<Rule> {
        let cfa = self.cfa()?;
        // The kernel's frame stands at the stack pointer: there the interrupted stack pointer is.
        if cfa == Value::Word(Base::Sp, signal_frame::SP.cast_signed()) {
            return Some(Rule::SIGNAL);
        }
        if self.is_signal {
            return None;
        }
        match self.found.register(self.return_address) {
            Some(RegisterRule::Undefined) => return Some(Rule::START),
            Some(RegisterRule::Offset(-8)) => {}
            _ => return None,
        }
        let (kind, offset) = match cfa {
            Value::Near(Base::Sp, offset) => (kind::SP, offset),
            Value::Near(Base::Bp, offset) => (kind::BP, offset),
            Value::Word(Base::Bp, offset) => (kind::BP_WORD, offset),
            _ => return None,
        };
        Some(Rule::new(kind, i32::try_from(offset).ok()?, self.saved_bp(cfa)?))
    }

    fn cfa(&self) -> Option<Value> {
        match self.found.cfa() {
            CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => {
                Some(Value::Near(Base::Sp, *offset))
            }
            CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => {
                Some(Value::Near(Base::Bp, *offset))
            }
            CfaRule::RegisterAndOffset { .. } => None,
            CfaRule::Expression(expression) => {
                evaluate(expression.get(self.section).ok()?, self.encoding, self.pc, None)
            }
        }
    }

    /// Where the caller's frame pointer is, in a frame with this CFA.
    fn saved_bp(&self, cfa: Value) -> Option<SavedBp> {
        match self.found.register(X86_64::RBP) {
            None
            | Some(
                RegisterRule::Undefined
                | RegisterRule::SameValue
                | RegisterRule::Register(X86_64::RBP),
            ) => Some(SavedBp::Kept),
            Some(RegisterRule::Offset(offset)) => Some(SavedBp::AtCfa(offset.try_into().ok()?)),
            Some(RegisterRule::Expression(expression)) => {
                let expression = expression.get(self.section).ok()?;
                let first = Value::Near(Base::Cfa, 0);
                match (evaluate(expression, self.encoding, self.pc, Some(first))?, cfa) {
                    (Value::Near(Base::Cfa, at), _) => Some(SavedBp::AtCfa(at.try_into().ok()?)),
                    (Value::Near(Base::Bp, at), _) => Some(SavedBp::AtBp(at.try_into().ok()?)),
                    (Value::Near(Base::Sp, at), Value::Near(Base::Sp, cfa)) => {
                        Some(SavedBp::AtCfa(at.checked_sub(cfa)?.try_into().ok()?))
                    }
                    _ => None,
                }
            }
            Some(_) => None,
        }
    }
}

//! What a hit of a probe costs, by the kind of instruction that it sits on.
//!
//! The kernel treats the instruction under a probe in one of three ways: it emulates it, it executes a
//! copy of it with a single-step trap, or it replaces it by a call: a nop of five bytes from Linux 6.18 on, and on
//! later kernels one of ten bytes instead. Some it refuses. Which kinds it emulates, and what a trap costs, differs
//! between kernels, processors and hypervisors by a factor of 30. So nothing here is ranked by knowledge: the
//! calibration measures one representative of every kind on the very host, and the planner takes the cheapest.

/// Kinds of instructions that kernels treat differently.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum InstructionKind {
    /// A nop of exactly five bytes (`0f 1f 44 00 00`).
    Nop5,
    /// A nop of exactly ten bytes (`66 2e 0f 1f 84 …`), all in one page.
    Nop10,
    /// A nop of one or two bytes.
    Nop,
    /// A nop of three, four or eight bytes.
    LongNop,
    /// `push` of a register.
    Push,
    /// A relative `jmp`, `jcc` or `call`.
    Branch,
    /// `endbr64`.
    Endbr,
    /// A move between registers.
    Move,
    /// A load from or a store to memory by `mov`.
    Memory,
    /// `sub rsp, imm` and other arithmetic.
    Arithmetic,
    /// `test` and `cmp`.
    Compare,
    /// `lea`.
    Lea,
    /// `ret`.
    Return,
    /// Everything else.
    Other,
}

impl InstructionKind {
    /// All kinds, in the order in which tables list them.
    pub const ALL: [Self; 14] = [
        Self::Nop5,
        Self::Nop10,
        Self::Nop,
        Self::LongNop,
        Self::Push,
        Self::Branch,
        Self::Endbr,
        Self::Move,
        Self::Memory,
        Self::Arithmetic,
        Self::Compare,
        Self::Lea,
        Self::Return,
        Self::Other,
    ];

    /// The kind's name in tables and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop5 => "nop5",
            Self::Nop10 => "nop10",
            Self::Nop => "nop",
            Self::LongNop => "long nop",
            Self::Push => "push",
            Self::Branch => "branch",
            Self::Endbr => "endbr64",
            Self::Move => "mov",
            Self::Memory => "load/store",
            Self::Arithmetic => "arithmetic",
            Self::Compare => "compare",
            Self::Lea => "lea",
            Self::Return => "ret",
            Self::Other => "other",
        }
    }

    /// Whether kernels are known to replace it by a call.
    #[must_use]
    pub const fn can_be_call(self) -> bool {
        matches!(self, Self::Nop5 | Self::Nop10)
    }
}

/// How the kernel gets over the instruction under a probe, as the measured cost shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Treatment {
    /// Replaced by a call: no trap at all.
    Call,
    /// Emulated after one trap.
    Emulated,
    /// A copy is single-stepped: a second trap.
    SingleStepped,
    /// No probe may sit there: the kernel refuses it, or what it does harms the process.
    Unusable,
}

impl Treatment {
    /// The treatment's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Emulated => "emulated",
            Self::SingleStepped => "single-stepped",
            Self::Unusable => "unusable",
        }
    }
}

/// What a hit costs on this host, in nanoseconds of the target's time, drainprof's own work not included.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Costs {
    /// Per kind of instruction, in the order of [`InstructionKind::ALL`]; `None` where no probe may sit on it.
    pub entry_ns: [Option<f64>; InstructionKind::ALL.len()],
    /// What a probe at the same function's return adds to the one at its entry.
    pub return_ns: f64,
    /// Whether this was measured here; else the figures are those of other machines.
    pub measured: bool,
}

impl Costs {
    /// Figures of other machines, for where nothing was measured: Linux 6.18 on a virtual machine. They
    /// rank kinds as the kernel's source does (`arch/x86/kernel/uprobes.c`), no more. Nops that may be replaced by calls
    /// are left out: on some kernels that harms the process.
    #[must_use]
    pub const fn assumed() -> Self {
        let mut entry_ns = [Some(18_500.0); InstructionKind::ALL.len()];
        entry_ns[InstructionKind::Nop5 as usize] = None;
        entry_ns[InstructionKind::Nop10 as usize] = None;
        entry_ns[InstructionKind::Nop as usize] = Some(550.0);
        entry_ns[InstructionKind::Push as usize] = Some(550.0);
        entry_ns[InstructionKind::Branch as usize] = Some(550.0);
        Self { entry_ns, return_ns: 290.0, measured: false }
    }

    /// Nanoseconds of a call through a probe whose hit at the entry costs `entry_ns`.
    #[must_use]
    pub const fn call(&self, at_return: bool, entry_ns: f64) -> f64 {
        if at_return { entry_ns + self.return_ns } else { entry_ns }
    }

    /// Nanoseconds of a hit on an instruction of this kind; infinite where no probe may sit on it.
    #[must_use]
    pub const fn entry(&self, kind: InstructionKind) -> f64 {
        match self.entry_ns[kind as usize] {
            Some(cost) => cost,
            None => f64::INFINITY,
        }
    }

    /// The least that an ordinary hit costs: on the kinds that every kernel probes by traps.
    #[must_use]
    pub fn cheapest_trap(&self) -> f64 {
        let kinds = InstructionKind::ALL.into_iter().filter(|kind| !kind.can_be_call());
        kinds.map(|kind| self.entry(kind)).fold(f64::INFINITY, f64::min)
    }
}

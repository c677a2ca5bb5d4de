//! Why the search for a site ended.

/// What ended the search, or kept it from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// A jump, conditional or not.
    Branch,
    /// A call.
    Call,
    /// The function returns.
    Return,
    /// Something is stored that others can see.
    Store,
    /// The stack pointer is moved by something that is not followed.
    StackPointer,
    /// Bytes that are no known instruction.
    Undecodable,
    /// Something can jump to a place behind the first instruction.
    JumpTarget,
    /// A jump whose targets are not known could lead to a place behind the first instruction.
    UnknownJump,
    /// A needed argument is no longer anywhere.
    ArgumentLost(u8),
    /// Nothing that could follow would be cheaper.
    Cheapest,
    /// The line is longer than is looked at.
    TooLong,
    /// The function's size is not known, or larger than is decoded, so that its jumps are not known.
    Size,
    /// Its bytes cannot be read.
    Unread,
    /// The stack pointer moves, and a probe at the function's return needs it where it was.
    ReturnProbe,
    /// It is code of another processor than x86-64.
    Machine,
    /// It was asked for (`--sites entry`).
    Asked,
    /// The kernel refused a probe at the place that was chosen.
    Refused,
    /// A USDT probe is one instruction.
    Usdt,
}

impl std::fmt::Display for Stop {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Branch => "the function branches",
            Self::Call => "the function calls another one",
            Self::Return => "the function returns",
            Self::Store => "the function writes what others can see",
            Self::StackPointer => "the stack pointer cannot be followed further",
            Self::Undecodable => "the function cannot be decoded",
            Self::JumpTarget => "something jumps behind the first instruction",
            Self::UnknownJump => {
                "a jump with unknown targets could lead behind the first instruction"
            }
            Self::ArgumentLost(argument) => {
                return write!(out, "arg{argument} is not kept any longer");
            }
            Self::Cheapest => "nothing is cheaper",
            Self::TooLong => "the straight line is longer than is examined",
            Self::Size => "the function's size is not known, or too large",
            Self::Unread => "the function's bytes cannot be read",
            Self::ReturnProbe => {
                "the stack pointer moves, which a probe at the return needs where it was"
            }
            Self::Machine => "only code of x86-64 is examined",
            Self::Asked => "the first instruction was asked for",
            Self::Refused => "the kernel refuses a probe at the place that was chosen",
            Self::Usdt => "a USDT probe is one instruction",
        })
    }
}

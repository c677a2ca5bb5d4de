//! Steps that another CPU can get in the way of, and trying them again.

use drainprof_common::{granule::IndexWord, loss::Loss};

use crate::{global::Scalar, losses};

/// What the kernel says of an entry that another CPU has made first.
pub(super) const EEXIST: i32 = -17;

/// What a step came to that another CPU may get in the way of.
pub(crate) enum Step<T> {
    /// It is done.
    Done(T),
    /// Another CPU was first: try again.
    Again,
    /// It is a loss, which is counted.
    Lost,
}

const AGAIN: u64 = 1 << 62;
const LOST: u64 = 1 << 61;

macro_rules! steps {
    ($($type:ty: $into:expr, $from:expr;)*) => {$(
        impl Scalar for Step<$type> {
            type Raw = u64;

            #[inline(always)]
            fn into_raw(self) -> u64 {
                match self {
                    Self::Done(answer) => $into(answer),
                    Self::Again => AGAIN,
                    Self::Lost => LOST,
                }
            }

            #[inline(always)]
            fn from_raw(raw: u64) -> Self {
                if raw & AGAIN != 0 {
                    Self::Again
                } else if raw & LOST != 0 {
                    Self::Lost
                } else {
                    Self::Done($from(raw))
                }
            }
        }
    )*};
}

steps! {
    (): |()| 0, |_| ();
    u64: |number| number, |raw| raw;
    IndexWord: IndexWord::raw, IndexWord::from_raw;
}

/// How often a step is tried before it counts as a loss.
const TRIES: usize = 8;

/// Repeats what another CPU got in the way of; `None`: a counted loss.
#[inline(always)]
pub(super) fn repeat<T>(step: impl Fn() -> Step<T>) -> Option<T> {
    for _ in 0..TRIES {
        match step() {
            Step::Done(answer) => return Some(answer),
            Step::Lost => return None,
            Step::Again => {}
        }
    }
    losses::count(Loss::AllocRaced);
    None
}

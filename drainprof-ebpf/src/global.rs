//! Global functions: the verifier follows each of them once per program, instead of once per path of each caller, and
//! knows nothing of what they are passed.
//!
//! It takes numbers and pointers only. So a typed function is called through a shell that turns its arguments and its
//! answer into numbers and back: sentinels live in this file and in the `Scalar` of the type that they stand for.

use drainprof_common::{
    granule::{Generation, IndexWord, ParentWord, SlotNumber},
    mode::Mode,
    state::State,
};

/// What passes the border of a global function as a number or a pointer.
pub(crate) trait Scalar {
    /// The number or pointer.
    type Raw;

    fn into_raw(self) -> Self::Raw;
    fn from_raw(raw: Self::Raw) -> Self;
}

macro_rules! scalars {
    ($($type:ty as $raw:ty: $into:expr, $from:expr;)*) => {$(
        impl crate::global::Scalar for $type {
            type Raw = $raw;

            #[inline(always)]
            fn into_raw(self) -> $raw {
                $into(self)
            }

            #[inline(always)]
            fn from_raw(raw: $raw) -> Self {
                $from(raw)
            }
        }
    )*};
}
pub(crate) use scalars;

scalars! {
    u32 as u32: |raw| raw, |raw| raw;
    u64 as u64: |raw| raw, |raw| raw;
    bool as u32: u32::from, |raw| raw != 0;
    () as u32: |()| 0, |_| ();
    SlotNumber as u32: SlotNumber::number, SlotNumber::new;
    Generation as u32: Generation::number, Generation::new;
    IndexWord as u64: IndexWord::raw, IndexWord::from_raw;
    ParentWord as u64: ParentWord::raw, ParentWord::from_raw;
    State as u64: State::raw, State::from_raw;
    Mode as u32: Mode::raw, Mode::from_raw;
    // An index of a table; its last is never used.
    Option<u32> as u32: |index: Option<u32>| index.unwrap_or(u32::MAX), |raw| if raw == u32::MAX { None } else { Some(raw) };
}

impl<T> Scalar for *const T {
    type Raw = Self;

    #[inline(always)]
    fn into_raw(self) -> Self {
        self
    }

    #[inline(always)]
    fn from_raw(raw: Self) -> Self {
        raw
    }
}

impl<T> Scalar for *mut T {
    type Raw = Self;

    #[inline(always)]
    fn into_raw(self) -> Self {
        self
    }

    #[inline(always)]
    fn from_raw(raw: Self) -> Self {
        raw
    }
}

/// `fn name(argument: Type, …) -> Answer = body;` makes the typed function `body` a global one that is called `name`.
macro_rules! global {
    ($($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) -> $answer:ty = $body:ident;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        $vis fn $name($($arg: $type),*) -> $answer {
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(
                $($arg: <$type as crate::global::Scalar>::Raw),*
            ) -> <$answer as crate::global::Scalar>::Raw {
                crate::global::Scalar::into_raw($body(
                    $(<$type as crate::global::Scalar>::from_raw($arg)),*
                ))
            }
            <$answer as crate::global::Scalar>::from_raw($name(
                $(crate::global::Scalar::into_raw($arg)),*
            ))
        }
    )*};
}
pub(crate) use global;

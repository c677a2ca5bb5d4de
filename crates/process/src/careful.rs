//! Libraries that panic on hostile bytes. Called by `elf::demangle` and `symbolize::object`.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `ask` says; nothing where it panics, as arithmetic on hostile numbers does in some builds.
pub(crate) fn careful<T>(ask: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(ask)).ok().flatten()
}

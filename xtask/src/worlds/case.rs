//! What a case is: a program in some worlds, and what of its census is compared with what it says of itself.

use super::compare::Check;
use super::roots::Root;
use super::running::Running;
use super::workshop::Workshop;
use super::world::World;

/// A program in some worlds.
pub(super) struct Case {
    /// What an argument of the command takes.
    pub(super) name: &'static str,
    /// Where it runs.
    pub(super) worlds: &'static [World],
    /// Whether it is of the quick third.
    pub(super) quick: bool,
    pub(super) program: Program,
    /// The allocator of the heap that is compared.
    pub(super) heap: &'static str,
    pub(super) checks: &'static [Check],
    /// Whether it is asked to trim at the end, and what that gives back is compared with the prediction.
    pub(super) trims: bool,
    /// What `drainprof why` must answer.
    pub(super) answer: Option<&'static str>,
}

/// What runs.
pub(super) enum Program {
    /// `tests/targets/worlds/heap.c`, compiled here, with the library preloaded whose name begins so.
    Heap {
        arguments: &'static [&'static str],
        preload: Option<&'static str>,
        environment: &'static [&'static str],
    },
    /// The same, compiled in the world, with all libraries in itself. The Debian package names the version where the
    /// library does not.
    Alone {
        compiler: &'static [&'static str],
        threads: &'static str,
        package: Option<&'static str>,
    },
    /// A script of `tests/targets/worlds/`.
    Script { interpreter: &'static str, script: &'static str, environment: &'static [&'static str] },
    /// `tests/targets/worlds/heap.go`, compiled by a Go of `PyPI`'s, or by the world's own.
    Go { version: Option<&'static str>, environment: &'static [&'static str] },
    /// A server with work done.
    Server { program: &'static str, start: fn(&Workshop<'_>, &Root) -> anyhow::Result<Running> },
    /// No census, but a profile of a malloc, on `tests/targets/malloc_family.cc` with a library preloaded. The library
    /// is called so, and of the first of these packages.
    Profile {
        profile: &'static str,
        preload: &'static str,
        library: &'static str,
        packages: &'static [&'static str],
    },
    /// The profile of BIND, on its own server.
    Bind,
}
